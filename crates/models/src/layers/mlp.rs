//! The feed-forward layer (MLP).

use thane_mil::program::ValueId;

pub use super::activation::Activation;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

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
        let project = |g: &mut Graph, name: &str, part: (&str, usize, usize), divisor: f32| {
            let (matrix, first, all) = part;
            let matrix = format!("{module}.{matrix}");
            let rows = first..first + inner;
            let weight = w.rows(&matrix, rows.clone(), [all, self.hidden]);
            let bias = self.bias.then(|| w.bias_rows(&matrix, rows, all));
            g.product(name, x, &weight, bias.as_ref(), divisor)
        };
        let divisor = self.activation.divisor(g.spelling());
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
                let gate = project(g, "gate_proj", gate, divisor)?; // [1, tokens, intermediate]
                let up = project(g, "up_proj", up, 1.0)?;
                let active = self.activation.apply_to_divided(g, gate)?;
                g.mul(active, up)?
            }
            None => {
                let up = project(g, "up_proj", up, divisor)?;
                self.activation.apply_to_divided(g, up)?
            }
        };
        let down = format!("{module}.down_proj");
        let weight = w.rows(&down, 0..self.hidden, [self.hidden, inner]);
        let bias = self.bias.then(|| w.get(&down, "bias", &[self.hidden]));
        g.linear_to_residual("down_proj", gated, &weight, bias.as_ref())
    }
}
