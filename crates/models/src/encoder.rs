//! A checkpoint as a program that makes vectors of texts.

use std::collections::BTreeMap;

use thane_mil::program::Program;

use crate::graph::NormForm;
use crate::layers::encoder::Encoding;
use crate::numbers::StoredWeight;
use crate::pooling::Pooling;

/// What program to make of an embedding model.
#[derive(Clone, Debug, Default)]
pub struct EncoderOptions {
    /// How the vectors of tokens become one; `None` for what the model's files say.
    pub pooling: Option<Pooling>,
    /// What the program gives.
    pub encoding: Encoding,
    /// Whether vectors are brought to length 1; `None` for what the model's files say.
    pub normalize: Option<bool>,
    /// What the program is made for.
    pub target: Target,
}

/// What an encoder's program is made for.
#[derive(Clone, Debug, Default)]
pub enum Target {
    /// The reference: fp32, one function of any batch and length.
    #[default]
    Portable,
    /// The Neural Engine: fp16, a function for each of some lengths.
    Engine(Engine),
}

/// What the Neural Engine's program is made of.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Lengths, each a function of its own, named after it.
    pub buckets: Vec<usize>,
    /// Whether there is a function of any length too, for what is longer than all of them.
    pub flexible: bool,
    /// Divisor of the residual stream, so that fp16 can hold it; `None` for what the family needs.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are spelled.
    pub norm: NormForm,
}

/// An embedding model as a program, and what is worth knowing of it.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// The program: one function, or one for each bucket.
    pub program: Program,
    /// Its facts.
    pub info: EncoderInfo,
    /// The tensors that its constants come from.
    pub stored: Vec<StoredWeight>,
}

/// What an embedding model says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderInfo {
    /// Architecture, as the file calls it.
    pub architecture: String,
    /// Layers.
    pub n_layers: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Positions that the model has.
    pub n_positions: usize,
    /// Elements of a vector.
    pub dim: usize,
    /// Most tokens of a text that the model was made for; at most `n_positions`.
    pub max_tokens: usize,
    /// How the vectors of tokens become one.
    pub pooling: Pooling,
    /// Whether vectors are of length 1.
    pub normalize: bool,
    /// What is put before a text, by the name of the task.
    pub prompts: BTreeMap<String, String>,
    /// The prompt where nobody asks for one.
    pub default_prompt: Option<String>,
    /// Whether the tokens of a prompt count in the pooling.
    pub include_prompt: bool,
    /// How vectors are compared, such as `cosine`.
    pub similarity: Option<String>,
    /// Whether text is brought to lower case before it is split.
    pub lower_case: bool,
    /// Whether the model itself gives int8 or bits: `tanh(x) * 127`, or signs.
    pub quantize: bool,
}
