//! The per-layer embeddings of Gemma 4: a second embedding gives each layer a vector of its own for
//! each token, which the layer adds to the residual stream through a gate.

use std::ops::Range;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::decoder::Io;
use super::mlp::Activation;
use super::norm::{Norm, RmsNorm};
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
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
    /// The vectors of the layers that a function has, [1, tokens, size] each, or [1, size, 1,
    /// tokens] in the channel layout, for tokens whose embedding is `hidden`.
    pub fn vectors(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        io: &dyn Io,
        (hidden, layers): (ValueId, Range<usize>),
    ) -> Result<Vec<ValueId>, ModelError> {
        let (n, size) = (self.n_layers as i32, self.size as i32);
        if g.spelling().layout == Layout::Rows {
            let sum = self.all(g, w, io, hidden)?;
            return Ok(g.split(sum, n, -1)?);
        }
        let sum = match io.given_vectors(g, self.n_layers * self.size) {
            Some(given) => given,
            None => self.all(g, w, io, hidden)?,
        };
        io.pass_vectors(sum);
        let (before, own) = (layers.start as i32 * size, layers.len() as i32 * size);
        let sizes = [before, own, n * size - before - own];
        let present = sizes.into_iter().filter(|n| *n > 0).collect::<Vec<i32>>();
        let own = if present.len() > 1 {
            let parts = g.split_sizes(sum, &present, 1)?;
            parts[usize::from(before > 0)]
        } else {
            sum
        };
        Ok(g.split(own, layers.len() as i32, 1)?)
    }

    /// The vectors of all layers, one after the other along the features.
    fn all(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        io: &dyn Io,
        hidden: ValueId,
    ) -> Result<ValueId, ModelError> {
        let all = self.n_layers * self.size;
        let module = "model.embed_tokens_per_layer";
        g.at_module(module);
        let table = w.get(module, "weight", &[self.vocab_size, all]);
        let rows = io.rows_of_tokens(
            g,
            &table,
            ("per_layer_embedding", (self.size as f32).sqrt()),
        )?;
        let module = "model.per_layer_model_projection";
        g.at_module(module);
        let weight = w.get(module, "weight", &[all, self.hidden]);
        let projected = g.linear("product", hidden, &weight, None)?;
        let projected = g.scale(projected, (self.hidden as f32).sqrt().recip())?;
        let (n, size) = (self.n_layers as i32, self.size as i32);
        let (apart, axis, together) = match g.spelling().layout {
            Layout::Rows => ([1, -1, n, size], -1, vec![1, -1, n * size]),
            Layout::Channels => ([1, n, size, -1], 2, vec![1, n * size, 1, -1]),
        };
        let projected = g.reshape(projected, &apart)?;
        let module = "model.per_layer_projection_norm";
        g.at_module(module);
        // The embedding is that of the residual stream.
        let norm = Norm::Rms(self.norm.for_divided_stream(g.residual_divisor()));
        let projected = norm.apply_along(g, w, module, projected, (axis, self.size))?;
        let projected = g.reshape(projected, &together)?;
        let sum = g.add(projected, rows)?;
        Ok(g.scale(sum, std::f32::consts::FRAC_1_SQRT_2)?)
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
        let divisor = g.residual_divisor();
        let gate = if divisor == 1.0 {
            gate
        } else {
            g.scale(gate, divisor)?
        };
        let gate = self.activation.apply(g, gate)?;
        let gated = g.mul(gate, input)?;
        let shape = [self.hidden, self.size];
        let x = product(g, "per_layer_projection", gated, shape)?;
        let module = format!("{layer}.post_per_layer_input_norm");
        g.at_module(&module);
        let added = Norm::Rms(self.norm).apply(g, w, &module, x, self.hidden)?;
        if divisor == 1.0 {
            Ok(added)
        } else {
            g.scale(added, divisor.recip())
        }
    }
}
