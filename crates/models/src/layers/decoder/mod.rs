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

use super::attention::{Attention, AttentionInputs, Remembered};
use super::delta_net::{DeltaInputs, DeltaNet};
use super::rope::{Rotary, Rotation};
use super::short_conv::{ConvInputs, ShortConv};
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};

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

/// The settings of a lowering that do not come from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Lowering {
    /// Tokens that the cache holds.
    pub context: usize,
    /// Element type of the cache.
    pub cache: DType,
    /// Tokens of a block of `prefill`, if lengths are fixed.
    pub block: usize,
    /// Divisor of the residual stream.
    pub residual_divisor: f32,
}

/// The sizes that determine a decoder's inputs and caches.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of layers.
    pub n_layers: usize,
    /// Number of queries that share a key head, in full-attention layers.
    pub group: usize,
    /// The same in sliding-window layers.
    pub sliding_group: usize,
    /// The first layer of which only the last token's output is needed for that token's logits.
    pub last_from: usize,
    /// Number of key heads, in every layer of a function of fixed length.
    pub n_kv_heads: usize,
    /// Elements of a key head, in every layer of a function of fixed length.
    pub head_dim: usize,
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
pub enum Io {
    /// A function of any number of tokens.
    Flexible(flexible::Io),
    /// A function of a fixed number of tokens.
    Fixed(fixed::Io),
}

impl Io {
    /// Declares the inputs of the function `mode`. The channel layout has fixed lengths.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent) -> Result<Self, ModelError> {
        Ok(match g.form().layout {
            Layout::Rows => Self::Flexible(flexible::Io::new(g, mode, extent)?),
            Layout::Channels => Self::Fixed(fixed::Io::new(g, mode, extent)?),
        })
    }

    /// Cosines and sines of this rotation at the positions of the tokens.
    pub fn rotary(&self, g: &mut Graph, rotation: &Rotation) -> Result<Rotary, ModelError> {
        match self {
            Self::Flexible(io) => io.rotary(g, rotation),
            Self::Fixed(io) => io.rotary(g, rotation),
        }
    }

    /// Embeds the tokens: rows of `table` times `factor`, plus the rows of `positions` at the
    /// positions of the tokens, in the layout of the graph.
    pub fn embed(
        &self,
        g: &mut Graph,
        table: &Tensor,
        factor: f32,
        positions: Option<&Tensor>,
    ) -> ValueResult {
        g.at_module("model.embed_tokens");
        // The factor is not folded into the table, so that a tied output head can share the table's
        // bytes.
        let table = g.weight(table)?;
        let rows = match self {
            Self::Flexible(io) => g.gather(table, io.input_ids)?,
            Self::Fixed(io) => io.embed(g, table)?,
        };
        let rows = if factor == 1.0 {
            rows
        } else {
            g.scale(rows, factor)?
        };
        let Some(positions) = positions else {
            return Ok(rows);
        };
        g.at_module("model.embed_positions");
        let table = g.weight_for_residual(positions)?;
        let positions = match self {
            Self::Flexible(io) => io.embed_positions(g, table)?,
            Self::Fixed(io) => io.embed_positions(g, table)?,
        };
        g.add(rows, positions)
    }

    /// The inputs of the attention of layer `layer`, which may use the keys and values of an
    /// earlier layer.
    #[allow(clippy::too_many_arguments)] // one caller, which has them apart
    pub fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        mask: Mask,
        shared: Option<Remembered>,
    ) -> Result<AttentionInputs<'r>, ModelError> {
        match self {
            Self::Flexible(io) => io.attention_inputs(g, layer, attention, rotary, mask, shared),
            Self::Fixed(io) => io.attention_inputs(g, layer, rotary, mask),
        }
    }

    /// The rows of `table` for the tokens, [1, tokens, features], in the row layout.
    pub fn rows_of_tokens(&self, g: &mut Graph, table: ValueId) -> Result<ValueId, ModelError> {
        match self {
            Self::Flexible(io) => Ok(g.gather(table, io.input_ids)?),
            Self::Fixed(io) => Ok(io.embed(g, table)?),
        }
    }

    /// The inputs of the convolution of layer `layer`.
    pub fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs, ModelError> {
        match self {
            Self::Flexible(io) => io.conv_inputs(g, layer, conv),
            Self::Fixed(_) => Err(ModelError::EngineForm("convolutions instead of attention")),
        }
    }

    /// The inputs of the delta net of layer `layer`.
    pub fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs, ModelError> {
        match self {
            Self::Flexible(io) => io.delta_inputs(g, layer, delta),
            Self::Fixed(_) => Err(ModelError::EngineForm("recurrent states")),
        }
    }

    /// Writes the cache if that is still to be done, and returns the hidden state of the tokens
    /// whose logits are needed.
    pub fn needed_tokens(&self, g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        match self {
            // The last layer has already dropped the other tokens.
            Self::Flexible(_) => Ok(hidden),
            Self::Fixed(io) => {
                io.write(g)?;
                g.at_module("model.norm");
                Ok(io.logits_token(g, hidden)?)
            }
        }
    }

    /// Finishes the function.
    pub fn finish(self, g: Graph, logits: ValueId) -> Result<Function, ModelError> {
        match self {
            Self::Flexible(io) => Ok(io.finish(g, logits)),
            Self::Fixed(io) => io.finish(g, logits),
        }
    }
}
