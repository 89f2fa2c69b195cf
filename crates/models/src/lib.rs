//! Checkpoints to programs.
//!
//! [`checkpoint`] opens files and maps their tensors; [`build`] finds the family of an architecture
//! in [`families`] and lowers it to a MIL program, whose constants are slices of the map. A family
//! is one file, written from the [`layers`] that families share.
//!
//! This crate names no device and no pass.

pub mod checkpoint;
mod encoder;
mod error;
pub mod families;
mod graph;
mod layers;
mod numbers;
mod pooling;
pub mod quant;
mod weights;

use thane_mil::program::Program;
use thane_mil::types::DType;

use checkpoint::Checkpoint;
pub use encoder::{Encoder, EncoderInfo, EncoderOptions, Engine, Target};
pub use error::ModelError;
pub use graph::NormForm;
pub use layers::encoder::Encoding;
pub use numbers::StoredWeight;
pub use pooling::Pooling;

/// What program to make of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tokens that the cache holds; `None` for the model's own context or
    /// [`Options::DEFAULT_CONTEXT`], the smaller.
    pub context: Option<usize>,
    /// Element type of the cache: fp32, or fp16 for half the memory.
    pub cache: DType,
    /// Whether to add the function `score`, whose logits are those of every token.
    pub score: bool,
    /// The form of the Neural Engine; the reference where there is none.
    pub engine: Option<DecoderEngine>,
}

/// What a decoder's program for the Neural Engine is made of: fp16, features in channels, functions
/// of fixed lengths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecoderEngine {
    /// Tokens of a call of `prefill`; `None` for [`Self::DEFAULT_BLOCK`] or the context, the
    /// smaller.
    pub block: Option<usize>,
    /// Divisor of the residual stream, so that fp16 can hold it; `None` for what the family needs.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are spelled.
    pub norm: NormForm,
}

impl DecoderEngine {
    /// Tokens of a call of `prefill` where nobody says how many: fewer take the engine as long (M5
    /// Max, M6 and others, qwen-ane: one position costs what 32 to 64 do).
    pub const DEFAULT_BLOCK: usize = 64;
}

impl Default for DecoderEngine {
    fn default() -> Self {
        Self {
            block: None,
            residual_divisor: None,
            norm: NormForm::Scaled,
        }
    }
}

impl Options {
    /// Tokens that the cache holds where nobody says how many.
    pub const DEFAULT_CONTEXT: usize = 8192;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context: None,
            cache: DType::Fp32,
            score: false,
            engine: None,
        }
    }
}

/// A checkpoint as a program, and what is worth knowing of it.
#[derive(Clone, Debug)]
pub struct Model {
    /// The program: functions `prefill` and `decode`, and `score` where asked for.
    pub program: Program,
    /// Its facts.
    pub info: Info,
    /// What the user should know of how the files were read.
    pub notes: Vec<String>,
    /// The tensors that its constants come from.
    pub stored: Vec<StoredWeight>,
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Architecture, as the file calls it.
    pub architecture: String,
    /// Layers.
    pub n_layers: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Positions that the model was made for.
    pub max_context: usize,
    /// Tokens that the cache of this program holds.
    pub context: usize,
    /// Bytes of the cache when it is full.
    pub cache_bytes: usize,
    /// What the caller must know of functions of fixed lengths; none where they take any.
    pub fixed: Option<Fixed>,
}

/// What feeding functions of fixed lengths needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Tokens of a call of `prefill`.
    pub block: usize,
    /// Tokens that sliding layers see, where there are such.
    pub window: Option<usize>,
}

/// Lower a checkpoint to a program.
pub fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model, ModelError> {
    families::build(checkpoint, options)
}

/// Lower a checkpoint to a program that makes vectors of texts.
pub fn build_encoder(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
) -> Result<Encoder, ModelError> {
    families::build_encoder(checkpoint, options)
}

/// Whether a checkpoint makes vectors of texts rather than answers.
pub fn is_embedding_model(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    families::is_embedding_model(checkpoint)
}

/// Read every number of these tensors; those that are not finite, or are not in the program's
/// element type, are an error that names tensor, index and value.
pub fn check_numbers(stored: &[StoredWeight]) -> Result<(), ModelError> {
    numbers::check(stored, None)
}
