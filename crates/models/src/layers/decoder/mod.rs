//! What decoders have in common around their layers: inputs, positions, masks, cache, and the
//! output head.
//!
//! Functions of module [`flexible`] take any number of tokens and compute masks and angles
//! themselves. Functions of module [`fixed`], for `AneDecoder`, take a fixed number of tokens,
//! and the caller passes integers and everything that depends on the position. Those of module
//! [`anemll`] have the names and shapes of ANEMLL bundles.

pub mod anemll;
mod caches;
pub mod fixed;
mod flexible;
mod function;
mod head;
mod recurrent;

use std::ops::Range;

use thane_calls::Given;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use super::attention::{Attention, AttentionInputs, Remembered};
use super::delta_net::{DeltaInputs, DeltaNet};
use super::rope::{Rotary, Rotation};
use super::short_conv::{ConvInputs, ShortConv};
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::{Interface, Table};
pub use function::FixedFunction;

/// The score of a masked key: far below any real score, and finite in fp16.
const MASKED_SCORE: f32 = -1e4;

/// Layers that ANEMLL bundles cannot have.
const NO_ATTENTION: &str = "layers without attention";

/// A function of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Any number of tokens, or one block; gives the logits of the last token.
    Prefill,
    /// One token; gives its logits.
    Decode,
    /// Any number of tokens, or a few in functions of fixed length; gives the logits of each token.
    Verify,
    /// A token each of several sequences, in functions of fixed length; gives the logits of each.
    Lanes,
}

impl Mode {
    /// The name of the function.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Prefill => "prefill",
            Mode::Decode => "decode",
            Mode::Verify => "verify",
            Mode::Lanes => "decode_lanes",
        }
    }

    /// Which tokens' logits a function of fixed length gives.
    pub fn given(self) -> Given {
        match self {
            Mode::Prefill | Mode::Decode => Given::Last,
            Mode::Verify | Mode::Lanes => Given::Each,
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
    /// The first tokens and the last ones, as [`Streaming`](thane_calls::Streaming) says.
    Streaming,
}

/// The settings of a lowering that do not come from the configuration.
#[derive(Clone, Debug)]
pub struct Lowering {
    /// Tokens that the cache holds.
    pub context: usize,
    /// Element type of the cache.
    pub cache: DType,
    /// Divisor of the residual stream.
    pub residual_divisor: f32,
    /// What a function of fixed length computes; `None` for functions of any length.
    pub fixed: Option<FixedFunction>,
}

/// The sizes that determine the inputs and caches of a function of any length.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Number of queries that share a key head, in full-attention layers.
    pub group: usize,
    /// The same in sliding-window layers.
    pub sliding_group: usize,
    /// The first layer of which only the last token's output is needed for that token's logits.
    pub last_from: usize,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Number of tokens that the cache holds.
    pub context: usize,
    /// Element type of the cache.
    pub cache: DType,
}

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub enum Io {
    /// A function of any number of tokens.
    Flexible(flexible::Io),
    /// A function of a fixed number of tokens.
    Fixed(Box<fixed::Io>),
    /// A function of a chunk in an ANEMLL bundle.
    Anemll(Box<anemll::Io>),
}

impl Io {
    /// Declares the inputs of the function `mode` of any length.
    pub fn flexible(g: &mut Graph, mode: Mode, extent: Extent) -> Result<Self, ModelError> {
        Ok(Self::Flexible(flexible::Io::new(g, mode, extent)?))
    }

    /// Declares the inputs of a function of fixed length of a model whose layers have this
    /// attention.
    pub fn fixed(
        g: &mut Graph,
        function: &FixedFunction,
        attention: &Attention,
    ) -> Result<Self, ModelError> {
        Ok(match function.interface {
            Interface::Thane => Self::Fixed(Box::new(fixed::Io::new(g, function)?)),
            Interface::Anemll => Self::Anemll(Box::new(anemll::Io::new(g, function, attention)?)),
        })
    }

    /// Cosines and sines of the model's rotation number `idx` at the positions of the tokens.
    pub fn rotary(
        &self,
        g: &mut Graph,
        (idx, rotation): (usize, &Rotation),
    ) -> Result<Rotary, ModelError> {
        match self {
            Self::Flexible(io) => io.rotary(g, rotation),
            Self::Fixed(io) => io.rotary(g, (idx, rotation)),
            Self::Anemll(io) => io.rotary(g, rotation),
        }
    }

    /// The hidden states that enter the layers: rows of `table` for the tokens times `factor`, plus
    /// the rows of `positions` at the positions of the tokens, in the layout of the graph.
    pub fn enter(
        &self,
        g: &mut Graph,
        table: &Tensor,
        factor: f32,
        positions: Option<&Tensor>,
    ) -> Result<ValueId, ModelError> {
        let io = match self {
            Self::Fixed(io) => return Ok(io.enter(g, table, factor, positions)?),
            Self::Anemll(io) => return Ok(io.enter(g)?),
            Self::Flexible(io) => io,
        };
        g.at_module("model.embed_tokens");
        let rows = self.rows_of_tokens(g, table, ("embedding", factor))?;
        let Some(positions) = positions else {
            return Ok(rows);
        };
        g.at_module("model.embed_positions");
        let table = g.weight_for_residual(positions)?;
        let positions = io.embed_positions(g, table)?;
        Ok(g.add(rows, positions)?)
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
        (shares, shared): (Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        match self {
            Self::Flexible(io) => io.attention_inputs(g, layer, attention, rotary, mask, shared),
            Self::Fixed(io) => {
                io.attention_inputs(g, layer, attention, rotary, (mask, shares, shared))
            }
            Self::Anemll(io) => io.attention_inputs(g, layer, rotary, mask),
        }
    }

    /// The rows of `table` for the tokens times `factor`, in the layout of the graph. `name` is
    /// that of the input, if the caller looks them up.
    pub fn rows_of_tokens(
        &self,
        g: &mut Graph,
        table: &Tensor,
        (name, factor): (&str, f32),
    ) -> Result<ValueId, ModelError> {
        let io = match self {
            Self::Fixed(io) => return Ok(io.rows_of_tokens(g, table, (name, factor))?),
            Self::Anemll(_) => return Err(ModelError::anemll("embeddings of each layer")),
            Self::Flexible(io) => io,
        };
        let table = g.weight(table)?;
        let rows = g.gather(table, io.input_ids)?;
        if factor == 1.0 {
            return Ok(rows);
        }
        Ok(g.scale(rows, factor)?)
    }

    /// The vectors of per-layer embeddings that an earlier chunk gives, if there is one.
    pub fn given_vectors(&self, g: &mut Graph, n_features: usize) -> Option<ValueId> {
        match self {
            Self::Flexible(_) | Self::Anemll(_) => None,
            Self::Fixed(io) => io.given_vectors(g, n_features),
        }
    }

    /// Gives the vectors of per-layer embeddings to later chunks.
    pub fn pass_vectors(&self, vectors: ValueId) {
        if let Self::Fixed(io) = self {
            io.pass_vectors(vectors);
        }
    }

    /// The inputs of the convolution of layer `layer`.
    pub fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError> {
        match self {
            Self::Flexible(io) => io.conv_inputs(g, layer, conv),
            Self::Fixed(io) => io.conv_inputs(g, layer, conv),
            Self::Anemll(_) => Err(ModelError::anemll(NO_ATTENTION)),
        }
    }

    /// The inputs of the delta net of layer `layer`.
    pub fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError> {
        match self {
            Self::Flexible(io) => io.delta_inputs(g, layer, delta),
            Self::Fixed(io) => io.delta_inputs(g, layer, delta),
            Self::Anemll(_) => Err(ModelError::anemll(NO_ATTENTION)),
        }
    }

    /// Writes the cache if that is still to be done, and returns the hidden states of the tokens
    /// whose logits are needed.
    pub fn leave(&self, g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        match self {
            // The last layer has already dropped the other tokens.
            Self::Flexible(_) => Ok(hidden),
            Self::Fixed(io) => io.leave(g, hidden),
            Self::Anemll(io) => io.leave(g, hidden),
        }
    }

    /// The rows of the output head, of `n_rows`, that the function has, in the parts that outputs
    /// have.
    pub fn head_parts(&self, n_rows: usize) -> Vec<Range<usize>> {
        match self {
            Self::Flexible(_) => std::iter::once(0..n_rows).collect(),
            Self::Fixed(io) => io.head_parts(),
            Self::Anemll(_) => Vec::new(),
        }
    }

    /// Whether the caller computes the logits from the final hidden states.
    pub fn has_head_on_host(&self) -> bool {
        matches!(self, Self::Fixed(io) if io.has_head_on_host())
    }

    /// Adds a table that the caller needs for what the function gives.
    pub fn add_table(&self, table: Table) {
        if let Self::Fixed(io) = self {
            io.add_table(table);
        }
    }

    /// Whether a function without a head gives normalized hidden states.
    pub fn gives_normalized(&self) -> bool {
        matches!(self, Self::Anemll(io) if io.gives_normalized())
    }

    /// Finishes the function: its results are the parts of the logits, or the hidden states where
    /// it has no head. Also returns the tables that the caller looks up.
    pub fn finish(
        self,
        g: Graph,
        results: &[ValueId],
    ) -> Result<(Function, Vec<Table>), ModelError> {
        match self {
            Self::Flexible(io) => Ok((io.finish(g, results[0]), Vec::new())),
            Self::Fixed(io) => io.finish(g, results),
            Self::Anemll(io) => Ok((io.finish(g, results[0])?, Vec::new())),
        }
    }
}
