//! The output head: logits in the program, or tables from which the caller computes them.

use std::ops::Range;

use thane_calls::{HostHead, Lookup};
use thane_mil::program::ValueId;

use super::Transformer;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::soft_capped;
use crate::layers::decoder::{Io, Lowering};
use crate::weights::Weights;
use crate::{AneDecoder, Table};

/// Name of the table of embeddings that the caller looks up.
const EMBEDDING: &str = "embedding";
/// Name of the table that is the output matrix.
const MATRIX: &str = "output_matrix";
/// Name of the table that is the bias of the output head.
const BIAS: &str = "output_bias";

impl Transformer {
    /// The logits of hidden states, for ranges of tokens.
    pub(super) fn head(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        h: ValueId,
        parts: Vec<Range<usize>>,
    ) -> Result<Vec<ValueId>, ModelError> {
        let h = self.final_norm(g, w, h)?;
        let parts = parts.into_iter();
        parts.map(|rows| self.logits(g, w, h, rows)).collect()
    }

    /// The logits of normalized hidden states, for a range of tokens.
    pub fn logits(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        h: ValueId,
        rows: Range<usize>,
    ) -> Result<ValueId, ModelError> {
        g.at_module("lm_head");
        let (weight, bias) = self.head_rows(w, rows);
        let product = g.linear("product", h, &weight, bias.as_ref())?;
        Ok(self.finished_logits(g, product)?)
    }

    /// The matrix and the bias of the head, for a range of tokens.
    pub(super) fn head_rows(
        &self,
        w: &Weights<'_>,
        rows: Range<usize>,
    ) -> (Tensor, Option<Tensor>) {
        let shape = [self.vocab_size, self.hidden];
        let bias = self
            .head_bias
            .then(|| w.bias_rows("lm_head", rows.clone(), self.vocab_size));
        (w.stored_rows(self.head_module(), rows, shape), bias)
    }

    /// Logits of what the head's matrix gives.
    pub(super) fn finished_logits(&self, g: &mut Graph, mut logits: ValueId) -> ValueResult {
        if self.logits_factor != 1.0 {
            logits = g.scale(logits, self.logits_factor)?;
        }
        if let Some(cap) = self.logits_soft_cap {
            logits = soft_capped(g, logits, cap)?;
        }
        Ok(logits)
    }

    /// How a caller computes the logits from the final hidden states.
    pub fn host_head(&self, ane: &AneDecoder) -> HostHead {
        let divisor = ane.residual_divisor.unwrap_or(self.residual_divisor);
        let (matrix, factor) = match self.scale_of_shared_matrix(ane.form.lookup, divisor) {
            Some(scale) => (EMBEDDING, self.logits_factor / scale),
            None => (MATRIX, self.logits_factor),
        };
        HostHead {
            matrix: matrix.to_owned(),
            bias: self.head_bias.then(|| BIAS.to_owned()),
            factor,
            soft_cap: self.logits_soft_cap,
        }
    }

    /// By what the table of embeddings that the caller looks up differs from the output matrix, if
    /// it can be both: a power of two changes no digit.
    fn scale_of_shared_matrix(&self, lookup: Lookup, residual_divisor: f32) -> Option<f32> {
        let scale = self.embedding_factor / residual_divisor;
        let shares = self.tied && lookup == Lookup::Host && scale.log2().fract() == 0.0;
        shares.then_some(scale)
    }

    /// Gives the caller the tables of [`Self::host_head`]. A matrix that is the table of
    /// embeddings is given by the function that looks these up.
    pub(super) fn add_head_tables(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        (io, options): (&dyn Io, &Lowering),
    ) {
        let (rows, all) = (0..self.vocab_size, self.vocab_size);
        let add = |name: &str, n_columns: usize, tensor| {
            io.add_table(Table {
                input: name.to_owned(),
                by_token: true,
                n_rows: all,
                n_columns,
                dtype: g.spelling().float,
                data: g.table_numbers(&tensor, 1.0),
                scales: None,
            });
        };
        let shape = [all, self.hidden];
        let lookup = options.fixed.as_ref().map(|f| f.form.lookup);
        let shared =
            lookup.and_then(|lookup| self.scale_of_shared_matrix(lookup, options.residual_divisor));
        if shared.is_none() {
            add(
                MATRIX,
                self.hidden,
                w.stored_rows(self.head_module(), rows.clone(), shape),
            );
        }
        if self.head_bias {
            add(BIAS, 1, w.bias_rows("lm_head", rows, all));
        }
    }

    /// The module that has the output matrix.
    fn head_module(&self) -> &'static str {
        if self.tied {
            "model.embed_tokens"
        } else {
            "lm_head"
        }
    }
}
