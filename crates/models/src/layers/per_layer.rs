//! The per-layer embeddings of Gemma 4: a second embedding gives each layer a vector of its own for
//! each token, which the layer adds to the residual stream through a gate.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::decoder::Io;
use super::mlp::Activation;
use super::norm::{Norm, RmsNorm};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// The sizes of the per-layer embeddings.
#[derive(Clone, Copy, Debug)]
pub struct PerLayer {
    /// Elements of a token's hidden state.
    pub hidden: usize,
    /// Elements of a token's vector for one layer.
    pub size: usize,
    /// Number of tokens that have vectors.
    pub vocab_size: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// The norm of the vectors.
    pub norm: RmsNorm,
    /// Activation of the gate.
    pub activation: Activation,
}

impl PerLayer {
    /// The vectors of all layers, [1, tokens, size] each, for tokens whose embedding is `hidden`
    /// [1, tokens, hidden].
    pub fn vectors(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        io: &Io,
        hidden: ValueId,
    ) -> Result<Vec<ValueId>, ModelError> {
        let all = self.n_layers * self.size;
        let module = "model.embed_tokens_per_layer";
        g.at_module(module);
        let table = g.weight(&w.get(module, "weight", &[self.vocab_size, all]))?;
        let rows = io.rows_of_tokens(g, table)?;
        let rows = g.scale(rows, (self.size as f32).sqrt())?;
        let module = "model.per_layer_model_projection";
        g.at_module(module);
        let weight = w.get(module, "weight", &[all, self.hidden]);
        let projected = g.linear("product", hidden, &weight, None)?;
        let projected = g.scale(projected, (self.hidden as f32).sqrt().recip())?;
        let (n, size) = (self.n_layers as i32, self.size as i32);
        let projected = g.reshape(projected, &[1, -1, n, size])?;
        let module = "model.per_layer_projection_norm";
        g.at_module(module);
        let norm = Norm::Rms(self.norm);
        let projected = norm.apply_along(g, w, module, projected, (-1, self.size))?;
        let projected = g.reshape(projected, &[1, -1, n * size])?;
        let sum = g.add(projected, rows)?;
        let sum = g.scale(sum, std::f32::consts::FRAC_1_SQRT_2)?;
        Ok(g.split(sum, n, -1)?)
    }

    /// What layer `layer` adds to the residual stream `h` for the vectors `input`.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        layer: &str,
        h: ValueId,
        input: ValueId,
    ) -> Result<ValueId, BuildError> {
        let product = |g: &mut Graph, name: &str, x, shape: [usize; 2]| -> ValueResult {
            let module = format!("{layer}.{name}");
            g.at_module(&module);
            g.linear("product", x, &w.get(&module, "weight", &shape), None)
        };
        let gate = product(g, "per_layer_input_gate", h, [self.size, self.hidden])?;
        let gate = self.activation.apply(g, gate)?;
        let gated = g.mul(gate, input)?;
        let shape = [self.hidden, self.size];
        let x = product(g, "per_layer_projection", gated, shape)?;
        let module = format!("{layer}.post_per_layer_input_norm");
        g.at_module(&module);
        Norm::Rms(self.norm).apply(g, w, &module, x, self.hidden)
    }
}
