//! Why prefill or decode failed.

use thane_mil::backend::RunError;

use crate::sample::SampleError;

/// Why generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The backend failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The logits or the options are no use.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The prompt does not fit.
    #[error(
        "the prompt has {prompt} tokens, the context holds {context}, and one must be left for \
         the answer"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the cache holds.
        context: usize,
    },
    /// There is nothing to go on from.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// One of several sequences cannot go on.
    #[error("sequence {idx}: {source}")]
    Sequence {
        /// Its number.
        idx: usize,
        /// Why not.
        source: Box<GenerateError>,
    },
    /// The program's output is not what a language model gives.
    #[error("the program gave {found} logits of {dtype}, {expected} of fp32 or fp16 are due")]
    Logits {
        /// Elements given.
        found: usize,
        /// Their type.
        dtype: &'static str,
        /// Elements due.
        expected: usize,
    },
}
