"""Judges 8-bit activations of `thane compress --compress w8a8` by coremltools.

    python3 tests/oracle/check_activations.py THANE [CHECKPOINT]

A checkpoint, by default a tiny one, is written as a package, plain and with `w8a8` and `w4a8`. coremltools loads all of
them and inserts its own ops into the plain one, by the pass of `linear_quantize_activations` and with the ranges that
Thane found. Each product must then take the same: a `dequantize` of a `quantize` of the same value, with the same scale
to the bit, no zero point, and int8 codes. Weights must be int8 or int4 codes with a scale for each channel.
The last line is the number of checks and of faults; the exit status is 1 if there are faults.
"""

import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import types
from coremltools.optimize import coreml as optimize
from coremltools.optimize.coreml._quantization_passes import insert_prefix_quantize_dequantize_pair as Insert

ROOT = Path(__file__).resolve().parents[2]
PRODUCTS = ("conv", "linear")


def program(path):
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    return load(spec, spec.specificationVersion, model.weights_dir)


def operations(function):
    for op in list(function.operations):
        yield op
        for block in op.blocks:
            yield from operations(block)


def pair(op):
    """The name of what a product quantizes, its scale, and the type of its codes; None if it takes a float."""
    back = op.x.op
    if back is None or back.op_type != "dequantize":
        return None
    codes = back.input.op
    if codes is None or codes.op_type != "quantize":
        return None
    zeros = (back.zero_point, codes.zero_point, back.axis, codes.axis)
    scales = (codes.scale.val, back.scale.val)
    assert scales[0] == scales[1] and all(zero is None for zero in zeros), op.name
    return codes.input.name, scales[0], scales[0].dtype, codes.output_dtype.val


def products(function):
    """In order: a product that is written anew has another name."""
    return [op for op in operations(function) if op.op_type in PRODUCTS]


def main():
    thane = sys.argv[1]
    checkpoint = sys.argv[2] if len(sys.argv) > 2 else str(ROOT / "tests/models/tiny-chat")
    n, faults = 0, []
    with tempfile.TemporaryDirectory() as home:
        home = Path(home)

        def run(*args):
            done = subprocess.run([thane, *map(str, args)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stderr

        plain = home / "plain.mlpackage"
        flags = ["--form", "ane", "--context", "64", "--opset", "ios18", "--functions", "prefill"]
        run("convert", checkpoint, *flags, "-o", plain)
        for name, weights in [("w8a8", "int8"), ("w4a8", "int4")]:
            small = home / f"{name}.mlpackage"
            run("compress", plain, "--compress", name, "-o", small, "--target", "m4")
            ours, theirs = program(small), program(plain)
            for at, function in ours.functions.items():
                small_products = products(function)
                found = [pair(op) for op in small_products]
                known = {what[0]: float(what[1]) for what in found if what}
                insert = Insert(optimize.OptimizationConfig(
                    global_config=optimize.OpLinearQuantizerConfig(mode="linear_symmetric")))
                insert.activation_stats = {
                    value: {"rmin": -127 * scale, "rmax": 127 * scale} for value, scale in known.items()}
                other = theirs.functions[at]
                with other:
                    for op, what in zip(products(other), found, strict=True):
                        if what:
                            with mb.set_before_op(op):
                                insert.transform_op(op)
                expected = [pair(op) for op in products(other)]
                for op, what, wanted in zip(small_products, found, expected, strict=True):
                    n += 1
                    product = op.outputs[0].name
                    # coremltools rounds a range to fp16 before it divides.
                    is_near = what and wanted and abs(float(what[1]) / float(wanted[1]) - 1) < 1e-3
                    if what != wanted and not (is_near and what[0] == wanted[0] and what[2:] == wanted[2:]):
                        faults.append(f"{name} {at} {product}: {what}, expected {wanted}")
                    weight = op.weight
                    is_small = weight.op.op_type == "constexpr_blockwise_shift_scale"
                    if what and not (is_small and types.builtin_to_string(weight.op.data.dtype) == weights):
                        faults.append(f"{name} {at} {product}: weight by {weight.op.op_type}")
                if not known:
                    faults.append(f"{name} {at}: nothing is quantized")
    print("\n".join(faults))
    print(f"{n} checks, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
