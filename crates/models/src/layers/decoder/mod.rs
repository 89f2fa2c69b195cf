//! What every decoder has around its layers: inputs, positions, masks, cache, and the head.
//!
//! [`flexible`] functions take any number of tokens and compute masks and angles themselves;
//! [`fixed`] ones, for the Neural Engine, take so many, and what has integers or depends on the
//! position comes from the caller.

mod fixed;
mod flexible;

use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use super::attention::{Attention, Surroundings};
use super::norm::RmsNorm;
use super::rope::{Rotary, Style};
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, Made};
use crate::weights::Weights;

/// Where a hidden key's score goes: far below any score, and finite in fp16.
const HIDDEN: f32 = -1e4;

/// Which of a decoder's functions is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Any number of tokens, or as many as a block has; logits of the last.
    Prefill,
    /// One token.
    Decode,
    /// Any number of tokens; logits of each.
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

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Itself and all before it.
    Full,
    /// Itself and the others of a window before it.
    Sliding,
}

/// The sizes that a decoder's inputs and caches follow from.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// Its attention.
    pub attention: &'a Attention,
    /// Its layers.
    pub n_layers: usize,
    /// What sliding layers see.
    pub window: Option<usize>,
    /// Tokens that the cache holds.
    pub context: usize,
    /// Element type of the cache.
    pub cache: DType,
    /// Tokens of a block of `prefill`, where lengths are fixed.
    pub block: usize,
}

/// The values that all layers share.
#[derive(Debug)]
pub enum Io<'a> {
    /// Of any number of tokens.
    Flexible(flexible::Io<'a>),
    /// Of so many.
    Fixed(fixed::Io<'a>),
}

impl<'a> Io<'a> {
    /// Declare the inputs; lengths are fixed where features lie in channels.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent<'a>) -> Result<Self, ModelError> {
        Ok(match g.form().layout {
            Layout::Rows => Self::Flexible(flexible::Io::new(g, mode, extent)?),
            Layout::Channels => Self::Fixed(fixed::Io::new(g, mode, extent)?),
        })
    }

    /// The angles of these frequencies.
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

    /// The rows of the embedding for the tokens, times `factor`; features as the graph has them.
    pub fn embed(&self, g: &mut Graph, table: &Tensor, factor: f32) -> Made {
        g.at("model.embed_tokens");
        // As it is, so that a head that is tied to it has the same bytes.
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

    /// What the attention of layer `layer` is given.
    pub fn surroundings<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        rotary: &'r Rotary,
        mask: Mask,
    ) -> Result<Surroundings<'r>, ModelError> {
        match self {
            Self::Flexible(io) => io.surroundings(g, layer, rotary, mask),
            Self::Fixed(io) => io.surroundings(g, layer, rotary, mask),
        }
    }

    /// The last norm and the product with the head; the cache is written by then.
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
        g.at("model.norm");
        let asked = match self {
            // The last layer has left out the others.
            Self::Flexible(_) => hidden,
            Self::Fixed(io) => io.asked(g, hidden)?,
        };
        let normed = norm.apply(g, asked, weight)?;
        g.at("lm_head");
        Ok(g.linear("product", normed, table, None)?)
    }

    /// Hand the function over.
    pub fn finish(self, g: Graph, logits: ValueId) -> Result<Function, ModelError> {
        match self {
            Self::Flexible(io) => Ok(io.finish(g, logits)),
            Self::Fixed(io) => io.finish(g, logits),
        }
    }
}

/// The head's tensor: its own, or the embedding's where they are tied.
pub fn head_tensor(w: &Weights<'_>, tied: bool, vocab: usize, hidden: usize) -> Tensor {
    if tied {
        w.get("model.embed_tokens", "weight", &[vocab, hidden])
    } else {
        w.get("lm_head", "weight", &[vocab, hidden])
    }
}
