"""Makes tests/ops/<op>.mil: what each op of the opset gives on small random inputs, by coremltools.

    python3 tests/oracle/make_ops.py            # write the files
    python3 tests/oracle/make_ops.py --check    # compare with the files that are there

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

import logging
import sys
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from golden import need

need("coremltools", "numpy")
logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")

import coremltools
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, types

FOLDER = Path(__file__).resolve().parents[1] / "ops"
SOURCE = f"coremltools {coremltools.__version__}"
F16, F32, I32, I8, U8, BOOL = np.float16, np.float32, np.int32, np.int8, np.uint8, np.bool_
# Relative and absolute difference of a float to the committed one, by type.
CLOSE = {"fp32": (2e-6, 1e-6), "fp16": (1e-3, 1e-7)}


@dataclass
class Packed:
    """Integers of a type that numpy lacks, such as uint3."""

    dtype: str
    values: np.ndarray


@dataclass
class Case:
    """`inputs` are given at run time, `constants` stand in the program; a list is a variadic parameter."""

    inputs: dict
    constants: dict = field(default_factory=dict)
    formula: object = None  # (inputs and constants by name) -> list of results, where coremltools does not serve
    source: str = "numpy"  # of the formula


class Random:
    """Values for the cases of one op; RandomState's streams do not change between numpy's versions."""

    def __init__(self, op):
        self.state = np.random.RandomState(zlib.crc32(op.encode()))

    def floats(self, *shape, low=-3.0, high=3.0, dtype=F32):
        return self.state.uniform(low, high, shape).round(2).astype(dtype)

    def ints(self, *shape, low=-9, high=10, dtype=I32):
        return self.state.randint(low, high, shape).astype(dtype)

    def bools(self, *shape):
        return self.state.randint(0, 2, shape).astype(BOOL)

    def any(self, dtype, *shape):
        if dtype == BOOL:
            return self.bools(*shape)
        if dtype in (F16, F32):
            return self.floats(*shape, dtype=dtype)
        return self.ints(*shape, low=0 if dtype == U8 else -9, high=99, dtype=dtype)


NAN, INF = float("nan"), float("inf")
ALL = (F32, F16, I32, BOOL, I8, U8)
BASIC = (F32, F16, I32, BOOL)


def f32s(*values):
    return np.array(values, F32)


def i32s(*values):
    return np.array(values, I32)


def bools(*values):
    return np.array(values, BOOL)


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


def layer_norm(op):
    r = Random(op)
    return [
        Case({"x": r.floats(2, 3, 5)}, {"axes": i32s(-1), "gamma": r.floats(5), "beta": r.floats(5), "epsilon": F32(1e-3)}),
        Case({"x": r.floats(2, 3, 4)}),
        Case({"x": r.floats(2, 3, 4)}, {"axes": i32s(1), "gamma": r.floats(3)}),
        Case({"x": r.floats(2, 2, 3, 4)}, {"axes": i32s(-1, 1), "gamma": r.floats(2, 4), "beta": r.floats(2, 4)}),
        Case({"x": r.floats(3, 7, dtype=F16)}, {"axes": i32s(1), "gamma": r.floats(7, dtype=F16), "beta": r.floats(7, dtype=F16)}),
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
    def case(end, start, step, constant):
        values = {"end": I32(end), "start": I32(start), "step": I32(step)}
        given = {k: v for k, v in values.items() if k not in constant}
        return Case(given, {k: v for k, v in values.items() if k in constant})

    return [
        case(7, 0, 1, ["end", "start", "step"]),
        case(11, 2, 3, ["start", "step"]),
        case(-8, 5, -3, []),
        case(12, 3, 3, ["step"]),
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
        [((_, update_dims), _)] = evaluate("slice_by_index", Case({"x": x}, bounds))
        cases.append(Case({"x": x, "update": r.floats(*update_dims)}, bounds))
    given = {"x": r.floats(4, 5), "update": r.floats(2, 3), "begin": i32s(1, 2), "end": i32s(3, 5)}
    return cases + [Case(given)]


def blockwise_shift_scale(op):
    r = Random(op)

    def codes(dtype, *shape):
        low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[dtype]
        values = r.ints(*shape, low=low, high=high)
        return values.astype(dtype) if dtype.endswith("8") else Packed(dtype, values)

    def decompress(data, scale, offset=None):
        data, scale, offset = (unpacked(v) for v in (data, scale, offset))
        return [types_op(op).decompress(data.astype(F32), scale.astype(F32), None if offset is None else offset.astype(F32))]

    cases = [
        {"data": codes("int4", 4, 6), "scale": r.floats(4, 2, low=0.1)},
        {"data": codes("uint4", 2, 6), "scale": r.floats(1, 3, low=0.1), "offset": codes("uint4", 1, 3)},
        {"data": codes("int8", 4, 3), "scale": r.floats(4, 1, low=0.1, dtype=F16), "offset": codes("int8", 4, 1)},
        {"data": codes("uint8", 2, 4, 2), "scale": r.floats(2, 2, 1, low=0.1), "offset": r.floats(2, 2, 1)},
        {"data": r.floats(4, 2), "scale": r.floats(2, 1), "offset": r.floats(2, 1)},
        {"data": r.floats(5, dtype=F16), "scale": r.floats(1)},
    ]
    return [Case({}, constants, decompress, f"`decompress` of {SOURCE}") for constants in cases]


def lut_to_dense(op):
    r = Random(op)

    def indices(n_bits, *shape):
        return Packed(f"uint{n_bits}", r.ints(*shape, low=0, high=2**n_bits))

    def decompress(indices, lut, vector_axis=None):
        return [types_op(op).decompress(unpacked(indices).astype(U8), lut, vector_axis)]

    cases = [
        {"indices": indices(1, 3, 4), "lut": r.floats(1, 1, 2, 1)},
        {"indices": indices(2, 6, 2), "lut": r.floats(2, 1, 4, 1, dtype=F16)},
        {"indices": indices(3, 2, 6), "lut": r.ints(1, 3, 8, 1, dtype=I8)},
        {"indices": indices(4, 4, 3), "lut": r.ints(4, 1, 16, 1, low=0, high=255, dtype=U8)},
        {"indices": indices(6, 5), "lut": r.floats(1, 64, 1)},
        {"indices": indices(8, 7), "lut": r.ints(1, 256, 1, low=-128, high=128, dtype=I8)},
        {"indices": indices(2, 3, 2), "lut": r.floats(1, 2, 4, 2), "vector_axis": I32(0)},
        {"indices": indices(1, 2, 2, 4), "lut": r.floats(2, 1, 2, 2, 3), "vector_axis": I32(-1)},
    ]
    return [Case({}, constants, decompress, f"`decompress` of {SOURCE}") for constants in cases]


GROUPS = [
    (arithmetic, "add sub mul real_div floor_div mod pow maximum minimum"),
    (comparison, "equal not_equal less less_equal greater greater_equal"),
    (logical, "logical_and logical_or"),
    (unary, "abs cos erf exp floor inverse log rsqrt sin sqrt square relu sigmoid silu tanh"),
    (reduction, "reduce_max reduce_mean reduce_min reduce_sum"),
    (attention, "scaled_dot_product_attention"),
    (argmax, "reduce_argmax"),
    (blockwise_shift_scale, "constexpr_blockwise_shift_scale"),
    (lut_to_dense, "constexpr_lut_to_dense"),
]
ALONE = [gelu, softmax, clip, cast, select, identity, logical_not, gather, linear, matmul, layer_norm, concat, stack, split]
ALONE += [expand_dims, squeeze, reshape, transpose, tile, range_1d, shape, slice_by_index, slice_update]
CASES = {name: group for group, names in GROUPS for name in names.split()} | {f.__name__: f for f in ALONE}
# Ops whose fp16 results are rounded from fp32.
COMPUTES = set("""add sub mul real_div floor_div mod pow gelu softmax linear matmul scaled_dot_product_attention layer_norm
reduce_mean reduce_sum cos erf exp inverse log rsqrt sin sqrt square sigmoid silu tanh""".split())
EPSILON = {"inverse": 1e-4, "log": 1e-45, "rsqrt": 1e-12}


# Evaluation.


def unpacked(value):
    return value.values if isinstance(value, Packed) else value


def types_op(op):
    """coremltools' class of an op."""
    from coremltools.converters.mil.mil.ops.defs.iOS18 import compression

    return getattr(compression, op)


def argument(value):
    """A value as coremltools' builder takes it."""
    if isinstance(value, list):
        return [argument(v) for v in value]
    if isinstance(value, Packed):
        return value.values.astype(types.nptype_from_builtin(types.string_to_builtin(value.dtype)))
    if isinstance(value, np.bool_):
        return bool(value)
    # Type inference of slices writes to the arrays that it is given.
    return value.copy() if isinstance(value, np.ndarray) else value


def call(op, values):
    """Results of an op on constants as coremltools has them: (type, shape), and the value or None."""
    with Function({}, opset_version=coremltools.target.iOS18), np.errstate(all="ignore"):
        results = getattr(mb, op)(**{k: argument(v) for k, v in values.items()})
    results = results if isinstance(results, (list, tuple)) else [results]
    return [((types.builtin_to_string(r.dtype), tuple(int(n) for n in r.shape)), r.val) for r in results]


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
    results = call(op, values)
    if case.formula:
        with np.errstate(all="ignore"):
            computed = case.formula(**values)
    elif op in COMPUTES and results[0][0][0] == "fp16":
        wide = {k: widened(v) for k, v in values.items()}
        if op in EPSILON:
            # The default is of the type of x.
            wide["epsilon"] = F32(values.get("epsilon", F16(EPSILON[op])))
        computed = [v for _, v in call(op, wide)]
    else:
        computed = [v for _, v in results]
    out = []
    for (ty, _), value in zip(results, computed):
        assert value is not None, f"coremltools does not evaluate {op}"
        dtype = {"fp32": F32, "fp16": F16}.get(ty[0], ty[0])
        with np.errstate(all="ignore"):
            value = np.asarray(value).astype(dtype)
        # coremltools infers the shape of `select` without its condition, against its documentation.
        if op == "select":
            ty = (ty[0], value.shape)
        assert (value.size == 0 and 0 in ty[1]) or value.shape == ty[1], f"{op}: {value.shape}, {ty}"
        out.append((ty, value))
    return out


# Text.

DTYPES = {F32: "fp32", F16: "fp16", I32: "int32", I8: "int8", U8: "uint8", BOOL: "bool"}


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
    arguments += [f"{param} = {literal(value)}" for param, value in case.constants.items()]
    results = evaluate(op, case)
    # `y` is taken where it names an operand.
    base = "z" if "y" in case.inputs else "y"
    names = [base] if len(results) == 1 else [f"{base}_{i}" for i in range(len(results))]
    for result, (ty, value) in zip(names, results):
        comments.append(f"// {name} {result} = {flat(value)}")
    declared = ", ".join(f"{type_text(*ty)} {n}" for n, (ty, _) in zip(names, results))
    body.append(f"{declared} = {op}({', '.join(arguments)});")
    lines = comments + [f"func {name}<ios18>({', '.join(inputs)}) {{"] + [f"    {line}" for line in body]
    return "\n".join(f"    {line}" for line in lines + [f"}} -> ({', '.join(names)});"])


def file_text(op):
    cases = CASES[op](op)
    head = f"// Made by tests/oracle/make_ops.py.\n// source: {SOURCE}\nprogram(1.3)\n{{\n"
    return head + "\n".join(function(op, i, c) for i, c in enumerate(cases)) + "\n}\n"


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


def check(op, text):
    path = FOLDER / f"{op}.mil"
    if not path.exists():
        return [f"{path.name} is missing"]
    mine, theirs = text.splitlines(), path.read_text().splitlines()
    if len(mine) != len(theirs):
        return [f"{path.name} has {len(theirs)} lines, {len(mine)} are due"]
    differences = [i for i, pair in enumerate(zip(mine, theirs)) if not same_line(*pair)]
    return [f"{path.name}, line {i + 1}: {theirs[i].strip()[:90]}, not {mine[i].strip()[:90]}" for i in differences]


def main():
    checks = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not checks:
        sys.exit(__doc__)
    errors = []
    for op in sorted(CASES):
        text = file_text(op)
        if checks:
            errors += check(op, text)
        else:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{op}.mil").write_text(text)
    if checks:
        stray = sorted(p.name for p in FOLDER.glob("*.mil") if p.stem not in CASES)
        errors += [f"{name} is not made by this script" for name in stray]
    if errors:
        sys.exit("\n".join(errors))
    print(f"{len(CASES)} files {'agree' if checks else 'written'}")


if __name__ == "__main__":
    main()
