//! Why a checkpoint cannot be lowered to a program.

use std::ops::Range;

use thane_mil::build::BuildError;

use crate::checkpoint::{CheckpointError, ConfigError, MetadataError};

/// Why a checkpoint cannot be lowered to a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The files of the checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A key of `config.json` is missing or has the wrong type.
    #[error("{}: {_0}", _0.file())]
    Config(#[from] ConfigError),
    /// A key of the GGUF metadata is missing or has the wrong type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// No family supports this architecture.
    #[error(
        "architecture `{found}` is not supported: the nearest that are supported are {}",
        nearest(.found, .supported)
    )]
    Architecture {
        /// Name of the architecture in the file.
        found: String,
        /// Names of the supported architectures.
        supported: Vec<&'static str>,
    },
    /// Keys that no family reads and that may change the computation.
    #[error("the `{family}` family does not support these keys, which may change the computation: \
        {}", .keys.join(", "))]
    UnknownKeys {
        /// Name of the family.
        family: &'static str,
        /// The dotted keys.
        keys: Vec<String>,
    },
    /// A key has a value that the family does not support.
    #[error("key `{key}` is {value}: {reason}")]
    Unsupported {
        /// The key, as the file spells it.
        key: String,
        /// The value in the file.
        value: String,
        /// What was expected, or why the value is not supported.
        reason: String,
    },
    /// Tensors that are missing, superfluous or of another shape. All are listed.
    #[error("the tensors do not fit the configuration:\n  {}", .0.join("\n  "))]
    Tensors(Vec<String>),
    /// Tensors with numbers that a program cannot use.
    #[error("the weights contain numbers that the program cannot use:\n  {}", .faults.join("\n  "))]
    Numbers {
        /// Tensor, value, index and reason, one line for each fault.
        faults: Vec<String>,
        /// Whether some numbers are finite and only too large for fp16.
        overflow: bool,
    },
    /// A language model was requested, but the architecture is an embedding model.
    #[error(
        "architecture `{0}` is an embedding model: it computes vectors of texts and cannot \
         generate text"
    )]
    EmbedsOnly(String),
    /// An embedding model was requested, but the architecture is a language model.
    #[error(
        "architecture `{0}` is a language model: it generates text and does not compute vectors \
         of texts"
    )]
    AnswersOnly(String),
    /// Vectors were requested, but the model is a sequence classifier.
    #[error(
        "the model is a sequence classifier (`{0}`): it scores texts and was not trained for \
         vectors: rank texts with it, or name a pooling to get the vectors of its encoder"
    )]
    Classifies(String),
    /// Layers that only a decoder can have.
    #[error(
        "{0} are not supported in models that read whole texts at once, such as rerankers: choose \
         a model without them"
    )]
    EncoderForm(&'static str),
    /// Scores were requested, but the model is not a sequence classifier.
    #[error(
        "architecture `{0}`: expected a sequence classifier of BERT, RoBERTa, XLM-RoBERTa, \
         CamemBERT, DistilBERT, MPNet, Nomic BERT or ModernBERT, or a language model that \
         CrossEncoder saved as a reranker (modules.json), found another model: choose such a \
         reranker"
    )]
    NoLabels(String),
    /// The requested context length is not supported by the model.
    #[error(
        "expected a context length from 1 to {max}, the number of positions of the model, found \
         {asked}"
    )]
    Context {
        /// Requested context length in tokens.
        asked: usize,
        /// Number of positions of the model.
        max: usize,
    },
    /// The requested bucket length is not supported by the model.
    #[error(
        "expected bucket lengths from 1 to {max}, the number of positions of the model, found \
         {asked}"
    )]
    Bucket {
        /// Requested length in tokens.
        asked: usize,
        /// Number of positions of the model.
        max: usize,
    },
    /// The requested tokens of a call do not fit the cache.
    #[error(
        "expected {function} of 1 to {context} tokens, the shortest context length, found \
         {asked}: choose fewer tokens a call or a longer context"
    )]
    Block {
        /// Name of the function.
        function: &'static str,
        /// Requested tokens of a call.
        asked: usize,
        /// Number of tokens that the cache holds.
        context: usize,
    },
    /// The requested shorter context is none.
    #[error("expected shorter contexts from 1 to {context}, the context length, found {asked}")]
    ShortContext {
        /// Requested context in tokens.
        asked: usize,
        /// The context length.
        context: usize,
    },
    /// So many chunks of layers were requested.
    #[error("expected 1 to {n_layers} chunks, as the model has layers, found {asked}")]
    SplitInto {
        /// Number of chunks.
        asked: usize,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// Chunks of layers were requested that cannot be.
    #[error(
        "expected chunks that follow each other from layer 0 to {n_layers}, each of a layer at \
         least, found {}",
        ranges(chunks)
    )]
    Split {
        /// The layers of each chunk.
        chunks: Vec<Range<usize>>,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// Caches of layers differ in size, and were to be one state.
    #[error(
        "keys and values have different sizes in different layers, which one state cannot hold: \
         choose an explicit cache"
    )]
    MixedCaches,
    /// A chunk needs the state of another one.
    #[error(
        "a chunk uses the keys and values of layer {layer}, which an earlier chunk has in a state: \
         choose an explicit cache, or a cut elsewhere"
    )]
    SharedAcrossChunks {
        /// The layer that has the keys and values.
        layer: usize,
    },
    /// Layers that share the cache of others have no heads of their own to choose.
    #[error(
        "layer {layer} shares the keys and values of another layer, so its heads cannot keep other \
         tokens: choose --attention-window without --retrieval-heads"
    )]
    SharedHeads {
        /// The layer.
        layer: usize,
    },
    /// Options of attention that do not fit the model or each other.
    #[error("attention of the Neural Engine form: {0}")]
    AttentionForm(String),
    /// What programs that are called without Core ML cannot have.
    #[error("a program for direct access to the engine: {0}")]
    Direct(String),
    /// So many sequences side by side cannot be.
    #[error(
        "expected 2 to {most} lanes, sequences that a call takes side by side, found {asked}: one \
         sequence is what decode takes"
    )]
    Lanes {
        /// Requested number.
        asked: usize,
        /// The most that are accepted.
        most: usize,
    },
    /// Sequences side by side need an explicit cache.
    #[error(
        "lanes are at positions of their own, and a state is written at one position in each call: \
         choose an explicit cache"
    )]
    LanesOfState,
    /// The output head was to be a chunk by itself, and is on the host.
    #[error(
        "expected a cut of layers only, found one with a chunk for the output head, which is on \
         the host: leave head out of the cut"
    )]
    NoHeadToCut,
    /// A function has too many tokens for a model with delta nets.
    #[error(
        "expected {function} of up to {most} tokens, found {asked}: layers with recurrent states \
         have ops of their own for each token of a call, so choose fewer tokens"
    )]
    DeltaBlock {
        /// Name of the function.
        function: &'static str,
        /// Requested tokens of a call.
        asked: usize,
        /// The most that are accepted.
        most: usize,
    },
    /// The form for the Neural Engine cannot have this yet.
    #[error(
        "the form for the Neural Engine cannot have {0} yet: choose the portable form, which runs \
         on CPU and GPU"
    )]
    EngineForm(&'static str),
    /// A bundle of another project cannot have this.
    #[error("an {project} bundle cannot have {what}: leave it out, or choose the form ane")]
    Bundle {
        /// The project.
        project: &'static str,
        /// What its bundles cannot have.
        what: String,
    },
    /// The files of an embedding model do not name a pooling.
    #[error(
        "modules.json is missing or has no Pooling, so the pooling of token vectors is unknown: \
         choose mean, cls, lasttoken, max or weightedmean, as the model's page says"
    )]
    Pooling,
    /// The family built an op that MIL rejects. This is a bug of the family, or the numbers of the
    /// configuration do not fit together.
    #[error("the configuration does not give a legal program: {0}")]
    Build(#[from] BuildError),
}

/// Ranges as a user writes them: `0-8, 8-15`.
fn ranges(chunks: &[Range<usize>]) -> String {
    let each = chunks
        .iter()
        .map(|chunk| format!("{}-{}", chunk.start, chunk.end));
    let all: Vec<String> = each.collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

/// The three names that resemble `found` most.
fn nearest(found: &str, supported: &[&str]) -> String {
    let alike = |name: &&str| strsim::jaro_winkler(found, name);
    let mut names = supported.to_vec();
    names.sort_by(|a, b| alike(b).total_cmp(&alike(a)));
    names.truncate(3);
    names.join(", ")
}

impl ModelError {
    /// The value of a key is not supported.
    pub(crate) fn unsupported(key: &str, value: impl ToString, reason: &str) -> Self {
        Self::Unsupported {
            key: key.to_owned(),
            value: value.to_string(),
            reason: reason.to_owned(),
        }
    }
}
