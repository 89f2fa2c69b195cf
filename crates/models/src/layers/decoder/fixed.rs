//! Functions of so many tokens, with nothing inside that the Neural Engine cannot hold.
//!
//! All caches are one state [2 * layers, kv_heads, context, head_dim], keys and values of a layer
//! behind each other: functions with three states and more fail at the call (CoreML-LLM ST04). It
//! is read once, as a whole, and written once, at the end, so that no layer has to compute where; a
//! query attends to the cache as it was before the call, and to the tokens of the call beside it.
//! What depends on the position comes from the caller: integers are not the engine's business (fp16
//! does not even hold a position beyond 2048). The inputs, with n for the tokens of a call:
//!
//! | input | is |
//! |---|---|
//! | `input_ids` int32 [1, n] | tokens; any token stands where a block is not full |
//! | `positions` int32 [n] | their positions, below the context |
//! | `write_begin`, `write_end` int32 [4] | where the cache is written: only the third entries count, n apart |
//! | `full_mask` fp16 [1, 1, n, context + n] | 0 where a token sees, -1e4 where not: first the cache, then the call's tokens |
//! | `sliding_mask`, likewise | the same of layers that see a window, where there are some |
//! | `last_token` fp16 [1, 1, 1, n] | 1 at the token whose logits are asked for, 0 elsewhere; not of `decode` |

use std::cell::{Cell, RefCell};

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::{Extent, Mask, Mode};
use crate::error::ModelError;
use crate::graph::{Graph, Made};
use crate::layers::attention::{Past, Surroundings};
use crate::layers::rope::{Rotary, Style};

/// The values that all layers share.
#[derive(Debug)]
pub struct Io<'a> {
    extent: Extent<'a>,
    input_ids: ValueId,
    positions: ValueId,
    begin: ValueId,
    end: ValueId,
    full: ValueId,
    sliding: Option<ValueId>,
    last_token: Option<ValueId>,
    state: ValueId,
    /// What the state holds before the call, once it was read.
    past: Cell<Option<ValueId>>,
    /// Keys and values of the call's tokens, layer by layer.
    new: RefCell<Vec<ValueId>>,
}

impl<'a> Io<'a> {
    /// Declare the inputs.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent<'a>) -> Result<Self, ModelError> {
        g.at("");
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
        let a = extent.attention;
        let cache = TensorType::new(
            extent.cache,
            [
                2 * extent.n_layers,
                a.n_kv_heads,
                extent.context,
                a.head_dim,
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

    /// What the state holds before the call; read behind the look-ups, which run elsewhere, so that
    /// the engine is entered once.
    fn past(&self, g: &mut Graph) -> Made {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = g.op("read_state", "past", [("input", self.state)])?;
        self.past.set(Some(past));
        Ok(past)
    }

    /// The angles of these frequencies, from a table.
    pub fn rotary(
        &self,
        g: &mut Graph,
        inverse_frequencies: &[f32],
        style: Style,
    ) -> Result<Rotary, ModelError> {
        Rotary::from_table(
            g,
            self.positions,
            inverse_frequencies,
            self.extent.context,
            style,
        )
    }

    /// The rows of the embedding for the tokens, [1, hidden, 1, n].
    pub fn embed(&self, g: &mut Graph, table: ValueId) -> Made {
        let rows = g.gather(table, self.input_ids)?; // [1, n, hidden]
        let columns = g.transpose(rows, &[0, 2, 1])?;
        g.expand_dims(columns, &[2])
    }

    /// What the attention of layer `layer` is given.
    pub fn surroundings<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        rotary: &'r Rotary,
        mask: Mask,
    ) -> Result<Surroundings<'r>, ModelError> {
        let past = self.past(g)?;
        let mut slot = |slot: usize| -> Made {
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
        let past = Past::Beside {
            keys,
            values,
            context: self.extent.context,
            new: &self.new,
        };
        Ok(Surroundings {
            rotary: Some(rotary),
            mask,
            past: Some(past),
            last: None,
        })
    }

    /// The hidden state whose logits are asked for, [1, hidden, 1, 1].
    pub fn asked(&self, g: &mut Graph, hidden: ValueId) -> Made {
        let Some(last_token) = self.last_token else {
            return Ok(hidden);
        };
        let only = g.mul(hidden, last_token)?;
        g.reduce("reduce_sum", only, -1)
    }

    /// Write what the layers put down; before the head, whose logits are reshaped elsewhere, so
    /// that the engine is left once.
    pub fn write(&self, g: &mut Graph) -> Result<(), ModelError> {
        g.at("");
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

    /// Hand the function over; `logits` are [1, vocabulary, 1, 1].
    pub fn finish(&self, mut g: Graph, logits: ValueId) -> Result<Function, ModelError> {
        let logits = g.reshape(logits, &[1, 1, -1])?;
        Ok(g.finish("logits", logits))
    }
}
