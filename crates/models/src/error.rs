//! Why a checkpoint does not become a program.

use thane_mil::build::BuildError;

use crate::checkpoint::{CheckpointError, ConfigError, MetadataError};

/// Why a checkpoint does not become a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The files cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A key of `config.json` is missing or of the wrong kind.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key of the GGUF metadata is missing or of the wrong kind.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// No family has this architecture.
    #[error("architecture `{found}` is not supported; supported are {}", .supported.join(", "))]
    Architecture {
        /// Name in the file.
        found: String,
        /// Names that are known.
        supported: Vec<&'static str>,
    },
    /// Keys that would change the computation in ways that the family does not know.
    #[error("the `{family}` family does not know what these keys mean, and a guess could be wrong: {}", .keys.join(", "))]
    UnknownKeys {
        /// Family.
        family: &'static str,
        /// Keys.
        keys: Vec<String>,
    },
    /// A key has a value that the family does not compute.
    #[error("key `{key}` is {value}: {reason}")]
    Unsupported {
        /// Key.
        key: String,
        /// Value.
        value: String,
        /// Why it cannot be.
        reason: String,
    },
    /// Tensors that are missing, left over, or of another shape; all of them.
    #[error("the tensors do not fit the configuration:\n  {}", .0.join("\n  "))]
    Tensors(Vec<String>),
    /// Numbers of tensors that a program cannot compute with.
    #[error("the weights hold numbers that the program cannot compute with:\n  {}", .faults.join("\n  "))]
    Numbers {
        /// Tensor, value, index and reason, one line each.
        faults: Vec<String>,
        /// Whether some are finite, and only too large for fp16.
        overflow: bool,
    },
    /// The architecture makes vectors of texts, and answers were asked for.
    #[error("architecture `{0}` is an embedding model: it makes vectors of texts, not answers")]
    EmbedsOnly(String),
    /// The architecture answers, and vectors of texts were asked for.
    #[error("architecture `{0}` is a language model: it makes answers, not vectors of texts")]
    AnswersOnly(String),
    /// The context asked for is none that the model has.
    #[error(
        "a context of {asked} was asked for; the model has {max} positions: give --context 1 to {max}"
    )]
    Context {
        /// Asked for.
        asked: usize,
        /// Positions of the model.
        max: usize,
    },
    /// The bucket asked for is none that the model has.
    #[error(
        "a bucket of {asked} tokens was asked for; the model has {max} positions: give --buckets from 1 to {max}"
    )]
    Bucket {
        /// Asked for.
        asked: usize,
        /// Positions of the model.
        max: usize,
    },
    /// The block of `prefill` asked for does not fit the cache.
    #[error(
        "a block of {asked} tokens was asked for; the context has {context}: give --block 1 to {context}, or a longer --context"
    )]
    Block {
        /// Asked for.
        asked: usize,
        /// Tokens that the cache holds.
        context: usize,
    },
    /// Nothing says how the vectors of tokens become one.
    #[error(
        "the folder has no modules.json that says how a text's vectors are pooled: give --pooling mean, cls, lasttoken, max or weightedmean, as the model's page says"
    )]
    Pooling,
    /// The family made an op that MIL refuses; a bug of the family, or a configuration whose
    /// numbers do not fit together.
    #[error("the configuration gives no legal program: {0}")]
    Build(#[from] BuildError),
}

impl ModelError {
    /// A key whose value is refused.
    pub(crate) fn unsupported(key: &str, value: impl ToString, reason: &str) -> Self {
        Self::Unsupported {
            key: key.to_owned(),
            value: value.to_string(),
            reason: reason.to_owned(),
        }
    }
}
