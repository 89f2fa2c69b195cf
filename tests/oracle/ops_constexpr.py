"""Cases of the ops that decompress constants: what coremltools' `decompress` gives, bit for bit, fp16 included.

Some parameters come from coremltools' own compressors (`coremltools.optimize`), so that what its users ship is covered.
"""

import numpy as np
from case import *
from coremltools.optimize import _utils as optimize
from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights, palettize_weights, prune_weights

RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}


def op_class(op, opset):
    """coremltools' class of an op in an opset."""
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    return SSAOpRegistry.core_ops[op][getattr(coremltools.target, opset.replace("ios", "iOS"))]


def plain(value):
    """A value as `decompress` takes it."""
    if isinstance(value, Packed):
        return value.values.astype({"int4": I8, "int8": I8, "uint32": np.uint32}.get(value.dtype, U8))
    return value


def decompressed(op, opset, *parameters):
    """A case whose result is that of `decompress` on constants, in the order of its own parameters."""
    function = op_class(op, opset).decompress

    def formula(**constants):
        results = function(*(plain(constants.get(name)) for name in parameters))
        return list(results) if isinstance(results, tuple) else [results]

    return lambda constants: Case({}, constants, formula, f"`decompress` of {SOURCE}", opset)


def codes(r, dtype, *shape):
    if dtype in ("fp16", "fp32"):
        return r.floats(*shape, dtype={"fp16": F16, "fp32": F32}[dtype])
    low, high = RANGES[dtype]
    values = r.ints(*shape, low=low, high=high)
    return values.astype(dtype) if dtype.endswith("8") else Packed(dtype, values)


def indices(r, n_bits, *shape):
    return Packed(f"uint{n_bits}", r.ints(*shape, low=0, high=2**n_bits))


def sizes(*values):
    return Packed("uint32", np.array(values))


def weights(r, *shape, dtype=F32):
    return r.state.normal(0, 0.3, shape).astype(dtype)


def affine_dequantize(op):
    r = Random(op)
    make = decompressed(op, "ios16", "quantized_data", "zero_point", "scale", "axis")
    cases = [
        {"quantized_data": codes(r, "int8", 3, 4), "zero_point": I8(-7), "scale": F32(0.37), "axis": I32(0)},
        {"quantized_data": codes(r, "uint8", 2, 5), "zero_point": U8(131), "scale": F16(0.0123), "axis": I32(-1)},
        {"quantized_data": codes(r, "int8", 4, 3), "zero_point": codes(r, "int8", 4), "scale": r.floats(4, low=0.01), "axis": I32(0)},
        {"quantized_data": codes(r, "uint8", 2, 3, 4), "zero_point": codes(r, "uint8", 3), "scale": r.floats(3, dtype=F16), "axis": I32(1)},
        {"quantized_data": codes(r, "uint8", 2, 3, 4), "zero_point": r.floats(4), "scale": r.floats(4, dtype=F16), "axis": I32(-1)},
        {"quantized_data": codes(r, "int8", 2, 3), "zero_point": F32(0.3), "scale": r.floats(2), "axis": I32(-2)},
        {"quantized_data": codes(r, "int8", 6), "zero_point": I8(3), "scale": r.floats(6), "axis": I32(0)},
    ]
    for mode, dtype, axis in (("LINEAR_SYMMETRIC", "int8", 0), ("LINEAR", "uint8", 1)):
        made = linear_quantize_weights.compress(weights(r, 5, 7, dtype=F16), axis, mode, types.string_to_builtin(dtype))
        constants = made._asdict() | {"axis": I32(made.axis)}
        cases.append(constants | ({} if made.zero_point is not None else {"zero_point": np.zeros(made.scale.shape, dtype)}))
    return [make(constants) for constants in cases]


def cast(op):
    r = Random(op)
    values = [r.floats(2, 3, dtype=F16), np.array([65504, 6e-8, -0.0, 6.1e-5, -1.5], F16), F16(-2.7)]
    return [
        Case({}, {"source_val": x, "output_dtype": "fp32"}, lambda source_val, output_dtype: [F32(source_val)], "numpy", opset)
        for opset in ("ios16", "ios18")
        for x in values
    ]


def blockwise_shift_scale(op):
    r = Random(op)
    make = decompressed(op, "ios18", "data", "scale", "offset")
    cases = [
        {"data": codes(r, "int4", 4, 6), "scale": r.floats(4, 2, low=0.1)},
        {"data": codes(r, "uint4", 2, 6), "scale": r.floats(1, 3, low=0.1), "offset": codes(r, "uint4", 1, 3)},
        {"data": codes(r, "int8", 4, 3), "scale": r.floats(4, 1, low=0.1, dtype=F16), "offset": codes(r, "int8", 4, 1)},
        {"data": codes(r, "uint8", 2, 4, 2), "scale": r.floats(2, 2, 1, low=0.1), "offset": r.floats(2, 2, 1)},
        {"data": r.floats(4, 2), "scale": r.floats(2, 1), "offset": r.floats(2, 1)},
        {"data": r.floats(5, dtype=F16), "scale": r.floats(1)},
        # Rounded to fp16 at each step; but the second keeps fp32 to its end.
        {"data": codes(r, "uint8", 4, 6), "scale": weights(r, 2, 3, dtype=F16), "offset": weights(r, 2, 3, dtype=F16)},
        {"data": codes(r, "uint8", 4, 6), "scale": weights(r, 2, 3, dtype=F16), "offset": weights(r, 2, 3)},
        {"data": weights(r, 4, 6), "scale": weights(r, 2, 3, dtype=F16), "offset": weights(r, 2, 3, dtype=F16)},
        {"data": weights(r, 4, 6), "scale": weights(r, 1, 3, dtype=F16)},
    ]
    for n_bits, mode, signed, dtype in ((4, "LINEAR_SYMMETRIC", True, F16), (4, "LINEAR", False, F16), (8, "LINEAR", True, F32)):
        made = linear_quantize_weights.blockwise_compress(weights(r, 4, 10, dtype=dtype), n_bits, mode, signed, [2, 5])
        name = f"{'' if signed else 'u'}int{n_bits}"
        constants = {"data": Packed(name, made.data), "scale": made.scale}
        cases.append(constants | ({} if made.offset is None else {"offset": Packed(name, made.offset)}))
    return [make(constants) for constants in cases]


def lut_to_dense(op):
    r = Random(op)
    make = decompressed(op, "ios18", "indices", "lut", "vector_axis")
    cases = [
        {"indices": indices(r, 1, 3, 4), "lut": r.floats(1, 1, 2, 1)},
        {"indices": indices(r, 2, 6, 2), "lut": r.floats(2, 1, 4, 1, dtype=F16)},
        {"indices": indices(r, 3, 2, 6), "lut": r.ints(1, 3, 8, 1, dtype=I8)},
        {"indices": indices(r, 4, 4, 3), "lut": r.ints(4, 1, 16, 1, low=0, high=255, dtype=U8)},
        {"indices": indices(r, 6, 5), "lut": r.floats(1, 64, 1)},
        {"indices": indices(r, 8, 7), "lut": r.ints(1, 256, 1, low=-128, high=128, dtype=I8)},
        {"indices": indices(r, 2, 3, 2), "lut": r.floats(1, 2, 4, 2), "vector_axis": I32(0)},
        {"indices": indices(r, 1, 2, 2, 4), "lut": r.floats(2, 1, 2, 2, 3), "vector_axis": I32(-1)},
        {"indices": indices(r, 2, 2, 3), "lut": r.floats(1, 1, 4, 1, dtype=F16), "vector_axis": I32(1)},
    ]
    made = palettize_weights.blockwise_compress(weights(r, 6, 4, dtype=F16), "UNIFORM", 2, [3, 0])
    cases.append({"indices": Packed("uint2", made.indices), "lut": made.lut})
    return [make(constants) for constants in cases] + packed_lut_to_dense(r, op)


def packed_lut_to_dense(r, op):
    make = decompressed(op, "ios16", "lut", "indices", "shape")

    def packed(n_bits, *shape):
        n = r.ints(int(np.prod(shape)), low=0, high=2**n_bits, dtype=U8)
        return {"indices": optimize.pack_elements_into_bits(n, n_bits), "shape": sizes(*shape)}

    cases = [
        packed(1, 3, 7) | {"lut": r.floats(2)},
        packed(2, 5) | {"lut": r.floats(4, dtype=F16)},
        packed(4, 3, 1, 3) | {"lut": r.ints(16, dtype=I8)},
        packed(6, 7, 3) | {"lut": r.ints(64, low=0, high=255, dtype=U8)},
        packed(8, 2, 4) | {"lut": r.floats(256, dtype=F16)},
    ]
    made = optimize.ios18_lut_params_to_ios16(palettize_weights.blockwise_compress(weights(r, 5, 3), "UNIFORM", 4, [0, 0]))
    cases.append({"indices": made.indices, "lut": made.lut, "shape": sizes(*made.shape)})
    return [make(constants) for constants in cases]


def mask_of(r, *shape):
    return Packed("uint1", r.bools(*shape).astype(U8))


def ones(mask):
    return int(np.count_nonzero(mask.values))


def lut_to_sparse(op):
    r = Random(op)
    make = decompressed(op, "ios18", "indices_mask", "indices_nonzero_data", "lut", "vector_axis")
    cases = []
    for n_bits, dims, lut, more in (
        (1, (3, 4), r.floats(1, 1, 2, 1), {}),
        (2, (4, 6), r.floats(2, 3, 4, 1, dtype=F16), {}),
        (3, (2, 5), r.ints(2, 1, 8, 1, low=1, high=100, dtype=I8), {"vector_axis": I32(1)}),
        (4, (3, 2, 2), r.ints(1, 1, 1, 16, 1, low=1, high=255, dtype=U8), {}),
        (6, (9,), r.floats(3, 64, 1), {}),
        (8, (3, 5), r.floats(1, 1, 256, 1), {}),
        (1, (4, 6), r.floats(1, 2, 2, 2), {"vector_axis": I32(0)}),
        (2, (2, 3, 4), r.floats(1, 3, 2, 4, 3, dtype=F16), {"vector_axis": I32(-1)}),
    ):
        mask = mask_of(r, *dims)
        cases.append({"indices_mask": mask, "indices_nonzero_data": indices(r, n_bits, ones(mask)), "lut": lut} | more)
    return [make(constants) for constants in cases]


def sparse_blockwise_shift_scale(op):
    r = Random(op)
    make = decompressed(op, "ios18", "data_mask", "nonzero_data", "scale", "offset")
    cases = []
    for dtype, dims, scale, offset in (
        ("int4", (4, 4), r.floats(1, 4, low=0.1), None),
        ("uint4", (4, 6), r.floats(2, 3, low=0.1, dtype=F16), codes(r, "uint4", 2, 3)),
        ("int8", (3, 5), r.floats(3, 1, low=0.1, dtype=F16), codes(r, "int8", 3, 1)),
        ("uint8", (2, 4, 3), weights(r, 2, 2, 1, dtype=F16), weights(r, 2, 2, 1, dtype=F16)),
        ("uint8", (7,), weights(r, 1, dtype=F16), weights(r, 1)),
        ("fp16", (2, 6), weights(r, 2, 2), weights(r, 2, 2, dtype=F16)),
        ("fp32", (2, 6), weights(r, 1, 3, dtype=F16), None),
    ):
        mask = mask_of(r, *dims)
        constants = {"data_mask": mask, "nonzero_data": codes(r, dtype, ones(mask)), "scale": scale}
        cases.append(constants | ({} if offset is None else {"offset": offset}))
    return [make(constants) for constants in cases]


def sparse_to_dense(op):
    r = Random(op)
    make = decompressed(op, "ios18", "nonzero_data", "mask")
    cases = []
    for dtype, dims in (("fp32", (3, 5)), ("fp16", (2, 3, 4)), ("int8", (9,)), ("uint8", (4, 3)), ("int4", (3, 7)), ("uint4", (2, 5))):
        mask = mask_of(r, *dims)
        cases.append(make({"nonzero_data": codes(r, dtype, ones(mask)), "mask": mask}))
    make = decompressed(op, "ios16", "nonzero_data", "mask", "shape")
    for dtype, dims in (("fp32", (3, 5)), ("fp16", (2, 3, 4)), ("int8", (9,)), ("uint8", (4, 3, 1))):
        mask = mask_of(r, *dims)
        bits = np.packbits(mask.values.flatten(), bitorder="little")
        cases.append(make({"nonzero_data": codes(r, dtype, ones(mask)), "mask": bits, "shape": sizes(*dims)}))
    made = prune_weights.compress_by_threshold(weights(r, 6, 7, dtype=F16), 0.2, 0.1)
    cases.append(make({"nonzero_data": made.nonzero_data, "mask": made.mask, "shape": sizes(*made.shape)}))
    return cases


CASES = {f"constexpr_{f.__name__}": f for f in (affine_dequantize, cast, blockwise_shift_scale, lut_to_dense, lut_to_sparse)}
CASES |= {f"constexpr_{f.__name__}": f for f in (sparse_blockwise_shift_scale, sparse_to_dense)}
COMPUTES = set()
