//! The feed-forward layer (MLP).

use thane_mil::program::ValueId;

use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// The activation function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
    /// Exact GELU: `x / 2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    Relu2,
    /// `x * sigmoid(1.702 * x)`.
    QuickGelu,
    /// `tanh(x)`.
    Tanh,
}

/// The names of activations in `config.json`. Source: ACT2FN of transformers.
const ACTIVATIONS: [(&str, Activation); 11] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::GeluErf),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
    ("quick_gelu", Activation::QuickGelu),
    ("tanh", Activation::Tanh),
];

impl Activation {
    /// The activation that `config.json` names, or an error that names the key.
    pub fn named(key: &str, name: &str) -> Result<Self, ModelError> {
        let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
        known.map(|(_, activation)| *activation).ok_or_else(|| {
            let names = ACTIVATIONS.map(|(known, _)| known).join(", ");
            ModelError::unsupported(key, name, &format!("expected one of {names}"))
        })
    }

    /// Applies the activation to each element.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> ValueResult {
        let mode = match self {
            Activation::Silu => return g.op("silu", "active", [("x", x)]),
            Activation::Relu => return g.op("relu", "active", [("x", x)]),
            Activation::Tanh => return g.op("tanh", "active", [("x", x)]),
            Activation::Relu2 => {
                let positive = g.op("relu", "positive", [("x", x)])?;
                return g.op("square", "active", [("x", positive)]);
            }
            Activation::QuickGelu => {
                let scaled = g.scale(x, 1.702)?;
                let gate = g.op("sigmoid", "gate", [("x", scaled)])?;
                return g.mul(x, gate);
            }
            Activation::GeluTanh => g.string("TANH_APPROXIMATION")?,
            Activation::GeluErf => g.string("EXACT")?,
        };
        g.op("gelu", "active", [("x", x), ("mode", mode)])
    }
}

/// How the feed-forward layer is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpKind {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// The same, with gate and up projection as the rows of one matrix, `gate_up_proj`.
    Joined,
    /// `down(activation(up(x)))`.
    Plain,
}

/// The sizes and options of a feed-forward layer.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    /// Elements of a token's input and output.
    pub hidden: usize,
    /// Elements of a token between the projections.
    pub intermediate: usize,
    /// Activation of the gate, or of the up projection if there is no gate.
    pub activation: Activation,
    /// Whether the projections have biases.
    pub bias: bool,
    /// Which projections there are.
    pub kind: MlpKind,
}

impl Mlp {
    /// The feed-forward layer of `x` [1, tokens, hidden].
    pub fn apply(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        g.at_module(module);
        let inner = self.intermediate;
        // The matrix of which these are some rows, its first row, and the number of all rows.
        let project = |g: &mut Graph, name: &str, (matrix, first, all): (&str, usize, usize)| {
            let matrix = format!("{module}.{matrix}");
            let rows = first..first + inner;
            let weight = w.rows(&matrix, rows.clone(), [all, self.hidden]);
            let bias = self.bias.then(|| w.bias_rows(&matrix, rows, all));
            g.linear(name, x, &weight, bias.as_ref())
        };
        let (gate, up) = match self.kind {
            MlpKind::Gated => (Some(("gate_proj", 0, inner)), ("up_proj", 0, inner)),
            MlpKind::Joined => {
                let joined = "gate_up_proj";
                (Some((joined, 0, 2 * inner)), (joined, inner, 2 * inner))
            }
            MlpKind::Plain => (None, ("up_proj", 0, inner)),
        };
        let gated = match gate {
            Some(gate) => {
                let gate = project(g, "gate_proj", gate)?; // [1, tokens, intermediate]
                let up = project(g, "up_proj", up)?;
                let active = self.activation.apply(g, gate)?;
                g.mul(active, up)?
            }
            None => {
                let up = project(g, "up_proj", up)?;
                self.activation.apply(g, up)?
            }
        };
        let down = format!("{module}.down_proj");
        let weight = w.rows(&down, 0..self.hidden, [self.hidden, inner]);
        let bias = self.bias.then(|| w.get(&down, "bias", &[self.hidden]));
        g.linear_to_residual("down_proj", gated, &weight, bias.as_ref())
    }
}
