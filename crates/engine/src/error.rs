//! Errors of prefill and decode.

use thane_mil::backend::RunError;

use crate::sample::SampleError;

/// Why a grammar cannot be used, or not further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the grammar: {0}")]
pub struct GrammarError(pub String);

/// Why text could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The backend reported an error.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The sampler cannot use the options or the logits.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The grammar cannot be used, or not further.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The prompt does not fit into the cache.
    #[error(
        "expected a prompt shorter than the context of {context} tokens, because the answer needs \
         at least one, found {prompt} tokens"
    )]
    PromptTooLong {
        /// Number of tokens in the prompt.
        prompt: usize,
        /// Number of tokens that the cache can hold.
        context: usize,
    },
    /// The prompt has no tokens.
    #[error("expected a prompt of at least one token, found none")]
    EmptyPrompt,
    /// One of several sequences failed.
    #[error("sequence {idx}: {source}")]
    Sequence {
        /// Index of the sequence.
        idx: usize,
        /// Why the sequence failed.
        source: Box<GenerateError>,
    },
    /// The outputs `top_logits` and `top_tokens` of the program have an unexpected size or type, or
    /// name tokens that do not exist.
    #[error(
        "expected {expected} logits of fp32 or fp16 and {expected} int32 tokens from 0 to below \
         {vocab_size} from `decode_top`, found {found}"
    )]
    Top {
        /// Number of logits that was expected.
        expected: usize,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
        /// Numbers and types of both outputs.
        found: String,
    },
    /// The output `logits` of the program has an unexpected size or type.
    #[error(
        "expected {expected} logits of fp32 or fp16 from the program, found {found} of {dtype}"
    )]
    Logits {
        /// Number of elements in the output.
        found: usize,
        /// Element type of the output.
        dtype: &'static str,
        /// Number of elements that was expected.
        expected: usize,
    },
}
