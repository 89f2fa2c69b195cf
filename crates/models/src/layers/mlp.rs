//! The gated feed-forward layer.

use thane_mil::program::ValueId;

use crate::graph::{Graph, Made};
use crate::weights::Weights;

/// Activation of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// GELU by the error function.
    GeluErf,
}

impl Activation {
    /// The activation of each number.
    pub fn apply(self, g: &mut Graph, x: ValueId) -> Made {
        let mode = match self {
            Activation::Silu => return g.op("silu", "active", [("x", x)]),
            Activation::GeluTanh => g.string("TANH_APPROXIMATION")?,
            Activation::GeluErf => g.string("EXACT")?,
        };
        g.op("gelu", "active", [("x", x), ("mode", mode)])
    }
}

/// Sizes of the layer.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    /// Size of its input and output.
    pub hidden: usize,
    /// Size between.
    pub intermediate: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether the products have biases.
    pub bias: bool,
}

impl Mlp {
    /// `down(activation(gate(x)) * up(x))`; x [1, tokens, hidden].
    pub fn apply(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> Made {
        g.at(module);
        let parts = |name: &str, out, input| {
            let module = format!("{module}.{name}");
            let bias = self.bias.then(|| w.get(&module, "bias", &[out]));
            (w.get(&module, "weight", &[out, input]), bias)
        };
        let project = |g: &mut Graph, name: &str| {
            let (weight, bias) = parts(name, self.intermediate, self.hidden);
            g.linear(name, x, &weight, bias.as_ref())
        };
        let gate = project(g, "gate_proj")?; // [1, tokens, intermediate]
        let up = project(g, "up_proj")?;
        let active = self.activation.apply(g, gate)?;
        let gated = g.mul(active, up)?;
        let (weight, bias) = parts("down_proj", self.hidden, self.intermediate);
        g.linear_to_residual("down_proj", gated, &weight, bias.as_ref())
    }
}
