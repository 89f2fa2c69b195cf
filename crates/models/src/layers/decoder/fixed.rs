//! Decoder functions of fixed length, built only from ops that the Neural Engine can run.
//!
//! All caches are one state [2 * layers, kv_heads, context, head_dim], which holds the keys and
//! then the values of each layer, because functions with three states or more fail when they are
//! called (CoreML-LLM ST04). The state is read once and written once, at the end, so that no layer
//! has to compute an offset. A query attends to the cache as it was before the call and,
//! separately, to the tokens of the call. The caller passes everything that depends on the
//! position, because the Neural Engine is not made for integers (fp16 cannot even hold a position
//! beyond 2048). The inputs, with n tokens in a call:
//!
//! | input | is |
//! |---|---|
//! | `input_ids` int32 [1, n] | tokens; a block that is not full is padded with any token |
//! | `positions` int32 [n] | positions of the tokens, below the context length |
//! | `write_begin`, `write_end` int32 [4] | slice of the cache to write: only the third entries count, n apart |
//! | `full_mask` fp16 [1, 1, n, context + n] | 0 where a token attends, -1e4 where not: first the cache, then the tokens of the call |
//! | `sliding_mask`, same type | the mask of sliding-window layers, if there are any |
//! | `last_token` fp16 [1, 1, 1, n] | 1 at the token whose logits are needed, 0 elsewhere; not in `decode` |

use std::cell::{Cell, RefCell};

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::{Extent, Mask, Mode};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{AttentionInputs, Past};
use crate::layers::rope::{Rotary, Rotation};

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub struct Io {
    extent: Extent,
    input_ids: ValueId,
    positions: ValueId,
    begin: ValueId,
    end: ValueId,
    full: ValueId,
    sliding: Option<ValueId>,
    last_token: Option<ValueId>,
    state: ValueId,
    /// The contents of the cache before the call, after the op that reads the state.
    past: Cell<Option<ValueId>>,
    /// Keys and values of the call's tokens, layer by layer.
    new: RefCell<Vec<ValueId>>,
}

impl Io {
    /// Declares the inputs of the function `mode`.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent) -> Result<Self, ModelError> {
        g.at_module("");
        let n = match mode {
            Mode::Decode => 1,
            Mode::Prefill => extent.block,
            Mode::Score => {
                let reason = "programs for the Neural Engine give the logits of one token a call";
                return Err(ModelError::unsupported("score", true, reason));
            }
        };
        let float = g.form().float;
        let seen = [1, 1, n, extent.context + n];
        let input_ids = g.input("input_ids", TensorType::new(DType::Int32, [1, n]));
        let positions = g.input("positions", TensorType::new(DType::Int32, [n]));
        let begin = g.input("write_begin", TensorType::new(DType::Int32, [4usize]));
        let end = g.input("write_end", TensorType::new(DType::Int32, [4usize]));
        let full = g.input("full_mask", TensorType::new(float, seen));
        let sliding = extent
            .window
            .map(|_| g.input("sliding_mask", TensorType::new(float, seen)));
        let last_token = (mode == Mode::Prefill)
            .then(|| g.input("last_token", TensorType::new(float, [1, 1, 1, n])));
        let cache = TensorType::new(
            extent.cache,
            [
                2 * extent.n_layers,
                extent.n_kv_heads,
                extent.context,
                extent.head_dim,
            ],
        );
        let state = g.input("kv_cache", Type::State(cache));
        let (past, new) = (Cell::default(), RefCell::default());
        Ok(Self {
            extent,
            input_ids,
            positions,
            begin,
            end,
            full,
            sliding,
            last_token,
            state,
            past,
            new,
        })
    }

    /// The contents of the cache before the call. The state is read after the embedding lookup,
    /// which runs on another device, so that the Neural Engine is entered once.
    fn past(&self, g: &mut Graph) -> ValueResult {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = g.op("read_state", "past", [("input", self.state)])?;
        self.past.set(Some(past));
        Ok(past)
    }

    /// Cosines and sines of this rotation, gathered from tables.
    pub fn rotary(&self, g: &mut Graph, rotation: &Rotation) -> Result<Rotary, ModelError> {
        Rotary::from_table(g, self.positions, rotation, self.extent.context)
    }

    /// The rows of `table` at the positions of the tokens, as [1, features, 1, n].
    pub fn embed_positions(&self, g: &mut Graph, table: ValueId) -> ValueResult {
        let rows = g.gather(table, self.positions)?; // [n, features]
        let columns = g.transpose(rows, &[1, 0])?;
        g.expand_dims(columns, &[0, 2])
    }

    /// Embeds the tokens: rows of `table`, as [1, hidden, 1, n].
    pub fn embed(&self, g: &mut Graph, table: ValueId) -> ValueResult {
        let rows = g.gather(table, self.input_ids)?; // [1, n, hidden]
        let columns = g.transpose(rows, &[0, 2, 1])?;
        g.expand_dims(columns, &[2])
    }

    /// The inputs of the attention of layer `layer`.
    pub fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        rotary: Option<&'r Rotary>,
        mask: Mask,
    ) -> Result<AttentionInputs<'r>, ModelError> {
        let past = self.past(g)?;
        let mut slot = |slot: usize| -> ValueResult {
            let (begin, end) = (
                g.ints(&[slot as i32, 0, 0, 0])?,
                g.ints(&[slot as i32 + 1, 0, 0, 0])?,
            );
            let but_first = g.bools(&[false, true, true, true])?;
            let args = [
                ("x", past),
                ("begin", begin),
                ("end", end),
                ("begin_mask", but_first),
                ("end_mask", but_first),
            ];
            g.op("slice_by_index", "past", args)
        };
        let (keys, values) = (slot(2 * layer)?, slot(2 * layer + 1)?);
        let mask = if mask == Mask::Sliding {
            self.sliding.unwrap_or(self.full)
        } else {
            self.full
        };
        let past = Past::Separate {
            keys,
            values,
            context: self.extent.context,
            new: &self.new,
        };
        Ok(AttentionInputs {
            rotary,
            mask,
            past: Some(past),
            last: None,
        })
    }

    /// The hidden state of the token whose logits are needed, [1, hidden, 1, 1].
    pub fn logits_token(&self, g: &mut Graph, hidden: ValueId) -> ValueResult {
        let Some(last_token) = self.last_token else {
            return Ok(hidden);
        };
        let only = g.mul(hidden, last_token)?;
        g.reduce("reduce_sum", only, -1)
    }

    /// Writes the new keys and values of all layers to the cache. This precedes the head, whose
    /// logits are reshaped on another device, so that the Neural Engine is left once.
    pub fn write(&self, g: &mut Graph) -> Result<(), ModelError> {
        g.at_module("");
        let past = self.past(g)?;
        let new = g.join("concat", &self.new.take(), 0)?; // [2 * layers, kv_heads, n, head_dim]
        let new = g.cast(new, self.extent.cache)?;
        let but_tokens = g.bools(&[true, true, false, true])?;
        let args = [
            ("x", past),
            ("update", new),
            ("begin", self.begin),
            ("end", self.end),
            ("begin_mask", but_tokens),
            ("end_mask", but_tokens),
        ];
        let updated = g.op("slice_update", "updated", args)?;
        g.op(
            "coreml_update_state",
            "stored",
            [("state", self.state), ("value", updated)],
        )?;
        Ok(())
    }

    /// Finishes the function; `logits` are [1, vocabulary, 1, 1].
    pub fn finish(&self, mut g: Graph, logits: ValueId) -> Result<Function, ModelError> {
        let logits = g.reshape(logits, &[1, 1, -1])?;
        Ok(g.finish("logits", logits))
    }
}
