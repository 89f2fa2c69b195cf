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
mod gguf_tokenizer;
mod graph;
mod layers;
mod lower;
mod numbers;
mod pooling;
pub mod quant;
mod transformer;
mod weights;

use thane_calls::{Calls, Form};
use thane_mil::data::Data;
use thane_mil::program::Program;
use thane_mil::types::DType;

pub use classifier::{Classifier, ClassifierInfo, ScoreActivation};
pub use convert::{build, build_classifier, build_encoder, is_classifier, is_embedding_model};
pub use encoder::{AneEncoder, Encoder, EncoderInfo, EncoderOptions, Target};
pub use error::ModelError;
pub use generation::Generation;
pub use graph::NormForm;
pub use layers::encoder::Encoding;
pub use lower::{ANEMLL, Interface, THANE};
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
    pub ane: Option<AneDecoder>,
}

/// A decoder's program for the Neural Engine: fp16, channel layout, functions of fixed lengths.
#[derive(Clone, Debug)]
pub struct AneDecoder {
    /// How it is called.
    pub form: Form,
    /// Divisor of the residual stream, which keeps the stream within the range of fp16; `None` for
    /// the default of the family.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are computed.
    pub norm: NormForm,
    /// Element type of the program: fp16, or fp32 to compare modes without its rounding, which the
    /// Neural Engine cannot run.
    pub float: DType,
    /// Whose names, shapes and calls functions have.
    pub interface: &'static Interface,
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
    /// The numbers, row by row, in parts that follow each other. Those of an output matrix that the
    /// program multiplies are the parts that the program has as constants.
    pub parts: Vec<Data>,
    /// By what the numbers of a row are multiplied, in f32, before they are rounded to the type of
    /// the input.
    pub factor: f32,
    /// Where the numbers are int8: an fp16 scale for each row, by which its numbers are multiplied.
    pub scales: Option<Data>,
}

impl From<Form> for AneDecoder {
    /// The usual numbers.
    fn from(form: Form) -> Self {
        Self {
            form,
            residual_divisor: None,
            norm: NormForm::Scaled,
            float: DType::Fp16,
            interface: &THANE,
        }
    }
}

impl Default for AneDecoder {
    fn default() -> Self {
        Form::default().into()
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
            ane: None,
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
    /// What a bundle of another project says of the model, if functions are those of such a bundle.
    pub bundle: Option<BundleFacts>,
}

/// What a bundle of another project says of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleFacts {
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
    pub fixed: Option<Calls>,
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
