//! The functions of a chunk. `docs/bundles.md` describes the bundle.
//!
//! With n tokens in a call, 1 in `infer` and a block in `prefill`:
//!
//! | input | is |
//! |---|---|
//! | `hidden_states` fp16 [1, n, hidden] | embeddings, or what the chunk before gave |
//! | `position_ids` int32 [n] | positions of the tokens, for the rotation in `prefill` |
//! | `causal_mask` fp16 [1, 1, n, context] | 0 at positions up to that of the token, -inf after |
//! | `current_pos` int32 [1] | position of the first token, for the rotation in `infer` |
//! | `model_model_kv_cache_0` | state [2 * layers, kv_heads, context, head_dim]: keys of all layers, then values |
//!
//! The output `output_hidden_states` is [1, n, hidden]. In the last chunk it is the normalized
//! hidden state of the token in `infer`, and in `prefill` that of the first token, not normalized,
//! which hosts discard. Every chunk declares the whole state and writes the rows of its layers.
//!
//! As in other functions of fixed length, the state is read once and written once, and a query
//! attends to the cache before the call and to the tokens of the call. Their mask is made of
//! `causal_mask` once for all layers, because that mask shows the places in the cache that the
//! tokens of the call will have, and knows no windows.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::cannot_have;
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Apart, Attention, AttentionInputs, Past, Remembered};
use crate::layers::decoder::{FixedFunction, Io, MASKED_SCORE, Mask};
use crate::layers::delta_net::{DeltaInputs, DeltaNet};
use crate::layers::rope::{Rotary, Rotation};
use crate::layers::short_conv::{ConvInputs, ShortConv};

/// Layers that bundles cannot have.
const NO_ATTENTION: &str = "layers without attention";

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub(super) struct ChunkIo {
    function: FixedFunction,
    hidden: usize,
    hidden_states: ValueId,
    causal_mask: ValueId,
    /// Positions of the tokens, int32 [tokens].
    positions: ValueId,
    /// Position of the first token, int32 [1].
    current_pos: ValueId,
    /// Position after the last token, int32 [1].
    next_pos: ValueId,
    state: ValueId,
    /// What the state holds before the call.
    past: ValueId,
    /// Keys and values of the call's tokens, layer by layer.
    new: RefCell<Vec<[ValueId; 2]>>,
    full_mask: Cell<Option<ValueId>>,
    sliding_mask: Cell<Option<ValueId>>,
}

impl ChunkIo {
    /// Declares the inputs of a function of a model whose layers have this attention.
    pub fn declare(
        g: &mut Graph,
        function: &FixedFunction,
        attention: &Attention,
    ) -> Result<Box<dyn Io>, ModelError> {
        g.at_module("");
        let float = g.spelling().float;
        let (n, context, hidden) = (function.tokens, function.context, attention.hidden);
        let hidden_states = g.input("hidden_states", TensorType::new(float, [1, n, hidden]));
        let position_ids = g.input("position_ids", TensorType::new(DType::Int32, [n]));
        let causal_mask = g.input("causal_mask", TensorType::new(float, [1, 1, n, context]));
        let current_pos = g.input("current_pos", TensorType::new(DType::Int32, [1usize]));
        let shape = [
            2 * function.n_layers,
            attention.n_kv_heads,
            context,
            attention.head_dim,
        ];
        let ty = Type::State(TensorType::new(float, shape));
        let state = g.input(&function.state, ty);
        let n_tokens = g.ints(&[n as i32])?;
        let next_pos = g.add(current_pos, n_tokens)?;
        let past = g.op("read_state", "past", [("input", state)])?;
        Ok(Box::new(Self {
            function: function.clone(),
            hidden,
            hidden_states,
            causal_mask,
            positions: if n == 1 { current_pos } else { position_ids },
            current_pos,
            next_pos,
            state,
            past,
            new: RefCell::default(),
            full_mask: Cell::default(),
            sliding_mask: Cell::default(),
        }))
    }

    /// The mask of a layer, [1, 1, tokens, context + tokens]: first the cache, then the tokens of
    /// the call.
    fn mask(&self, g: &mut Graph, mask: Mask) -> ValueResult {
        let f = &self.function;
        let window = f.window.filter(|window| *window < f.context);
        let window = window.filter(|_| mask == Mask::Sliding);
        let cell = match window {
            None => &self.full_mask,
            Some(_) => &self.sliding_mask,
        };
        if let Some(mask) = cell.get() {
            return Ok(mask);
        }
        let columns: Vec<i32> = (0..f.context).map(|i| i as i32).collect();
        let columns = g.ints(&columns)?; // [context]
        let args = [("x", columns), ("y", self.current_pos)];
        let hidden = g.op("greater_equal", "of_the_call", args)?;
        let mut past = masked(g, self.causal_mask, hidden)?;
        if let Some(window) = window {
            let window = g.int(window as i32)?;
            let edges = g.sub(self.positions, window)?;
            let edges = g.expand_dims(edges, &[1])?; // [tokens, 1]
            let far = g.op("less_equal", "far", [("x", columns), ("y", edges)])?;
            past = masked(g, past, far)?; // far is [tokens, context]
        }
        let n = f.tokens;
        let sees = |i: usize, j: usize| j <= i && window.is_none_or(|window| i - j < window);
        let score = |i: usize, j: usize| if sees(i, j) { 0.0 } else { MASKED_SCORE };
        let own = (0..n).flat_map(|i| (0..n).map(move |j| score(i, j)));
        let own = g.floats(&own.collect::<Vec<f32>>(), &[1, 1, n, n])?;
        let mask = g.join("concat", &[past, own], -1)?;
        cell.set(Some(mask));
        Ok(mask)
    }

    /// Writes the keys and values of the call's tokens.
    fn store(&self, g: &mut Graph) -> Result<(), ModelError> {
        let (f, new) = (&self.function, self.new.borrow());
        let keys = new.iter().map(|[k, _]| *k);
        let values = new.iter().map(|[_, v]| *v);
        let rows_of_values = f.n_layers + f.layers.start..f.n_layers + f.layers.end;
        let mut contents = self.past;
        if f.layers.len() == f.n_layers {
            let all: Vec<ValueId> = keys.chain(values).collect();
            contents = self.write(g, contents, (0..2 * f.n_layers, &all))?;
        } else {
            let (keys, values): (Vec<_>, Vec<_>) = (keys.collect(), values.collect());
            contents = self.write(g, contents, (f.layers.clone(), &keys))?;
            contents = self.write(g, contents, (rows_of_values, &values))?;
        }
        g.store("stored", self.state, contents)?;
        Ok(())
    }

    /// `contents` with `new` [1, kv_heads, tokens, head_dim] in these rows, at the positions of the
    /// tokens.
    fn write(
        &self,
        g: &mut Graph,
        contents: ValueId,
        (rows, new): (Range<usize>, &[ValueId]),
    ) -> ValueResult {
        let new = match new {
            [only] => *only,
            several => g.join("concat", several, 0)?,
        };
        let mut corner = |row: usize, position: ValueId| -> ValueResult {
            let (before, after) = (g.ints(&[row as i32, 0])?, g.ints(&[0])?);
            g.join("concat", &[before, position, after], 0)
        };
        let begin = corner(rows.start, self.current_pos)?;
        let end = corner(rows.end, self.next_pos)?;
        let whole_axes = g.bools(&[false, true, false, true])?;
        g.slice_update(contents, new, [begin, end], whole_axes)
    }
}

impl Io for ChunkIo {
    fn rotary(
        &self,
        g: &mut Graph,
        (_, rotation): (usize, &Rotation),
    ) -> Result<Rotary, ModelError> {
        g.at_module("rotary");
        let context = self.function.context;
        let n = self.function.tokens;
        let mut part = |values: &[f32]| -> ValueResult {
            let n_columns = values.len() / context;
            let table = g.floats(values, &[context, n_columns])?;
            let rows = g.gather(table, self.positions)?; // [tokens, columns]
            Rotary::laid_out(g, rows, n_columns, n)
        };
        let waves = [
            part(&rotation.cosines(context))?,
            part(&rotation.sines(context))?,
        ];
        let queries = match rotation.query_factors(context) {
            None => None,
            Some(factors) => Some(part(&factors())?),
        };
        Ok(Rotary::whole(rotation, n, waves, queries))
    }

    fn given(&self, g: &mut Graph, hidden: usize) -> Result<Option<ValueId>, ModelError> {
        g.at_module("");
        if self.function.tokens == 1 {
            let column = g.reshape(self.hidden_states, &[1, hidden as i32, 1, 1])?;
            return Ok(Some(column));
        }
        let columns = g.transpose(self.hidden_states, &[0, 2, 1])?;
        Ok(Some(g.expand_dims(columns, &[2])?))
    }

    fn rows_of_tokens(
        &self,
        _: &mut Graph,
        _: &Tensor,
        _: (&str, f32),
    ) -> Result<ValueId, ModelError> {
        Err(cannot_have("embeddings of each layer"))
    }

    fn rows_of_positions(&self, _: &mut Graph, _: &Tensor) -> Result<ValueId, ModelError> {
        Err(cannot_have("embeddings of positions"))
    }

    fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        _: &Attention,
        rotary: Option<&'r Rotary>,
        mask: Mask,
        _: (Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        let values = self.function.n_layers + layer;
        let past = Apart {
            keys: g.element("past", self.past, 0, layer)?,
            values: g.element("past", self.past, 0, values)?,
            context: self.function.context,
            in_lanes: false,
            shared: None,
            new: &self.new,
            streaming: None,
            tile: self.function.form.attention.tile,
        };
        Ok(AttentionInputs {
            rotary,
            mask: self.mask(g, mask)?,
            past: Some(Past::Apart(past)),
            last: None,
        })
    }

    fn conv_inputs(
        &self,
        _: &mut Graph,
        _: usize,
        _: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError> {
        Err(cannot_have(NO_ATTENTION))
    }

    fn delta_inputs(
        &self,
        _: &mut Graph,
        _: usize,
        _: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError> {
        Err(cannot_have(NO_ATTENTION))
    }

    fn leave(&self, g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        g.at_module("");
        self.store(g)?;
        if self.function.ends_layers() && self.function.tokens > 1 {
            return Ok(g.element("first", hidden, 3, 0)?);
        }
        Ok(hidden)
    }

    fn head_parts(&self, _n_rows: usize) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// The last chunk normalizes a single token.
    fn gives_normalized(&self) -> bool {
        self.function.ends_layers() && self.function.tokens == 1
    }

    /// The result is [1, hidden, 1, tokens or 1].
    fn finish(
        self: Box<Self>,
        mut g: Graph,
        results: &[ValueId],
    ) -> Result<(Function, Vec<Table>), ModelError> {
        g.at_module("");
        let n = g.shape(results[0])[3].known().unwrap_or(1);
        let rows = if n == 1 {
            g.reshape(results[0], &[1, 1, self.hidden as i32])?
        } else {
            let columns = g.squeeze(results[0], &[2])?;
            g.transpose(columns, &[0, 2, 1])?
        };
        Ok((g.finish("output_hidden_states", rows), Vec::new()))
    }
}

/// `mask` plus a score that hides the keys where `hidden` is true.
fn masked(g: &mut Graph, mask: ValueId, hidden: ValueId) -> ValueResult {
    let hidden = g.cast(hidden, g.spelling().float)?;
    let scores = g.scale(hidden, MASKED_SCORE)?;
    g.add(mask, scores)
}
