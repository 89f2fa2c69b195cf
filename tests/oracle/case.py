"""What a case of `make_ops.py` is: the op's inputs, the constants of its program, and who computes the result."""

import logging
import warnings
import zlib
from dataclasses import dataclass, field, replace

from golden import need

need("coremltools", "numpy")
logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")

import coremltools
import numpy as np
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Function, types

SOURCE = f"coremltools {coremltools.__version__}"
F16, F32, BOOL = np.float16, np.float32, np.bool_
I32, I16, I8, U32, U16, U8 = np.int32, np.int16, np.int8, np.uint32, np.uint16, np.uint8


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
    opset: str = "ios18"
    open: bool = False  # whether types are inferred of inputs, as in a program; else of constants, which gives values too


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
        return self.ints(*shape, low=0 if dtype in (U8, U16) else -9, high=99, dtype=dtype)


NAN, INF = float("nan"), float("inf")
ALL = (F32, F16, I32, BOOL, I8, U8, I16, U16)
BASIC = (F32, F16, I32, BOOL)


def f32s(*values):
    return np.array(values, F32)


def i32s(*values):
    return np.array(values, I32)


def bools(*values):
    return np.array(values, BOOL)


def unpacked(value):
    return value.values if isinstance(value, Packed) else value


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


def call(op, values, opset, inputs=()):
    """Results of an op as coremltools has them: (type, shape), and the value or None; the `inputs` are no constants."""
    version = getattr(coremltools.target, opset.replace("ios", "iOS"))
    builtin = {k: types.numpy_type_to_builtin_type(values[k].dtype.type) for k in inputs}
    placeholders = {k: mb.placeholder(shape=values[k].shape, dtype=builtin[k]) for k in inputs}
    with Function(placeholders, opset_version=version) as function, np.errstate(all="ignore"):
        given = {k: function.inputs[k] if k in placeholders else argument(v) for k, v in values.items()}
        results = getattr(mb, op)(**given)
    results = results if isinstance(results, (list, tuple)) else [results]
    return [((types.builtin_to_string(r.dtype), tuple(int(n) for n in r.shape)), r.val) for r in results]


def older(cases, opset):
    """The same cases in an older opset."""
    return [replace(case, opset=opset) for case in cases]
