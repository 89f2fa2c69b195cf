"""Cases of `quantize` and `dequantize`."""

from case import *
from coremltools.optimize import _utils as optimize


def quantized(input, scale, output_dtype, zero_point=None, axis=None):
    """coremltools' formula in fp32; in fp16 it rounds each step, and so chooses another integer near a half."""
    wide = [optimize.promote_rank_to_same_as_data(v, input, axis) for v in (F32(scale), zero_point) if v is not None]
    return [optimize.quantize_by_scale_and_zp(input.astype(F32), wide[0], wide[1] if wide[1:] else None, output_dtype)]


def quantize(op):
    r = Random(op)
    x = f32s(0.5, 1.5, 2.5, -0.5, -1.5, 127.4, 127.6, 1e9, -1e9, -128.6, 255.5, INF)
    values = [
        ({"input": r.floats(2, 3, 4)}, {"scale": F32(0.05), "output_dtype": "int8"}),
        ({"input": r.floats(2, 3, 4)}, {"zero_point": U8(128), "scale": F32(0.01), "output_dtype": "uint8"}),
        ({"input": r.floats(3, 4)}, {"zero_point": r.ints(4, dtype=I8), "scale": r.floats(4, low=0.01), "axis": I32(1), "output_dtype": "int8"}),
        ({"input": r.floats(2, 3, 5)}, {"scale": r.floats(2, low=0.01, high=0.1), "axis": I32(-3), "output_dtype": "uint8"}),
        ({"input": r.floats(3, 5, dtype=F16)}, {"zero_point": I8(-3), "scale": F16(0.07), "output_dtype": "int8"}),
        ({"input": r.floats(3, 5, dtype=F16)}, {"zero_point": r.ints(3, low=0, dtype=U8), "scale": r.floats(3, low=0.01, dtype=F16), "axis": I32(0), "output_dtype": "uint8"}),
        ({"input": x}, {"scale": F32(1), "output_dtype": "int8"}),
        ({"input": x}, {"scale": F32(1), "zero_point": U8(3), "output_dtype": "uint8"}),
    ]
    half = [Case(i, c, quantized, "numpy, in fp32") for i, c in values if i["input"].dtype == F16]
    return [Case(i, c) for i, c in values if i["input"].dtype != F16] + half


def dequantized(input, scale, zero_point=None, axis=None):
    """Formula of coremltools' materialised value."""
    return [optimize.dequantize_by_scale_and_zp(input, np.asarray(scale), None if zero_point is None else np.asarray(zero_point), axis)]


def dequantize(op):
    r = Random(op)
    values = [
        ({"input": r.ints(2, 3, 4, low=-128, high=128, dtype=I8)}, {"scale": F32(0.37)}),
        ({"input": r.ints(5, low=0, high=256, dtype=U8)}, {"scale": F16(0.037), "zero_point": U8(131)}),
        ({"input": r.ints(3, 4, dtype=I8)}, {"scale": r.floats(4), "zero_point": r.ints(4, dtype=I8), "axis": I32(-1)}),
        ({"input": r.ints(2, 3, 5, low=0, high=256, dtype=U8)}, {"scale": r.floats(3, dtype=F16), "axis": I32(1)}),
        ({"input": r.ints(2, 3, 5, low=0, high=256, dtype=U8)}, {"scale": r.floats(2), "zero_point": r.ints(2, low=0, dtype=U8), "axis": I32(-3)}),
    ]
    return [Case(i, c, dequantized, f"`dequantize_by_scale_and_zp` of {SOURCE}") for i, c in values]


CASES = {"quantize": quantize, "dequantize": dequantize}
COMPUTES = set()
