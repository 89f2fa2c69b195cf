//! Lowers checkpoints to MIL programs.
//!
//! [`checkpoint`] opens files and maps their tensors. [`build`] finds the family of the
//! architecture in [`families`] and lowers the checkpoint to a program whose constants are slices
//! of the map. Each family is one file, written with the layers that all families share.
//!
//! This crate knows no devices, no passes and no command line.
//!
//! ```
//! use std::path::Path;
//! use thane_models::checkpoint::Checkpoint;
//! use thane_models::{ModelError, Options, build};
//!
//! # fn main() -> Result<(), ModelError> {
//! let checkpoint = Checkpoint::open(Path::new("../../tests/models/tiny/llama-bias"))?;
//! let model = build(&checkpoint, &Options::default())?;
//! let names: Vec<&str> = model.program.functions().iter().map(|f| f.name.as_str()).collect();
//! assert_eq!(names, ["prefill", "decode"]);
//! # Ok(())
//! # }
//! ```

pub mod chat;
pub mod checkpoint;
mod checks;
mod classifier;
mod convert;
mod encoder;
mod error;
pub mod families;
mod generation;
mod graph;
mod layers;
mod lower;
mod numbers;
mod pooling;
pub mod quant;
mod transformer;
mod weights;

use std::ops::Range;

use thane_mil::data::Data;
use thane_mil::program::Program;
use thane_mil::types::DType;

pub use classifier::{Classifier, ClassifierInfo, ScoreActivation};
pub use convert::{build, build_classifier, build_encoder, is_classifier, is_embedding_model};
pub use encoder::{Encoder, EncoderInfo, EncoderOptions, Engine, Target};
pub use error::ModelError;
pub use generation::Generation;
pub use graph::NormForm;
pub use layers::encoder::Encoding;
pub use numbers::StoredWeight;
pub use pooling::{Pooling, Poolings};

/// How a language model is lowered.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens that the cache holds; `None` for the smaller of the model's context length and
    /// [`Options::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Element type of the KV cache: fp32, or fp16 for half the memory.
    pub cache: DType,
    /// Whether to add the function `verify`, which returns the logits of every token.
    pub verify: bool,
    /// Adds the function `decode_top`, which is `decode` with the outputs `top_logits` and
    /// `top_tokens`: so many of the greatest logits in falling order (at most the vocabulary), and
    /// their tokens. A backend can compute these without computing all logits. The form for the
    /// Neural Engine cannot have it.
    pub top: Option<usize>,
    /// Options of the form for the Neural Engine; `None` for the portable reference.
    pub engine: Option<DecoderEngine>,
}

/// The options of a decoder's program for the Neural Engine: fp16, channel layout, functions of
/// fixed lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderEngine {
    /// Tokens of a `prefill` call; `None` for the smaller of the context length and
    /// [`Self::DEFAULT_BLOCK`], [`Self::RECURRENT_BLOCK`] or [`Self::DELTA_BLOCK`].
    pub block: Option<usize>,
    /// Divisor of the residual stream, which keeps the stream within the range of fp16; `None` for
    /// the default of the family.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are computed.
    pub norm: NormForm,
    /// Element type of the program: fp16, or fp32 to compare modes without its rounding, which the
    /// Neural Engine cannot run.
    pub float: DType,
    /// Tokens of a call of `verify`, which gives the logits of each; `None` for no such function.
    pub verify: Option<usize>,
    /// Shorter context lengths that have functions of their own, since the Neural Engine reads the
    /// whole cache in each call.
    pub contexts: Vec<usize>,
    /// Where the KV cache is.
    pub cache: CacheForm,
    /// Who looks up embeddings and rotations.
    pub lookup: Lookup,
    /// Whether the rows of tokens that the caller looks up are int8 with a scale each.
    pub int8_tables: bool,
    /// Which layers have functions of their own, as chunks that are called one after another.
    pub split: Split,
    /// What functions give of the logits.
    pub head: Head,
    /// Sequences that the function `decode_lanes` takes a token each of; `None` for no such
    /// function.
    pub lanes: Option<usize>,
    /// How attention reads the cache.
    pub attention: AttentionForm,
    /// Whose names, shapes and calls functions have.
    pub interface: Interface,
    /// Set if the program is called without Core ML, to the most logits that an output has, which
    /// the caller knows of its target. Tokens of a call are a multiple of
    /// [`Self::DIRECT_COLUMNS`], one token is a call of `prefill`, and outputs are copies where
    /// other ops read them.
    pub direct: Option<usize>,
}

/// How attention reads the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttentionForm {
    /// Rows of the cache that are multiplied at once, under one maximum for all; `None` for all
    /// rows.
    pub tile: Option<usize>,
    /// What full-attention layers keep; `None` for all tokens. The cache must be explicit.
    pub streaming: Option<Streaming>,
    /// Key heads that see all tokens nevertheless, layer by layer; empty for none. Layers without
    /// attention or with a sliding window have entries too, which mean nothing.
    pub retrieval_heads: Vec<Vec<bool>>,
}

/// Which tokens before its own a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// The first tokens of the context, which are always seen (attention sinks).
    pub sinks: usize,
    /// Those less than so many positions before.
    pub window: usize,
    /// Older tokens are seen as one mean of keys and values for so many of them; `None` if they are
    /// not seen.
    pub pool: Option<usize>,
}

impl Streaming {
    /// Rows of the means of `context` tokens.
    pub fn n_pooled(&self, context: usize) -> usize {
        self.pool
            .map_or(0, |n| context.saturating_sub(self.sinks).div_ceil(n.max(1)))
    }
}

/// What functions for the Neural Engine give of a token's logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// All logits.
    #[default]
    Logits,
    /// The greatest logit and its token.
    Argmax,
    /// So many of the greatest logits in falling order, and their tokens.
    Top(usize),
    /// None: the caller multiplies the final hidden states by the output matrix, a table.
    Host,
}

/// Whose names, shapes and calls the functions of a decoder for the Neural Engine have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Those of this project.
    Thane,
    /// Those of ANEMLL bundles: `embeddings`, `chunk1_infer`, `chunk1_prefill` and on, and `head`.
    /// [`Split::Whole`] stands for as few chunks as have at most [`Anemll::MOST_CHUNK_BYTES`] each.
    Anemll,
}

/// How layers are cut into chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Not at all.
    #[default]
    Whole,
    /// Into so many chunks of about as many layers each.
    Into(usize),
    /// Into these ranges.
    Ranges {
        /// The layers of each chunk, which follow each other from the first layer to the last.
        layers: Vec<Range<usize>>,
        /// Whether the output head is a chunk by itself.
        head: bool,
    },
    /// Into as few chunks as have at most so many bytes of fp16 weights each. The output head is
    /// cut too, if it has more.
    Within(usize),
}

/// Where a decoder for the Neural Engine has its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheForm {
    /// In a state that functions write.
    State,
    /// In inputs. Functions give the keys and values of the call's tokens, and the caller stores
    /// those that it accepts.
    Explicit,
}

/// Who looks up the rows of embeddings and the cosines and sines of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The program, by integers. Such ops run on the CPU.
    Inside,
    /// The caller, in tables beside the program.
    Host,
}

/// The tokens whose logits a call gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The last one's.
    Last,
    /// Each one's.
    Each,
}

/// A table of numbers that a caller looks up for an input.
#[derive(Clone, Debug)]
pub struct Table {
    /// Name of the input, [1, columns, 1, tokens] or [1, 1, columns, tokens].
    pub input: String,
    /// Whether rows are found by token; otherwise by position.
    pub by_token: bool,
    /// Number of rows.
    pub n_rows: usize,
    /// Number of columns.
    pub n_columns: usize,
    /// Element type, that of the program, or int8.
    pub dtype: DType,
    /// The numbers, row by row.
    pub data: Data,
    /// Where the numbers are int8: an fp16 scale for each row, by which its numbers are multiplied.
    pub scales: Option<Data>,
}

impl DecoderEngine {
    /// Default number of tokens of a `prefill` call. Fewer take about as long, since a call reads
    /// all weights (`docs/forms.md` has measurements).
    pub const DEFAULT_BLOCK: usize = 64;

    /// The same where layers have recurrent states, which must not see padding: tokens that fill no
    /// block are processed one by one.
    pub const RECURRENT_BLOCK: usize = 16;

    /// The same where layers have delta nets, which have ops of their own for each token.
    pub const DELTA_BLOCK: usize = 8;

    /// Greatest number of tokens of a call where layers have delta nets.
    pub const MOST_DELTA_BLOCK: usize = 32;

    /// Of what the last axis of inputs and outputs is a multiple without Core ML: 64 bytes of fp16.
    pub const DIRECT_COLUMNS: usize = 32;

    /// Greatest number of sequences in a call. More take longer, and caches grow with each
    /// (`docs/forms.md` has measurements).
    pub const MOST_LANES: usize = 128;
}

impl Default for DecoderEngine {
    fn default() -> Self {
        Self {
            block: None,
            residual_divisor: None,
            norm: NormForm::Scaled,
            float: DType::Fp16,
            verify: None,
            contexts: Vec::new(),
            cache: CacheForm::State,
            lookup: Lookup::Inside,
            int8_tables: false,
            split: Split::Whole,
            attention: AttentionForm::default(),
            head: Head::Logits,
            lanes: None,
            interface: Interface::Thane,
            direct: None,
        }
    }
}

impl Options {
    /// Default number of tokens that the cache holds.
    pub const DEFAULT_CONTEXT: usize = 8192;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            cache: DType::Fp32,
            verify: false,
            top: None,
            engine: None,
        }
    }
}

/// A language model as a program, with its properties.
#[derive(Clone, Debug)]
pub struct Model {
    /// The functions `prefill` and `decode`, and `decode_top` and `verify` if requested.
    pub program: Program,
    /// The properties of the model.
    pub info: Info,
    /// Notes for the user on how the files were read.
    pub notes: Vec<String>,
    /// The tensors that the program's constants were made from.
    pub stored: Vec<StoredWeight>,
    /// Tables that callers of functions of fixed length look up.
    pub tables: Vec<Table>,
    /// What an ANEMLL bundle says of the model, if functions are those of such a bundle.
    pub anemll: Option<Anemll>,
}

/// What an ANEMLL bundle says of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anemll {
    /// Begin of the names of packages.
    pub prefix: &'static str,
    /// Class of the tokenizer in transformers.
    pub tokenizer_class: &'static str,
    /// Tokens of a call of `prefill`.
    pub block: usize,
    /// Number of chunks of layers.
    pub n_chunks: usize,
    /// Rows of each slice of the output head.
    pub head_slices: Vec<usize>,
    /// Window of sliding-window layers in tokens, if the model has such layers.
    pub window: Option<usize>,
}

impl Anemll {
    /// Bytes of fp16 weights that the layers of a chunk have at most by default, the limit of
    /// ANEMLL 0.3.5 where it chooses the number of chunks.
    pub const MOST_CHUNK_BYTES: usize = 950_000_000;
}

/// The properties of a language model, from its files and options.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Name of the architecture in the file.
    pub architecture: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Context length that the model supports, in tokens.
    pub max_context: usize,
    /// Number of tokens that the cache of this program holds.
    pub context: usize,
    /// Size of the full cache in bytes, recurrent states included.
    pub cache_bytes: usize,
    /// Whether some states hold all tokens so far together, so that a caller cannot go back to an
    /// earlier position other than 0.
    pub recurrent: bool,
    /// How functions of fixed length are called; `None` if functions take any number of tokens.
    pub fixed: Option<Fixed>,
}

/// How functions of fixed length are called.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Window of sliding-window layers in tokens, if the model has such layers.
    pub window: Option<usize>,
    /// What full-attention layers keep, if not all tokens.
    pub streaming: Option<StreamingCache>,
    /// What the last functions give, and what the caller makes of it.
    pub head: FixedHead,
    /// The ways to process tokens.
    pub calls: Vec<FixedCall>,
}

/// What the caches of full-attention layers hold that do not hold all tokens: the sinks, then a
/// ring of the last tokens, then the means of older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamingCache {
    /// Which tokens are seen.
    pub seen: Streaming,
    /// Rows of the ring.
    pub ring: usize,
}

/// What the last functions of a call give, and what the caller makes of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FixedHead {
    /// All logits; if several functions give them, a part of the vocabulary each.
    #[default]
    Logits,
    /// So many of the greatest logits, and their tokens; if several functions give them, each gives
    /// those of a part of the vocabulary.
    Greatest(usize),
    /// The final hidden states.
    Host(HostHead),
}

/// How a caller computes logits from the final hidden states of a token, `h`: `x = factor *
/// (matrix h + bias)`, and with a soft cap `cap * tanh(x / cap)`.
#[derive(Clone, Debug, PartialEq)]
pub struct HostHead {
    /// Name of the table that is the matrix, a row for each token of the vocabulary.
    pub matrix: String,
    /// Name of the table that is the bias, a row of one number for each token.
    pub bias: Option<String>,
    /// Factor of the logits.
    pub factor: f32,
    /// Bound of the logits.
    pub soft_cap: Option<f32>,
}

/// A way to process tokens by functions of fixed length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedCall {
    /// Number of tokens of each sequence.
    pub tokens: usize,
    /// Number of sequences, each with caches and a position of its own.
    pub lanes: usize,
    /// Tokens that the cache holds.
    pub context: usize,
    /// The tokens whose logits it gives.
    pub given: Given,
    /// The functions, one for each chunk.
    pub functions: Vec<String>,
}

/// Reads every number of these tensors.
///
/// # Errors
///
/// [`ModelError::Numbers`] lists numbers that are NaN or infinite, or become so in the element type
/// of the program, with tensor, index and value.
pub fn check_numbers(stored: &[StoredWeight]) -> Result<(), ModelError> {
    numbers::check(stored, None)
}
