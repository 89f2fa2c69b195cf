//! The functions before and after the layers.

use std::ops::Range;

use thane_mil::program::Function;
use thane_mil::types::{DType, Dim, TensorType};

use crate::error::ModelError;
use crate::graph::Graph;
use crate::transformer::Transformer;
use crate::weights::Weights;

impl Transformer {
    /// The function from `input_ids` [1, tokens] to `hidden_states` [1, tokens, hidden], which are
    /// divided by `divisor`.
    pub(super) fn embeddings_function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        divisor: f32,
    ) -> Result<Function, ModelError> {
        g.at_module("");
        let shape = [Dim::Known(1), g.symbol()];
        let input_ids = g.input("input_ids", TensorType::new(DType::Int32, shape));
        g.at_module("model.embed_tokens");
        let table = [self.vocab_size, self.hidden];
        let table = w.get("model.embed_tokens", "weight", &table);
        let table = g.divided_weight(&table, divisor / self.embedding_factor)?;
        let rows = g.gather(table, input_ids)?;
        Ok(g.finish("hidden_states", rows))
    }

    /// The function from normalized `hidden_states` [1, 1, hidden] to the logits of each slice of
    /// the vocabulary, `logits1` [1, 1, width] and on; `logits` if there is one.
    pub(super) fn head_function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        slices: &[Range<usize>],
    ) -> Result<Function, ModelError> {
        g.at_module("");
        let ty = TensorType::new(g.spelling().float, [1, 1, self.hidden]);
        let rows = g.input("hidden_states", ty);
        let hidden = g.reshape(rows, &[1, self.hidden as i32, 1, 1])?;
        let mut outputs = Vec::new();
        for (i, slice) in slices.iter().enumerate() {
            let logits = self.logits(&mut g, w, hidden, slice.clone())?;
            let name = match slices.len() {
                1 => "logits".to_owned(),
                _ => format!("logits{}", i + 1),
            };
            outputs.push((name, g.reshape(logits, &[1, 1, -1])?));
        }
        let outputs: Vec<_> = outputs.iter().map(|(name, v)| (&**name, *v)).collect();
        Ok(g.finish_all(&outputs))
    }
}
