"""Makes crates/audit/data/zoo.mlmodel.zst: public models as programs without weights.

    python3 tests/oracle/make_zoo.py                    # all subjects of zoo_*.py
    python3 tests/oracle/make_zoo.py --list             # names only
    python3 tests/oracle/make_zoo.py --only 'resnet*'   # these, to --out or nowhere
    python3 tests/oracle/make_zoo.py --only 'resnet*' --replace  # these in the file that is there
    python3 tests/oracle/make_zoo.py --check            # compare with the file that is there

The file is one `Model` of an ML Program with a function per subject. Arrays of more than 256 bytes
and whatever coremltools would put into a weight file become references to `@zeros`: type and shape
stay, values go. Values have no names, so that the file is small and layers that are alike have the
same bytes: an argument says how many values before it was made, or, of a small constant, which of
all values it is, with `=` before the number.

A whole run takes about an hour. `--cache FOLDER` keeps converted subjects between runs. `--replace`
converts only the chosen subjects; all others stay in the file as they are. Needs
tests/oracle/zoo-requirements.txt; with `--module`, only what that module imports.
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

import zstandard
from coremltools import proto

import zoo_convert

HERE = Path(__file__).resolve().parent
PATH = HERE.parents[1] / "crates" / "audit" / "data" / "zoo.mlmodel.zst"


def subjects(pattern="*"):
    """Name -> (module, Subject) of all zoo_*.py of the pattern that have SUBJECTS."""
    found = {}
    for path in sorted(HERE.glob("zoo_*.py")):
        if not fnmatch.fnmatch(path.stem, pattern):
            continue
        module = importlib.import_module(path.stem)
        for name, subject in getattr(module, "SUBJECTS", {}).items():
            assert name not in found, f"{path.name}: {name} is a subject of another module"
            found[name] = (module, subject)
    return dict(sorted(found.items()))


def cached(folder, name, module, subject):
    """The renamed Function of a subject, from the folder where it is there."""
    if folder is None:
        return zoo_convert.function(subject)
    shared = [HERE / f"zoo_{part}.py" for part in ("case", "compress", "convert")]
    sources = [Path(module.__file__), *shared]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    path = folder / f"{name}.{key}.pb"
    if path.exists():
        return proto.MIL_pb2.Function.FromString(path.read_bytes())
    function = zoo_convert.function(subject)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}.*.pb"):
        old.unlink()
    path.write_bytes(function.SerializeToString(deterministic=True))
    return function


def each_value(function, argument, result):
    """Replaces names of arguments by `argument`, of results by `result`, given the op or None."""

    def walk(block):
        for each in block.inputs:
            each.name = result(each.name, None)
        for op in block.operations:
            for key in sorted(op.inputs):
                for binding in op.inputs[key].arguments:
                    if binding.HasField("name"):
                        binding.name = argument(binding.name)
            for inner in op.blocks:
                walk(inner)
            for each in op.outputs:
                each.name = result(each.name, op)
        block.outputs[:] = [argument(name) for name in block.outputs]

    for each in function.inputs:
        each.name = result(each.name, None)
    for block in function.block_specializations.values():
        walk(block)


def without_names(function):
    """Arguments become numbers."""
    places, constants = {}, set()

    def result(name, op):
        places[name] = len(places)
        is_constant = op is not None and op.type == "const"
        if is_constant and op.attributes["val"].HasField("immediateValue"):
            constants.add(name)
        return ""

    def argument(name):
        return f"={places[name]}" if name in constants else str(len(places) - places[name])

    each_value(function, argument, result)


def with_names(function):
    """Values are named by their numbers again."""
    count = 0

    def result(_name, _op):
        nonlocal count
        count += 1
        return f"v{count}"

    def argument(text):
        return f"v{int(text[1:]) + 1 if text.startswith('=') else count - int(text) + 1}"

    each_value(function, argument, result)


def unpacked(data):
    """Name -> Function of the bytes of the file."""
    model = proto.Model_pb2.Model.FromString(zstandard.ZstdDecompressor().decompress(data))
    functions = dict(model.mlProgram.functions)
    for function in functions.values():
        with_names(function)
    return functions


def packed(functions):
    """The bytes of the file."""
    model = proto.Model_pb2.Model()
    model.specificationVersion = max(zoo_convert.VERSIONS.values())
    model.mlProgram.version = 1
    for name, function in sorted(functions.items()):
        model.description.functions.add().name = name
        model.mlProgram.functions[name].CopyFrom(function)
        without_names(model.mlProgram.functions[name])
    model.description.defaultFunctionName = min(functions)
    plain = model.SerializeToString(deterministic=True)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        22, window_log=27, enable_ldm=True, write_content_size=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(plain)


def report(name, subject, function, seconds):
    ops, numbers = zoo_convert.count(function)
    line = f"{name}: {ops} ops, {numbers / 1e6:.2f} M weights, {seconds:.1f} s"
    if subject.n_ops is not None and subject.n_ops != ops:
        line += f"; the source has {subject.n_ops} ops"
    if subject.n_params and abs(numbers / subject.n_params - 1) > 0.03:
        line += f"; the source has {subject.n_params / 1e6:.2f} M weights"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="pattern of names, with * and ?")
    parser.add_argument("--module", default="*", help="pattern of modules, such as zoo_vision*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true", help="compare with the file that is there")
    parser.add_argument("--replace", action="store_true", help="keep all others of the file")
    parser.add_argument("--out", type=Path, help="file to write instead of the repository's")
    parser.add_argument("--cache", type=Path, help="folder of converted subjects")
    args = parser.parse_args()
    chosen = {
        name: found
        for name, found in subjects(args.module).items()
        if fnmatch.fnmatch(name, args.only)
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
            where = traceback.extract_tb(error.__traceback__)[-1].name
            text = f"{type(error).__name__} in {where}: {str(error)[:400]}"
            print(f"{name}: FAILED: {text}", flush=True)
        gc.collect()
    finish(args, functions)
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} subjects failed: {', '.join(failed)}")


def finish(args, functions):
    if args.replace:
        functions = {**unpacked((args.out or PATH).read_bytes()), **functions}
    data = packed(functions)
    whole = args.replace or args.only == "*" and args.module == "*"
    path = args.out or (PATH if whole else None)
    if args.check:
        if (args.out or PATH).read_bytes() != data:
            sys.exit(f"{args.out or PATH} is not what this script makes")
    elif path is not None:
        path.write_bytes(data)
    place = "" if path is None else f" in {path.name}"
    print(f"{len(functions)} functions, {len(data)} bytes{place}")


if __name__ == "__main__":
    main()
