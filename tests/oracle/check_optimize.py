"""Packages that coremltools' optimizers make, run by `thane predict`: every weight against coremltools' own decompression.

    python3 tests/oracle/check_optimize.py THANE FOLDER [RECIPE..]

Each recipe of `RECIPES` puts one small program through `coremltools.optimize.coreml` and saves it as FOLDER/<recipe>.mlpackage.
The program uses a weight in each of `linear`, `conv`, `conv_transpose`, `matmul` and `gather`; its sizes are odd and differ.
1. Weights: the inputs of the products are one-hot, so that each element of a result is one weight times one, added to zeros,
   and must equal what `decompress_weights` would put there: exactly, save the sign of a zero. The rows of `gather` are
   compared bit for bit.
2. Products: further rows of `linear` and `matmul` are random, and compared with numpy on the decompressed weights.
3. A recipe that leaves a weight as it was, and compresses fewer than it says, is an error.
The packages stay in FOLDER, so that they can be written again and judged by check_packages.py.
"""

import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from golden import need

need("coremltools", "numpy")
# coremltools shows a bar for each pass.
os.environ["TQDM_DISABLE"] = "1"

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import types
from coremltools.optimize.coreml._quantization_passes import WeightDecompressor

F16, F32 = np.float16, np.float32
# Of products, relative to the largest element: of fp16 results two units in the last place, as they are rounded once.
RELATIVE = {F16: 2e-3, F32: 1e-5}
# More than a bias or a vector of scales has, fewer than any weight.
THRESHOLD = 100
# By the op that uses it. Output channels are multiples of 7, input channels of 3.
SHAPES = {
    "linear": (21, 33),  # [out, in]
    "conv": (14, 9, 3, 3),  # [out, in, height, width]
    "conv_transpose": (6, 14, 2, 3),  # [in, out, height, width]
    "matmul": (15, 28),  # [in, out]
    "gather": (35, 27),
}
N_RANDOM = 4


def quantiles(n_bits):
    """A palette of 2**n_bits quantiles, in no order; coremltools' own k-means needs scikit-learn."""

    def palette(weight):
        n = 2**n_bits
        lut = np.quantile(weight.astype(F32), (np.arange(n) * 5 % n) / (n - 1)).astype(weight.dtype)
        return lut, np.argmin(np.abs(weight.reshape(-1, 1) - lut), axis=1).astype(np.uint8)

    return palette


def palettes(n_bits=None, mode="custom", **options):
    how = {"lut_function": quantiles(n_bits)} if mode == "custom" else {"nbits": n_bits}
    return cto.palettize_weights, cto.OpPalettizerConfig(mode=mode, weight_threshold=THRESHOLD, **how, **options)


def integers(dtype, mode="linear_symmetric", **options):
    config = cto.OpLinearQuantizerConfig(dtype=dtype, mode=mode, weight_threshold=THRESHOLD, **options)
    return cto.linear_quantize_weights, config


def pruned(**options):
    kind = cto.OpThresholdPrunerConfig if "threshold" in options else cto.OpMagnitudePrunerConfig
    return cto.prune_weights, kind(weight_threshold=THRESHOLD, **options)


class Recipe:
    """Steps of compression for programs of an opset and an element type; how many weights they compress."""

    def __init__(self, opset, dtype, *steps, n=len(SHAPES), levels=None):
        self.opset, self.dtype, self.steps, self.n, self.levels = opset, dtype, steps, n, levels


TENSOR = {"granularity": "per_tensor"}
CHANNEL = {"granularity": "per_channel"}
BLOCK = {"granularity": "per_block", "block_size": 3}
GROUPED = {"granularity": "per_grouped_channel", "group_size": 7}
SCALED = {"enable_per_channel_scale": True}


def alone(opset, dtype):
    """One compression, in forms that all opsets have."""
    for n_bits in (1, 2, 4, 6, 8):
        yield f"palette{n_bits}", Recipe(opset, dtype, palettes(n_bits))
    yield "uniform4", Recipe(opset, dtype, palettes(4, "uniform"))
    yield "unique", Recipe(opset, dtype, palettes(mode="unique"), levels=13)
    for number in ("int8", "uint8"):
        for mode in ("linear_symmetric", "linear"):
            for how in (TENSOR, CHANNEL):
                yield f"{number}_{mode}_{how['granularity']}", Recipe(opset, dtype, integers(number, mode, **how))
    yield "threshold", Recipe(opset, dtype, pruned(threshold=0.25))
    yield "magnitude", Recipe(opset, dtype, pruned(target_sparsity=0.7))
    # Structure is for `linear` and `conv` only.
    yield "pairs", Recipe(opset, dtype, pruned(target_sparsity=0.5, block_size=2, dim=1), n=2)
    yield "2_of_4", Recipe(opset, dtype, pruned(n_m_ratio=(2, 4)), n=2)


def alone_in_ios18(opset, dtype):
    """One compression, in forms that iOS 18 brought."""
    yield "palette3", Recipe(opset, dtype, palettes(3))
    for n_bits in (1, 2, 3, 4, 6, 8):
        yield f"grouped{n_bits}", Recipe(opset, dtype, palettes(n_bits, **GROUPED))
        yield f"scaled{n_bits}", Recipe(opset, dtype, palettes(n_bits, **SCALED))
        yield f"grouped_scaled{n_bits}", Recipe(opset, dtype, palettes(n_bits, **SCALED, **GROUPED))
    by_inputs = {"granularity": "per_grouped_channel", "group_size": 3, "channel_axis": 1}
    yield "axis1", Recipe(opset, dtype, palettes(3, **by_inputs), n=3)
    yield "vectors", Recipe(opset, dtype, palettes(mode="unique", cluster_dim=7), levels="vectors")
    for number in ("int4", "uint4", "int8", "uint8"):
        for mode in ("linear_symmetric", "linear"):
            for how in (TENSOR, CHANNEL, BLOCK) if number.endswith("4") else (BLOCK,):
                yield f"{number}_{mode}_{how['granularity']}", Recipe(opset, dtype, integers(number, mode, **how))


def joint(opset, dtype):
    """One compression after another."""
    sparse, palette, groups = pruned(target_sparsity=0.6), palettes(4), palettes(3, **GROUPED)
    for name, steps in {
        "pruned_palette": (sparse, palette),
        "pruned_grouped": (sparse, groups),
        "pruned_int8": (sparse, integers("int8", **CHANNEL)),
        "pruned_uint8_linear": (sparse, integers("uint8", "linear", **TENSOR)),
        "pruned_int4_blocks": (sparse, integers("int4", **BLOCK)),
        "pruned_palette_int8": (sparse, palette, integers("int8", **TENSOR)),
        "palette_int8": (palette, integers("int8", **TENSOR)),
        "palette_uint8_linear": (palette, integers("uint8", "linear", **TENSOR)),
        "grouped_int8": (groups, integers("int8", **TENSOR)),
        "palette_pruned": (palette, sparse),
        "int8_pruned": (integers("int8", **CHANNEL), sparse),
        "int8_palette": (integers("int8", **CHANNEL), palette),
    }.items():
        yield name, Recipe(opset, dtype, *steps)


def recipes():
    out = {}
    for opset, kind, dtype, groups in (
        ("iOS16", "fp32", F32, [alone]),
        ("iOS16", "fp16", F16, [alone]),
        ("iOS18", "fp32", F32, [alone_in_ios18, joint]),
        ("iOS18", "fp16", F16, [alone, alone_in_ios18, joint]),
    ):
        for name, recipe in (pair for group in groups for pair in group(opset, dtype)):
            out[f"{opset.lower()}_{kind}_{name}"] = recipe
    # iOS 17 has the forms of iOS 16.
    for name in ("palette4", "uint8_linear_per_channel", "magnitude"):
        out[f"ios17_fp16_{name}"] = Recipe("iOS17", F16, *out[f"ios16_fp16_{name}"].steps)
    return out


RECIPES = recipes()


def weights(recipe):
    """Random weights; where the recipe asks for it, of few levels, so that a palette holds them without loss."""
    out = {}
    for i, (name, shape) in enumerate(SHAPES.items()):
        r = np.random.default_rng(100 + i)
        if recipe.levels == "vectors":
            axis = {"conv_transpose": 1, "matmul": 1}.get(name, 0)
            moved = (shape[axis] // 7, *(n for at, n in enumerate(shape) if at != axis))
            few = r.normal(0, 0.3, (5, 7))[r.integers(0, 5, moved)]  # [.., 7]
            values = np.moveaxis(np.moveaxis(few, -1, 1).reshape(shape[axis], *moved[1:]), 0, axis)
        elif recipe.levels:
            values = r.normal(0, 0.3, recipe.levels)[r.integers(0, recipe.levels, shape)]
        else:
            values = r.normal(0, 0.3, shape)
        # A channel that is nothing gets a scale of 0.
        values[1] = 0
        out[name] = np.ascontiguousarray(values.astype(recipe.dtype))
    return out


def inputs(dtype):
    """One-hot inputs of each op, and random rows of those that are products of matrices."""
    r = np.random.default_rng(7)
    rows = lambda n: np.concatenate([np.eye(n), r.normal(0, 1, (N_RANDOM, n))]).astype(dtype)
    n_in = SHAPES["conv"][1]
    image = np.zeros((n_in, n_in, 5, 5), dtype)
    image[np.arange(n_in), np.arange(n_in), 2, 2] = 1
    dot = np.eye(SHAPES["conv_transpose"][0], dtype=dtype)[:, :, None, None]
    order = r.permutation(SHAPES["gather"][0]).astype(np.int32)
    linear, matmul = rows(SHAPES["linear"][1]), rows(SHAPES["matmul"][0])
    return {"linear_x": linear, "conv_x": image, "conv_transpose_x": dot, "matmul_x": matmul, "gather_x": order}


def model(recipe):
    target, given, w = getattr(ct.target, recipe.opset), inputs(recipe.dtype), weights(recipe)
    kind = {F16: types.fp16, F32: types.fp32}[recipe.dtype]
    specs = [mb.TensorSpec(v.shape, types.int32 if v.dtype == np.int32 else kind) for v in given.values()]

    def body(linear_x, conv_x, conv_transpose_x, matmul_x, gather_x):
        return (
            mb.linear(x=linear_x, weight=w["linear"], name="linear"),
            mb.conv(x=conv_x, weight=w["conv"], name="conv"),
            mb.conv_transpose(x=conv_transpose_x, weight=w["conv_transpose"], name="conv_transpose"),
            mb.matmul(x=matmul_x, y=w["matmul"], name="matmul"),
            mb.gather(x=w["gather"], indices=gather_x, axis=0, name="gather"),
        )

    program = mb.program(input_specs=specs, opset_version=target)(body)
    precision = ct.precision.FLOAT32 if recipe.dtype == F32 else ct.precision.FLOAT16
    made = ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=target, compute_precision=precision, skip_model_load=True)
    for i, (compress, config) in enumerate(recipe.steps):
        made = compress(made, cto.OptimizationConfig(global_config=config), **({"joint_compression": True} if i else {}))
    return made


def weight_of(op):
    return {"matmul": lambda: op.y, "gather": lambda: op.x}.get(op.op_type, lambda: op.weight)()


def decompressed(path):
    """The weight of each op as `decompress_weights` makes it of the file; how many are compressed; by which ops."""
    made = ct.models.MLModel(str(path), skip_model_load=True)
    spec = made.get_spec()
    program = load(spec, spec.specificationVersion, made.weights_dir)
    ops = program.functions["main"].operations
    kinds = {op.op_type for op in ops if op.op_type.startswith("constexpr_")}
    n = sum(weight_of(op).op.op_type in kinds for op in ops if op.op_type in SHAPES)
    WeightDecompressor(op_selector=lambda op: True).apply(program)
    ops = program.functions["main"].operations
    return {op.op_type: weight_of(op).val for op in ops if op.op_type in SHAPES}, n, kinds


def found_weights(results, given):
    """The weights as the results of one-hot inputs have them, each in the shape of its weight."""
    out = {name: results[name] for name in SHAPES}
    out["linear"] = results["linear"][:-N_RANDOM].T
    out["matmul"] = results["matmul"][:-N_RANDOM]
    # The image at [2, 2] meets the kernel from its end.
    out["conv"] = results["conv"][:, :, ::-1, ::-1].swapaxes(0, 1)
    out["gather"] = np.empty_like(results["gather"])
    out["gather"][given["gather_x"]] = results["gather"]
    return out


def differences(recipe, results, given, expected):
    for name, found in found_weights(results, given).items():
        theirs = expected[name]
        if found.shape != theirs.shape or found.dtype != theirs.dtype:
            yield f"{name}: {found.dtype} {found.shape}, not {theirs.dtype} {theirs.shape}"
            continue
        bits = {F16: np.uint16, F32: np.uint32}[recipe.dtype]
        same = found.view(bits) == theirs.view(bits) if name == "gather" else found == theirs
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            yield f"{name}: {np.count_nonzero(~same)} of {same.size} weights; at {at} {found[at]!r}, not {theirs[at]!r}"
    for name, theirs in (("linear", expected["linear"].T), ("matmul", expected["matmul"])):
        due = given[f"{name}_x"][-N_RANDOM:].astype(np.float64) @ theirs.astype(np.float64)
        error = np.abs(results[name][-N_RANDOM:].astype(np.float64) - due).max() / np.abs(due).max()
        if not error <= RELATIVE[recipe.dtype]:
            yield f"{name}: a product is off by {error} of its largest element"


def check(thane, folder, name):
    """What is wrong; the ops of compression in the package."""
    recipe = RECIPES[name]
    path = folder / f"{name}.mlpackage"
    model(recipe).save(str(path))
    expected, n, kinds = decompressed(path)
    if n != recipe.n:
        return [f"{n} weights are compressed, {recipe.n} are due"], kinds
    given = inputs(recipe.dtype)
    with tempfile.TemporaryDirectory() as out:
        command = [thane, "predict", str(path), "--out", out]
        for key, array in given.items():
            np.save(f"{out}/in_{key}.npy", array)
            command += ["--input", f"{key}={out}/in_{key}.npy"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            return [done.stderr.strip()[:400]], kinds
        results = {key: np.load(f"{out}/{key}.npy") for key in SHAPES}
    return list(differences(recipe, results, given, expected)), kinds


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    logging.disable(logging.CRITICAL)
    thane, folder, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(RECIPES)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.mlpackage"):
        shutil.rmtree(old)
    # coremltools divides by scales of 0.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    errors, kinds = [], set()
    with multiprocessing.Pool() as pool:
        for name, (found, used) in zip(names, pool.starmap(check, [(thane, folder, name) for name in names])):
            errors += [f"{name}: {line}" for line in found]
            kinds |= used
    n_weights = sum(RECIPES[name].n for name in names)
    print(json.dumps({"packages": len(names), "weights": n_weights, "ops": sorted(kinds), "errors": len(errors)}))
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
