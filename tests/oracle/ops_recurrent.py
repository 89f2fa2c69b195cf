"""Cases of recurrent layers, which coremltools does not evaluate.

The formulas are those of its documentation, as its tests of Core ML (`ops/tests/iOS14/test_recurrent.py`) read them: a
layer in reverse gives its steps in the order in which it takes them, the reverse half of a bidirectional one in that of
`x`; `clip` bounds the state of a cell; the reset gate of `gru` scales the state before the product, or with `reset_after`
the product, as PyTorch has it.
"""

import numpy as np
from case import *

SOURCE_TEXT = "numpy in fp64, the documented formulas as coremltools' tests read them"
ACTIVATIONS = {
    "tanh": np.tanh,
    "scaled_tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "sigmoid_hard": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "relu": lambda x: np.maximum(x, 0),
    "linear": lambda x: x,
}


def wide(*values):
    return [None if v is None else np.asarray(v).astype(np.float64) for v in values]


def steps(x, states, step, reverse=False):
    """Hidden states in the order of the steps, and the last states."""
    out = []
    for x_t in x[::-1] if reverse else x:
        states = step(x_t, *states)
        out.append(states[0])
    return np.stack(out), states


def rnn_formula(x, initial_h, weight_ih, weight_hh, bias=None, direction="forward", output_sequence=False, activation="tanh"):
    x, h, w_i, w_h, b = wide(x, initial_h, weight_ih, weight_hh, 0 if bias is None else bias)
    step = lambda x, h: (ACTIVATIONS[activation](x @ w_i.T + h @ w_h.T + b),)
    out, (h,) = steps(x, (h,), step, direction == "reverse")
    return [out if output_sequence else out[-1:], h]


def gru_formula(x, initial_h, weight_ih, weight_hh, bias=None, direction="forward", output_sequence=False,
                recurrent_activation="sigmoid", activation="tanh", reset_after=False, input_bias=None):
    n = weight_hh.shape[1]
    zeros = np.zeros(3 * n)
    x, h, w_i, w_h = wide(x, initial_h, weight_ih, weight_hh)
    b, b_i = wide(zeros if bias is None else bias, zeros if input_bias is None else input_bias)
    gates = lambda v: (v[:n], v[n : 2 * n], v[2 * n :])
    (wi_r, wi_o, wi_z), (wh_r, wh_o, wh_z), (b_r, b_o, b_z), (bi_r, bi_o, bi_z) = map(gates, (w_i, w_h, b, b_i))
    inner, outer = ACTIVATIONS[recurrent_activation], ACTIVATIONS[activation]

    def step(x, h):
        r = inner(x @ wi_r.T + bi_r + h @ wh_r.T + b_r)
        z = inner(x @ wi_z.T + bi_z + h @ wh_z.T + b_z)
        hidden = r * (h @ wh_o.T + b_o) if reset_after else (r * h) @ wh_o.T + b_o
        return ((1 - z) * outer(x @ wi_o.T + bi_o + hidden) + z * h,)

    out, (h,) = steps(x, (h,), step, direction == "reverse")
    return [out if output_sequence else out[-1:], h]


def lstm_half(x, h, c, w_i, w_h, b, p, reverse, inner, cell, outer, clip):
    n = w_h.shape[1]
    b = np.zeros(4 * n) if b is None else b
    p_i, p_f, p_o = np.split(np.zeros(3 * n) if p is None else p, 3)

    def step(x, h, c):
        i, f, o, z = np.split(x @ w_i.T + h @ w_h.T + b, 4, axis=-1)
        c_next = np.clip(inner(f + p_f * c) * c + inner(i + p_i * c) * cell(z), -clip, clip)
        return inner(o + p_o * c_next) * outer(c_next), c_next

    return steps(x, (h, c), step, reverse)


def lstm_formula(x, initial_h, initial_c, weight_ih, weight_hh, bias=None, peephole=None, weight_ih_back=None,
                 weight_hh_back=None, bias_back=None, peephole_back=None, direction="forward", output_sequence=False,
                 recurrent_activation="sigmoid", cell_activation="tanh", activation="tanh", clip=None):
    x, h, c = wide(x, initial_h, initial_c)
    functions = [ACTIVATIONS[a] for a in (recurrent_activation, cell_activation, activation)]
    functions.append(np.inf if clip is None else float(clip))
    weights = wide(weight_ih, weight_hh, bias, peephole)
    if direction != "bidirectional":
        out, (h, c) = lstm_half(x, h, c, *weights, direction == "reverse", *functions)
        return [out if output_sequence else out[-1:], h, c]
    back = wide(weight_ih_back, weight_hh_back, bias_back, peephole_back)
    n = weight_hh.shape[1]
    out, last = lstm_half(x, h[:, :n], c[:, :n], *weights, False, *functions)
    out_back, last_back = lstm_half(x, h[:, n:], c[:, n:], *back, True, *functions)
    h, c = (np.concatenate(pair, axis=1) for pair in zip(last, last_back))
    sequence = np.concatenate([out, out_back[::-1]], axis=2)
    return [sequence if output_sequence else h[None], h, c]


class Layer:
    """Random arguments of a layer with so many gates, at most 1 so that gates do not saturate."""

    def __init__(self, op, n_gates, formula):
        self.r, self.n_gates, self.formula = Random(op), n_gates, formula

    def values(self, *shape, dtype):
        return self.r.floats(*shape, low=-1, high=1, dtype=dtype)

    def case(self, sizes, dtype=F32, states=("initial_h",), vectors=(), n_directions=1, fixed=(), **constants):
        seq, batch, n_in, n = sizes
        inputs = {"x": self.r.floats(seq, batch, n_in, low=-2, high=2, dtype=dtype)}
        inputs |= {name: self.values(batch, n_directions * n, dtype=dtype) for name in states}
        given = {name: inputs.pop(name) for name in fixed}
        for back in ("", "_back")[:n_directions]:
            given[f"weight_ih{back}"] = self.values(self.n_gates * n, n_in, dtype=dtype)
            given[f"weight_hh{back}"] = self.values(self.n_gates * n, n, dtype=dtype)
        for name in vectors:
            n_rows = 3 * n if name.startswith("peephole") else self.n_gates * n
            given[name] = self.values(n_rows, dtype=dtype)
        return Case(inputs, given | constants, self.formula, SOURCE_TEXT)


YES, NO = BOOL(True), BOOL(False)


def rnn(op):
    case = Layer(op, 1, rnn_formula).case
    plain = [
        case((4, 2, 3, 5)),
        case((3, 1, 2, 4), vectors=["bias"], direction="reverse", output_sequence=YES),
        case((1, 3, 4, 2), vectors=["bias"], direction="forward", output_sequence=NO, fixed=["initial_h"]),
    ]
    plain += [case((3, 2, 4, 3), vectors=["bias"], output_sequence=YES, activation=name) for name in ACTIVATIONS]
    half = case((3, 2, 5, 4), F16, vectors=["bias"], output_sequence=YES)
    return older(plain, "ios15") + plain + [half]


def gru(op):
    case = Layer(op, 3, gru_formula).case
    plain = [
        case((4, 2, 3, 5)),
        case((3, 1, 2, 4), vectors=["bias"], direction="reverse", output_sequence=YES),
        case((1, 3, 4, 2), vectors=["bias"], direction="forward", output_sequence=NO, fixed=["initial_h"]),
        case((3, 2, 4, 3), vectors=["bias"], recurrent_activation="tanh", activation="sigmoid", output_sequence=YES),
    ]
    for name in ("scaled_tanh", "hard_sigmoid", "relu", "linear"):
        plain.append(case((2, 2, 4, 3), vectors=["bias"], recurrent_activation="sigmoid_hard", activation=name))
    half = [case((3, 2, 5, 4), F16, vectors=["bias"], output_sequence=YES)]
    reset = [
        case((4, 2, 3, 5), vectors=["bias", "input_bias"], reset_after=YES, output_sequence=YES),
        case((3, 2, 2, 4), vectors=["bias"], reset_after=YES, direction="reverse"),
        case((3, 1, 4, 2), vectors=["input_bias"], reset_after=NO, output_sequence=YES),
        case((2, 3, 5, 4), F16, vectors=["bias", "input_bias"], reset_after=YES),
    ]
    return older(plain, "ios15") + older(plain + half, "ios17") + plain + half + reset


def lstm(op):
    layer = Layer(op, 4, lstm_formula)

    def case(*args, **more):
        return layer.case(*args, states=("initial_h", "initial_c"), **more)

    one, both = ["bias", "peephole"], ["bias", "peephole", "bias_back", "peephole_back"]
    plain = [
        case((4, 2, 3, 5)),
        case((3, 1, 2, 4), vectors=["bias"], direction="reverse", output_sequence=YES),
        case((1, 3, 4, 2), vectors=["bias"], direction="forward", output_sequence=NO, fixed=["initial_h"]),
        case((4, 2, 3, 2), vectors=one, output_sequence=YES, clip=F32(0.2)),
        case((3, 2, 4, 5), n_directions=2, direction="bidirectional", output_sequence=YES),
        case((4, 3, 2, 3), vectors=both, n_directions=2, direction="bidirectional", output_sequence=YES, clip=F32(0.4)),
        case((3, 2, 5, 4), vectors=both[2:], n_directions=2, direction="bidirectional", fixed=["initial_c"]),
        case((2, 2, 3, 4), vectors=["peephole"], direction="reverse"),
    ]
    names = ["tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "relu", "linear"]
    for i, name in enumerate(names):
        turned = dict(zip(("recurrent_activation", "cell_activation", "activation"), (names * 2)[i : i + 3]))
        plain.append(case((3, 2, 4, 3), vectors=one, output_sequence=YES, **turned))
    half = [
        case((3, 2, 5, 4), F16, vectors=one, output_sequence=YES, clip=F16(0.75)),
        case((2, 3, 4, 2), F16, vectors=both, n_directions=2, direction="bidirectional"),
    ]
    return older(plain, "ios15") + plain + half


CASES = {"gru": gru, "lstm": lstm, "rnn": rnn}
# The formulas take fp16 as it is.
COMPUTES = set()
