"""Judges packages that we wrote by coremltools: the file, the program, every type and every constant.

    python3 tests/oracle/check_packages.py FOLDER [--export N] [--utilities]

FOLDER has packages (crates/mil/examples/write_packages.rs makes one for each op and case). For each of them
1. `MLModel` reads it without an Apple device, and `milproto.load` builds its program, which infers every type anew and
   reads every constant of the weight file with Apple's own reader;
2. each value has the element type and shape that our file declares;
3. rows of tables that the contract places in the weight file are a constant of the program, and rows of codes are
   those of a weight as coremltools decompresses it;
4. every Nth (--export, 20 by default) is exported again;
5. with --utilities, the utilities for models of one function take each package that has one: they compress its
   weights, cut it in two, and add it to a model of several functions.
The last line is the number of packages and of values; faults come before it, and make the exit status 1.
"""

import json
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import coremltools as ct
import numpy as np
from coremltools.converters.mil.frontend.milproto.helper import proto_to_types
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.types.symbolic import is_symbolic
from coremltools.optimize import coreml as optimize

# What coremltools itself gets wrong, by op and by what it says; its own documentation is on our side.
KNOWN = [
    ("conv_transpose", "object has no attribute 'shape'"),
    ("crop_resize", "Mismatch between var types"),
    ("layer_norm", "Cannot add const range"),
    ("select", "Mismatch between var types"),
    # It writes the size of all, k = -1, as a dimension of -1.
    ("topk", "Value out of range: -1"),
]


def declared(block):
    """Every result that a block of the file declares: its name and type, those of nested blocks included."""
    for op in block.operations:
        for nested in op.blocks:
            yield from declared(nested)
        for output in op.outputs:
            yield output.name, proto_to_types(output.type)


def inferred(block, out):
    """Types by name; of names that coremltools gives to constants of its own too, there are several."""
    for op in block.operations:
        for nested in op.blocks:
            inferred(nested, out)
        for var in op.outputs:
            out.setdefault(var.name, []).append(var.sym_type)
    return out


def same(ours, theirs):
    if types.is_tensor(ours) and types.is_tensor(theirs):
        a, b = ours.get_shape(), theirs.get_shape()
        # -1 is what coremltools writes where it gives up.
        known = lambda d: not is_symbolic(d) and d >= 0
        dims = len(a) == len(b) and all(x == y for x, y in zip(a, b) if known(x) and known(y))
        return dims and ours.get_primitive() == theirs.get_primitive()
    # A scalar and a tensor of rank 0 are one in a file.
    scalar = lambda t: t.get_primitive() if types.is_tensor(t) and t.get_shape() == () else t
    return types.is_compatible_type(scalar(ours), scalar(theirs))


def row_of(package, table, token):
    """A row by the contract alone, before it is rounded to the type of the input; as docs/forms.md has it."""
    part = next(p for p in table["rows"] if p["first"] <= token < p["first"] + p["count"])
    data = np.fromfile(package / part.get("file", "Data/com.apple.CoreML/weights/weight.bin"), "u1")
    kind = {"fp16": "<f2", "fp32": "<f4"}[part["dtype"]]
    r, n, how = token - part["first"], part["columns"], part["encoding"]

    def numbers(of, first, count):
        if "values" in of:
            return np.array(of["values"][first : first + count], "f4")
        at = of["offset"] + np.dtype(kind).itemsize * first
        return np.frombuffer(data, kind, count, at).astype("f4")

    bits, lut, scale = int(how["codes"].lstrip("uint")), how.get("table"), how.get("scale")
    width = lut["width"] if lut else 1
    first = r // width * n * bits
    packed = data[part["offset"] + first // 8 : part["offset"] + -(-(first + n * bits) // 8)]
    packed = np.unpackbits(packed, bitorder="little")[first % 8 :][: n * bits].reshape(n, bits)
    codes = packed.astype(int) @ (1 << np.arange(bits))
    if lut:
        size = lut["entries"] * width
        x = numbers(lut["numbers"], r // lut["rows"] * size, size)[codes * width + r % width]
    else:
        x = (codes - (codes >> (bits - 1) << bits)).astype("f4")
    if scale:
        count = n // scale["columns"]
        x = x * numbers(scale["numbers"], r // scale["rows"] * count, count).repeat(scale["columns"])
        x = x if scale["behind"] else x.astype(kind).astype("f4")
    return x * np.float32(table["factor"])


def check_coded(path, program, name, table, rows):
    """Whether rows of codes are those of a weight that coremltools decompresses, times the scales behind its product."""
    if "file" in rows:
        assert "encoding" not in rows or (path / rows["file"]).exists(), f"{name}: no file has these rows"
        return
    assert not (path / f"Data/ai.thane/{name}.npy").exists(), f"{name} is stored twice"
    ops = [op for f in program.functions.values() for op in f.operations]
    weights = [op.outputs[0].op for op in ops if op.op_type.startswith("constexpr_")]
    shape = lambda op: tuple(op.outputs[0].shape)
    fits = lambda op: shape(op)[0] == rows["count"] and np.prod(shape(op)) == rows["count"] * rows["columns"]
    values = [np.asarray(op.materialized_val_inference()).astype("f4") for op in weights if fits(op)]
    scale = (rows["encoding"].get("scale") or {"behind": False})["behind"]
    behind = [op for op in ops if op.op_type == "mul" and op.y.val is not None
              and "_channel_scale" in op.outputs[0].name and op.y.val.size == rows["count"]]
    for r in sorted({0, 1, rows["count"] // 3, rows["count"] - 1}):
        ours = row_of(path, {**table, "factor": 1.0}, rows["first"] + r)
        scales = [op.y.val.ravel()[r].astype("f4") for op in behind] if scale else [np.float32(1)]
        theirs = [value[r].ravel() * by for value in values for by in scales]
        assert any(np.array_equal(ours, row) for row in theirs), f"{name}: row {r} is of no weight"


def check_tables(path, program):
    """Whether the numbers at the bytes that a contract names are those of a constant, as coremltools reads it."""
    contract = path / "Data/ai.thane/contract.json"
    tables = json.loads(contract.read_text()).get("tables", {}) if contract.exists() else {}
    weights = path / "Data/com.apple.CoreML/weights/weight.bin"
    ops = [op for f in program.functions.values() for op in f.operations if op.op_type == "const"]
    constants = [op.outputs[0].val for op in ops if isinstance(op.outputs[0].val, np.ndarray)]
    for name, table in tables.items():
        for rows in table.get("rows", []):
            if "encoding" in rows or "file" in rows:
                check_coded(path, program, name, table, rows)
                continue
            n = rows["count"] * rows["columns"]
            ours = np.fromfile(weights, {"fp16": "<f2", "fp32": "<f4"}[rows["dtype"]], n, offset=rows["offset"])
            same = lambda c: c.dtype == ours.dtype and c.size == n and np.array_equal(c.ravel(), ours)
            assert any(same(c) and c.shape[0] == rows["count"] for c in constants), f"{name}: no constant has these rows"
            assert not (contract.parent / f"{name}.npy").exists(), f"{name} is stored twice"


def check(path, export):
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    for function in spec.mlProgram.functions.values():
        # Its loader takes no attributes, which say the shapes of flexible inputs.
        assert set(function.attributes) <= {"FlexibleShapeInformation"}, set(function.attributes)
        function.ClearField("attributes")
    program = load(spec, spec.specificationVersion, model.weights_dir)
    check_tables(path, program)
    n = 0
    for name, function in spec.mlProgram.functions.items():
        known = inferred(program.functions[name], {})
        for value, ours in declared(function.block_specializations[function.opset]):
            n += 1
            if value in known:
                theirs = known[value]
                told = [ty.__type_info__() for ty in theirs]
                assert any(same(ours, ty) for ty in theirs), f"{name}: {value}: ours {ours.__type_info__()}, theirs {told}"
    # `convert` makes a classifier by an option only.
    if export and not spec.description.predictedFeatureName:
        # The description has these, which `load` does not look at.
        if spec.description.functions:
            program.default_function_name = spec.description.defaultFunctionName
            program.export_as_multifunction = True
        target = {6: ct.target.iOS15, 7: ct.target.iOS16, 8: ct.target.iOS17, 9: ct.target.iOS18}
        ct.convert(program, convert_to="mlprogram", minimum_deployment_target=target[spec.specificationVersion],
                   pass_pipeline=ct.PassPipeline.EMPTY, skip_model_load=True)
    return n


def check_utilities(path):
    """Whether utilities take a package of one function: they refuse one that lists it by another name than `main`."""
    model = ct.models.MLModel(str(path), skip_model_load=True, function_name="main")
    assert not model.get_spec().description.functions
    config = optimize.OptimizationConfig(optimize.OpLinearQuantizerConfig(weight_threshold=64))
    before = optimize.get_weights_metadata(model, weight_threshold=64)
    smaller = optimize.linear_quantize_weights(model, config)
    assert before and smaller.get_spec().mlProgram.functions.keys() == {"main"}
    with tempfile.TemporaryDirectory() as folder:
        ct.models.utils.bisect_model(str(path), folder, check_output_correctness=False)
        assert len(list(Path(folder).glob("*.mlpackage"))) == 2
        several = ct.utils.MultiFunctionDescriptor()
        several.add_function(str(path), "main", "first")
        several.add_function(str(path), "main", "second")
        several.default_function_name = "first"
        joined = Path(folder) / "several.mlpackage"
        ct.utils.save_multifunction(several, str(joined))
        spec = ct.models.MLModel(str(joined), skip_model_load=True).get_spec()
        assert {f.name for f in spec.description.functions} == {"first", "second"}


def main():
    folder = Path(sys.argv[1])
    every = int(sys.argv[sys.argv.index("--export") + 1]) if "--export" in sys.argv else 20
    paths, n_values, faults = sorted([*folder.glob("*.mlpackage"), *folder.glob("chunks-*/*.mlpackage")]), 0, 0
    for i, path in enumerate(paths):
        try:
            n_values += check(path, i % every == 0)
            if "--utilities" in sys.argv and len(ct.utils.load_spec(str(path)).mlProgram.functions) == 1:
                check_utilities(path)
        except Exception as fault:
            known = any(path.name.startswith(op) and text in str(fault) for op, text in KNOWN)
            faults += not known
            print(f"{path.name}: {type(fault).__name__}: {fault}")
    print(f"{len(paths)} packages, {n_values} values, {faults} faults")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
