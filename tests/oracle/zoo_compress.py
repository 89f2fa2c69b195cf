"""Compresses the weights of a MIL program by the passes of coremltools, which never see values.

The passes choose what to compress and write the ops; the functions that would cluster or sort the
weights give arrays of the right types and shapes instead.
"""

import numpy as np
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY
from coremltools.optimize import _utils as optimize_utils
from coremltools.optimize.coreml import (
    OpLinearQuantizerConfig,
    OpMagnitudePrunerConfig,
    OpPalettizerConfig,
    OptimizationConfig,
)
from coremltools.optimize.coreml._quantization_passes import palettize_weights, prune_weights


def compress(program, kind):
    """Applies a kind of zoo_case.COMPRESSIONS to the program, in place."""
    if kind is None:
        return
    if kind.startswith("lut"):
        bits, _, group = kind.removeprefix("lut").partition("_g")
        apply(program, "palettize_weights", palettizer(int(bits), int(group or 0)))
    elif kind.startswith("sparse"):
        share = int(kind.removeprefix("sparse")) / 100
        apply(program, "prune_weights", OpMagnitudePrunerConfig(target_sparsity=share))
    else:
        # Training with int8 activations also quantizes small weights, which conversion leaves out.
        threshold = 0 if kind == "w8a8" else 2048
        if kind == "w8a8":
            quantize_activations(program)
        config = OpLinearQuantizerConfig(
            mode="linear_symmetric", granularity="per_channel", weight_threshold=threshold
        )
        apply(program, "linear_quantize_weights", config)


def palettizer(bits, group):
    if group == 0:
        return OpPalettizerConfig(mode="uniform", nbits=bits)
    return OpPalettizerConfig(
        mode="uniform", nbits=bits, granularity="per_grouped_channel", group_size=group
    )


def apply(program, name, config, **options):
    step = PASS_REGISTRY[f"compression::{name}"]
    step.config = OptimizationConfig(global_config=config)
    for key, value in options.items():
        setattr(step, key, value)
    step(program)


def quantize_activations(program):
    """Puts quantize and dequantize before ops that the engine runs on int8."""
    names = (var.name for function in program.functions.values() for var in values(function))
    ranges = {name: {"rmin": -1.0, "rmax": 1.0} for name in names}
    config = OpLinearQuantizerConfig(mode="linear_symmetric")
    apply(program, "insert_prefix_quantize_dequantize_pair", config, activation_stats=ranges)


def values(function):
    yield from function.inputs.values()
    for op in function.operations:
        yield from op.outputs


def uniform_palette(
    original_data,
    mode,
    nbits,
    channel_axis,
    channel_group_size,
    lut_function=None,
    cluster_dim=1,
    num_kmeans_workers=1,
):
    """Stands for `grouped_channelwise_compress`: indices of 0 and empty tables of true shapes."""
    n_channels = original_data.shape[channel_axis]
    group = channel_group_size or n_channels
    if n_channels % group:
        return None
    integer = types.nptype_from_builtin(types.string_to_builtin(f"uint{nbits}"))
    table = [1] * original_data.ndim + [2**nbits, 1]
    table[channel_axis] = n_channels // group
    indices = np.broadcast_to(np.zeros(1, dtype=integer), original_data.shape)
    return optimize_utils.LutParams(indices, np.zeros(table, dtype=original_data.dtype), None)


def first_ones(val, target_sparsity, block_size=None, dim=None):
    """Stands for `compress_by_magnitude`: exactly the share of weights that the source states."""
    kept = np.zeros(val.size, dtype=val.dtype)
    kept[: round(val.size * (1 - target_sparsity))] = 1
    return prune_weights._produce_sparse_param(kept.reshape(val.shape))


palettize_weights.grouped_channelwise_compress = staticmethod(uniform_palette)
prune_weights.compress_by_magnitude = staticmethod(first_ones)
