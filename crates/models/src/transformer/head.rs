//! The output head: logits in the program, or tables from which the caller computes them.

use std::ops::Range;

use thane_calls::{HostHead, Lookup};
use thane_mil::program::ValueId;

use super::Transformer;
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::soft_capped;
use crate::layers::decoder::{EMBEDDING, Io, Lowering};
use crate::weights::Weights;

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
    pub fn host_head(&self, lookup: Lookup) -> HostHead {
        let matrix = if self.looks_up_matrix(lookup) {
            EMBEDDING
        } else {
            MATRIX
        };
        HostHead {
            matrix: matrix.to_owned(),
            bias: self.head_bias.then(|| BIAS.to_owned()),
            factor: self.logits_factor,
            soft_cap: self.logits_soft_cap,
        }
    }

    /// Whether the caller looks embeddings up in the output matrix: their factor is applied to the
    /// rows that are looked up.
    pub fn looks_up_matrix(&self, lookup: Lookup) -> bool {
        self.tied && lookup == Lookup::Host
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
                parts: vec![g.table_numbers(&tensor, 1.0)],
                factor: 1.0,
                scales: None,
            });
        };
        let shape = [all, self.hidden];
        let fixed = options.fixed.as_ref();
        if !fixed.is_some_and(|f| self.looks_up_matrix(f.form.lookup)) {
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
