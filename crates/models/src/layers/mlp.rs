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
        let project = |g: &mut Graph, name: &str, x, out, input| {
            let module = format!("{module}.{name}");
            let weight = w.get(&module, "weight", &[out, input]);
            let bias = self.bias.then(|| w.get(&module, "bias", &[out]));
            g.linear(name, x, &weight, bias.as_ref())
        };
        let gate = project(g, "gate_proj", x, self.intermediate, self.hidden)?; // [1, tokens, intermediate]
        let up = project(g, "up_proj", x, self.intermediate, self.hidden)?;
        let active = match self.activation {
            Activation::Silu => g.op("silu", "active", [("x", gate)])?,
            Activation::GeluTanh => {
                let mode = g.string("TANH_APPROXIMATION")?;
                g.op("gelu", "active", [("x", gate), ("mode", mode)])?
            }
        };
        let gated = g.mul(active, up)?;
        project(g, "down_proj", gated, self.hidden, self.intermediate)
    }
}
