//! What a function of fixed length computes: which tokens, layers and rows of the head.

use std::ops::Range;

use thane_calls::{Form, Given, StreamingCache};

use super::{Mask, NewIo};

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
    /// Where the caller looks embeddings up in the matrix of the output head: the rows of each
    /// constant that the matrix is, in whichever function. Empty if they have a table of their own.
    pub tied_rows: Vec<Range<usize>>,
    /// How the caller wants to call it.
    pub form: Form,
    /// Name of the state that holds the cache.
    pub state: String,
    /// Name of the state that holds what layers without attention remember.
    pub recurrent_state: String,
    /// Whether any of the layers attends.
    pub attends: bool,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Rows of the caches of sliding-window layers, if the caller has them as rings of fewer rows
    /// than the context.
    pub ring: Option<usize>,
    /// What full-attention layers keep, if not all tokens.
    pub streaming: Option<StreamingCache>,
    /// Declares its inputs.
    pub io: NewIo,
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

    /// The rows of the output head, in the parts that outputs have.
    pub fn head_parts(&self) -> Vec<Range<usize>> {
        let rows = self.head.clone();
        rows.map_or_else(Vec::new, |rows| head_parts(rows, &self.form))
    }

    /// Whether it picks the token whose logits are given among those of the call. Without Core ML,
    /// all tokens are passed to a head that is apart, which fill its rows.
    pub fn picks(&self) -> bool {
        let is_last = if self.form.direct.is_some() {
            self.head.is_some()
        } else {
            self.ends_layers()
        };
        self.given == Given::Last && self.tokens > 1 && is_last
    }

    /// Number of tokens whose hidden states an earlier chunk gives.
    pub fn n_passed(&self) -> usize {
        match self.layers.is_empty() && self.form.direct.is_none() {
            true => self.n_given(),
            false => self.tokens,
        }
    }

    /// Number of tokens whose logits are given.
    pub fn n_given(&self) -> usize {
        match self.given {
            Given::Last => 1,
            Given::Each => self.tokens,
        }
    }
}

/// Rows of the output head, in the parts that outputs of a function in this form have.
pub fn head_parts(rows: Range<usize>, form: &Form) -> Vec<Range<usize>> {
    let Some(most) = form.direct else {
        return vec![rows];
    };
    let n = rows.len().div_ceil(most.max(1));
    let part = rows.len().div_ceil(n.max(1));
    let part = part.next_multiple_of(Form::DIRECT_COLUMNS);
    let starts = rows.clone().step_by(part.max(1));
    starts.map(|i| i..(i + part).min(rows.end)).collect()
}

/// Which heads of a layer see only what is kept.
pub enum Streams<'a> {
    No,
    All,
    /// All key heads but those that are marked.
    AllBut(&'a [bool]),
}

impl FixedFunction {
    /// Rows of the cache of a layer with this mask.
    pub fn rows(&self, mask: Mask) -> usize {
        match (mask, self.ring, self.streaming) {
            (Mask::Sliding, Some(ring), _) => ring.min(self.context),
            (Mask::Streaming, _, Some(cache)) => cache.rows(self.most_context, self.context),
            _ => self.context,
        }
    }

    pub fn streams(&self, layer: usize, mask: Mask) -> Streams<'_> {
        if self.streaming.is_none() || mask != Mask::Full {
            return Streams::No;
        }
        match self.form.attention.retrieval_heads.get(layer) {
            Some(heads) if heads.iter().all(|keeps_all| *keeps_all) => Streams::No,
            Some(heads) if heads.contains(&true) => Streams::AllBut(heads),
            _ => Streams::All,
        }
    }
}

/// How the caches of a layer are numbered: those of heads that see only what is kept are apart.
pub fn numbered(layer: usize, mask: Mask) -> String {
    match mask {
        Mask::Streaming => format!("stream_{layer}"),
        _ => layer.to_string(),
    }
}
