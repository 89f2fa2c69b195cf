"""Makes tests/ops/<op>.mil: what each op of the opset gives on small random inputs, by coremltools.

    python3 tests/oracle/make_ops.py            # write the files; or those of the ops that are named
    python3 tests/oracle/make_ops.py --check    # compare with the files that are there

The cases stand in `ops_*.py`. An op that had another form in an older opset has a file for it, `<op>.<opset>.mil`.

A file is MIL text with a function a case. Values stand in comments, row-major: `// case_0 x = [..]` for the inputs of
`case_0` and `// case_0 y = [..]` for its results; the types of results are those that coremltools infers. `// source:`
says what computed the values; where a case has another source than its file, it says so itself.

- coremltools evaluates an op when all its inputs are constants ("value inference", in numpy). Ops that it cannot evaluate,
  or evaluates against its own documentation, are computed by the numpy formulas here, types still by coremltools.
- numpy rounds to fp16 after each step of a formula, which no device does. For fp16, ops that compute are evaluated in fp32
  on the fp16 inputs, and their results are rounded once.
- Transcendental functions differ in the last place between machines, so `--check` allows floats what `CLOSE` says.
Needs coremltools and numpy; all seeds are literals.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import ops_core
from case import BOOL, F16, F32, I8, I16, I32, SOURCE, U8, U16, U32, Packed, call, unpacked

# Each has CASES (op: function from the op's name to its cases) and COMPUTES (ops whose fp16 results are rounded from fp32).
MODULES = [importlib.import_module(path.stem) for path in sorted(Path(__file__).parent.glob("ops_*.py"))]
FOLDER = Path(__file__).resolve().parents[1] / "ops"
# Relative and absolute difference of a float to the committed one, by type.
CLOSE = {"fp32": (2e-6, 1e-6), "fp16": (1e-3, 1e-7)}
CASES = {op: cases for module in MODULES for op, cases in module.CASES.items()}
COMPUTES = set().union(*(module.COMPUTES for module in MODULES))


# Evaluation.


def widened(value):
    if isinstance(value, list):
        return [widened(v) for v in value]
    return value.astype(F32) if getattr(value, "dtype", None) == F16 else value


def evaluate(op, case):
    """[((dtype, shape), array)] of a case."""
    values = case.inputs | case.constants
    if op == "layer_norm" and "axes" not in values:
        # coremltools' default is a `range`, which its builder refuses.
        values["axes"] = np.arange(values["x"].ndim, dtype=I32)
    results = call(op, values, case.opset, case.inputs if case.open else ())
    if case.formula:
        with np.errstate(all="ignore"):
            computed = case.formula(**values)
    elif op in COMPUTES and results[0][0][0] == "fp16":
        wide = {k: widened(v) for k, v in values.items()}
        if op in ops_core.EPSILON:
            # The default is of the type of x.
            wide["epsilon"] = F32(values.get("epsilon", F16(ops_core.EPSILON[op])))
        computed = [v for _, v in call(op, wide, case.opset)]
    else:
        computed = [v for _, v in results]
    out = []
    for (ty, _), value in zip(results, computed):
        assert value is not None, f"coremltools does not evaluate {op}"
        dtype = {"fp32": F32, "fp16": F16, "int4": I8, "uint4": U8, "uint1": U8}.get(ty[0], ty[0])
        with np.errstate(all="ignore"):
            value = np.asarray(value).astype(dtype)
        # coremltools infers the shape of `select` without its condition, and that of `crop_resize` with all images where
        # a box is of one of them, against its documentation. For all elements it infers a size of -1 of `topk`.
        if op in ("select", "crop_resize") or op == "topk" and case.constants.get("k") == -1:
            ty = (ty[0], value.shape)
        assert (value.size == 0 and 0 in ty[1]) or value.shape == ty[1], f"{op}: {value.shape}, {ty}"
        out.append((ty, value))
    return out


# Text.

DTYPES = {F32: "fp32", F16: "fp16", I32: "int32", I16: "int16", I8: "int8", U32: "uint32", U16: "uint16", U8: "uint8", BOOL: "bool"}


def dtype_of(value):
    return value.dtype if isinstance(value, Packed) else DTYPES[np.asarray(value).dtype.type]


def type_text(dtype, dims):
    return f"tensor<{dtype}, [{', '.join(map(str, dims))}]>" if dims else dtype


def element(value):
    if isinstance(value, np.bool_):
        return str(bool(value)).lower()
    return str(value)


def nested(value):
    if value.ndim == 0:
        return element(value[()])
    return f"[{', '.join(nested(v) for v in value)}]"


def literal(value):
    if isinstance(value, str):
        return f'string("{value}")'
    values = np.asarray(unpacked(value))
    return f"{type_text(dtype_of(value), values.shape)}({nested(values)})"


def flat(value):
    return f"[{', '.join(element(v) for v in np.asarray(value).reshape(-1))}]"


def readable(names, results):
    """Statements and results in place of those that no function gives: the elements of a mask, placed; codes, as numbers."""
    statements, out = [], []
    for i, (name, (ty, value)) in enumerate(zip(names, results)):
        if ty[0] == "uint1":
            elements, ((dtype, _), data) = names[i + 1], results[i + 1]
            dense = np.zeros(value.shape, data.dtype)
            dense[value != 0] = data
            op = f"constexpr_sparse_to_dense(nonzero_data = {elements}, mask = {name})"
            statements.append(f"{type_text(dtype, value.shape)} dense = {op};")
            out.append(("dense", dense))
        elif ty[0] in ("int4", "uint4"):
            op = f"constexpr_blockwise_shift_scale(data = {name}, scale = {literal(np.ones((1,) * value.ndim, F32))})"
            statements.append(f"{type_text('fp32', value.shape)} numbers = {op};")
            out.append(("numbers", value.astype(F32)))
        else:
            out.append((name, value))
    return statements, out


def function(op, index, case):
    """The text of one case."""
    name = f"case_{index}"
    comments, inputs, body, arguments = [], [], [], []
    if case.formula:
        comments.append(f"// {name} source: {case.source}")

    def given(param, value):
        """Declare an input; inputs have a dimension at least, so a scalar is squeezed out of a vector."""
        dims = value.shape or (1,)
        comments.append(f"// {name} {param} = {flat(value)}")
        inputs.append(f"{type_text(dtype_of(value), dims)} {param}")
        if value.shape:
            return param
        scalar = f"{param}_scalar"
        body.append(f"{dtype_of(value)} {scalar} = squeeze(x = {param}, axes = tensor<int32, [1]>([0]));")
        return scalar

    for param, value in case.inputs.items():
        if isinstance(value, list):
            names = [given(f"{param}_{i}", v) for i, v in enumerate(value)]
            arguments.append(f"{param} = ({', '.join(names)})")
        else:
            arguments.append(f"{param} = {given(param, value)}")
    for param, value in case.constants.items():
        if isinstance(value, list):
            names = [f"{param}_{i}" for i in range(len(value))]
            body += [f"{type_text(dtype_of(v), v.shape)} {n} = const()[val = {literal(v)}];" for n, v in zip(names, value)]
            arguments.append(f"{param} = ({', '.join(names)})")
        else:
            arguments.append(f"{param} = {literal(value)}")
    results = evaluate(op, case)
    # `y` is taken where it names an operand.
    base = "z" if "y" in case.inputs else "y"
    names = [base] if len(results) == 1 else [f"{base}_{i}" for i in range(len(results))]
    statements, outputs = readable(names, results)
    comments += [f"// {name} {result} = {flat(value)}" for result, value in outputs]
    declared = ", ".join(f"{type_text(*ty)} {n}" for n, (ty, _) in zip(names, results))
    # Constexpr ops have attributes up to iOS17 and inputs from iOS18 on.
    form = "()[{}]" if op.startswith("constexpr_") and case.opset != "ios18" else "({})"
    body += [f"{declared} = {op}{form.format(', '.join(arguments))};"] + statements
    lines = comments + [f"func {name}<{case.opset}>({', '.join(inputs)}) {{"] + [f"    {line}" for line in body]
    return "\n".join(f"    {line}" for line in lines + [f"}} -> ({', '.join(n for n, _ in outputs)});"])


def files(op):
    """The files of an op by name: one for its newest form, and one for each opset that older cases name."""
    by_opset = {}
    for case in CASES[op](op):
        by_opset.setdefault(case.opset, []).append(case)
    head = f"// Made by tests/oracle/make_ops.py.\n// source: {SOURCE}\nprogram(1.3)\n{{\n"
    for opset, cases in by_opset.items():
        name = f"{op}.mil" if opset == "ios18" else f"{op}.{opset}.mil"
        yield name, head + "\n".join(function(op, i, c) for i, c in enumerate(cases)) + "\n}\n"


# Comparison.


def same_line(mine, theirs):
    """Whether two lines are equal, or hold floats that are close."""
    if mine == theirs:
        return True
    (left, ours), (right, committed) = mine.partition(" = ")[::2], theirs.partition(" = ")[::2]
    if left != right or not left.strip().startswith("// case_"):
        return False
    words = [side.strip("[]").split(", ") for side in (ours, committed)]
    # Integers and truth values have no point, and are equal or not.
    if len(words[0]) != len(words[1]) or not any("." in word for word in words[0]):
        return False
    a, b = (np.array(side, np.float64) for side in words)
    is_half = all(element(F16(word)) == word for side in words for word in side)
    relative, absolute = CLOSE["fp16" if is_half else "fp32"]
    return np.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True)


def check(name, text):
    path = FOLDER / name
    if not path.exists():
        return [f"{path.name} is missing"]
    mine, theirs = text.splitlines(), path.read_text().splitlines()
    if len(mine) != len(theirs):
        return [f"{path.name} has {len(theirs)} lines, {len(mine)} are due"]
    differences = [i for i, pair in enumerate(zip(mine, theirs)) if not same_line(*pair)]
    return [f"{path.name}, line {i + 1}: {theirs[i].strip()[:90]}, not {mine[i].strip()[:90]}" for i in differences]


def main():
    """`--check`, or the names of ops to write; without either all are written."""
    checks = sys.argv[1:] == ["--check"]
    ops = sorted(CASES) if checks or not sys.argv[1:] else sys.argv[1:]
    if unknown := [op for op in ops if op not in CASES]:
        sys.exit(f"no cases for {', '.join(unknown)}\n{__doc__}")
    made = dict(pair for op in ops for pair in files(op))
    errors = []
    for name, text in made.items():
        if checks:
            errors += check(name, text)
        else:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(text)
    if checks:
        errors += [f"{p.name} is not made by this script" for p in sorted(FOLDER.glob("*.mil")) if p.name not in made]
    if errors:
        sys.exit("\n".join(errors))
    print(f"{len(made)} files {'agree' if checks else 'written'}")


if __name__ == "__main__":
    main()
