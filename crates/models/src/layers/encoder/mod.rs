//! What encoders have in common around their layers: inputs ([`io`]), positions, masks, and the
//! output.
//!
//! The functions of an encoder take `input_ids` int32 [batch, tokens] and `attention_mask` [batch,
//! tokens], 1 for a token and 0 for padding; padding follows the tokens. They return `embedding`
//! [batch, dim], `token_embeddings` [batch, tokens, dim] or `logits` [batch, labels]. With
//! [`Encoding::Chunks`] there is one text, and the input `pool_matrix` [chunks, tokens] holds the
//! weight of each token in each chunk's vector. A model that leaves the prompt out of its pooling
//! takes `pooling_mask` [batch, tokens] beside the mask: 1 for a token that is pooled.
//!
//! A caller that looks up embeddings passes `token_embedding` fp16 [1, hidden, 1, tokens] instead
//! of `input_ids`, and `position_embedding`, of the same shape, if positions depend on the tokens.

mod io;
mod masks;
mod pool;
mod positions;

use thane_calls::Lookup;
use thane_mil::program::{Function, ValueId};

use super::steps;
use crate::checkpoint::Step;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::pooling::Poolings;
use crate::weights::Weights;
pub use io::Io;
pub(super) use pool::{Vectors, pool};
pub use positions::MOST_HALF_TOKENS;

/// What a function of an encoder returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// One vector for each text.
    #[default]
    Text,
    /// One vector for each chunk of one text.
    Chunks,
    /// One vector for each token.
    Tokens,
    /// One logit for each label, of a text or of two texts.
    Labels,
}

impl Encoding {
    /// Name of the function.
    pub fn function(self) -> &'static str {
        match self {
            Encoding::Text => "encode",
            Encoding::Chunks => "encode_chunks",
            Encoding::Tokens => "encode_tokens",
            Encoding::Labels => "classify",
        }
    }
}

/// Which tokens a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// All tokens.
    Bidirectional,
    /// The token itself and those before it.
    Causal,
}

/// The sizes of a function's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Whether a call takes exactly one text.
    pub single: bool,
    /// Tokens of each text, padding included; `None` for any number.
    pub tokens: Option<usize>,
    /// Rows of the pool matrix; `None` for any number.
    pub chunks: Option<usize>,
    /// Whether the tokens that are pooled have a mask of their own.
    pub has_pooling_mask: bool,
    /// Largest number of tokens that any function of the program takes.
    pub max_tokens: usize,
}

/// How hidden states become the output.
#[derive(Clone, Copy, Debug)]
pub struct EncoderHead<'a> {
    /// What the function returns.
    pub encoding: Encoding,
    /// How token vectors are pooled into one vector.
    pub pooling: Poolings,
    /// What changes the vector of each token before the pooling.
    pub token_steps: &'a [Step],
    /// What changes the vector behind the pooling.
    pub steps: &'a [Step],
    /// Whether the tokens of the prompt are pooled.
    pub include_prompt: bool,
    /// Whether the types of tokens are an input; otherwise all tokens have type 0.
    pub token_types: bool,
}

/// The settings of one function of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderPlan<'a> {
    /// The sizes of the inputs.
    pub extent: Extent,
    /// How hidden states become the output.
    pub head: EncoderHead<'a>,
    /// Divisor of the residual stream.
    pub residual_divisor: f32,
    /// Who looks up the rows of embeddings.
    pub lookup: Lookup,
}

/// Pools the hidden states and finishes the function.
pub fn finish(
    mut g: Graph,
    w: &Weights<'_>,
    io: &Io,
    hidden: ValueId,
    head: EncoderHead<'_>,
) -> Result<Function, ModelError> {
    let g_ = &mut g;
    g_.at_module("");
    let is_row_by_row = head.encoding == Encoding::Tokens || !head.token_steps.is_empty();
    let vectors = if is_row_by_row {
        let rows = Io::to_rows(g_, hidden)?; // [batch, tokens, features]
        Vectors::of_rows(steps::apply(g_, w, head.token_steps, rows)?)
    } else {
        Vectors::of_hidden(g_, hidden)?
    };
    let vectors = match (head.encoding, io.pool_matrix()) {
        (Encoding::Tokens, _) => vectors.value,
        (_, Some(matrix)) => {
            let value = g_.squeeze(vectors.value, &[0])?;
            Vectors { value, ..vectors }.weighted(g_, matrix)?
        }
        _ => {
            let modes = head.pooling.modes().iter();
            let pooled = modes
                .map(|mode| pool(g_, io, vectors, *mode))
                .collect::<Result<Vec<_>, _>>()?;
            match pooled[..] {
                [one] => one,
                _ => g_.join("concat", &pooled, -1)?,
            }
        }
    };
    let vectors = steps::apply(g_, w, head.steps, vectors)?;
    let name = if head.encoding == Encoding::Tokens {
        "token_embeddings"
    } else {
        "embedding"
    };
    Ok(g.finish(name, vectors))
}
