//! Embedding models: options and results of lowering one, and what is lowered: [`body`] is what
//! every encoder has, [`post_norm`] the layers of the BERT kind, which [`config`] and [`gguf`] read
//! from `config.json` and GGUF files.

pub(crate) mod body;
pub(crate) mod config;
pub(crate) mod gguf;
pub(crate) mod post_norm;

use std::collections::BTreeMap;

use thane_calls::Lookup;
use thane_mil::program::Program;

use crate::Table;
use crate::graph::NormForm;
use crate::layers::encoder::Encoding;
use crate::numbers::StoredWeight;
use crate::pooling::Poolings;

/// How an embedding model is lowered.
#[derive(Clone, Debug, Default)]
pub struct EncoderOptions {
    /// The pooling of token vectors; `None` for the one in the model's files.
    pub pooling: Option<Poolings>,
    /// What the program returns.
    pub encoding: Encoding,
    /// Whether vectors are normalized to length 1; `None` for what the model's files say.
    pub normalize: Option<bool>,
    /// The target of the program.
    pub target: Target,
}

/// The target of an encoder's program.
#[derive(Clone, Debug, Default)]
pub enum Target {
    /// The portable reference: fp32, one function of any batch size and length.
    #[default]
    Portable,
    /// The Neural Engine: fp16, one function for each bucket of lengths.
    Ane(AneEncoder),
}

impl Target {
    /// Who looks up the rows of embeddings.
    pub(crate) fn lookup(&self) -> Lookup {
        match self {
            Self::Portable => Lookup::Inside,
            Self::Ane(ane) => ane.lookup,
        }
    }
}

/// The options of an encoder's program for the Neural Engine.
#[derive(Clone, Debug)]
pub struct AneEncoder {
    /// Lengths in tokens; each becomes a function that is named after the length.
    pub buckets: Vec<usize>,
    /// Whether to add a function of any length, for texts that are longer than all buckets.
    pub flexible: bool,
    /// Divisor of the residual stream, which keeps the stream within the range of fp16; `None` for
    /// the default of the family.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are computed.
    pub norm: NormForm,
    /// Who looks up the rows of embeddings.
    pub lookup: Lookup,
}

/// An embedding model as a program, with its properties.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// One function, or one for each bucket.
    pub program: Program,
    /// The properties of the model.
    pub info: EncoderInfo,
    /// The tensors that the program's constants were made from.
    pub stored: Vec<StoredWeight>,
    /// Tables that callers look up, unless the program does.
    pub tables: Vec<Table>,
    /// Notes for the user on how the checkpoint was read.
    pub notes: Vec<String>,
}

/// The properties of an embedding model, from its files.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderInfo {
    /// Name of the architecture in the file.
    pub architecture: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Number of positions that the model supports.
    pub n_positions: usize,
    /// Number of elements of a vector.
    pub dim: usize,
    /// Maximum number of tokens of a text, as the model was trained; at most `n_positions`.
    pub max_tokens: usize,
    /// The pooling of token vectors.
    pub pooling: Poolings,
    /// Whether vectors are normalized to length 1.
    pub normalize: bool,
    /// How many elements of a vector are kept unless the caller says otherwise; `None` for all. The
    /// program gives all, and what is kept is not normalized again.
    pub truncate_dim: Option<usize>,
    /// Prompts by task name; a prompt precedes the text.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is used by default.
    pub default_prompt: Option<String>,
    /// Whether pooling includes the tokens of the prompt. Otherwise functions that give a vector
    /// for a text have the input `pooling_mask`.
    pub include_prompt: bool,
    /// The similarity function, such as `cosine`.
    pub similarity: Option<String>,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// Whether the model itself gives int8 or bits: `tanh(x) * 127`, or signs.
    pub quantize: bool,
    /// The id of the padding token, if the caller looks up rows of positions too. A padding token
    /// has its id as its position, wherever it stands, and the others are counted from the next.
    pub padding_token: Option<u32>,
}
