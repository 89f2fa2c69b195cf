"""Packages that coremltools writes, run by `thane predict`, against what coremltools or numpy gives for the same op.

    python3 tests/oracle/check_predict.py THANE [OP..]

For each op of `make_ops.py` and each opset that its cases name, one program is built with coremltools' builder: every case
is an op in it, its inputs are inputs of the program, its constants are constants. It is saved as a package, read and run by
THANE, and each output is compared with what the case expects. Reading compares the types that coremltools inferred with
Thane's own, value by value, so a difference there is an error too. Ops without an op in coremltools' builder, and cases
that no package can hold, are counted and named at the end.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from golden import need

need("coremltools", "numpy")
# coremltools shows bars for pipelines of no pass.
os.environ["TQDM_DISABLE"] = "1"

import coremltools as ct
import make_ops
import numpy as np
from case import argument, unpacked
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types

# Relative to the largest element of a result in fp32: the bounds of single ops are those of crates/cpu/tests/it/ops.rs.
RELATIVE = 1e-5
# Of fp16 results, which are rounded once: two units in the last place.
RELATIVE_FP16 = 2e-3
# Inputs of packages are of these types; others are made from them by a cast.
HELD = {np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int32)}
# Where the type that coremltools writes is not what it documents, so that reading its package is an error.
KNOWN = [("crop_resize", "the declared type"), ("select", "the declared type")]
NAMES = {"bool": "bool", "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16"}


class Unheld(Exception):
    """A case that no package can hold."""


def declare(name, value, opset):
    """The type of the input that stands for a value, and the array that is given to it."""
    value = np.asarray(value)
    if value.size == 0:
        raise Unheld("an empty input")
    given = value.reshape(value.shape or (1,))
    if given.dtype not in HELD or given.dtype == np.float16 and opset == "ios15":
        given = given.astype(np.float32 if given.dtype == np.float16 else np.int32)
    kind = {"float32": types.fp32, "float16": types.fp16, "int32": types.int32}[str(given.dtype)]
    return mb.placeholder(shape=given.shape, dtype=kind), given


def restore(var, value):
    """The value of an input as the op takes it: its own type and rank."""
    value = np.asarray(value)
    if value.dtype not in HELD or str(value.dtype) == "float16" and types.builtin_to_string(var.dtype) == "fp32":
        var = mb.cast(x=var, dtype=NAMES.get(str(value.dtype), "fp16"))
    return var if value.shape else mb.squeeze(x=var, axes=[0])


def build(op, opset, cases):
    """A program with an op for each case: the package's program, its inputs, and what is expected."""
    version = getattr(ct.target, opset.replace("ios", "iOS"))
    placeholders, arrays, refused = {}, {}, []
    kept = []
    for i, case in enumerate(cases):
        try:
            for param, value in case.inputs.items():
                for k, one in enumerate(value if isinstance(value, list) else [value]):
                    placeholders[f"c{i}_{param}_{k}"], arrays[f"c{i}_{param}_{k}"] = declare(param, one, opset)
            if not case.inputs:
                placeholders[f"c{i}_none"], arrays[f"c{i}_none"] = declare("none", np.float32([2.5]), opset)
            kept.append(i)
        except Unheld as reason:
            refused.append(f"{op} case {i}: {reason}")
            for name in [n for n in placeholders if n.startswith(f"c{i}_")]:
                del placeholders[name], arrays[name]
    outputs, expected = [], {}
    program = Program()
    with Function(placeholders, opset_version=version) as function, np.errstate(all="ignore"):
        for i in kept:
            case, values = cases[i], {}
            for param, value in case.inputs.items():
                made = [restore(function.inputs[f"c{i}_{param}_{k}"], one) for k, one in enumerate(value if isinstance(value, list) else [value])]
                values[param] = made if isinstance(value, list) else made[0]
            values |= {param: argument(value) for param, value in case.constants.items()}
            results = getattr(mb, op)(**values)
            results = results if isinstance(results, (list, tuple)) else [results]
            for k, (result, (_, value)) in enumerate(zip(results, make_ops.evaluate(op, case))):
                name = f"o{i}_{k}"
                held = types.builtin_to_string(result.dtype) in ("fp32", "int32") or types.builtin_to_string(result.dtype) == "fp16" and opset != "ios15"
                if held:
                    result = mb.identity(x=result, name=name)
                else:
                    kind = "fp32" if types.builtin_to_string(result.dtype) == "fp16" else "int32"
                    result = mb.cast(x=result, dtype=kind, name=name)
                # A package's outputs have a dimension.
                if not result.shape:
                    result = mb.expand_dims(x=result, axes=[0], name=name + "_v")
                    name += "_v"
                outputs.append(result)
                expected[name] = np.asarray(value)
        function.set_outputs(outputs)
    program.add_function("main", function)
    return program, version, arrays, expected, refused


def save(program, version, path):
    made = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=version,
        compute_precision=ct.precision.FLOAT32,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    made.save(str(path))


def differences(folder, expected):
    for name, value in expected.items():
        found = np.load(folder / f"{name}.npy")
        value = value.reshape(found.shape) if value.size == found.size else value
        if found.shape != value.shape:
            yield f"{name}: {found.shape}, not {value.shape}"
        elif value.dtype.kind != "f":
            if not np.array_equal(found.astype(np.int64), value.astype(np.int64)):
                yield f"{name}: {found.reshape(-1)[:6]}, not {value.reshape(-1)[:6]}"
        else:
            finite = np.abs(value[np.isfinite(value)].astype(np.float64))
            scale = finite.max() if finite.size else 1.0
            relative = RELATIVE_FP16 if value.dtype == np.float16 else RELATIVE
            if not np.allclose(found.astype(np.float64), value.astype(np.float64), rtol=relative, atol=relative * scale, equal_nan=True):
                worst = np.nanmax(np.abs(found.astype(np.float64) - value.astype(np.float64)))
                yield f"{name}: off by {worst} of {scale}"


def check(thane, op, opset, cases):
    """Errors, how many cases were run, and what could not be; cases that are refused together are tried apart."""

    def apart(reason):
        if len(cases) == 1:
            return [], 0, [f"{op} {opset}: {reason}"]
        half = len(cases) // 2
        parts = [check(thane, op, opset, part) for part in (cases[:half], cases[half:])]
        return tuple(a + b for a, b in zip(*parts))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            program, version, arrays, expected, refused = build(op, opset, cases)
            if not expected:
                return [], 0, refused
            save(program, version, folder / "op.mlpackage")
        except Exception as error:  # whatever coremltools raises is a reason
            return apart(f"coremltools does not write it: {(str(error) or repr(error)).splitlines()[0][:150]}")
        command = [thane, "predict", str(folder / "op.mlpackage"), "--out", str(folder)]
        for name, array in arrays.items():
            np.save(folder / f"in_{name}.npy", array)
            command += ["--input", f"{name}={folder / f'in_{name}.npy'}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if any(op == known and text in done.stderr for known, text in KNOWN):
            return apart("coremltools writes another type than it documents")
        if done.returncode != 0:
            return [f"{op} {opset}: {done.stderr.strip()[:400]}"], 0, refused
        errors = [f"{op} {opset}: {line}" for line in differences(folder, expected)]
        return errors, len(cases) - len(refused), refused


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    logging.disable(logging.CRITICAL)
    thane, ops = sys.argv[1], sys.argv[2:] or sorted(make_ops.CASES)
    errors, refused, n = [], [], 0
    for op in ops:
        by_opset = {}
        for case in make_ops.CASES[op](op):
            by_opset.setdefault(case.opset, []).append(case)
        for opset, cases in by_opset.items():
            found, n_run, unheld = check(thane, op, opset, cases)
            errors += found
            refused += unheld
            n += n_run
    for line in refused:
        print(f"left out: {line}")
    print(json.dumps({"ops": len(ops), "cases": n, "left_out": len(refused), "errors": len(errors)}))
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
