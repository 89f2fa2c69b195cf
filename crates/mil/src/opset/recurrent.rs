//! Recurrent layers over a sequence.
//!
//! x is [seq, batch, in]; states are [batch, hidden]. The first result is the hidden state of every
//! step if `output_sequence` is true, else (the default) of the last step. The other results are
//! the states after the last step. A layer with direction `reverse` outputs its steps in processing
//! order; the backward half of a bidirectional layer outputs them in the order of x.
//!
//! Source: coremltools `ops/defs/iOS15/recurrent.py`, `iOS17/recurrent.py`, `iOS18/recurrent.py`,
//! and the results that its tests (`ops/tests/iOS14/test_recurrent.py`, `iOS18/test_recurrent.py`)
//! expect of Core ML.

use super::OpKind::Other;
use super::Opset::{CoreMl5, CoreMl7, CoreMl8};
use super::{BOOL, Dim, FLOAT, Infer, OpDef, Param, STRING, Type, TypeError, constant, tensor};
use crate::types::{DType, TensorType};

const FP32: &[DType] = &[DType::Fp32];
/// Names of activations. Core ML applies tanh for `scaled_tanh`, and min(max(0.2 x + 0.5, 0), 1)
/// for `hard_sigmoid`.
const ACTIVATIONS: &[&str] = &[
    "tanh",
    "scaled_tanh",
    "sigmoid",
    "hard_sigmoid",
    "relu",
    "linear",
];
const RNN_ACTIVATIONS: &[&str] = &[
    "tanh",
    "scaled_tanh",
    "sigmoid",
    "hard_sigmoid",
    "sigmoid_hard",
    "relu",
    "linear",
];

const fn rnn_params(t: &'static [DType]) -> [Param; 8] {
    [
        tensor("x", t),
        tensor("initial_h", t),
        constant("weight_ih", t),
        constant("weight_hh", t),
        constant("bias", t).optional(),
        constant("direction", STRING).optional(),
        constant("output_sequence", BOOL).optional(),
        constant("activation", STRING).optional(),
    ]
}

const fn gru_params(t: &'static [DType]) -> [Param; 9] {
    let [
        x,
        h,
        weight_ih,
        weight_hh,
        bias,
        direction,
        output_sequence,
        activation,
    ] = rnn_params(t);
    let recurrent = constant("recurrent_activation", STRING).optional();
    [
        x,
        h,
        weight_ih,
        weight_hh,
        bias,
        direction,
        output_sequence,
        recurrent,
        activation,
    ]
}

const fn reset_gru_params(t: &'static [DType]) -> [Param; 11] {
    let [a, b, c, d, e, f, g, h, i] = gru_params(t);
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        constant("reset_after", BOOL).optional(),
        constant("input_bias", t).optional(),
    ]
}

const fn lstm_params(t: &'static [DType]) -> [Param; 17] {
    [
        tensor("x", t),
        tensor("initial_h", t),
        tensor("initial_c", t),
        constant("weight_ih", t),
        constant("weight_hh", t),
        constant("bias", t).optional(),
        constant("peephole", t).optional(),
        constant("weight_ih_back", t).optional(),
        constant("weight_hh_back", t).optional(),
        constant("bias_back", t).optional(),
        constant("peephole_back", t).optional(),
        constant("direction", STRING).optional(),
        constant("output_sequence", BOOL).optional(),
        constant("recurrent_activation", STRING).optional(),
        constant("cell_activation", STRING).optional(),
        constant("activation", STRING).optional(),
        constant("clip", t).optional(),
    ]
}

const RNN_FP32: &[Param] = &rnn_params(FP32);
const RNN: &[Param] = &rnn_params(FLOAT);
const GRU_FP32: &[Param] = &gru_params(FP32);
const GRU: &[Param] = &gru_params(FLOAT);
const RESET_GRU: &[Param] = &reset_gru_params(FLOAT);
const LSTM_FP32: &[Param] = &lstm_params(FP32);
const LSTM: &[Param] = &lstm_params(FLOAT);

pub(super) static OPS: &[OpDef] = &[
    // r, z = recurrent_activation(W_i x + W_h h + b), o = activation(W_i x + W_h (r * h) + b), h =
    // (1 - z) * o + z * h. Rows of weights and biases are in the order r, o, z. With `reset_after`,
    // as in PyTorch, o = activation(W_i x + input_bias + r * (W_h h + bias)).
    OpDef::new("gru", Other, CoreMl5, GRU_FP32, gru),
    OpDef::new("gru", Other, CoreMl7, GRU, gru),
    OpDef::new("gru", Other, CoreMl8, RESET_GRU, gru),
    // i, f = recurrent_activation(W_i x + W_h h + b + p * c), z = cell_activation(W_i x + W_h h +
    // b), c = clip(f * c + i * z), o = recurrent_activation(W_i x + W_h h + b + p * c), h = o *
    // activation(c). Rows of weights and biases are in the order i, f, o, z; rows of peepholes p
    // are in the order i, f, o.
    OpDef::new("lstm", Other, CoreMl5, LSTM_FP32, lstm),
    OpDef::new("lstm", Other, CoreMl7, LSTM, lstm),
    // h = activation(W_i x + W_h h + b).
    OpDef::new("rnn", Other, CoreMl5, RNN_FP32, rnn),
    OpDef::new("rnn", Other, CoreMl7, RNN, rnn),
];

fn rnn(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "initial_h", "weight_ih", "weight_hh", "bias"])?;
    i.choice("direction", &["forward", "reverse"], "forward")?;
    i.choice("activation", RNN_ACTIVATIONS, "tanh")?;
    let layer = Layer::new(i, 1)?;
    layer.weights(i, ["weight_ih", "weight_hh"], 1)?;
    layer.vector(i, "bias", 1)?;
    layer.state(i, "initial_h", 1)?;
    layer.results(i, 1, 1)
}

fn gru(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&[
        "x",
        "initial_h",
        "weight_ih",
        "weight_hh",
        "bias",
        "input_bias",
    ])?;
    i.choice("direction", &["forward", "reverse"], "forward")?;
    i.choice("recurrent_activation", RNN_ACTIVATIONS, "sigmoid")?;
    i.choice("activation", RNN_ACTIVATIONS, "tanh")?;
    let layer = Layer::new(i, 3)?;
    layer.weights(i, ["weight_ih", "weight_hh"], 3)?;
    layer.vector(i, "bias", 3)?;
    layer.vector(i, "input_bias", 3)?;
    layer.state(i, "initial_h", 1)?;
    layer.results(i, 1, 1)
}

fn lstm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&[
        "x",
        "initial_h",
        "initial_c",
        "weight_ih",
        "weight_hh",
        "bias",
        "peephole",
        "clip",
    ])?;
    i.require_same_dtype(&[
        "x",
        "weight_ih_back",
        "weight_hh_back",
        "bias_back",
        "peephole_back",
    ])?;
    let direction = i.choice(
        "direction",
        &["forward", "reverse", "bidirectional"],
        "forward",
    )?;
    for (name, default) in [
        ("recurrent_activation", "sigmoid"),
        ("cell_activation", "tanh"),
        ("activation", "tanh"),
    ] {
        i.choice(name, ACTIVATIONS, default)?;
    }
    i.require_scalars(&["clip"])?;
    let layer = Layer::new(i, 4)?;
    let is_bidirectional = direction == "bidirectional";
    for back in if is_bidirectional {
        &["", "_back"][..]
    } else {
        &[""]
    } {
        let [weight_ih, weight_hh, bias, peephole] =
            ["weight_ih", "weight_hh", "bias", "peephole"].map(|name| format!("{name}{back}"));
        layer.weights(i, [&weight_ih, &weight_hh], 4)?;
        layer.vector(i, &bias, 4)?;
        layer.vector(i, &peephole, 3)?;
    }
    let n_directions = if is_bidirectional { 2 } else { 1 };
    layer.state(i, "initial_h", n_directions)?;
    layer.state(i, "initial_c", n_directions)?;
    layer.results(i, n_directions, 2)
}

/// The sizes of a layer.
struct Layer {
    seq: Dim,
    batch: Dim,
    n_in: Dim,
    n_hidden: usize,
}

impl Layer {
    /// The sizes in `x` and `weight_hh`; `n_gates` is for the error message.
    fn new(i: &Infer<'_>, n_gates: usize) -> Result<Self, TypeError> {
        let (x, w) = (i.ty("x")?, i.ty("weight_hh")?);
        let [seq, batch, n_in] = x.shape[..] else {
            return Err(TypeError::new(format_args!(
                "`x`: expected [seq, batch, in], found {x}"
            )));
        };
        match w.shape[..] {
            [Dim::Known(_), Dim::Known(n_hidden)] => Ok(Self {
                seq,
                batch,
                n_in,
                n_hidden,
            }),
            _ => Err(TypeError::new(format_args!(
                "`weight_hh`: expected [{n_gates} * hidden, hidden], found {w}"
            ))),
        }
    }

    /// Checks the input and the recurrent weight matrix.
    fn weights(
        &self,
        i: &Infer<'_>,
        [weight_ih, weight_hh]: [&str; 2],
        n_gates: usize,
    ) -> Result<(), TypeError> {
        let rows = self.times(n_gates)?;
        self.check(i, weight_ih, &[rows, self.n_in])?;
        self.check(i, weight_hh, &[rows, Dim::Known(self.n_hidden)])
    }

    /// Checks an optional vector with one row per gate and hidden unit.
    fn vector(&self, i: &Infer<'_>, name: &str, n_gates: usize) -> Result<(), TypeError> {
        if i.has(name) {
            self.check(i, name, &[self.times(n_gates)?])
        } else {
            Ok(())
        }
    }

    /// Checks a state.
    fn state(&self, i: &Infer<'_>, name: &str, n_directions: usize) -> Result<(), TypeError> {
        self.check(i, name, &[self.batch, self.times(n_directions)?])
    }

    /// The hidden size times `n`.
    fn times(&self, n: usize) -> Result<Dim, TypeError> {
        let len = self.n_hidden.checked_mul(n);
        len.map(Dim::Known).ok_or_else(|| {
            TypeError::new(format_args!(
                "`weight_hh`: a hidden size of {} is too large",
                self.n_hidden
            ))
        })
    }

    fn check(&self, i: &Infer<'_>, name: &str, shape: &[Dim]) -> Result<(), TypeError> {
        let ty = i.ty(name)?;
        if ty.rank() == shape.len() && ty.shape.iter().zip(shape).all(|(a, b)| a.compatible(*b)) {
            return Ok(());
        }
        Err(TypeError::new(format_args!(
            "`{name}`: expected {} for `x` {}, found {ty}",
            super::show_shape(shape),
            i.ty("x")?
        )))
    }

    /// The result types: the sequence and `n_states` states.
    fn results(
        &self,
        i: &Infer<'_>,
        n_directions: usize,
        n_states: usize,
    ) -> Result<Vec<Type>, TypeError> {
        let dtype = i.ty("x")?.dtype;
        let steps = if i.bool_or("output_sequence", false)? {
            self.seq
        } else {
            Dim::Known(1)
        };
        let hidden = self.times(n_directions)?;
        let mut out = vec![Type::Tensor(TensorType {
            dtype,
            shape: vec![steps, self.batch, hidden],
        })];
        out.extend((0..n_states).map(|_| {
            Type::Tensor(TensorType {
                dtype,
                shape: vec![self.batch, hidden],
            })
        }));
        Ok(out)
    }
}
