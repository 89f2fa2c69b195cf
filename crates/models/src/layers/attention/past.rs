//! The tokens before a call, as a layer attends to them.

use std::cell::RefCell;

use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use crate::graph::Graph;

/// The KV cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    pub(super) k: ValueId,
    pub(super) v: ValueId,
    pub(super) dtype: DType,
}

impl Cache {
    /// Declares the cache of layer `layer` as two states of the shape [1, kv_heads, context,
    /// head_dim].
    pub fn new(g: &mut Graph, layer: usize, shape: [usize; 4], dtype: DType) -> Self {
        let ty = || Type::State(TensorType::new(dtype, shape));
        let k = g.input(&format!("k_cache_{layer}"), ty());
        let v = g.input(&format!("v_cache_{layer}"), ty());
        Self { k, v, dtype }
    }
}

/// The tokens before a call that the tokens of the call attend to.
#[derive(Clone, Copy, Debug)]
pub enum Past<'a> {
    /// The cache of the layer, which the layer updates and then reads.
    Cache {
        /// The states of the cache.
        cache: Cache,
        /// Begin of the slice to update, int32 [4].
        begin: ValueId,
        /// End of the slice to update, int32 [4].
        end: ValueId,
    },
    /// The keys and values of an earlier layer, those of the call included. The layer has none of
    /// its own.
    Shared(Remembered),
    /// The cache before the call and the tokens of the call, apart, as functions of fixed length
    /// have them.
    Apart(Apart<'a>),
}

/// The past of a layer in a function of fixed length.
#[derive(Clone, Copy, Debug)]
pub struct Apart<'a> {
    /// Keys before the call, [1, kv_heads, context, head_dim].
    pub keys: ValueId,
    /// Values before the call, likewise.
    pub values: ValueId,
    /// Number of tokens that the cache holds.
    pub context: usize,
    /// Keys and values of the call's tokens, [1, kv_heads, tokens, head_dim], if an earlier layer
    /// made them; the layer has none of its own then.
    pub shared: Option<[ValueId; 2]>,
    /// Whether each token is of a sequence of its own, with a cache of its own: tensors have
    /// sequences * kv_heads instead of kv_heads, and one token.
    pub in_lanes: bool,
    /// Receives the layer's own keys and values, which are stored at the end of the function.
    pub new: &'a RefCell<Vec<[ValueId; 2]>>,
    /// The heads that see only a part of the tokens, which have a cache of their own.
    pub streaming: Option<StreamingHeads<'a>>,
    /// Rows of the cache that are multiplied at once; `None` for all.
    pub tile: Option<usize>,
}

/// The heads of a layer that see only the first and the last tokens.
#[derive(Clone, Copy, Debug)]
pub struct StreamingHeads<'a> {
    /// For each key head of the layer, whether it sees all tokens nevertheless.
    pub retrieval: &'a [bool],
    /// Their keys before the call, [1, such heads, rows, head_dim].
    pub keys: ValueId,
    /// Their values, likewise.
    pub values: ValueId,
    /// Rows of these caches.
    pub context: usize,
    /// Their mask.
    pub mask: ValueId,
}

/// The keys and values that a layer attends to, [1, kv_heads, so far, head_dim].
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// Keys, after norm and rotation.
    pub keys: ValueId,
    /// Values, after their norm.
    pub values: ValueId,
    /// Keys and values of the call's tokens, if those of earlier tokens are apart.
    pub new: Option<[ValueId; 2]>,
}
