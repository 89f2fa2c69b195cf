//! The greatest logits of a token, as the function `decode_top` gives them.

use thane_mil::backend::{Instance, View};

use crate::error::GenerateError;
use crate::sequence::{floats, ints};

/// The outputs of `decode_top` as a row of logits. The row is reused, because the system would
/// clear newly allocated memory page by page.
pub(crate) struct Top {
    /// Number of logits that the function gives; 0 if the program has no such function.
    n: usize,
    vocab_size: usize,
    /// Minus infinity except at `tokens`; empty before the first call.
    row: Vec<f32>,
    /// Tokens whose logits the last call gave.
    tokens: Vec<usize>,
}

impl Top {
    /// The outputs of a function that gives `n` logits; 0 if the program has no such function.
    pub fn new(n: usize, vocab_size: usize) -> Self {
        let (row, tokens) = Default::default();
        Self {
            n,
            vocab_size,
            row,
            tokens,
        }
    }

    /// Whether the function gives at least the `n` greatest logits.
    pub fn holds(&self, n: usize) -> bool {
        self.n > 0 && n.min(self.vocab_size) <= self.n
    }

    /// The logits of the last call, one for each token of the vocabulary; those that the function
    /// does not give are minus infinity.
    pub fn read(&mut self, instance: &dyn Instance) -> Result<&[f32], GenerateError> {
        let (expected, vocab_size) = (self.n, self.vocab_size);
        let wrong = |found| GenerateError::Top {
            expected,
            vocab_size,
            found,
        };
        let (logits, tokens) = (
            instance.output("top_logits")?,
            instance.output("top_tokens")?,
        );
        let listed = || format!("{} and {}", counted(&logits), counted(&tokens));
        let values = floats(&logits).filter(|values| values.len() == expected);
        let values = values.ok_or_else(|| wrong(listed()))?;
        let ids = ints(&tokens).filter(|ids| ids.len() == expected);
        let ids = ids.ok_or_else(|| wrong(listed()))?;
        self.row.resize(vocab_size, f32::NEG_INFINITY);
        for token in self.tokens.drain(..) {
            self.row[token] = f32::NEG_INFINITY;
        }
        for (id, value) in ids.into_iter().zip(values.iter()) {
            let token = usize::try_from(id).ok().filter(|token| *token < vocab_size);
            let token = token.ok_or_else(|| wrong(format!("token {id}")))?;
            self.row[token] = *value;
            self.tokens.push(token);
        }
        Ok(&self.row)
    }
}

fn counted(view: &View<'_>) -> String {
    let n: usize = view.shape.iter().product();
    format!("{n} of {}", view.dtype.name())
}
