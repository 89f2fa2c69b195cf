//! What a function of fixed length computes: which tokens, layers and rows of the head.

use std::ops::Range;

use super::caches::Kept;
use crate::{CacheForm, Given, Head, Lookup};

/// What a function of fixed length computes.
#[derive(Clone, Debug)]
pub struct FixedFunction {
    /// Which tokens' logits it gives.
    pub given: Given,
    /// Number of tokens.
    pub tokens: usize,
    /// Whether each token is of a sequence of its own.
    pub in_lanes: bool,
    /// Number of tokens that the cache holds.
    pub context: usize,
    /// The greatest such number of all functions, for which tables are made.
    pub most_context: usize,
    /// The layers.
    pub layers: Range<usize>,
    /// Number of layers of the model.
    pub n_layers: usize,
    /// The rows of the output head that it has, if any.
    pub head: Option<Range<usize>>,
    /// What it gives of the logits of these rows.
    pub gives: Head,
    /// Where the cache is.
    pub cache: CacheForm,
    /// Name of the state that holds the cache.
    pub state: String,
    /// Name of the state that holds what layers without attention remember.
    pub recurrent_state: String,
    /// Whether any of the layers attends.
    pub attends: bool,
    /// Who looks up embeddings and rotations.
    pub lookup: Lookup,
    /// Whether the rows of tokens that the caller looks up are int8.
    pub int8_tables: bool,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Rows of the caches of sliding-window layers, if the caller has them as rings of fewer rows
    /// than the context.
    pub ring: Option<usize>,
    /// What full-attention layers keep, if not all tokens.
    pub kept: Option<Kept>,
    /// Rows of the cache that are multiplied at once, if not all.
    pub tile: Option<usize>,
}

impl FixedFunction {
    /// Number of sequences.
    pub fn lanes(&self) -> usize {
        if self.in_lanes { self.tokens } else { 1 }
    }

    /// Whether it has the last of the layers.
    pub fn ends_layers(&self) -> bool {
        self.layers.end == self.n_layers && !self.layers.is_empty()
    }

    /// Number of tokens whose logits are given.
    pub fn n_given(&self) -> usize {
        match self.given {
            Given::Last => 1,
            Given::Each => self.tokens,
        }
    }
}
