//! The gated feed-forward layer (MLP).

use thane_mil::program::ValueId;

pub use super::activation::Activation;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// The sizes and options of a gated feed-forward layer.
#[derive(Clone, Copy, Debug)]
pub struct Mlp {
    /// Elements of a token's input and output.
    pub hidden: usize,
    /// Elements of a token between the projections.
    pub intermediate: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether the projections have biases.
    pub bias: bool,
}

impl Mlp {
    /// `down(activation(gate(x)) * up(x))`, for `x` [1, tokens, hidden].
    pub fn apply(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        g.at_module(module);
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
