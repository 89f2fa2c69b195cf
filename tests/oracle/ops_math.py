"""Cases of activations, element-wise functions, reductions and products, and of the forms that older opsets have of them."""

import numpy as np
import ops_core
from case import *

OLDEST = "ios15"


# Activations.

SCALARS = {
    "clamped_relu": (0.3, 1.75),
    "elu": (1.25,),
    "leaky_relu": (0.3,),
    "linear_activation": (-1.5, 0.3),
    "scaled_tanh": (1.7, 0.6),
    "sigmoid_hard": (0.3, 0.45),
    "thresholded_relu": (0.75,),
}


def constants(op, dtype, sign=1):
    return {name: dtype(sign * value) for name, value in zip(("alpha", "beta"), SCALARS[op])}


def activation(op):
    r = Random(op)
    alike = [
        Case({"x": r.floats(2, 3, 4)}, constants(op, F32)),
        Case({"x": r.floats(3, 1, 2, 2, 5)}, constants(op, F32)),
        Case({"x": r.floats(3, 7, dtype=F16)}, constants(op, F16)),
        Case({"x": f32s(0, NAN, INF, -INF, -0.0, 0.75)}, constants(op, F32)),
    ]
    mixed = [
        Case({"x": r.floats(2, 5)}, constants(op, F16)),
        Case({"x": r.floats(4, 3, dtype=F16)}, constants(op, F32)),
    ]
    if op == "clamped_relu":
        formula = lambda x, alpha, beta: [np.minimum(np.where(x < 0, alpha * x, x), beta)]
        source = "the documented formula in numpy; coremltools adds both branches, which is wrong for beta < 0"
        mixed.append(Case({"x": r.floats(2, 6)}, constants(op, F32, -1), formula, source))
    else:
        mixed.append(Case({"x": r.floats(2, 6)}, constants(op, F32, -1)))
    return older(alike, OLDEST) + alike + mixed


def prelu(op):
    r = Random(op)
    alike = [
        Case({"x": r.floats(2, 3, 4, 5)}, {"alpha": r.floats(3)}),
        Case({"x": r.floats(3, 2, 4)}, {"alpha": f32s(0.3, 0.3)}),
        Case({"x": r.floats(2, 3, 1, 4, 2)}, {"alpha": f32s(-0.7, -0.7, -0.7)}),
        Case({"x": r.floats(1, 4, 2, 3, dtype=F16)}, {"alpha": r.floats(4, dtype=F16)}),
    ]
    mixed = [
        Case({"x": r.floats(1, 5, 2, 3)}, {"alpha": r.floats(5, dtype=F16)}),
        Case({"x": r.floats(2, 3, 1, 4, dtype=F16)}, {"alpha": r.floats(3)}),
    ]
    return older(alike, OLDEST) + alike + mixed


def softplus_parametric(op):
    r = Random(op)
    alike = [
        Case({"x": r.floats(2, 3, 4, 5)}, {"alpha": r.floats(3), "beta": r.floats(3)}),
        Case({"x": r.floats(3, 2, 4)}, {"alpha": r.floats(2), "beta": r.floats(2)}),
        Case({"x": r.floats(2, 3, 1, 4, 2)}, {"alpha": r.floats(3), "beta": r.floats(3)}),
        Case({"x": r.floats(1, 4, 2, 3, dtype=F16)}, {"alpha": r.floats(4, dtype=F16), "beta": r.floats(4, dtype=F16)}),
    ]
    mixed = [
        Case({"x": r.floats(1, 5, 2, 3)}, {"alpha": r.floats(5, dtype=F16), "beta": r.floats(5, dtype=F16)}),
        Case({"x": r.floats(2, 3, 1, 4, dtype=F16)}, {"alpha": r.floats(3), "beta": r.floats(3)}),
    ]
    return older(alike, OLDEST) + alike + mixed


# Element-wise functions.


def unary(op):
    r = Random(op)
    most = {"acos": 1.0, "asin": 1.0, "atanh": 0.99, "relu6": 9.0}.get(op, 5.0)
    special = f32s(0, -0.0, NAN, INF, -INF, 1, -1, 2, -100, 100, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 2.4999998, 8388609)
    if op == "tan":
        special = special[:-1]
    cases = [
        Case({"x": r.floats(2, 3, 4, low=-most, high=most)}),
        Case({"x": r.floats(2, 1, 3, 1, 2, low=-most, high=most)}),
        Case({"x": r.floats(9, low=-most, high=most, dtype=F16)}),
        Case({"x": special}),
        Case({"x": F32(0.37)}),
    ]
    if op == "exp2":
        cases += [Case({"x": r.ints(4, 3, low=0, high=31)}), Case({"x": i32s(-1, -30, 0, 30)})]
    if op == "sign":
        cases.append(Case({"x": r.ints(4, 3, low=-2, high=3)}))
    return cases


def threshold(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 3, 4)}, {"alpha": F32(0.5)}),
        Case({"x": r.floats(3, 1, 5, dtype=F16)}, {"alpha": F16(-1)}),
        Case({"x": r.ints(2, 7)}, {"alpha": I32(3)}),
        Case({"x": f32s(NAN, INF, -INF, -0.25)}, {"alpha": F32(-0.25)}),
    ]


def with_epsilon(op):
    r = Random(op + " epsilon")
    low = 0.1 if op == "inverse" else 0.01
    alike = [
        Case({"x": r.floats(2, 3, 4, low=low)}),
        Case({"x": r.floats(3, 2, low=low)}, {"epsilon": F32(0.25)}),
        Case({"x": r.floats(5, low=low, dtype=F16)}, {"epsilon": F16(0.125)}),
        Case({"x": r.floats(1, 7, low=low, dtype=F16)}),
    ]
    mixed = [Case({"x": r.floats(2, 5, low=low)}, {"epsilon": F16(0.125)})]
    return ops_core.CASES[op](op) + older(alike, OLDEST) + mixed


def clip(op):
    r = Random(op + " " + OLDEST)
    alike = ops_core.clip(op)
    # Before iOS 17 alpha may be as large as beta, or larger.
    equal = [Case({"x": r.floats(2, 5)}, {"alpha": F32(a), "beta": F32(b)}) for a, b in ((0.5, 0.5), (1.5, -0.5))]
    return alike + older(alike + equal, OLDEST)


def cast(op):
    cases = ops_core.cast(op)
    names = ("fp32", "fp16", "int32", "bool")
    basic = [c for c in cases if c.inputs["x"].dtype.type in BASIC and c.constants["dtype"] in names]
    return cases + older(basic, OLDEST)


# Reductions.


def reduction(op):
    r = Random(op)
    cases = ops_core.reduction(op)
    if op == "reduce_log_sum":
        low = {"low": 0.1}
        cases = [
            Case({"x": r.floats(2, 3, 4, **low)}),
            Case({"x": r.floats(2, 3, 4, **low)}, {"axes": i32s(-1), "keep_dims": BOOL(True)}),
            Case({"x": r.floats(2, 1, 3, 2, 2, **low)}, {"axes": i32s(3, 0, -3)}),
            Case({"x": r.ints(3, 4, low=1)}, {"axes": i32s(0), "keep_dims": BOOL(False)}),
            Case({"x": r.floats(5, 3, dtype=F16, **low)}, {"axes": i32s(1), "keep_dims": BOOL(True)}),
            Case({"x": f32s(1, -1, 2, -3, NAN, 1).reshape(3, 2)}, {"axes": i32s(1)}),
        ]
    if op == "reduce_log_sum_exp":
        source = "the documented formula in numpy; coremltools takes inf from inf"
        formula = lambda x, axes: [np.log(np.exp(x.astype(np.float64)).sum(tuple(axes)))]
        cases[-1] = replace(cases[-1], formula=formula, source=source)
        cases.append(Case({"x": r.floats(3, 4, low=80, high=200)}, {"axes": i32s(0)}))
    if op in ("reduce_l1_norm", "reduce_prod", "reduce_sum_square"):
        # The sum wraps.
        cases.append(Case({"x": i32s(2**31 - 1, -7, 65536, 3, 65537, 2**30)}))
    return cases


def position(op):
    cases = ops_core.argmax(op)
    plain = [replace(c, constants={k: v for k, v in c.constants.items() if k != "output_dtype"}) for c in cases]
    return cases + older(plain, OLDEST)


# Products.


def linear(op):
    r = Random(op + " mixed")
    alike = ops_core.linear(op)
    mixed = [
        Case({"x": r.floats(2, 3, 5)}, {"weight": r.floats(4, 5, dtype=F16), "bias": r.floats(4, dtype=F16)}),
        Case({"x": r.floats(3, 5, dtype=F16)}, {"weight": r.floats(2, 5), "bias": r.floats(2)}),
        Case({"x": r.floats(2, 5)}, {"weight": r.ints(3, 5), "bias": r.ints(3)}),
        Case({"x": r.ints(2, 5)}, {"weight": r.floats(3, 5)}),
        Case({"x": r.ints(3, 4)}, {"weight": r.floats(2, 4, dtype=F16), "bias": r.floats(2, dtype=F16)}),
    ]
    return alike + mixed + older(alike, OLDEST)


def matmul(op):
    r = Random(op + " mixed")
    alike = ops_core.matmul(op)

    def cast_constant(inputs, constants, dtype, **more):
        """coremltools infers the type of the other operand, and evaluates nothing."""

        def formula(x, y, transpose_x=False, transpose_y=False):
            x, y = (np.swapaxes(v.astype(dtype), -1, -2) if t else v.astype(dtype) for v, t in ((x, transpose_x), (y, transpose_y)))
            return [np.matmul(widened(x), widened(y))]

        source = "numpy, the constant cast to the element type of the other operand"
        return Case(inputs, constants | more, formula, source, open=True)

    widened = lambda v: v.astype(F32) if v.dtype == F16 else v
    mixed = [
        cast_constant({"x": r.floats(2, 3, 4, dtype=F16)}, {"y": r.floats(4, 5)}, F16),
        cast_constant({"x": r.floats(3, 4)}, {"y": r.floats(2, 4, dtype=F16)}, F32, transpose_y=BOOL(True)),
        cast_constant({"y": r.floats(4, 2)}, {"x": r.floats(4, 3, dtype=F16)}, F32, transpose_x=BOOL(True)),
        cast_constant({"y": r.floats(4, 2)}, {"x": r.ints(3, 4)}, F32),
        cast_constant({"x": r.ints(3, 4)}, {"y": r.floats(4, 2)}, I32),
    ]
    return alike + mixed + older(alike, OLDEST)


def einsum(op):
    r = Random(op)

    def case(x, y, equation):
        return Case({"values": [x, y]}, {"equation": equation})

    return [
        case(r.floats(2, 3, 4, 5), r.floats(2, 5, 4, 6), "nchw,nwhr->nchr"),
        case(r.floats(3, 4, 5), r.floats(5, 4, 2), "chw,whr->chr"),
        case(r.floats(1, 3, 4, 2), r.floats(5, 2, 1, 3), "abcd,adce->abce"),
        case(r.floats(4, 1, 2), r.floats(2, 5, 3), "xyz,zyw->xyw"),
        case(r.floats(2, 3, 1, 5, dtype=F16), r.floats(1, 5, 4, 2, dtype=F16), "nchw,nwhr->nchr"),
        case(r.ints(3, 2, 4), r.ints(4, 2, 5), "chw,whr->chr"),
    ]


def logical_xor(op):
    return ops_core.logical(op)


GROUPS = [
    (activation, " ".join(SCALARS)),
    (unary, "acos asin atan atanh ceil cosh exp2 round sign sinh tan relu6 softplus softsign"),
    (with_epsilon, "inverse log rsqrt"),
    (reduction, "reduce_l1_norm reduce_l2_norm reduce_log_sum reduce_log_sum_exp reduce_prod reduce_sum_square"),
    (position, "reduce_argmax reduce_argmin"),
]
ALONE = [prelu, softplus_parametric, threshold, clip, cast, linear, matmul, einsum, logical_xor]
CASES = {name: group for group, names in GROUPS for name in names.split()} | {f.__name__: f for f in ALONE}
# Ops whose fp16 results are rounded from fp32.
COMPUTES = set(SCALARS) | set("""acos asin atan atanh cosh exp2 sinh tan softplus softsign prelu softplus_parametric
reduce_l1_norm reduce_l2_norm reduce_log_sum reduce_log_sum_exp reduce_prod reduce_sum_square einsum""".split())
