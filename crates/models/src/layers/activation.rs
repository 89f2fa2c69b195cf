//! Activation functions.

use thane_mil::program::ValueId;

use crate::error::ModelError;
use crate::graph::{Form, Graph, ValueResult};

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
    /// Exact GELU: `x / 2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// Exact GELU, clipped to -10 to 10.
    GeluClipped,
    /// GELU in its sigmoid approximation: `x * sigmoid(1.702 * x)`.
    GeluSigmoid,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` where x >= 0, `0.01 * x` elsewhere.
    LeakyRelu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x * min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSwish,
    /// `x * tanh(ln(1 + exp(x)))`.
    Mish,
    /// `(1 + erf((x - sqrt(1 / 2)) / (0.282095 * sqrt(2)))) / 2`.
    Laplace,
    /// `tanh(x)`.
    Tanh,
    /// `x`.
    Linear,
}

/// The names in transformers. Source: `ACT2CLS` of its activations.py (5.24). Left out are `prelu`
/// and `xielu`, which have weights, and `sqrtsoftplus`, which only routes tokens to experts.
///
/// `gelu_fast` and `gelu_accurate` are the tanh approximation, with sqrt(2 / pi) to 10 digits in
/// `gelu_fast`.
const NAMES: &[(&str, Activation)] = &[
    ("gelu", Activation::GeluErf),
    ("gelu_python", Activation::GeluErf),
    ("gelu_10", Activation::GeluClipped),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("quick_gelu", Activation::GeluSigmoid),
    ("hardswish", Activation::HardSwish),
    ("laplace", Activation::Laplace),
    ("leaky_relu", Activation::LeakyRelu),
    ("linear", Activation::Linear),
    ("mish", Activation::Mish),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
    ("relu6", Activation::Relu6),
    ("sigmoid", Activation::Sigmoid),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("tanh", Activation::Tanh),
];

impl Activation {
    /// The activation that the value `name` of a key means in transformers.
    ///
    /// # Errors
    ///
    /// [`ModelError::Unsupported`] lists the names that are supported.
    pub fn from_name(key: &str, name: &str) -> Result<Self, ModelError> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, activation)| *activation).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            ModelError::unsupported(key, name, &format!("expected one of {}", known.join(", ")))
        })
    }

    /// What the weights that make the activation's operand are divided by, so that
    /// [`Self::apply_to_divided`] saves an op.
    pub fn divisor(self, form: Form) -> f32 {
        if self == Self::Silu && form.is_for_engine() {
            2.0
        } else {
            1.0
        }
    }

    /// Like [`Self::apply`], for an `x` that was divided by [`Self::divisor`].
    pub fn apply_to_divided(self, g: &mut Graph, x: ValueId) -> ValueResult {
        if self.divisor(g.form()) == 1.0 {
            self.apply(g, x)
        } else {
            half_silu(g, x)
        }
    }

    /// Applies the activation to each element.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> ValueResult {
        match self {
            Self::Silu if g.form().is_for_engine() => {
                let half = g.scale(x, 0.5)?;
                half_silu(g, half)
            }
            Self::Silu => g.op("silu", "active", [("x", x)]),
            Self::GeluTanh => gelu(g, x, "TANH_APPROXIMATION"),
            Self::GeluErf => gelu(g, x, "EXACT"),
            Self::GeluSigmoid => gelu(g, x, "SIGMOID_APPROXIMATION"),
            Self::GeluClipped => {
                let x = gelu(g, x, "EXACT")?;
                let (alpha, beta) = (g.float(-10.0)?, g.float(10.0)?);
                g.op(
                    "clip",
                    "active",
                    [("x", x), ("alpha", alpha), ("beta", beta)],
                )
            }
            Self::Relu => g.op("relu", "active", [("x", x)]),
            Self::ReluSquared => {
                let x = g.op("relu", "positive", [("x", x)])?;
                g.mul(x, x)
            }
            Self::Relu6 => g.op("relu6", "active", [("x", x)]),
            Self::LeakyRelu => {
                let alpha = g.float(0.01)?;
                g.op("leaky_relu", "active", [("x", x), ("alpha", alpha)])
            }
            Self::Sigmoid => sigmoid(g, x),
            Self::HardSwish => {
                let (alpha, beta) = (g.float(1.0 / 6.0)?, g.float(0.5)?);
                let args = [("x", x), ("alpha", alpha), ("beta", beta)];
                let open = g.op("sigmoid_hard", "open", args)?;
                g.mul(x, open)
            }
            Self::Mish => {
                let softplus = g.op("softplus", "softplus", [("x", x)])?;
                let open = g.op("tanh", "open", [("x", softplus)])?;
                g.mul(x, open)
            }
            Self::Laplace => {
                let mean = g.float(std::f32::consts::FRAC_1_SQRT_2)?;
                let x = g.sub(x, mean)?;
                let x = g.scale(x, 1.0 / (0.282_095 * std::f32::consts::SQRT_2))?;
                let erf = g.op("erf", "erf", [("x", x)])?;
                let one = g.float(1.0)?;
                let sum = g.add(erf, one)?;
                g.scale(sum, 0.5)
            }
            Self::Tanh => g.op("tanh", "active", [("x", x)]),
            Self::Linear => Ok(x),
        }
    }
}

/// `sigmoid(x)`, by tanh in programs for the Neural Engine.
pub fn sigmoid(g: &mut Graph, x: ValueId) -> ValueResult {
    if g.form().is_for_engine() {
        let half = g.scale(x, 0.5)?;
        half_sigmoid(g, half)
    } else {
        g.op("sigmoid", "open", [("x", x)])
    }
}

/// `silu(2 * x)` by tanh, for the Neural Engine, whose silu is off by 12 % near 0 and turns x *
/// sigmoid(x) into silu.
pub fn half_silu(g: &mut Graph, x: ValueId) -> ValueResult {
    let wave = g.op("tanh", "wave", [("x", x)])?;
    let one = g.float(1.0)?;
    let open = g.add(wave, one)?;
    g.mul(x, open)
}

/// `sigmoid(2 * x)` by tanh, for the Neural Engine, whose sigmoid is off by up to 0.015.
pub fn half_sigmoid(g: &mut Graph, x: ValueId) -> ValueResult {
    let wave = g.op("tanh", "wave", [("x", x)])?;
    let half = g.scale(wave, 0.5)?;
    let middle = g.float(0.5)?;
    g.add(half, middle)
}

/// softplus as `relu(x) + log(1 + exp(-|x|))`, whose exponential never overflows fp16. What a small
/// exponential loses in the sum with 1, up to all of it, is added again.
pub fn stable_softplus(g: &mut Graph, x: ValueId) -> ValueResult {
    let magnitude = g.op("abs", "magnitude", [("x", x)])?;
    let minus = g.scale(magnitude, -1.0)?;
    let small = g.op("exp", "small", [("x", minus)])?;
    let (one, none) = (g.float(1.0)?, g.float(0.0)?);
    let sum = g.add(small, one)?;
    let rest = g.op("log", "rest", [("x", sum), ("epsilon", none)])?;
    let in_sum = g.sub(sum, one)?;
    let lost = g.sub(small, in_sum)?;
    let rest = g.add(rest, lost)?;
    let positive = g.op("relu", "positive", [("x", x)])?;
    g.add(positive, rest)
}

fn gelu(g: &mut Graph, x: ValueId, mode: &'static str) -> ValueResult {
    let mode = g.string(mode)?;
    g.op("gelu", "active", [("x", x), ("mode", mode)])
}
