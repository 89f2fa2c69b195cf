//! The mixture of experts: feed-forward layers of which each token uses a few.
//!
//! The router's greatest probabilities choose the experts of a token. Their matrices are rows that
//! `gather` takes from the stack of all experts, so that the program computes only what was chosen.
//! A backend that holds each expert by itself never needs the stack.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::activation::{Activation, sigmoid};
use super::mlp::Mlp;
use crate::checkpoint::Tensor;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// The sizes and options of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct Experts {
    /// Elements of a token's input and output.
    pub hidden: usize,
    /// Elements of a token between the projections of an expert.
    pub intermediate: usize,
    /// Activation of the gate of an expert.
    pub activation: Activation,
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts that a token uses.
    pub n_used: usize,
    /// Whether the probabilities of the experts that a token uses are divided by their sum.
    pub normalized: bool,
    /// A feed-forward layer that all tokens use too, times a sigmoid of its own.
    pub shared: Option<Mlp>,
}

impl Experts {
    /// The sum of the chosen experts of `x` [1, tokens, hidden], each times its probability.
    pub fn apply(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        let [probabilities, chosen] = self.route(g, w, module, x)?; // [1, tokens, used]
        g.at_module(&format!("{module}.experts"));
        let column = g.expand_dims(x, &[2, 4])?; // [1, tokens, 1, hidden, 1]
        let (hidden, inner) = (self.hidden, self.intermediate);
        let gate = self.chosen(g, w, module, ("gate_proj", [inner, hidden]), chosen)?;
        let gate = product(g, gate, column)?; // [1, tokens, used, intermediate, 1]
        let up = self.chosen(g, w, module, ("up_proj", [inner, hidden]), chosen)?;
        let up = product(g, up, column)?;
        let active = self.activation.apply(g, gate)?;
        let gated = g.mul(active, up)?;
        let down = self.chosen(g, w, module, ("down_proj", [hidden, inner]), chosen)?;
        let down = product(g, down, gated)?; // [1, tokens, used, hidden, 1]
        let factors = g.expand_dims(probabilities, &[3, 4])?;
        let weighted = g.mul(down, factors)?;
        let (axes, keep) = (g.ints(&[2, 4])?, g.bool(false)?);
        let args = [("x", weighted), ("axes", axes), ("keep_dims", keep)];
        let sum = g.op("reduce_sum", "sum", args)?; // [1, tokens, hidden]
        match &self.shared {
            None => Ok(sum),
            Some(mlp) => {
                let shared = self.apply_shared(g, w, module, (mlp, x))?;
                g.add(sum, shared)
            }
        }
    }

    /// The probabilities and the indices of the experts that each token uses, [1, tokens, used].
    fn route(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
    ) -> Result<[ValueId; 2], BuildError> {
        let module = format!("{module}.gate");
        g.at_module(&module);
        let weight = w.get(&module, "weight", &[self.n_experts, self.hidden]);
        let scores = g.linear("scores", x, &weight, None)?;
        let axis = g.int(-1)?;
        let args = [("x", scores), ("axis", axis)];
        let probabilities = g.op("softmax", "probabilities", args)?;
        let [greatest, chosen] = g.top(probabilities, self.n_used as i32)?;
        if !self.normalized {
            return Ok([greatest, chosen]);
        }
        let sum = g.reduce("reduce_sum", greatest, -1)?;
        let shares = g.op("real_div", "shares", [("x", greatest), ("y", sum)])?;
        Ok([shares, chosen])
    }

    /// The matrices `name` of the experts `indices`, [1, tokens, used, rows, columns].
    fn chosen(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        (name, shape): (&str, [usize; 2]),
        indices: ValueId,
    ) -> ValueResult {
        let experts = (0..self.n_experts).map(|i| {
            let weight = self.matrix(w, module, (name, shape), i);
            g.weight(&weight)
        });
        let experts = experts.collect::<Result<Vec<_>, _>>()?;
        let stack = g.join("stack", &experts, 0)?; // [experts, rows, columns]
        g.gather(stack, indices)
    }

    /// The matrix `name` of expert `idx`: a tensor of its own, as Hugging Face folders store it, or
    /// a part of a tensor of all experts, as GGUF does.
    fn matrix(
        &self,
        w: &Weights<'_>,
        module: &str,
        (name, [rows, columns]): (&str, [usize; 2]),
        idx: usize,
    ) -> Tensor {
        let all = format!("{module}.experts");
        let stacked = format!("{all}.{name}");
        if w.has(&stacked, "weight") {
            let shape = [self.n_experts, rows, columns];
            return w.stacked_rows(&stacked, "weight", (idx, 0..rows), shape);
        }
        w.get(&format!("{all}.{idx}.{name}"), "weight", &[rows, columns])
    }

    /// The feed-forward layer that all tokens use.
    fn apply_shared(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        (mlp, x): (&Mlp, ValueId),
    ) -> ValueResult {
        let shared = mlp.apply(g, w, &format!("{module}.shared_expert"), x)?;
        let module = format!("{module}.shared_expert_gate");
        g.at_module(&module);
        // GGUF leaves out the dimension of 1.
        let flat = w.shape_of(&module, "weight").is_some_and(|s| s.len() == 1);
        let mut weight = if flat {
            w.get(&module, "weight", &[self.hidden])
        } else {
            w.get(&module, "weight", &[1, self.hidden])
        };
        weight.shape = vec![1, self.hidden];
        let gate = g.linear("gate", x, &weight, None)?;
        let gate = sigmoid(g, gate)?;
        g.mul(shared, gate)
    }
}

/// `matrix @ column`.
fn product(g: &mut Graph, matrix: ValueId, column: ValueId) -> ValueResult {
    g.op("matmul", "product", [("x", matrix), ("y", column)])
}
