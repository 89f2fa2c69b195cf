"""Makes crates/audit/data/zoo.mlmodel.zst: public models as programs without weights.

    python3 tests/oracle/make_zoo.py                    # all subjects of zoo_*.py
    python3 tests/oracle/make_zoo.py --list             # names only
    python3 tests/oracle/make_zoo.py --only 'resnet*'   # these, to --out or nowhere
    python3 tests/oracle/make_zoo.py --check            # compare with the file that is there

The file is one `Model` of an ML Program with a function per subject. Arrays of more than 256 bytes
and whatever coremltools would put into a weight file become references to `@zeros`: type and shape
stay, values go. Names are short and sequential, so that the file is small.

Needs tests/oracle/zoo-requirements.txt. `--cache FOLDER` keeps converted subjects between runs.
"""

import argparse
import fnmatch
import gc
import hashlib
import importlib
import logging
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")

import coremltools as ct
import numpy as np
import torch
import zstandard
from coremltools import proto
from coremltools.converters.mil.backend.mil import load
from coremltools.converters.mil.mil.passes.pass_pipeline import PassPipeline, PassPipelineManager

import zoo_compress

HERE = Path(__file__).resolve().parent
PATH = HERE.parents[1] / "crates" / "audit" / "data" / "zoo.mlmodel.zst"
LARGEST_IMMEDIATE = 256
VERSIONS = {"iOS15": 6, "iOS16": 7, "iOS17": 8, "iOS18": 9, "macOS15": 9}


def subjects():
    """Name -> (module, Subject) of all zoo_*.py that have SUBJECTS."""
    found = {}
    for path in sorted(HERE.glob("zoo_*.py")):
        module = importlib.import_module(path.stem)
        for name, subject in getattr(module, "SUBJECTS", {}).items():
            assert name not in found, f"{path.name}: {name} is a subject of another module"
            found[name] = (module, subject)
    return dict(sorted(found.items()))


class Exporter(load.MILProtoExporter):
    """Writes no weights: an array is its type, its shape and `@zeros`."""

    def get_milproto_value(self, var):
        value = var.val
        if not isinstance(value, np.ndarray) or value.dtype.kind in "US":
            return load.create_immediate_value(var)
        if value.nbytes > LARGEST_IMMEDIATE or load.should_use_weight_file(
            value, self.specification_version
        ):
            return zeros(var)
        return load.create_immediate_value(var)


def zeros(var):
    """A reference to `@zeros` in the type and shape of the var."""
    return load.create_file_value_tensor(
        file_name="@zeros",
        offset=0,
        dim=var.val.shape,
        data_type=load.types_to_proto_primitive(var.sym_type.get_primitive()),
    )


def keep_strides(cast):
    """A cast of a stretched array stays one number, where numpy would write all of them."""

    def stretched(cls, var, dtype):
        value = var.val
        if isinstance(value, np.ndarray) and value.size > 1 and not any(value.strides):
            one = value.reshape(-1)[:1] if value.ndim == 0 else value[(slice(0, 1),) * value.ndim]
            kind = load.types.nptype_from_builtin(load.types.string_to_builtin(dtype))
            return np.broadcast_to(one.astype(kind), value.shape)
        return cast(cls, var, dtype)

    return classmethod(stretched)


def convert(subject):
    """The subject as a Function of the MIL protobuf, with all names of coremltools."""
    with torch.no_grad():
        module, inputs = subject.build()
        examples = tuple(example(each) for each in inputs)
        traced = torch.jit.trace(module.eval(), examples, check_trace=False, strict=False)
    pipeline = PassPipeline.DEFAULT
    # Equal numbers do not mean equal weights here.
    pipeline.remove_passes({"common::const_deduplication"})
    program = ct.convert(
        traced,
        inputs=inputs,
        outputs=subject.outputs,
        states=subject.states,
        convert_to="milinternal",
        minimum_deployment_target=getattr(ct.target, subject.target),
        compute_precision=getattr(ct.precision, subject.precision.upper()),
        pass_pipeline=pipeline,
    )
    zoo_compress.compress(program, subject.compress)
    backend = PassPipeline.get_pipeline("backend_mlprogram")
    backend.remove_passes({"common::const_deduplication"})
    PassPipelineManager.apply_pipeline(program, backend)
    version = VERSIONS[subject.target]
    exporter = Exporter(prog=program, weights_dir="", specification_version=version)
    return exporter.export().functions["main"]


def example(kind):
    """Zeros for tracing: the shape and type of an input."""
    shape = tuple(kind.shape.shape)
    integer = kind.dtype is not None and load.types.is_int(kind.dtype)
    return torch.zeros(shape, dtype=torch.int32 if integer else torch.float32)


class Renamer:
    """Short sequential names for the values and ops of one function; equal small consts merge."""

    def __init__(self, function):
        self.names = {}
        self.consts = {}
        for each in function.inputs:
            each.name = self.new(each.name)
        for block in function.block_specializations.values():
            self.block(block)

    def new(self, name):
        self.names[name] = f"v{len(self.names) + 1}"
        return self.names[name]

    def block(self, block):
        for each in block.inputs:
            each.name = self.new(each.name)
        kept = [op for op in block.operations if self.op(op)]
        del block.operations[:]
        block.operations.extend(kept)
        block.outputs[:] = [self.names[name] for name in block.outputs]

    def op(self, op):
        """Renames the op; whether it stays."""
        op.attributes.pop("name", None)
        if op.type == "const" and op.attributes["val"].HasField("immediateValue"):
            value = op.attributes["val"].SerializeToString(deterministic=True)
            if value in self.consts:
                self.names[op.outputs[0].name] = self.consts[value]
                return False
            self.consts[value] = self.new(op.outputs[0].name)
            op.outputs[0].name = self.consts[value]
            return True
        for argument in op.inputs.values():
            for binding in argument.arguments:
                if binding.HasField("name"):
                    binding.name = self.names[binding.name]
        for each in op.outputs:
            each.name = self.new(each.name)
        for block in op.blocks:
            self.block(block)
        return True


def operations(block):
    for op in block.operations:
        yield op
        for inner in op.blocks:
            yield from operations(inner)


def count(function):
    """Ops without consts and constexprs, and numbers in weights."""
    ops, numbers = 0, 0
    for block in function.block_specializations.values():
        for op in operations(block):
            if op.type == "const":
                value = op.attributes["val"]
                if value.HasField("blobFileValue"):
                    numbers += size(value.type.tensorType)
            elif op.type.startswith("constexpr_"):
                numbers += sum(size(each.type.tensorType) for each in op.outputs)
            else:
                ops += 1
    return ops, numbers


def size(kind):
    return int(np.prod([each.constant.size for each in kind.dimensions], dtype=np.int64))


def cached(folder, name, module, subject):
    """The renamed Function of a subject, from the folder where it is there."""
    if folder is None:
        return made(subject)
    sources = [Path(module.__file__), HERE / "make_zoo.py", HERE / "zoo_case.py", HERE / "zoo_compress.py"]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    path = folder / f"{name}.{key}.pb"
    if path.exists():
        return proto.MIL_pb2.Function.FromString(path.read_bytes())
    function = made(subject)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}.*.pb"):
        old.unlink()
    path.write_bytes(function.SerializeToString(deterministic=True))
    return function


def made(subject):
    function = convert(subject)
    Renamer(function)
    return function


def packed(functions):
    """The bytes of the file."""
    model = proto.Model_pb2.Model()
    model.specificationVersion = max(VERSIONS.values())
    model.mlProgram.version = 1
    for name, function in sorted(functions.items()):
        model.description.functions.add().name = name
        model.mlProgram.functions[name].CopyFrom(function)
    model.description.defaultFunctionName = min(functions)
    plain = model.SerializeToString(deterministic=True)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        22, window_log=27, enable_ldm=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(plain)


def report(name, subject, function, seconds):
    ops, numbers = count(function)
    line = f"{name}: {ops} ops, {numbers / 1e6:.2f} M weights, {seconds:.1f} s"
    if subject.n_ops is not None and subject.n_ops != ops:
        line += f"; the source has {subject.n_ops} ops"
    if subject.n_params and abs(numbers / subject.n_params - 1) > 0.02:
        line += f"; the source has {subject.n_params / 1e6:.2f} M weights"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="pattern of names, with * and ?")
    parser.add_argument("--module", default="*", help="pattern of modules, such as zoo_vision*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    parser.add_argument("--out", type=Path, help="file to write instead of the repository's")
    parser.add_argument("--cache", type=Path, help="folder of converted subjects")
    args = parser.parse_args()
    chosen = {
        name: found
        for name, found in subjects().items()
        if fnmatch.fnmatch(name, args.only) and fnmatch.fnmatch(found[0].__name__, args.module)
    }
    if args.list:
        print("\n".join(chosen))
        return
    functions, failed = {}, []
    for name, (module, subject) in chosen.items():
        start = time.monotonic()
        try:
            functions[name] = cached(args.cache, name, module, subject)
            report(name, subject, functions[name], time.monotonic() - start)
        except Exception as error:
            failed.append(name)
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"{name}: FAILED: {type(error).__name__}: {str(error)[:400]} ({where.name})", flush=True)
        gc.collect()
    finish(args, functions)
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} subjects failed: {', '.join(failed)}")


def finish(args, functions):
    data = packed(functions)
    whole = args.only == "*" and args.module == "*"
    path = args.out or (PATH if whole else None)
    if args.check:
        if (args.out or PATH).read_bytes() != data:
            sys.exit(f"{args.out or PATH} is not what this script makes")
    elif path is not None:
        path.write_bytes(data)
    print(f"{len(functions)} functions, {len(data)} bytes{'' if path is None else f' in {path.name}'}")


if __name__ == "__main__":
    main()
