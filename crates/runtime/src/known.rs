//! What a model that gives only its greatest logits cannot do.

use std::path::PathBuf;

use thane_engine::sample::{Rules, SampleOptions};

use crate::error::RuntimeError;

/// The logits that a model gives, if not all.
#[derive(Clone, Debug)]
pub struct Known {
    /// The model.
    pub path: PathBuf,
    /// Number of the greatest logits of a token.
    pub n: usize,
    /// Tokens that the cache holds.
    pub context: usize,
}

impl Known {
    /// Refuses options that need more logits.
    pub fn check(&self, options: &SampleOptions) -> Result<(), RuntimeError> {
        let needed = options.n_greatest(self.context);
        if needed.is_some_and(|needed| needed <= self.n) {
            return Ok(());
        }
        let is_one = self.n == 1;
        Err(self.lacks(match options {
            o if o.repetition_penalty != 1.0 => "a repetition penalty",
            o if o.presence_penalty != 0.0 => "a presence penalty",
            o if o.frequency_penalty != 0.0 => "a frequency penalty",
            o if o.dry.multiplier != 0.0 => "a DRY penalty",
            o if !o.logit_bias.is_empty() => "a logit bias",
            o if *o.rules != Rules::default() => "a rule of the model's files",
            o if o.mirostat.is_some() && !is_one => "mirostat",
            _ if is_one => "a temperature above 0",
            o if o.top_k == 0 => "a temperature above 0 without top-k",
            _ => "such a top-k",
        }))
    }

    /// The failure of `option`, which needs more logits.
    pub fn lacks(&self, option: &'static str) -> RuntimeError {
        let path = self.path.clone();
        match self.n {
            1 => RuntimeError::GreedyOnly { path, option },
            n => RuntimeError::GreatestOnly { path, n, option },
        }
    }
}
