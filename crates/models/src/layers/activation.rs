//! Activation functions.

use thane_mil::program::ValueId;

use crate::error::ModelError;
use crate::graph::{Graph, Spelling, ValueResult};

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
    /// `x` where x > 0, `exp(x) - 1` elsewhere.
    Elu,
    /// ELU with [`SELU`].
    Selu,
    /// `min(max(x, -1), 1)`.
    HardTanh,
    /// `min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSigmoid,
    /// `x` where |x| > 1/2, 0 elsewhere.
    HardShrink,
    /// `x` moved by 1/2 towards 0, where |x| > 1/2, and 0 elsewhere.
    SoftShrink,
    /// `ln(1 + exp(x))`.
    SoftPlus,
    /// `x / (1 + |x|)`.
    SoftSign,
    /// `x - tanh(x)`.
    TanhShrink,
    /// `-ln(1 + exp(-x))`.
    LogSigmoid,
    /// `x` where x >= 0, `11 / 48 * x` elsewhere: the mean slope of a randomized leaky ReLU.
    RandomizedLeakyRelu,
    /// `exp(x) / sum(exp(x))` over the features.
    Softmax,
    /// Softmax of `-x`.
    Softmin,
    /// The logarithm of softmax.
    LogSoftmax,
}

/// Scale and alpha of SELU: `scale * x` where x > 0, `scale * alpha * (exp(x) - 1)` elsewhere.
const SELU: (f32, f32) = (1.050_701, 1.673_263_2);

/// The classes of torch.nn (2.15) with the defaults of their arguments, when nothing is trained.
const TORCH: &[(&str, Activation)] = &[
    ("AlphaDropout", Activation::Linear),
    // Its alpha is 1.
    ("CELU", Activation::Elu),
    ("Dropout", Activation::Linear),
    ("ELU", Activation::Elu),
    ("FeatureAlphaDropout", Activation::Linear),
    ("GELU", Activation::GeluErf),
    ("Hardshrink", Activation::HardShrink),
    ("Hardsigmoid", Activation::HardSigmoid),
    ("Hardswish", Activation::HardSwish),
    ("Hardtanh", Activation::HardTanh),
    ("Identity", Activation::Linear),
    ("LeakyReLU", Activation::LeakyRelu),
    ("LogSigmoid", Activation::LogSigmoid),
    ("LogSoftmax", Activation::LogSoftmax),
    ("Mish", Activation::Mish),
    ("RReLU", Activation::RandomizedLeakyRelu),
    ("ReLU", Activation::Relu),
    ("ReLU6", Activation::Relu6),
    ("SELU", Activation::Selu),
    ("SiLU", Activation::Silu),
    ("Sigmoid", Activation::Sigmoid),
    ("Softmax", Activation::Softmax),
    ("Softmin", Activation::Softmin),
    ("Softplus", Activation::SoftPlus),
    ("Softshrink", Activation::SoftShrink),
    ("Softsign", Activation::SoftSign),
    ("Tanh", Activation::Tanh),
    ("Tanhshrink", Activation::TanhShrink),
];

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

    /// The activation that a class of torch.nn computes.
    pub fn of_torch(class: &str) -> Result<Self, ModelError> {
        let found = TORCH.iter().find(|(known, _)| *known == class);
        found.map(|(_, activation)| *activation).ok_or_else(|| {
            let expected = "expected an activation of torch.nn";
            ModelError::unsupported("activation_function", class, expected)
        })
    }

    /// What the weights that make the activation's operand are divided by, so that
    /// [`Self::apply_to_divided`] saves an op.
    pub fn divisor(self, form: Spelling) -> f32 {
        if self == Self::Silu && form.is_for_ane() {
            2.0
        } else {
            1.0
        }
    }

    /// Like [`Self::apply`], for an `x` that was divided by [`Self::divisor`].
    pub fn apply_to_divided(self, g: &mut Graph, x: ValueId) -> ValueResult {
        if self.divisor(g.spelling()) == 1.0 {
            self.apply(g, x)
        } else {
            half_silu(g, x)
        }
    }

    /// Applies the activation to each element; softmax and its like along the last axis, which must
    /// be that of the features.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> ValueResult {
        match self {
            Self::Silu if g.spelling().is_for_ane() => {
                let half = g.scale(x, 0.5)?;
                half_silu(g, half)
            }
            Self::Silu => g.op("silu", "active", [("x", x)]),
            Self::GeluTanh => gelu(g, x, "TANH_APPROXIMATION"),
            Self::GeluErf => gelu(g, x, "EXACT"),
            Self::GeluSigmoid => gelu(g, x, "SIGMOID_APPROXIMATION"),
            Self::GeluClipped => {
                let x = gelu(g, x, "EXACT")?;
                clip(g, x, 10.0)
            }
            Self::HardTanh => clip(g, x, 1.0),
            Self::SoftShrink => {
                let middle = clip(g, x, 0.5)?;
                g.sub(x, middle)
            }
            Self::HardShrink => {
                let (magnitude, half) = (g.op("abs", "magnitude", [("x", x)])?, g.float(0.5)?);
                let is_far = g.op("greater", "is_far", [("x", magnitude), ("y", half)])?;
                let is_far = g.cast(is_far, g.spelling().float)?;
                g.mul(x, is_far)
            }
            Self::Elu => elu(g, x, 1.0),
            Self::Selu => {
                let x = elu(g, x, SELU.1)?;
                g.scale(x, SELU.0)
            }
            Self::SoftPlus => softplus(g, x),
            Self::LogSigmoid => {
                let minus = g.scale(x, -1.0)?;
                let x = softplus(g, minus)?;
                g.scale(x, -1.0)
            }
            Self::SoftSign => g.op("softsign", "active", [("x", x)]),
            Self::TanhShrink => {
                let wave = g.op("tanh", "wave", [("x", x)])?;
                g.sub(x, wave)
            }
            Self::Softmax => softmax(g, x),
            Self::Softmin => {
                let minus = g.scale(x, -1.0)?;
                softmax(g, minus)
            }
            Self::LogSoftmax => log_softmax(g, x),
            Self::Relu => g.op("relu", "active", [("x", x)]),
            Self::ReluSquared => {
                let x = g.op("relu", "positive", [("x", x)])?;
                g.mul(x, x)
            }
            Self::Relu6 => g.op("relu6", "active", [("x", x)]),
            Self::LeakyRelu => leaky_relu(g, x, 0.01),
            Self::RandomizedLeakyRelu => leaky_relu(g, x, 11.0 / 48.0),
            Self::Sigmoid => sigmoid(g, x),
            Self::HardSigmoid => hard_sigmoid(g, x),
            Self::HardSwish => {
                let open = hard_sigmoid(g, x)?;
                g.mul(x, open)
            }
            Self::Mish => {
                let softplus = softplus(g, x)?;
                let open = g.op("tanh", "open", [("x", softplus)])?;
                g.mul(x, open)
            }
            Self::Laplace => laplace(g, x),
            Self::Tanh => g.op("tanh", "active", [("x", x)]),
            Self::Linear => Ok(x),
        }
    }
}

/// `sigmoid(x)`, by tanh in the form for [`AneEncoder`](crate::AneEncoder).
pub fn sigmoid(g: &mut Graph, x: ValueId) -> ValueResult {
    if g.spelling().is_for_ane() {
        let half = g.scale(x, 0.5)?;
        half_sigmoid(g, half)
    } else {
        g.op("sigmoid", "open", [("x", x)])
    }
}

/// `silu(2 * x)` by tanh, for hosts that read silu from an inexact table and turn x * sigmoid(x)
/// into silu (`thane explain ANE169` has who measured it).
pub fn half_silu(g: &mut Graph, x: ValueId) -> ValueResult {
    let wave = g.op("tanh", "wave", [("x", x)])?;
    let one = g.float(1.0)?;
    let open = g.add(wave, one)?;
    g.mul(x, open)
}

/// `sigmoid(2 * x)` by tanh, for hosts that read sigmoid from an inexact table (`thane explain
/// ANE110`).
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

/// softplus, in the form that fp16 can hold where that is the element type.
fn softplus(g: &mut Graph, x: ValueId) -> ValueResult {
    if g.spelling().is_for_ane() {
        stable_softplus(g, x)
    } else {
        g.op("softplus", "softplus", [("x", x)])
    }
}

fn leaky_relu(g: &mut Graph, x: ValueId, alpha: f32) -> ValueResult {
    let alpha = g.float(alpha)?;
    g.op("leaky_relu", "active", [("x", x), ("alpha", alpha)])
}

fn elu(g: &mut Graph, x: ValueId, alpha: f32) -> ValueResult {
    let alpha = g.float(alpha)?;
    g.op("elu", "active", [("x", x), ("alpha", alpha)])
}

fn hard_sigmoid(g: &mut Graph, x: ValueId) -> ValueResult {
    let (alpha, beta) = (g.float(1.0 / 6.0)?, g.float(0.5)?);
    let args = [("x", x), ("alpha", alpha), ("beta", beta)];
    g.op("sigmoid_hard", "open", args)
}

/// `min(max(x, -bound), bound)`.
pub fn clip(g: &mut Graph, x: ValueId, bound: f32) -> ValueResult {
    let (alpha, beta) = (g.float(-bound)?, g.float(bound)?);
    let args = [("x", x), ("alpha", alpha), ("beta", beta)];
    g.op("clip", "active", args)
}

/// softmax over the last axis.
fn softmax(g: &mut Graph, x: ValueId) -> ValueResult {
    let axis = g.int(-1)?;
    g.op("softmax", "active", [("x", x), ("axis", axis)])
}

/// The logarithm of softmax over the last axis.
fn log_softmax(g: &mut Graph, x: ValueId) -> ValueResult {
    let largest = g.reduce("reduce_max", x, -1)?;
    let x = g.sub(x, largest)?;
    let powers = g.op("exp", "powers", [("x", x)])?;
    let sum = g.reduce("reduce_sum", powers, -1)?;
    let none = g.float(0.0)?;
    let sum = g.op("log", "log_of_sum", [("x", sum), ("epsilon", none)])?;
    g.sub(x, sum)
}

/// `(1 + erf((x - sqrt(1 / 2)) / (0.282095 * sqrt(2)))) / 2`.
fn laplace(g: &mut Graph, x: ValueId) -> ValueResult {
    let mean = g.float(std::f32::consts::FRAC_1_SQRT_2)?;
    let x = g.sub(x, mean)?;
    let x = g.scale(x, 1.0 / (0.282_095 * std::f32::consts::SQRT_2))?;
    let erf = g.op("erf", "erf", [("x", x)])?;
    let one = g.float(1.0)?;
    let sum = g.add(erf, one)?;
    g.scale(sum, 0.5)
}

fn gelu(g: &mut Graph, x: ValueId, mode: &'static str) -> ValueResult {
    let mode = g.string(mode)?;
    g.op("gelu", "active", [("x", x), ("mode", mode)])
}
