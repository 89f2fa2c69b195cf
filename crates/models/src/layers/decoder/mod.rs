//! What decoders have in common around their layers: inputs, positions, masks, cache, and the
//! output head.
//!
//! Functions of module [`flexible`] take any number of tokens and compute masks and angles
//! themselves. Functions of module [`fixed`], for the Neural Engine, take a fixed number of tokens,
//! and the caller passes integers and everything that depends on the position.

mod fixed;
mod flexible;

use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use super::attention::{Attention, AttentionInputs};
use super::norm::RmsNorm;
use super::rope::{Rotary, Style};
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
use crate::weights::Weights;

/// The score of a masked key: far below any real score, and finite in fp16.
const MASKED_SCORE: f32 = -1e4;

/// A function of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Any number of tokens, or one block; gives the logits of the last token.
    Prefill,
    /// One token; gives its logits.
    Decode,
    /// Any number of tokens; gives the logits of each token.
    Score,
}

impl Mode {
    /// The name of the function.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Prefill => "prefill",
            Mode::Decode => "decode",
            Mode::Score => "score",
        }
    }
}

/// Which keys a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The query's own token and all tokens before it.
    Full,
    /// The last tokens of a window that ends with the query's own token.
    Sliding,
}

/// The sizes that determine a decoder's inputs and caches.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// The attention of each layer.
    pub attention: &'a Attention,
    /// Number of layers.
    pub n_layers: usize,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Number of tokens that the cache holds.
    pub context: usize,
    /// Element type of the cache.
    pub cache: DType,
    /// Tokens of a block of `prefill`, if lengths are fixed.
    pub block: usize,
}

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub enum Io<'a> {
    /// A function of any number of tokens.
    Flexible(flexible::Io<'a>),
    /// A function of a fixed number of tokens.
    Fixed(fixed::Io<'a>),
}

impl<'a> Io<'a> {
    /// Declares the inputs of the function `mode`. The channel layout has fixed lengths.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent<'a>) -> Result<Self, ModelError> {
        Ok(match g.form().layout {
            Layout::Rows => Self::Flexible(flexible::Io::new(g, mode, extent)?),
            Layout::Channels => Self::Fixed(fixed::Io::new(g, mode, extent)?),
        })
    }

    /// Cosines and sines of these frequencies at the positions of the tokens.
    pub fn rotary(
        &self,
        g: &mut Graph,
        inverse_frequencies: &[f32],
        style: Style,
    ) -> Result<Rotary, ModelError> {
        match self {
            Self::Flexible(io) => io.rotary(g, inverse_frequencies, style),
            Self::Fixed(io) => io.rotary(g, inverse_frequencies, style),
        }
    }

    /// Embeds the tokens: rows of `table` times `factor`, in the layout of the graph.
    pub fn embed(&self, g: &mut Graph, table: &Tensor, factor: f32) -> ValueResult {
        g.at_module("model.embed_tokens");
        // The factor is not folded into the table, so that a tied output head can share the table's
        // bytes.
        let table = g.weight(table)?;
        let rows = match self {
            Self::Flexible(io) => g.gather(table, io.input_ids)?,
            Self::Fixed(io) => io.embed(g, table)?,
        };
        if factor == 1.0 {
            Ok(rows)
        } else {
            g.scale(rows, factor)
        }
    }

    /// The inputs of the attention of layer `layer`.
    pub fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        rotary: &'r Rotary,
        mask: Mask,
    ) -> Result<AttentionInputs<'r>, ModelError> {
        match self {
            Self::Flexible(io) => io.attention_inputs(g, layer, rotary, mask),
            Self::Fixed(io) => io.attention_inputs(g, layer, rotary, mask),
        }
    }

    /// Writes the cache if that is still to be done, and computes `table @ norm(hidden)`, the
    /// logits.
    pub fn head(
        &self,
        g: &mut Graph,
        norm: RmsNorm,
        weight: &Tensor,
        table: &Tensor,
        hidden: ValueId,
    ) -> Result<ValueId, ModelError> {
        if let Self::Fixed(io) = self {
            io.write(g)?;
        }
        g.at_module("model.norm");
        let needed = match self {
            // The last layer has already dropped the other tokens.
            Self::Flexible(_) => hidden,
            Self::Fixed(io) => io.logits_token(g, hidden)?,
        };
        let normed = norm.apply(g, needed, weight)?;
        g.at_module("lm_head");
        Ok(g.linear("product", normed, table, None)?)
    }

    /// Finishes the function.
    pub fn finish(self, g: Graph, logits: ValueId) -> Result<Function, ModelError> {
        match self {
            Self::Flexible(io) => Ok(io.finish(g, logits)),
            Self::Fixed(io) => io.finish(g, logits),
        }
    }
}

/// The tensor of the output head: `lm_head`, or the embedding if the two are tied.
pub fn head_tensor(w: &Weights<'_>, tied: bool, vocab: usize, hidden: usize) -> Tensor {
    if tied {
        w.get("model.embed_tokens", "weight", &[vocab, hidden])
    } else {
        w.get("lm_head", "weight", &[vocab, hidden])
    }
}
