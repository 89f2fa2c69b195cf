//! What decoders have in common around their layers: inputs, positions, masks, cache, and the
//! output head.
//!
//! Functions of module [`flexible`] take any number of tokens and compute masks and angles
//! themselves. Functions of module [`fixed`], for `AneDecoder`, take a fixed number of tokens,
//! and the caller passes integers and everything that depends on the position.

mod caches;
mod fixed;
mod flexible;
mod function;
mod head;
mod recurrent;

use std::fmt::Debug;
use std::ops::Range;

use thane_calls::Given;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::DType;

use super::attention::{Attention, AttentionInputs, Remembered};
use super::delta_net::{DeltaInputs, DeltaNet};
use super::recent::Memory;
use super::rope::{Rotary, Rotation};
use super::short_conv::{ConvInputs, ShortConv};
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::Graph;
pub use fixed::FixedIo;
pub use flexible::FlexibleIo;
pub use function::{FixedFunction, head_parts};

/// The score of a masked key: far below any real score, and finite in fp16.
pub const MASKED_SCORE: f32 = -1e4;

/// The input that takes the rows of embeddings that the caller looks up, and the name of the table.
pub const EMBEDDING: &str = "embedding";

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

/// Declares the inputs of a function of fixed length of a model whose layers have this attention.
pub type NewIo = fn(&mut Graph, &FixedFunction, &Attention) -> Result<Box<dyn Io>, ModelError>;

/// The inputs of a function and the values that all layers share.
pub trait Io: Debug {
    /// Cosines and sines of a rotation, with its number in the model, at the positions of the
    /// tokens.
    fn rotary(&self, g: &mut Graph, rotation: (usize, &Rotation)) -> Result<Rotary, ModelError>;

    /// The hidden states of `hidden` features that an earlier function gives, if one does.
    fn given(&self, _g: &mut Graph, _hidden: usize) -> Result<Option<ValueId>, ModelError> {
        Ok(None)
    }

    /// The rows of `table` for the tokens times a factor, in the layout of the graph. The name is
    /// that of the input, if the caller looks them up.
    fn rows_of_tokens(
        &self,
        g: &mut Graph,
        table: &Tensor,
        input: (&str, f32),
    ) -> Result<ValueId, ModelError>;

    /// The rows of `table` for the positions of the tokens, in the layout of the graph.
    fn rows_of_positions(&self, g: &mut Graph, table: &Tensor) -> Result<ValueId, ModelError>;

    /// The hidden states that enter the layers: rows of `table` for the tokens times `factor`, plus
    /// the rows of `positions` at the positions of the tokens, in the layout of the graph.
    fn enter(
        &self,
        g: &mut Graph,
        table: &Tensor,
        factor: f32,
        positions: Option<&Tensor>,
    ) -> Result<ValueId, ModelError> {
        if let Some(given) = self.given(g, table.shape[1])? {
            return Ok(given);
        }
        g.at_module("model.embed_tokens");
        let rows = self.rows_of_tokens(g, table, (EMBEDDING, factor))?;
        let Some(positions) = positions else {
            return Ok(rows);
        };
        g.at_module("model.embed_positions");
        let added = self.rows_of_positions(g, positions)?;
        Ok(g.add(rows, added)?)
    }

    /// Whether the cache is one state of all layers.
    fn has_state(&self) -> bool {
        false
    }

    /// Declares the state that holds the keys and values of `n_own` layers, if there is one.
    fn declare_state(&self, _g: &mut Graph, _n_own: usize, _attention: &Attention) {}

    /// Declares the state of layers without attention, each with its parts, if there is one.
    fn declare_recurrent_state(
        &self,
        _g: &mut Graph,
        _layers: &[Vec<Memory>],
    ) -> Result<(), ModelError> {
        Ok(())
    }

    /// The inputs of the attention of layer `layer`, which may use the keys and values of an
    /// earlier layer.
    #[allow(clippy::too_many_arguments)] // one caller, which has them apart
    fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        mask: Mask,
        shared: (Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError>;

    /// The inputs of the convolution of layer `layer`.
    fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError>;

    /// The inputs of the delta net of layer `layer`.
    fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError>;

    /// The vectors of per-layer embeddings that an earlier chunk gives, if there is one.
    fn given_vectors(&self, _g: &mut Graph, _n_features: usize) -> Option<ValueId> {
        None
    }

    /// Gives the vectors of per-layer embeddings to later chunks.
    fn pass_vectors(&self, _vectors: ValueId) {}

    /// Writes the cache if that is still to be done, and returns the hidden states of the tokens
    /// whose logits are needed.
    fn leave(&self, _g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        Ok(hidden)
    }

    /// The rows of the output head, of `n_rows`, that the function has, in the parts that outputs
    /// have.
    fn head_parts(&self, n_rows: usize) -> Vec<Range<usize>>;

    /// Whether the caller computes the logits from the final hidden states.
    fn has_head_on_host(&self) -> bool {
        false
    }

    /// Adds a table that the caller needs for what the function gives.
    fn add_table(&self, _table: Table) {}

    /// Whether a function without a head gives normalized hidden states.
    fn gives_normalized(&self) -> bool {
        false
    }

    /// Finishes the function: its results are the parts of the logits, or the hidden states where
    /// it has no head. Also returns the tables that the caller looks up.
    fn finish(
        self: Box<Self>,
        g: Graph,
        results: &[ValueId],
    ) -> Result<(Function, Vec<Table>), ModelError>;
}
