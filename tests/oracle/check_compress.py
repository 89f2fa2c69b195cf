"""Judges what `thane compress` writes by coremltools: every encoding, and the error beside its own compressors.

    python3 tests/oracle/check_compress.py THANE [--real GGUF]

1. For each encoding and place of scales, a package of a linear op and a convolution is compressed. coremltools loads
   it, and its decompression of each constant equals ours bit for bit: `thane predict` of an identity matrix gives the
   weights, in f32.
2. For random matrices, and one of a GGUF file with --real, the relative error of `thane compress` is at most that of
   coremltools.optimize with the same method, bits and groups (k-means unweighted in both).
The last line is the number of checks and of faults; the exit status is 1 if there are faults.
"""

import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import types
from coremltools.optimize import coreml as optimize

# By encoding, whether it is written for iOS 16 too.
ENCODINGS = {
    "pal1": True, "pal2": True, "pal3": False, "pal4": True, "pal6": True, "pal8": True, "pal4g8": False,
    "pal2g1": False, "pal6g16": False, "2x16": False, "4x64": False, "16x16": False, "int8": True, "int8t": True,
    "int4": False, "int4t": False, "int4b32": False, "sparse50": True, "2:4": True, "sparse75+pal4": False,
    "2:4+int8": False, "sparse50+pal4g8": False,
}
SCALED = ["pal2", "pal3", "pal4", "pal6", "pal4g8", "2x16"]
TARGETS = {"ios16": ct.target.iOS16, "ios18": ct.target.iOS18}
OUT, IN = 96, 64


def has_table(encoding):
    return "pal" in encoding or "x" in encoding


def weights(seed, shape=(OUT, IN)):
    random = np.random.default_rng(seed)
    return (random.standard_normal(shape) * np.exp(random.standard_normal((shape[0], 1)) / 2)).astype(np.float16)


def package(matrices, target, path):
    """A package that gives the transposed weights for identity matrices: of a linear op, and of a convolution."""
    linear, kernel = matrices
    n = linear.shape[1]

    @mb.program(input_specs=[mb.TensorSpec((n, n), dtype=types.fp16)], opset_version=TARGETS[target])
    def program(x):
        a = mb.linear(x=x, weight=linear, name="a")
        image = mb.reshape(x=mb.transpose(x=x, perm=[1, 0]), shape=[1, n, 1, n])
        b = mb.conv(x=image, weight=kernel.reshape(*kernel.shape, 1, 1), name="b")
        return mb.cast(x=a, dtype="fp32", name="linear_rows"), mb.cast(x=b, dtype="fp32", name="conv_rows")

    model = ct.convert(program, convert_to="mlprogram", minimum_deployment_target=TARGETS[target],
                       compute_precision=ct.precision.FLOAT16, pass_pipeline=ct.PassPipeline.EMPTY,
                       skip_model_load=True)
    model.save(str(path))


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr}"
    return done.stdout


def decompressed(path):
    """The values that coremltools computes for the weights of linear ops and convolutions."""
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = load(spec, spec.specificationVersion, model.weights_dir)
    known = {}
    for op in program.functions["main"].operations:
        if op.op_type in ("linear", "conv"):
            weight = op.weight
            value = weight.val if weight.val is not None else weight.op.materialized_val_inference()
            known[op.op_type] = np.asarray(value).reshape(value.shape[:2])
    return known


def same_bits(thane, folder):
    n, faults = 0, 0
    np.save(folder / "x.npy", np.eye(IN, dtype=np.float16))
    for target in TARGETS:
        source = folder / f"{target}.mlpackage"
        package((weights(1), weights(2)), target, source)
        for encoding, is_old in ENCODINGS.items():
            # Scales behind a product are no part of the constant.
            scales = ["none", "inside"] if encoding in SCALED else ["none"] if has_table(encoding) else [None]
            for scale in scales:
                if target == "ios16" and (not is_old or scale == "inside"):
                    continue
                n += 1
                out = folder / "small.mlpackage"
                flags = ["--scale", scale] if scale else []
                pinned = ["--min-os", target]
                run(thane, "compress", source, "-o", out, "--compress", encoding, "--force", *flags, *pinned)
                run(thane, "check", out)
                run(thane, "predict", out, "--input", f"x={folder / 'x.npy'}", "-o", folder / "y", "--force",
                    "--numerics", "f32")
                theirs = decompressed(out)
                rows = {"linear": np.load(folder / "y" / "linear_rows.npy").T,
                        "conv": np.load(folder / "y" / "conv_rows.npy").reshape(OUT, IN)}
                for op, ours in rows.items():
                    value = theirs[op].astype(np.float32)
                    if not np.array_equal(ours + 0.0, value + 0.0):
                        faults += 1
                        off = np.abs(ours - value).max()
                        print(f"{target} {encoding} {scale} {op}: differs by at most {off}")
    return n, faults


def theirs(encoding):
    """The configuration of coremltools for an encoding."""
    def palette(bits, group=None, **more):
        granularity = "per_grouped_channel" if group else "per_tensor"
        return optimize.palettize_weights, optimize.OpPalettizerConfig(
            mode="kmeans", nbits=bits, granularity=granularity, group_size=group or 32, weight_threshold=0, **more)

    def integer(dtype, granularity):
        return optimize.linear_quantize_weights, optimize.OpLinearQuantizerConfig(
            mode="linear_symmetric", dtype=dtype, granularity=granularity, block_size=32, weight_threshold=0)

    return {
        "pal1": lambda: palette(1), "pal2": lambda: palette(2), "pal3": lambda: palette(3), "pal4": lambda: palette(4),
        "pal6": lambda: palette(6), "pal8": lambda: palette(8),
        "pal4g8": lambda: palette(4, 8), "pal4g32": lambda: palette(4, 32), "pal6g32": lambda: palette(6, 32),
        "2x16": lambda: palette(2, None, cluster_dim=2),
        "int8": lambda: integer("int8", "per_channel"), "int8t": lambda: integer("int8", "per_tensor"),
        "int4": lambda: integer("int4", "per_channel"), "int4b32": lambda: integer("int4", "per_block"),
        "sparse50": lambda: (optimize.prune_weights, optimize.OpMagnitudePrunerConfig(
            target_sparsity=0.5, weight_threshold=0)),
        "2:4": lambda: (optimize.prune_weights, optimize.OpMagnitudePrunerConfig(
            n_m_ratio=(2, 4), weight_threshold=0)),
    }[encoding]()


def error_of(value, weight):
    value, weight = value.astype(np.float64), weight.astype(np.float64)
    return float(np.sqrt(((value - weight) ** 2).sum() / (weight ** 2).sum()))


def not_worse(thane, folder, name, weight):
    n, faults = 0, 0
    source = folder / f"{name}.mlpackage"
    package((weight, weight), "ios18", source)
    for encoding in ["pal1", "pal2", "pal3", "pal4", "pal6", "pal8", "pal4g8", "pal4g32", "pal6g32", "2x16", "int8",
                     "int8t", "int4", "int4b32", "sparse50", "2:4"]:
        n += 1
        out = folder / "small.mlpackage"
        flags = ["--scale", "none"] if has_table(encoding) else []
        start = time.monotonic()
        report = json.loads(run(thane, "compress", source, "-o", out, "--compress", encoding, "--force", "--json",
                                *flags))
        ours_seconds = time.monotonic() - start
        ours = error_of(decompressed(out)["linear"], weight)
        said = report["packages"][0]["compression"]["tensors"][0]["error"]
        compress, config = theirs(encoding)
        model = ct.models.MLModel(str(source), skip_model_load=True)
        start = time.monotonic()
        model = compress(model, optimize.OptimizationConfig(config))
        their_seconds = time.monotonic() - start
        model.save(str(folder / "theirs.mlpackage"))
        other = error_of(decompressed(folder / "theirs.mlpackage")["linear"], weight)
        is_fine = ours <= other * (1 + 1e-4) and abs(said - ours) <= 1e-3 * ours + 1e-7
        faults += not is_fine
        print(f"{name} {encoding}: error {ours:.5f}, said {said:.5f}, theirs {other:.5f}; {ours_seconds:.1f} s, theirs "
              f"{their_seconds:.1f} s{'' if is_fine else '  FAULT'}")
    return n, faults


def real(path):
    """The first matrix of a feed-forward layer."""
    from gguf import GGUFReader
    from gguf.quants import dequantize
    for tensor in GGUFReader(path).tensors:
        if tensor.name.endswith("ffn_down.weight"):
            return dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
    raise SystemExit(f"{path}: no ffn_down")


def main():
    thane = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        results = [same_bits(thane, folder), not_worse(thane, folder, "random", weights(3, (256, 512)))]
        if "--real" in sys.argv:
            matrix = real(sys.argv[sys.argv.index("--real") + 1])
            results.append(not_worse(thane, folder, "real", matrix))
    n, faults = (sum(column) for column in zip(*results))
    print(f"{n} checks, {faults} faults")
    return 1 if faults or not n else 0


if __name__ == "__main__":
    sys.exit(main())
