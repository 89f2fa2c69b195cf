"""Cases of normalization. Formulas are those that coremltools documents, in fp64; it evaluates l2_norm and layer_norm only."""

import numpy as np
from case import *


def per_channel(values, x):
    """Values [C] along axis 1 of x."""
    return np.asarray(values, np.float64).reshape(-1, *[1] * (x.ndim - 2))


def normalized(x, mean, variance, gamma=1, beta=0, epsilon=1e-5):
    x = x.astype(np.float64)
    gamma, beta = (per_channel(v, x) for v in (gamma, beta))
    return [(x - mean) / np.sqrt(variance + np.float64(epsilon)) * gamma + beta]


def batch_norm(op):
    r = Random(op)

    def formula(x, mean, variance, **rest):
        return normalized(x, per_channel(mean, x), per_channel(variance, x), **rest)

    def case(*shape, dtype=F32, of=None, given=(), **options):
        of = of or dtype
        factors = {"mean": r.floats(shape[1], dtype=of), "variance": r.floats(shape[1], low=0.1, dtype=of)}
        factors |= {name: r.floats(shape[1], dtype=of) for name in given}
        epsilon = {"epsilon": of(options.pop("epsilon"))} if "epsilon" in options else {}
        return Case({"x": r.floats(*shape, dtype=dtype)}, factors | epsilon, formula, **options)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case(2, 3, 4, given=["gamma", "beta"], epsilon=1e-3, opset=opset),
            case(2, 3, 1, 4, opset=opset),
            case(1, 4, 2, 3, 2, given=["gamma"], opset=opset),
            case(3, 2, 5, given=["beta"], opset=opset),
            case(2, 5, 3, dtype=F16, given=["gamma", "beta"], epsilon=1e-2, opset=opset),
        ]
    return cases + [case(2, 3, 4, dtype=F16, of=F32, given=["gamma"]), case(2, 3, 4, of=F16, given=["beta"], epsilon=1e-2)]


def instance_norm(op):
    r = Random(op)

    def formula(x, **rest):
        axes = tuple(range(2, x.ndim))
        wide = x.astype(np.float64)
        return normalized(x, wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True), **rest)

    def case(*shape, dtype=F32, of=None, given=(), **options):
        of = of or dtype
        factors = {name: r.floats(shape[1], dtype=of) for name in given}
        epsilon = {"epsilon": of(options.pop("epsilon"))} if "epsilon" in options else {}
        return Case({"x": r.floats(*shape, dtype=dtype)}, factors | epsilon, formula, **options)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case(2, 3, 7, given=["gamma", "beta"], epsilon=1e-3, opset=opset),
            case(2, 3, 4, 5, opset=opset),
            case(3, 2, 1, 4, given=["beta"], opset=opset),
            case(1, 5, 3, 2, dtype=F16, given=["gamma"], epsilon=1e-2, opset=opset),
        ]
    return cases + [case(2, 3, 5, dtype=F16, of=F32, given=["gamma", "beta"], epsilon=1e-3)]


def l2_norm(op):
    r = Random(op)
    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            Case({"x": r.floats(2, 3, 4)}, opset=opset),
            Case({"x": r.floats(2, 3, 1, 5)}, {"epsilon": F32(0.5)}, opset=opset),
            Case({"x": r.floats(2, 3, 2, 1, 4)}, {"epsilon": F32(1e-4)}, opset=opset),
            Case({"x": r.floats(3, 2, 5, dtype=F16)}, {"epsilon": F16(1e-2)}, opset=opset),
        ]
    return cases + [Case({"x": r.floats(2, 1, 4, 3, dtype=F16)}, {"epsilon": F32(0.25)})]


def layer_norm(op):
    r = Random(op)
    cases = []
    for opset in ("ios18", "ios15"):
        norm = {"axes": i32s(-1), "gamma": r.floats(5), "beta": r.floats(5), "epsilon": F32(1e-3)}
        halves = {"axes": i32s(1), "gamma": r.floats(7, dtype=F16), "beta": r.floats(7, dtype=F16)}
        cases += [
            Case({"x": r.floats(2, 3, 5)}, norm, opset=opset),
            Case({"x": r.floats(2, 3, 4)}, opset=opset),
            Case({"x": r.floats(2, 3, 4)}, {"axes": i32s(1), "gamma": r.floats(3)}, opset=opset),
            Case({"x": r.floats(2, 2, 3, 4)}, {"axes": i32s(-1, 1), "gamma": r.floats(2, 4), "beta": r.floats(2, 4)}, opset=opset),
            Case({"x": r.floats(3, 7, dtype=F16)}, halves, opset=opset),
        ]
    mixed = {"axes": i32s(-1), "gamma": r.floats(6), "beta": r.floats(6), "epsilon": F32(1e-2)}
    return cases + [Case({"x": r.floats(2, 6, dtype=F16)}, mixed)]


def local_response_norm(op):
    r = Random(op)

    def formula(x, size, alpha=1e-4, beta=0.75, k=1.0):
        x, size = x.astype(np.float64), int(size)
        # An even window has more channels below, as in PyTorch; coremltools does not say.
        spread = [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2)
        squares = np.pad(x**2, spread)
        sums = sum(squares[:, j : j + x.shape[1]] for j in range(size))
        return [x / (np.float64(k) + np.float64(alpha) / size * sums) ** np.float64(beta)]

    def case(*shape, size, dtype=F32, of=None, opset="ios18", **factors):
        factors = {name: (of or dtype)(v) for name, v in factors.items()}
        return Case({"x": r.floats(*shape, dtype=dtype)}, {"size": I32(size)} | factors, formula, opset=opset)

    cases = []
    for opset in ("ios18", "ios15"):
        cases += [
            case(2, 5, 3, size=3, opset=opset),
            case(2, 4, 3, 2, size=2, alpha=0.5, beta=0.6, k=2, opset=opset),
            case(1, 6, 2, 3, size=5, alpha=1.5, opset=opset),
            case(2, 3, 4, size=8, alpha=0.75, opset=opset),
            case(2, 5, 3, size=1, dtype=F16, alpha=0.5, beta=0.75, k=1.5, opset=opset),
        ]
    return cases + [case(3, 4, 2, size=4, dtype=F16, of=F32, alpha=0.3)]


CASES = {f.__name__: f for f in [batch_norm, instance_norm, l2_norm, layer_norm, local_response_norm]}
# Ops whose fp16 results are rounded from fp32.
COMPUTES = {"l2_norm", "layer_norm"}
