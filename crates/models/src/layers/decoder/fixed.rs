//! Decoder functions of fixed length, built only from ops that the Neural Engine can run.
//!
//! The cache is read once and written once, and a query attends to the cache as it was before the
//! call and, separately, to the tokens of the call. The caller passes everything that depends on
//! the position, because the Neural Engine is not made for integers (fp16 cannot even hold a
//! position beyond 2048). A function computes some of the layers, a chunk. Its inputs, with n
//! tokens in a call and a cache of `context` tokens:
//!
//! | input | is |
//! |---|---|
//! | `input_ids` int32 [1, n] | tokens; a block that is not full is padded with any token |
//! | `embedding` fp16 [1, hidden, 1, n] | instead, if the caller looks up embeddings |
//! | `hidden_states` fp16 [1, hidden, 1, n] | instead, if an earlier chunk gives them |
//! | `positions` int32 [n] | positions of the tokens, below the context length |
//! | `rotary_cos`, `rotary_sin` fp16 [1, 1, rotated, n] | instead, if the caller looks them up |
//! | `full_mask` fp16 [1, 1, n, context + n] | 0 where a token attends, -1e4 where not: first the cache, then the tokens of the call |
//! | `sliding_mask`, same type | the mask of sliding-window layers, if there are any |
//! | `last_token` fp16 [1, 1, 1, n] | 1 at the token whose logits are needed, 0 elsewhere; if one token's logits are given |
//!
//! The cache is one state [2 * layers, kv_heads, context, head_dim], which holds the keys and then
//! the values of each layer, because functions with three states or more fail when they are called
//! (CoreML-LLM ST04). `write_begin`, `write_end` int32 [4] say which slice is written: only the
//! third entries count, n apart. Or keys and values are inputs `k_cache_i`, `v_cache_i` [1,
//! kv_heads, context, head_dim], those of sliding-window layers with fewer rows, as a ring, and the
//! caller stores the outputs `new_k_i`, `new_v_i` [1, kv_heads, n, head_dim]. What layers without
//! attention remember is in module [`recurrent`](super::recurrent).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use thane_mil::data::Data;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::recurrent::Recurrent;
use super::{Mask, Mode};
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Apart, Attention, AttentionInputs, Past, Remembered};
use crate::layers::delta_net::{DeltaInputs, DeltaNet};
use crate::layers::recent::Part;
use crate::layers::rope::{Rotary, Rotation};
use crate::layers::short_conv::{ConvInputs, ConvPast, ShortConv};
use crate::{CacheForm, Given, Lookup, Table};

/// What a function of fixed length computes.
#[derive(Clone, Debug)]
pub struct FixedFunction {
    /// Which tokens' logits it gives.
    pub given: Given,
    /// Number of tokens.
    pub tokens: usize,
    /// Number of tokens that the cache holds.
    pub context: usize,
    /// The greatest such number of all functions, for which tables are made.
    pub most_context: usize,
    /// The layers.
    pub layers: Range<usize>,
    /// Number of layers of the model.
    pub n_layers: usize,
    /// The rows of the output head that it has, if any.
    pub head: Option<Range<usize>>,
    /// Where the cache is.
    pub cache: CacheForm,
    /// Name of the state that holds the cache.
    pub state: String,
    /// Name of the state that holds what layers without attention remember.
    pub recurrent_state: String,
    /// Whether any of the layers attends.
    pub attends: bool,
    /// Who looks up embeddings and rotations.
    pub lookup: Lookup,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Rows of the caches of sliding-window layers, if the caller has them as rings of fewer rows
    /// than the context.
    pub ring: Option<usize>,
}

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub struct Io {
    function: FixedFunction,
    input_ids: Option<ValueId>,
    positions: Option<ValueId>,
    full: Cell<Option<ValueId>>,
    sliding: Cell<Option<ValueId>>,
    last_token: Option<ValueId>,
    write: Option<[ValueId; 2]>,
    /// The contents of the common cache before the call, after the op that reads the state.
    past: Cell<Option<ValueId>>,
    state: RefCell<Option<ValueId>>,
    /// Layers with keys and values of their own so far, each with its place in the common cache.
    own: RefCell<Vec<usize>>,
    /// Keys and values of the call's tokens, layer by layer.
    new: RefCell<Vec<[ValueId; 2]>>,
    /// Keys and values of earlier chunks that layers share.
    shared: RefCell<BTreeMap<usize, Remembered>>,
    /// Vectors of per-layer embeddings, which later chunks take.
    vectors: Cell<Option<ValueId>>,
    /// What layers without attention remember.
    recurrent: Recurrent,
    tables: RefCell<Vec<Table>>,
}

impl Io {
    /// Declares the inputs of a function.
    pub fn new(g: &mut Graph, function: &FixedFunction) -> Result<Self, ModelError> {
        g.at_module("");
        let n = function.tokens;
        let float = g.form().float;
        let inside = function.lookup == Lookup::Inside;
        let first = function.layers.start == 0;
        let input_ids =
            (inside && first).then(|| g.input("input_ids", TensorType::new(DType::Int32, [1, n])));
        let attends = function.attends;
        let write = (function.cache == CacheForm::State && attends).then(|| {
            ["write_begin", "write_end"]
                .map(|name| g.input(name, TensorType::new(DType::Int32, [4usize])))
        });
        let positions =
            (inside && attends).then(|| g.input("positions", TensorType::new(DType::Int32, [n])));
        let picks = function.given == Given::Last && n > 1 && function.ends_layers();
        let last_token = picks.then(|| g.input("last_token", TensorType::new(float, [1, 1, 1, n])));
        Ok(Self {
            function: function.clone(),
            input_ids,
            positions,
            full: Cell::default(),
            sliding: Cell::default(),
            last_token,
            write,
            past: Cell::default(),
            state: RefCell::default(),
            own: RefCell::default(),
            new: RefCell::default(),
            shared: RefCell::default(),
            vectors: Cell::default(),
            recurrent: Recurrent::default(),
            tables: RefCell::default(),
        })
    }

    /// Whether the cache is a state.
    pub fn has_state(&self) -> bool {
        self.function.cache == CacheForm::State
    }

    /// Declares the state that holds the keys and values of `n_own` layers.
    pub fn declare_state(&self, g: &mut Graph, n_own: usize, attention: &Attention) {
        let f = &self.function;
        if f.cache == CacheForm::State {
            let shape = [
                2 * n_own,
                attention.n_kv_heads,
                f.context,
                attention.head_dim,
            ];
            let ty = Type::State(TensorType::new(g.form().float, shape));
            *self.state.borrow_mut() = Some(g.input(&f.state, ty));
        }
    }

    /// The contents of the cache before the call. The state is read after the embedding lookup,
    /// which runs on another device, so that the Neural Engine is entered once.
    fn past(&self, g: &mut Graph, state: ValueId) -> ValueResult {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = g.op("read_state", "past", [("input", state)])?;
        self.past.set(Some(past));
        Ok(past)
    }

    /// An input that the caller looks up in a table: the rows of the tokens, or of
    /// their positions.
    fn looked_up(
        &self,
        g: &mut Graph,
        name: &str,
        (rows, by_token): ([usize; 2], bool),
        data: Data,
        is_rotary: bool,
    ) -> ValueId {
        let n = self.function.tokens;
        let [n_rows, n_columns] = rows;
        self.tables.borrow_mut().push(Table {
            input: name.to_owned(),
            by_token,
            n_rows,
            n_columns,
            dtype: g.form().float,
            data,
        });
        let shape = if is_rotary {
            [1, 1, n_columns, n]
        } else {
            [1, n_columns, 1, n]
        };
        g.input(name, TensorType::new(g.form().float, shape))
    }

    /// Cosines and sines of the model's rotation number `idx`, from tables.
    pub fn rotary(
        &self,
        g: &mut Graph,
        (idx, rotation): (usize, &Rotation),
    ) -> Result<Rotary, ModelError> {
        g.at_module("rotary");
        let context = self.function.most_context;
        let tables = rotation.tables(context);
        let n = self.function.tokens;
        let mut part = |name: &str, values: &[f32]| -> ValueResult {
            let n_columns = values.len() / context;
            let Some(positions) = self.positions else {
                let name = match idx {
                    0 => format!("rotary_{name}"),
                    _ => format!("rotary_{name}_{idx}"),
                };
                let data = Data::owned(g.bytes_of(values));
                let rows = ([context, n_columns], false);
                let columns = self.looked_up(g, &name, rows, data, true);
                return Rotary::laid_out(g, columns, n_columns, n);
            };
            let table = g.floats(values, &[context, n_columns])?;
            let rows = g.gather(table, positions)?; // [tokens, columns]
            Rotary::laid_out(g, rows, n_columns, n)
        };
        let waves = [part("cos", &tables.cos)?, part("sin", &tables.sin)?];
        let queries = match &tables.queries {
            None => None,
            Some(factors) => Some(part("queries", factors)?),
        };
        Ok(Rotary::whole(rotation, n, waves, queries))
    }

    /// The hidden states that enter the layers: embeddings times `factor`, plus those of the
    /// positions, or what an earlier chunk gave, [1, hidden, 1, n].
    pub fn enter(
        &self,
        g: &mut Graph,
        table: &Tensor,
        factor: f32,
        positions: Option<&Tensor>,
    ) -> ValueResult {
        let f = &self.function;
        let hidden = table.shape[1];
        if f.layers.start > 0 {
            let n = if f.layers.is_empty() {
                f.n_given()
            } else {
                f.tokens
            };
            let shape = [1, hidden, 1, n];
            return Ok(g.input("hidden_states", TensorType::new(g.form().float, shape)));
        }
        g.at_module("model.embed_tokens");
        let rows = self.rows_of_tokens(g, table, ("embedding", factor))?;
        let Some(positions) = positions else {
            return Ok(rows);
        };
        g.at_module("model.embed_positions");
        let added = if let Some(at) = self.positions {
            let table = g.weight_for_residual(positions)?;
            let rows = g.gather(table, at)?; // [n, hidden]
            let columns = g.transpose(rows, &[1, 0])?;
            g.expand_dims(columns, &[0, 2])?
        } else {
            let data = g.table_numbers(positions, g.residual_divisor());
            let rows = ([positions.shape[0], hidden], false);
            self.looked_up(g, "position_embedding", rows, data, false)
        };
        g.add(rows, added)
    }

    /// The rows of `table` for the tokens times `factor`, [1, features, 1, n]. `name` is that of
    /// the input, if the caller looks them up.
    pub fn rows_of_tokens(
        &self,
        g: &mut Graph,
        table: &Tensor,
        (name, factor): (&str, f32),
    ) -> ValueResult {
        let Some(input_ids) = self.input_ids else {
            let data = g.table_numbers(table, factor.recip());
            let rows = ([table.shape[0], table.shape[1]], true);
            return Ok(self.looked_up(g, name, rows, data, false));
        };
        // The factor is not folded into the table, so that a tied output head can share the
        // table's bytes.
        let table = g.weight(table)?;
        let rows = self.columns(g, table, input_ids)?;
        if factor == 1.0 {
            return Ok(rows);
        }
        g.scale(rows, factor)
    }

    /// Declares the vectors of per-layer embeddings that the first chunk gives, in later chunks.
    pub fn given_vectors(&self, g: &mut Graph, n_features: usize) -> Option<ValueId> {
        let f = &self.function;
        let shape = [1, n_features, 1, f.tokens];
        (f.layers.start > 0)
            .then(|| g.input("per_layer_vectors", TensorType::new(g.form().float, shape)))
    }

    /// Makes the vectors of per-layer embeddings an output, if a chunk follows the first one.
    pub fn pass_vectors(&self, vectors: ValueId) {
        let f = &self.function;
        if f.layers.start == 0 && !f.ends_layers() {
            self.vectors.set(Some(vectors));
        }
    }

    /// The rows of `table` for the tokens, [1, features, 1, n].
    fn columns(&self, g: &mut Graph, table: ValueId, input_ids: ValueId) -> ValueResult {
        let rows = g.gather(table, input_ids)?; // [1, n, features]
        let columns = g.transpose(rows, &[0, 2, 1])?;
        g.expand_dims(columns, &[2])
    }

    /// The inputs of the attention of layer `layer`.
    pub fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        (mask, shares, shared): (Mask, Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        let past = match (shares, shared) {
            (Some(_), Some(shared)) => shared,
            (Some(from), None) => self.of_earlier_chunk(g, from, (attention, mask))?,
            (None, _) => self.own_past(g, layer, (attention, mask))?,
        };
        let mask_input = self.mask(g, mask);
        let past = Past::Apart(Apart {
            keys: past.keys,
            values: past.values,
            context: self.function.rows(mask),
            shared: past.new,
            new: &self.new,
        });
        Ok(AttentionInputs {
            rotary,
            mask: mask_input,
            past: Some(past),
            last: None,
        })
    }

    /// The mask of a layer. A chunk has the masks that its layers need.
    fn mask(&self, g: &mut Graph, mask: Mask) -> ValueId {
        let f = &self.function;
        let (name, cell) = match (mask, f.window) {
            (Mask::Sliding, Some(_)) => ("sliding_mask", &self.sliding),
            _ => ("full_mask", &self.full),
        };
        cell.get().unwrap_or_else(|| {
            let seen = [1, 1, f.tokens, f.rows(mask) + f.tokens];
            let input = g.input(name, TensorType::new(g.form().float, seen));
            cell.set(Some(input));
            input
        })
    }

    /// Declares the state of layers without attention, each with its parts.
    pub fn declare_recurrent_state(
        &self,
        g: &mut Graph,
        layers: &[Vec<Part>],
    ) -> Result<(), ModelError> {
        if !self.has_state() {
            return Ok(());
        }
        let name = &self.function.recurrent_state;
        self.recurrent.declare_state(g, name, layers)
    }

    /// The inputs of the convolution of layer `layer`.
    pub fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError> {
        let recent = self.recurrent.recent(g, layer, &conv.parts())?;
        Ok(ConvInputs {
            past: ConvPast::Recent(recent.first().copied()),
            last: false,
        })
    }

    /// The inputs of the delta net of layer `layer`.
    pub fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError> {
        let [conv, memory] = delta.parts();
        let recent = self.recurrent.recent(g, layer, &[conv, memory])?;
        Ok(DeltaInputs::recent(
            [recent[0], recent[1]],
            self.function.tokens,
        ))
    }

    /// The cache of a layer with keys and values of its own.
    fn own_past(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> Result<Remembered, ModelError> {
        let slot = self.own.borrow().len();
        self.own.borrow_mut().push(layer);
        let state = *self.state.borrow();
        let [keys, values] = match state {
            None => self.cache_inputs(g, layer, (attention, mask)),
            Some(state) => {
                let past = self.past(g, state)?;
                let mut part = |slot: usize| -> ValueResult {
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
                [part(2 * slot)?, part(2 * slot + 1)?]
            }
        };
        let new = None;
        Ok(Remembered { keys, values, new })
    }

    /// Declares the inputs that hold the keys and values of a layer before the call.
    fn cache_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> [ValueId; 2] {
        let rows = self.function.rows(mask);
        let shape = [1, attention.n_kv_heads, rows, attention.head_dim];
        ["k", "v"].map(|part| {
            let ty = TensorType::new(g.form().float, shape);
            g.input(&format!("{part}_cache_{layer}"), ty)
        })
    }

    /// The keys and values of layer `layer`, which an earlier chunk computes.
    fn of_earlier_chunk(
        &self,
        g: &mut Graph,
        layer: usize,
        (attention, mask): (&Attention, Mask),
    ) -> Result<Remembered, ModelError> {
        if let Some(shared) = self.shared.borrow().get(&layer) {
            return Ok(*shared);
        }
        if self.function.cache == CacheForm::State {
            return Err(ModelError::SharedAcrossChunks { layer });
        }
        let [keys, values] = self.cache_inputs(g, layer, (attention, mask));
        let shape = [
            1,
            attention.n_kv_heads,
            self.function.tokens,
            attention.head_dim,
        ];
        let new = ["k", "v"].map(|part| {
            let ty = TensorType::new(g.form().float, shape);
            g.input(&format!("given_{part}_{layer}"), ty)
        });
        let new = Some(new);
        let shared = Remembered { keys, values, new };
        self.shared.borrow_mut().insert(layer, shared);
        Ok(shared)
    }

    /// The hidden states of the tokens whose logits are needed, [1, hidden, 1, tokens or 1].
    fn needed_tokens(&self, g: &mut Graph, hidden: ValueId) -> ValueResult {
        let Some(last_token) = self.last_token else {
            return Ok(hidden);
        };
        g.at_module("model.norm");
        let only = g.mul(hidden, last_token)?;
        g.reduce("reduce_sum", only, -1)
    }

    /// Writes the new keys and values, and what other layers remember, if they are in states. This
    /// precedes the head, whose logits are reshaped on another device, so that the Neural Engine is
    /// left once. Returns the hidden states whose logits are needed.
    pub fn leave(&self, g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        let state = *self.state.borrow();
        if let (Some(state), Some([begin, end])) = (state, self.write) {
            g.at_module("");
            let past = self.past(g, state)?;
            let new: Vec<ValueId> = self.new.borrow().iter().flatten().copied().collect();
            let new = g.join("concat", &new, 0)?; // [2 * layers, kv_heads, n, head_dim]
            let but_tokens = g.bools(&[true, true, false, true])?;
            let args = [
                ("x", past),
                ("update", new),
                ("begin", begin),
                ("end", end),
                ("begin_mask", but_tokens),
                ("end_mask", but_tokens),
            ];
            let updated = g.op("slice_update", "updated", args)?;
            let args = [("state", state), ("value", updated)];
            g.op("coreml_update_state", "stored", args)?;
        }
        g.at_module("");
        self.recurrent.store(g)?;
        Ok(self.needed_tokens(g, hidden)?)
    }

    /// The rows of the output head that the function has, if any.
    pub fn head(&self) -> Option<Range<usize>> {
        self.function.head.clone()
    }

    /// Finishes the function. `result` is [1, vocabulary, 1, tokens], or the hidden states if
    /// another chunk follows. Also returns the tables that the caller looks up.
    pub fn finish(
        self,
        mut g: Graph,
        result: ValueId,
    ) -> Result<(Function, Vec<Table>), ModelError> {
        let result = if self.function.head.is_some() {
            let n = self.function.n_given();
            let rows = if n == 1 {
                result
            } else {
                g.transpose(result, &[0, 3, 2, 1])?
            };
            ("logits".to_owned(), g.reshape(rows, &[1, n as i32, -1])?)
        } else {
            ("output_hidden_states".to_owned(), result)
        };
        let mut outputs = vec![result];
        let vectors = self.vectors.get();
        outputs.extend(vectors.map(|v| ("output_per_layer_vectors".to_owned(), v)));
        if self.function.cache == CacheForm::Explicit {
            for (layer, [k, v]) in self.own.take().into_iter().zip(self.new.take()) {
                outputs.push((format!("new_k_{layer}"), k));
                outputs.push((format!("new_v_{layer}"), v));
            }
            outputs.extend(self.recurrent.outputs());
        }
        let outputs: Vec<(&str, ValueId)> = outputs.iter().map(|(n, v)| (&**n, *v)).collect();
        Ok((g.finish_all(&outputs), self.tables.take()))
    }
}

impl FixedFunction {
    /// Rows of the cache of a layer with this mask.
    fn rows(&self, mask: Mask) -> usize {
        match self.ring {
            Some(ring) if mask == Mask::Sliding => ring.min(self.context),
            _ => self.context,
        }
    }

    /// Whether it has the last of the layers.
    fn ends_layers(&self) -> bool {
        self.layers.end == self.n_layers && !self.layers.is_empty()
    }

    /// Number of tokens whose logits are given.
    fn n_given(&self) -> usize {
        match self.given {
            Given::Last => 1,
            Given::Each => self.tokens,
        }
    }
}

impl Mode {
    /// Which tokens' logits a function of fixed length gives.
    pub fn given(self) -> Given {
        match self {
            Mode::Prefill | Mode::Decode => Given::Last,
            Mode::Verify | Mode::Score => Given::Each,
        }
    }
}
