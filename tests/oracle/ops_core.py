"""Cases of the ops that language models use most, and of those beside them."""

import numpy as np
from case import *

# The cases, a function a group: op name -> list of cases.


def arithmetic(op):
    r = Random(op)
    positive = op == "pow"
    low = 0.25 if positive else -3.0
    divides = op in ("real_div", "floor_div", "mod")
    x = f32s(NAN, 2, INF, -INF, 0, 1, -7, 7, -1, 5.5, -0.5)
    y = f32s(1, NAN, 2, 2, 4, 0.1, 2, -2, INF, 0.1, -0.5)
    if divides:
        x, y = np.append(x, f32s(1, -1, 0)), np.append(y, f32s(0, 0, 0))
    if positive:
        x, y = f32s(NAN, 2, 0, 0, INF, 2, -2, -2, 4, 1), f32s(2, NAN, 0, 3, 2, -1, 3, -2, 0.5, NAN)
    divisor = r.ints(3, low=1, high=7) * i32s(1, -1, 1) if divides else r.ints(3, low=0, high=4)
    return [
        Case({"x": r.floats(2, 3, 4, low=low), "y": r.floats(3, 1, low=low)}),
        Case({"x": r.floats(2, 1, 3, 1, 2, low=low), "y": r.floats(2, 1, 3, 1, low=low)}),
        Case({"x": r.ints(4, 3), "y": divisor}),
        Case({"x": i32s(7, -7, 2**31 - 1, -6), "y": i32s(2, 2, 1, 3)}),
        Case({"x": r.floats(7, low=low, dtype=F16)}, {"y": F16(1.5)}),
        Case({"x": x, "y": y}),
        Case({"x": F32(2.5), "y": r.floats(5, low=low)}),
    ]


def comparison(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 3, 4).round(0), "y": r.floats(3, 1).round(0)}),
        Case({"x": r.ints(2, 1, 3, 1, 2, low=-2, high=2), "y": r.ints(2, 1, 3, 1, low=-2, high=2)}),
        Case({"x": r.floats(9, dtype=F16).round(0)}, {"y": F16(1)}),
        Case({"x": f32s(NAN, NAN, 1, INF, 0, -INF), "y": f32s(NAN, 1, NAN, INF, -0.0, INF)}),
    ]


def logical(op):
    r = Random(op)
    return [Case({"x": r.bools(2, 3, 4), "y": r.bools(3, 1)}), Case({"x": r.bools(5), "y": BOOL(True)})]


def unary(op):
    r = Random(op)
    low = {"log": 0.01, "sqrt": 0.0, "rsqrt": 0.01, "inverse": 0.1}.get(op, -5.0)
    formula = {"silu": lambda x: [(x.astype(np.float64) / (1 + np.exp(-x.astype(np.float64)))).astype(F32)]}.get(op)
    special = {"cos": f32s(0, -0.0, NAN), "sin": f32s(0, -0.0, NAN), "silu": f32s(0, NAN, INF, -80)}
    special = special.get(op, f32s(0, NAN, INF, -0.0) if low >= 0 else f32s(0, NAN, INF, -INF, -80, 80))
    cases = [
        Case({"x": r.floats(2, 3, 4, low=low, high=5)}, formula=formula),
        Case({"x": r.floats(2, 1, 3, 1, 2, low=low, high=5)}, formula=formula),
        Case({"x": r.floats(9, low=low, high=5, dtype=F16)}, formula=formula),
        Case({"x": special}, formula=formula),
    ]
    if op in ("abs", "square"):
        cases.append(Case({"x": r.ints(4, 3)}))
    if op in ("inverse", "log", "rsqrt"):
        cases.append(Case({"x": r.floats(3, 2, low=low)}, {"epsilon": F32(0.25)}))
        cases.append(Case({"x": r.floats(5, low=low, dtype=F16)}, {"epsilon": F32(0.125)}))
        cases.append(Case({"x": np.array([0, 0.125], F16)}))
    return cases


def gelu(op):
    r = Random(op)
    cases = [Case({"x": r.floats(2, 3, low=-5, high=5)}), Case({"x": r.floats(9, dtype=F16)})]
    for mode in ("EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"):
        cases.append(Case({"x": r.floats(2, 3, 5, low=-5, high=5)}, {"mode": mode}))
        cases.append(Case({"x": r.floats(3, 1, 2, dtype=F16)}, {"mode": mode}))
    return cases


def softmax(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 5)}),
        Case({"x": r.floats(2, 3, 4, high=30)}, {"axis": I32(1)}),
        Case({"x": r.floats(3, 1, 2, 2, 5)}, {"axis": I32(-5)}),
        Case({"x": r.floats(7, dtype=F16)}, {"axis": I32(0)}),
        Case({"x": f32s(-INF, 1, 2, -INF).reshape(1, 4)}),
    ]


def clip(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 3, 4)}, {"alpha": F32(-1), "beta": F32(1.5)}),
        Case({"x": r.floats(3, 3, dtype=F16)}, {"alpha": F16(-0.5), "beta": F16(2)}),
        Case({"x": f32s(NAN, INF, -INF, 0)}, {"alpha": F32(-2), "beta": F32(3)}),
    ]


def cast(op):
    r = Random(op)
    cases = []
    for dtype in ALL:
        for to in ("fp32", "fp16", "int32", "int8", "uint8", "bool"):
            # What is outside of an integer type is undefined for floats and wraps for integers.
            low, high = (0, 100) if to == "uint8" else (-100, 100)
            if dtype in (F32, F16):
                x = r.floats(2, 3, low=low, high=high, dtype=dtype)
                x[0, 0] = 0
            else:
                x = r.any(dtype, 2, 3)
                x.flat[:1] = np.array(300 if dtype == I32 else 0).astype(dtype)
            cases.append(Case({"x": x}, {"dtype": to}))
    cases.append(Case({"x": f32s(2.7, -2.7, 0.99, -0.01)}, {"dtype": "int32"}))
    cases.append(Case({"x": f32s(65519, 65520, 1e-8, NAN, -INF)}, {"dtype": "fp16"}))
    return cases


def select(op):
    r = Random(op)
    cases = [Case({"cond": r.bools(2, 3), "a": r.any(d, 2, 3), "b": r.any(d, 2, 3)}) for d in BASIC]
    cases += [
        Case({"cond": r.bools(4, 1, 3), "a": r.floats(2, 1), "b": r.floats(4, 2, 3)}),
        Case({"cond": BOOL(False), "a": r.floats(3), "b": r.floats(2, 3)}),
        Case({"cond": r.bools(5), "a": f32s(0)}, {"b": F32(-1e4)}),
    ]
    return cases


def identity(op):
    r = Random(op)
    return [Case({"x": r.any(d, 2, 3)}) for d in ALL] + [Case({"x": r.floats(2, 1, 3, 1, 2)})]


def logical_not(op):
    r = Random(op)
    return [Case({"x": r.bools(2, 3)}), Case({"x": r.bools(7)})]


def gather(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 4, 3), "indices": i32s(3, 0, 3)}) for d in ALL if d != BOOL]
    cases += [
        Case({"x": r.floats(2, 5, 3), "indices": r.ints(2, 2, low=0, high=5)}, {"axis": I32(1)}),
        Case({"x": r.floats(2, 3, 4), "indices": r.ints(5, low=0, high=4, dtype=U8)}, {"axis": I32(-1)}),
        Case({"x": r.floats(2, 3, 4), "indices": r.ints(2, 3, 2, low=0, high=4, dtype=I8)}, {"axis": I32(2), "batch_dims": I32(2)}),
        Case({"x": r.floats(2, 3, 4), "indices": r.ints(2, 5, low=0, high=4)}, {"axis": I32(2), "batch_dims": I32(1)}),
        Case({"x": r.floats(5, 2), "indices": I32(3)}, {"validate_indices": BOOL(True)}),
        Case({"x": r.ints(5)}, {"indices": I32(2), "axis": I32(0), "batch_dims": I32(0)}),
    ]
    return cases


def linear(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 3, 5)}, {"weight": r.floats(4, 5), "bias": r.floats(4)}),
        Case({"x": r.floats(7)}, {"weight": r.floats(3, 7)}),
        Case({"x": r.floats(3, 33)}, {"weight": r.floats(2, 33, low=-1, high=1)}),
        Case({"x": r.floats(2, 5, dtype=F16)}, {"weight": r.floats(3, 5, dtype=F16), "bias": r.floats(3, dtype=F16)}),
        Case({"x": r.ints(2, 5)}, {"weight": r.ints(3, 5), "bias": r.ints(3)}),
    ]


def matmul(op):
    r = Random(op)
    yes, no = BOOL(True), BOOL(False)
    return [
        Case({"x": r.floats(3, 5), "y": r.floats(5, 2)}),
        Case({"x": r.floats(2, 1, 3, 4), "y": r.floats(3, 4, 2)}),
        Case({"x": r.floats(2, 4, 3), "y": r.floats(1, 5, 4)}, {"transpose_x": yes, "transpose_y": yes}),
        Case({"x": r.floats(2, 3, 4, dtype=F16), "y": r.floats(2, 5, 4, dtype=F16)}, {"transpose_x": no, "transpose_y": yes}),
        Case({"x": r.ints(2, 1, 1, 2, 3), "y": r.ints(2, 1, 3, 2)}),
        Case({"x": r.floats(4), "y": r.floats(4, 3)}),
        Case({"x": r.floats(2, 3)}, {"y": r.floats(3, 4)}),
    ]


def attention(op):
    r = Random(op)

    def qkv(*batch, l, s, e, ev, dtype=F32):
        shapes = {"query": (l, e), "key": (s, e), "value": (s, ev)}
        return {name: r.floats(*batch, *shape, low=-2, high=2, dtype=dtype) for name, shape in shapes.items()}

    masked = r.bools(3, 5) | np.eye(3, 5, dtype=bool)
    bias = r.floats(2, 1, 2, 4)
    bias[0, 0, 1, 2] = -INF
    return [
        Case(qkv(2, l=3, s=4, e=5, ev=2)),
        Case(qkv(2, 2, l=3, s=5, e=4, ev=3) | {"attn_mask": masked}),
        Case(qkv(2, 3, l=2, s=4, e=3, ev=2) | {"attn_mask": bias}),
        Case(qkv(1, 2, 2, l=2, s=3, e=4, ev=2), {"attn_mask": r.floats(2, 3)}),
        Case(qkv(1, 2, l=2, s=3, e=4, ev=5, dtype=F16) | {"attn_mask": r.floats(1, 3, dtype=F16)}),
    ]


def reduction(op):
    r = Random(op)
    yes = BOOL(True)
    return [
        Case({"x": r.floats(2, 3, 4)}),
        Case({"x": r.floats(2, 3, 4)}, {"axes": i32s(-1), "keep_dims": yes}),
        Case({"x": r.floats(2, 1, 3, 2, 2)}, {"axes": i32s(3, 0, -3)}),
        Case({"x": r.ints(3, 4)}, {"axes": i32s(0), "keep_dims": BOOL(False)}),
        Case({"x": i32s(1, 2, -4, -5)}, {"axes": i32s(0)}),
        Case({"x": r.floats(5, 3, dtype=F16)}, {"axes": i32s(1), "keep_dims": yes}),
        Case({"x": np.array([[1, NAN, 3], [INF, 2, -INF], [-INF, -INF, -INF]], F32)}, {"axes": i32s(1)}),
    ]


def argmax(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 5)}),
        Case({"x": r.floats(2, 3, 4)}, {"axis": I32(1), "keep_dims": BOOL(True)}),
        Case({"x": r.ints(4, 3, low=0, high=3)}, {"axis": I32(0), "output_dtype": "int32"}),
        Case({"x": r.floats(2, 1, 3, 2, 2, dtype=F16)}, {"axis": I32(-3)}),
        Case({"x": np.array([[1, NAN, NAN], [-INF, -INF, -INF]], F32)}, {"axis": I32(-1)}),
    ]


def concat(op):
    r = Random(op)

    def interleaved(values, axis, interleave):
        joined = np.stack(values, axis=axis + 1)
        shape = list(values[0].shape)
        shape[axis] *= len(values)
        return [joined.reshape(shape)]

    turns = {"interleave": BOOL(True)}
    cases = [Case({"values": [r.any(d, 2, 3), r.any(d, 1, 3)]}, {"axis": I32(0)}) for d in ALL]
    cases += [
        Case({"values": [r.floats(2, 1, 2), r.floats(2, 3, 2), r.floats(2, 2, 2)]}, {"axis": I32(-2), "interleave": BOOL(False)}),
        Case({"values": [r.ints(3, 2), r.ints(3, 2)]}, {"axis": I32(0)} | turns, interleaved),
        Case({"values": [r.floats(2, 2, 2), r.floats(2, 2, 2), r.floats(2, 2, 2)]}, {"axis": I32(1)} | turns, interleaved),
        Case({"values": [I32(4), I32(-7), I32(9)]}, {"axis": I32(0)}),
        Case({"values": [r.floats(5)]}, {"axis": I32(-1)}),
    ]
    return cases


def stack(op):
    r = Random(op)
    cases = [Case({"values": [r.any(d, 2, 3), r.any(d, 2, 3)]}, {"axis": I32(1)}) for d in ALL]
    cases += [
        Case({"values": [r.floats(2, 3) for _ in range(3)]}, {"axis": I32(-1)}),
        Case({"values": [r.ints(2, 1, 3, 1) for _ in range(2)]}, {"axis": I32(0)}),
        Case({"values": [F32(1.5), F32(-2)]}, {"axis": I32(0)}),
    ]
    return cases


def split(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 4, 3)}, {"num_splits": I32(2), "axis": I32(0)}) for d in BASIC]
    cases += [
        Case({"x": r.floats(2, 6)}, {"split_sizes": i32s(1, 3, 2), "axis": I32(-1)}),
        Case({"x": r.floats(2, 5, 2)}, {"num_splits": I32(2), "split_sizes": i32s(4, 1), "axis": I32(1)}),
    ]
    return cases


def expand_dims(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 3)}, {"axes": i32s(1)}) for d in ALL]
    cases += [
        Case({"x": r.floats(2, 3)}, {"axes": i32s(-1, 0)}),
        Case({"x": r.floats(4)}, {"axes": i32s(-2, 4, 0, 1)}),
        Case({"x": F32(2.5)}, {"axes": i32s(0)}),
    ]
    return cases


def squeeze(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 1, 3)}, {"axes": i32s(1)}) for d in ALL]
    cases += [
        Case({"x": r.floats(1, 2, 1, 3, 1)}),
        Case({"x": r.floats(1, 2, 1, 3, 1)}, {"axes": i32s(-1, 0)}),
        Case({"x": r.floats(1, 1)}, {"axes": i32s(-2)}),
    ]
    return cases


def reshape(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 6)}, {"shape": i32s(3, 4)}) for d in ALL]
    cases += [
        Case({"x": r.floats(2, 3, 4)}, {"shape": i32s(-1)}),
        Case({"x": r.floats(2, 3, 4)}, {"shape": i32s(0, -1)}),
        Case({"x": r.floats(2, 15)}, {"shape": np.array([1, 0, -1, 0], I8)}),
        Case({"x": r.floats(2, 3, 2), "shape": i32s(3, 1, -1)}),
        Case({"x": r.floats(1)}, {"shape": i32s(1, 1, 1, 1, 1)}),
    ]
    return cases


def transpose(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 3)}, {"perm": i32s(1, 0)}) for d in ALL]
    cases += [
        Case({"x": r.floats(2, 3, 4)}, {"perm": i32s(-1, 0, 1)}),
        Case({"x": r.floats(2, 1, 3, 2, 2)}, {"perm": i32s(3, 1, -1, 0, 2)}),
        Case({"x": r.floats(1, 4, 1, 2)}, {"perm": i32s(2, 1, 0, 3)}),
        Case({"x": r.floats(4)}, {"perm": i32s(0)}),
    ]
    return cases


def tile(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 3)}, {"reps": i32s(2, 1)}) for d in BASIC]
    cases += [
        Case({"x": r.floats(2, 1, 3)}, {"reps": i32s(1, 4, 2)}),
        Case({"x": r.floats(1, 2, 1, 1, 2)}, {"reps": i32s(2, 1, 3, 1, 2)}),
        Case({"x": r.floats(3), "reps": i32s(3)}),
    ]
    return cases


def range_1d(op):
    def case(end, start, step, constant, dtype=I32):
        values = {"end": dtype(end), "start": dtype(start), "step": dtype(step)}
        given = {k: v for k, v in values.items() if k not in constant}
        return Case(given, {k: v for k, v in values.items() if k in constant})

    return [
        case(7, 0, 1, ["end", "start", "step"]),
        case(11, 2, 3, ["start", "step"]),
        case(-8, 5, -3, []),
        case(12, 3, 3, ["step"]),
        case(2.5, -1, 0.5, [], F32),
        case(-2, 1.25, -0.75, ["start"], F32),
        case(3, 0, 0.75, ["end", "start", "step"], F32),
        case(4, 1.5, 0.5, ["step"], F16),
        case(-1, 2, -0.5, [], F16),
    ]


def non_zero(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 2, 3) * r.bools(2, 3)}) for d in BASIC]
    return cases + [
        Case({"x": r.ints(2, 3, 2, low=-1, high=2)}),
        Case({"x": f32s(0, NAN, -0.0, INF, 1e-40)}),
        Case({"x": np.zeros((3, 2), F32)}),
    ]


def shape(op):
    r = Random(op)
    return [Case({"x": r.any(d, 2, 3)}) for d in BASIC] + [Case({"x": r.floats(3, 1, 2, 2, 1)}), Case({"x": r.floats(4)})]


def slices():
    """(shape of x, begin, end, other constants)"""
    return [
        ((4, 5), (1, 0), (3, 4), {}),
        ((4, 5), (-3, -4), (-1, 5), {"stride": i32s(1, 2)}),
        ((3, 4, 5), (9, 1, 9), (9, 9, 3), {"begin_mask": bools(1, 0, 1), "end_mask": bools(1, 1, 0)}),
        ((6, 4), (-1, 3), (0, 0), {"stride": i32s(-2, -1), "end_mask": bools(0, 1)}),
        ((6,), (9,), (-9,), {"stride": i32s(-2), "begin_mask": bools(1), "end_mask": bools(1)}),
        ((3, 4, 2), (0, -2, 0), (2, 0, 2), {"squeeze_mask": bools(0, 1, 0)}),
        ((3, 4, 2), (2, 9, 0), (0, 0, 2), {"squeeze_mask": bools(1, 1, 0), "begin_mask": bools(0, 1, 0)}),
        ((2, 3, 2, 2, 3), (0, 1, 0, 1, 0), (2, 2, 2, 2, 3), {"stride": i32s(1, 1, 1, 1, 2)}),
        # Beyond the ends.
        ((5, 3), (3, -7), (9, 2), {}),
        ((5,), (8,), (-8,), {"stride": i32s(-3)}),
    ]


def slice_by_index(op):
    r = Random(op)
    cases = [Case({"x": r.any(d, 3, 4)}, {"begin": i32s(1, 0), "end": i32s(3, 2)}) for d in ALL]
    for dims, begin, end, more in slices():
        cases.append(Case({"x": r.floats(*dims)}, {"begin": i32s(*begin), "end": i32s(*end)} | more))
    cases += [
        Case({"x": r.floats(4, 5), "begin": i32s(1, 2), "end": i32s(3, 5)}),
        Case({"x": r.floats(4, 3), "begin": i32s(-2, 0), "end": i32s(0, 0)}, {"squeeze_mask": bools(1, 0), "end_mask": bools(0, 1)}),
        Case({"x": r.ints(5)}, {"begin": i32s(-2), "end": i32s(0), "squeeze_mask": bools(1)}),
        Case({"x": r.floats(4, 3)}, {"begin": np.array([1, 0], I8), "end": np.array([4, 2], I8), "stride": np.array([2, 1], I8)}),
    ]
    return cases


def slice_update(op):
    r = Random(op)

    cases = []
    for d in ALL:
        cases.append(Case({"x": r.any(d, 3, 4), "update": r.any(d, 2, 2)}, {"begin": i32s(1, 0), "end": i32s(3, 2)}))
    for dims, begin, end, more in slices():
        bounds = {"begin": i32s(*begin), "end": i32s(*end)} | more
        x = r.floats(*dims)
        [((_, update_dims), _)] = call("slice_by_index", {"x": x} | bounds, "ios18")
        cases.append(Case({"x": x, "update": r.floats(*update_dims)}, bounds))
    given = {"x": r.floats(4, 5), "update": r.floats(2, 3), "begin": i32s(1, 2), "end": i32s(3, 5)}
    return cases + [Case(given)]


GROUPS = [
    (arithmetic, "add sub mul real_div floor_div mod pow maximum minimum"),
    (comparison, "equal not_equal less less_equal greater greater_equal"),
    (logical, "logical_and logical_or"),
    (unary, "abs cos erf exp floor inverse log rsqrt sin sqrt square relu sigmoid silu tanh"),
    (reduction, "reduce_max reduce_mean reduce_min reduce_sum"),
    (attention, "scaled_dot_product_attention"),
    (argmax, "reduce_argmax"),
]
ALONE = [gelu, softmax, clip, cast, select, identity, logical_not, gather, linear, matmul, concat, stack, split]
ALONE += [expand_dims, squeeze, reshape, transpose, tile, range_1d, non_zero, shape, slice_by_index, slice_update]
CASES = {name: group for group, names in GROUPS for name in names.split()} | {f.__name__: f for f in ALONE}
# Ops whose fp16 results are rounded from fp32.
COMPUTES = set("""add sub mul real_div floor_div mod pow gelu softmax linear matmul scaled_dot_product_attention
reduce_mean reduce_sum cos erf exp inverse log rsqrt sin sqrt square sigmoid silu tanh""".split())
EPSILON = {"inverse": 1e-4, "log": 1e-45, "rsqrt": 1e-12}
