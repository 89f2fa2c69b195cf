//! The logits after each token of a text.

use std::path::PathBuf;

use thane_engine::generate::{GenerateError, Session};
use thane_mil::backend::Backend;

use crate::error::RuntimeError;
use crate::language_model::LanguageModel;

/// A running language model that gives the logits after each token.
pub struct Scorer {
    /// The sequence.
    pub session: Session,
    /// Number of logits in a row.
    pub vocab_size: usize,
    path: PathBuf,
    verifies: bool,
    decodes: bool,
}

impl Scorer {
    /// Tokens per call, whose logits are all in memory.
    pub const CALL_TOKENS: usize = 32;

    /// Starts a model that has the function `verify` or `decode`, and gives all logits: `what`
    /// needs them.
    pub fn new(
        model: &LanguageModel,
        what: &'static str,
        backend: &dyn Backend,
    ) -> Result<Self, RuntimeError> {
        model.require_all_logits(what)?;
        let (verifies, decodes) = (model.has_function("verify"), model.has_function("decode"));
        if !verifies && !decodes {
            return Err(RuntimeError::NoRows {
                path: model.path.clone(),
            });
        }
        Ok(Self {
            session: model.session_of_any_functions(backend)?,
            vocab_size: model.info.vocab_size,
            path: model.path.clone(),
            verifies,
            decodes,
        })
    }

    /// Appends at most [`Self::CALL_TOKENS`] tokens to the cache and returns the logits after each
    /// of them, row by row // [tokens, vocabulary]
    pub fn rows(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerateError> {
        // Functions of fixed length compute a whole block for one token.
        if self.verifies && (tokens.len() > 1 || !self.decodes) {
            return self.session.verify(tokens);
        }
        let mut rows = Vec::with_capacity(tokens.len() * self.vocab_size);
        for token in tokens {
            rows.extend_from_slice(&self.session.decode(*token)?);
        }
        Ok(rows)
    }

    /// Appends tokens to the cache and returns the logits after the last one.
    pub fn last_row(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerateError> {
        let mut last = Vec::new();
        for part in tokens.chunks(Self::CALL_TOKENS) {
            last = self.rows(part)?;
        }
        let others = last.len().saturating_sub(self.vocab_size);
        last.drain(..others);
        Ok(last)
    }

    /// The error of a row that is no logits.
    pub(crate) fn no_numbers(&self) -> RuntimeError {
        RuntimeError::Logits {
            path: self.path.clone(),
        }
    }
}
