//! Decoder functions of fixed length: all shapes are known, and no integer is computed in layers.
//!
//! The cache is read once and written once, and a query attends to the cache as it was before the
//! call and, separately, to the tokens of the call. The caller passes everything that depends on
//! the position, because fp16 cannot hold a position beyond 2048. A function computes some of the
//! layers, a chunk. Its inputs, with n tokens in a call and a cache of `context` tokens:
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
//! | `streaming_mask`, same type | the mask of heads that see only the first and the last tokens |
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

use thane_calls::{CacheForm, Head, Lookup};
use thane_mil::data::Data;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::function::{FixedFunction, numbered};
use super::recurrent::Recurrent;
use super::{EMBEDDING, Io, Mask, head};
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Attention, AttentionInputs, Remembered};
use crate::layers::delta_net::{DeltaInputs, DeltaNet};
use crate::layers::recent::{Memory, Recent};
use crate::layers::rope::{Rotary, Rotation};
use crate::layers::short_conv::{ConvInputs, ConvPast, ShortConv};
use crate::weights::slice;

/// The inputs of a function and the values that all layers share.
#[derive(Debug)]
pub struct FixedIo {
    pub(super) function: FixedFunction,
    input_ids: Option<ValueId>,
    positions: Option<ValueId>,
    pub(super) full: Cell<Option<ValueId>>,
    pub(super) sliding: Cell<Option<ValueId>>,
    pub(super) streaming: Cell<Option<ValueId>>,
    last_token: Option<ValueId>,
    write: Option<[ValueId; 2]>,
    /// The contents of the common cache before the call, after the op that reads the state.
    pub(super) past: Cell<Option<ValueId>>,
    pub(super) state: RefCell<Option<ValueId>>,
    /// Layers with keys and values of their own so far, in the order of the common cache.
    pub(super) own: RefCell<Vec<(usize, Mask)>>,
    /// Keys and values of the call's tokens, in the same order.
    pub(super) new: RefCell<Vec<[ValueId; 2]>>,
    /// Keys and values of earlier chunks that layers share.
    pub(super) shared: RefCell<BTreeMap<usize, Remembered>>,
    /// Vectors of per-layer embeddings, which later chunks take.
    vectors: Cell<Option<ValueId>>,
    /// What layers without attention remember.
    recurrent: Recurrent,
    tables: RefCell<Vec<Table>>,
}

/// The numbers of a table that the caller looks up, as [`Table`] has them.
struct Numbers {
    parts: Vec<Data>,
    factor: f32,
    scales: Option<Data>,
}

impl From<Data> for Numbers {
    /// As they are, in one part.
    fn from(data: Data) -> Self {
        Self {
            parts: vec![data],
            factor: 1.0,
            scales: None,
        }
    }
}

impl FixedIo {
    /// Declares the inputs of a function.
    pub fn declare(
        g: &mut Graph,
        function: &FixedFunction,
        _: &Attention,
    ) -> Result<Box<dyn Io>, ModelError> {
        g.at_module("");
        let n = function.tokens;
        let float = g.spelling().float;
        let inside = function.form.lookup == Lookup::Inside;
        let first = function.layers.start == 0;
        let input_ids =
            (inside && first).then(|| g.input("input_ids", TensorType::new(DType::Int32, [1, n])));
        let attends = function.attends;
        let write = (function.form.cache == CacheForm::State && attends).then(|| {
            ["write_begin", "write_end"]
                .map(|name| g.input(name, TensorType::new(DType::Int32, [4usize])))
        });
        let positions =
            (inside && attends).then(|| g.input("positions", TensorType::new(DType::Int32, [n])));
        let picks = function.picks();
        let last_token = picks.then(|| g.input("last_token", TensorType::new(float, [1, 1, 1, n])));
        Ok(Box::new(Self {
            function: function.clone(),
            input_ids,
            positions,
            full: Cell::default(),
            sliding: Cell::default(),
            streaming: Cell::default(),
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
        }))
    }

    /// An input that the caller looks up in a table: the rows of the tokens, or of
    /// their positions.
    fn looked_up(
        &self,
        g: &mut Graph,
        name: &str,
        (rows, by_token): ([usize; 2], bool),
        numbers: Numbers,
        is_rotary: bool,
    ) -> ValueId {
        let n = self.function.tokens;
        let [n_rows, n_columns] = rows;
        self.tables.borrow_mut().push(Table {
            input: name.to_owned(),
            by_token,
            n_rows,
            n_columns,
            dtype: match numbers.scales {
                Some(_) => DType::Int8,
                None => g.spelling().float,
            },
            parts: numbers.parts,
            factor: numbers.factor,
            scales: numbers.scales,
        });
        let shape = if is_rotary {
            [1, 1, n_columns, n]
        } else {
            [1, n_columns, 1, n]
        };
        g.input(name, TensorType::new(g.spelling().float, shape))
    }

    /// The numbers of the table that the caller looks tokens up in, times `factor`. Where they are
    /// those of the output matrix, the caller multiplies, so that both are the same bytes.
    fn numbers_of_tokens(&self, g: &Graph, table: &Tensor, (name, factor): (&str, f32)) -> Numbers {
        let f = &self.function;
        let divisor = factor.recip();
        if f.form.lookup == Lookup::HostInt8 {
            let (codes, scales) = g.int8_table(table, divisor, table.shape[1]);
            return Numbers {
                scales: Some(scales),
                ..codes.into()
            };
        }
        if name != EMBEDDING || f.tied_rows.is_empty() {
            return g.table_numbers(table, divisor).into();
        }
        // Both what is stored and what the caller makes of it must be numbers of fp16.
        g.note_use(table, divisor);
        let rows = f.tied_rows.iter().cloned();
        let parts = rows.map(|rows| slice(table.clone(), rows, table.shape[1]));
        Numbers {
            parts: parts.map(|part| g.table_numbers(&part, 1.0)).collect(),
            factor,
            scales: None,
        }
    }

    /// The rows of `table` for the tokens, [1, features, 1, n].
    fn columns(&self, g: &mut Graph, table: ValueId, input_ids: ValueId) -> ValueResult {
        let rows = g.gather(table, input_ids)?; // [1, n, features]
        let columns = g.transpose(rows, &[0, 2, 1])?;
        g.expand_dims(columns, &[2])
    }

    /// What layer `layer` remembers of a sequence, `parts`, for all sequences of the function.
    fn recent(
        &self,
        g: &mut Graph,
        layer: usize,
        parts: &[Memory],
    ) -> Result<Vec<Recent<'_>>, ModelError> {
        let f = &self.function;
        let parts = parts.iter().map(|part| part.of_lanes(f.lanes()));
        let parts: Vec<Memory> = parts.collect();
        self.recurrent.recent(g, layer, (&parts, f.in_lanes))
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
}

impl Io for FixedIo {
    fn rotary(
        &self,
        g: &mut Graph,
        (idx, rotation): (usize, &Rotation),
    ) -> Result<Rotary, ModelError> {
        g.at_module("rotary");
        let context = self.function.most_context;
        let n_rotated = 2 * rotation.n_pairs();
        let n = self.function.tokens;
        let mut part = |name: &str, n_columns, values: &dyn Fn() -> Vec<f32>| -> ValueResult {
            let key = format!("rotary/{idx}/{name}");
            let data = g.derive_with(&key, |g| Data::owned(g.bytes_of(&values())));
            let Some(positions) = self.positions else {
                let name = match idx {
                    0 => format!("rotary_{name}"),
                    _ => format!("rotary_{name}_{idx}"),
                };
                let rows = ([context, n_columns], false);
                let columns = self.looked_up(g, &name, rows, data.into(), true);
                return Rotary::laid_out(g, columns, n_columns, n);
            };
            let table = g.constant(name, &[context, n_columns], data)?;
            let rows = g.gather(table, positions)?; // [tokens, columns]
            Rotary::laid_out(g, rows, n_columns, n)
        };
        let waves = [
            part("cos", n_rotated, &|| rotation.cosines(context))?,
            part("sin", n_rotated, &|| rotation.sines(context))?,
        ];
        let queries = match rotation.query_factors(context) {
            None => None,
            Some(factors) => Some(part("queries", 1, &factors)?),
        };
        Ok(Rotary::whole(rotation, n, waves, queries))
    }

    fn given(&self, g: &mut Graph, hidden: usize) -> Result<Option<ValueId>, ModelError> {
        let f = &self.function;
        let ty = TensorType::new(g.spelling().float, [1, hidden, 1, f.n_passed()]);
        Ok((f.layers.start > 0).then(|| g.input("hidden_states", ty)))
    }

    fn rows_of_tokens(
        &self,
        g: &mut Graph,
        table: &Tensor,
        (name, factor): (&str, f32),
    ) -> Result<ValueId, ModelError> {
        let Some(input_ids) = self.input_ids else {
            let numbers = self.numbers_of_tokens(g, table, (name, factor));
            let rows = ([table.shape[0], table.shape[1]], true);
            return Ok(self.looked_up(g, name, rows, numbers, false));
        };
        // The factor is not folded into the table, so that a tied output head can share the
        // table's bytes.
        let table = g.weight(table)?;
        let rows = self.columns(g, table, input_ids)?;
        if factor == 1.0 {
            return Ok(rows);
        }
        Ok(g.scale(rows, factor)?)
    }

    fn rows_of_positions(&self, g: &mut Graph, table: &Tensor) -> Result<ValueId, ModelError> {
        let Some(at) = self.positions else {
            let data = g.table_numbers(table, g.residual_divisor());
            let rows = ([table.shape[0], table.shape[1]], false);
            return Ok(self.looked_up(g, "position_embedding", rows, data.into(), false));
        };
        let table = g.weight_for_residual(table)?;
        let rows = g.gather(table, at)?; // [n, hidden]
        let columns = g.transpose(rows, &[1, 0])?;
        Ok(g.expand_dims(columns, &[0, 2])?)
    }

    fn has_state(&self) -> bool {
        self.function.form.cache == CacheForm::State
    }

    fn declare_state(&self, g: &mut Graph, n_own: usize, attention: &Attention) {
        let f = &self.function;
        if self.has_state() {
            let shape = [
                2 * n_own,
                attention.n_kv_heads,
                f.context,
                attention.head_dim,
            ];
            let ty = Type::State(TensorType::new(g.spelling().float, shape));
            *self.state.borrow_mut() = Some(g.input(&f.state, ty));
        }
    }

    fn declare_recurrent_state(
        &self,
        g: &mut Graph,
        layers: &[Vec<Memory>],
    ) -> Result<(), ModelError> {
        if !self.has_state() {
            return Ok(());
        }
        let name = &self.function.recurrent_state;
        self.recurrent.declare_state(g, name, layers)
    }

    fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        mask: Mask,
        (shares, shared): (Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        self.inputs_of_attention(g, layer, attention, rotary, (mask, shares, shared))
    }

    fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError> {
        let recent = self.recent(g, layer, &conv.parts())?;
        Ok(ConvInputs {
            past: ConvPast::Recent(recent.first().copied()),
            last: false,
        })
    }

    fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError> {
        let recent = self.recent(g, layer, &delta.parts())?;
        Ok(DeltaInputs::recent(
            [recent[0], recent[1]],
            self.function.tokens,
        ))
    }

    fn given_vectors(&self, g: &mut Graph, n_features: usize) -> Option<ValueId> {
        let f = &self.function;
        let shape = [1, n_features, 1, f.tokens];
        (f.layers.start > 0).then(|| {
            g.input(
                "per_layer_vectors",
                TensorType::new(g.spelling().float, shape),
            )
        })
    }

    fn pass_vectors(&self, vectors: ValueId) {
        let f = &self.function;
        if f.layers.start == 0 && !f.ends_layers() {
            self.vectors.set(Some(vectors));
        }
    }

    /// Writing precedes the head, whose logits a host may reshape elsewhere, so that the ops before
    /// it are one piece.
    fn leave(&self, g: &mut Graph, hidden: ValueId) -> Result<ValueId, ModelError> {
        let state = *self.state.borrow();
        if let (Some(state), Some([begin, end])) = (state, self.write) {
            g.at_module("");
            let past = self.past(g, state)?;
            let new: Vec<ValueId> = self.new.borrow().iter().flatten().copied().collect();
            let new = g.join("concat", &new, 0)?; // [2 * layers, kv_heads, n, head_dim]
            let but_tokens = g.bools(&[true, true, false, true])?;
            let updated = g.slice_update(past, new, [begin, end], but_tokens)?;
            g.store("stored", state, updated)?;
        }
        g.at_module("");
        self.recurrent.store(g)?;
        Ok(self.needed_tokens(g, hidden)?)
    }

    fn head_parts(&self, _n_rows: usize) -> Vec<Range<usize>> {
        self.function.head_parts()
    }

    fn has_head_on_host(&self) -> bool {
        self.function.form.head == Head::Host(()) && self.function.head.is_some()
    }

    fn add_table(&self, table: Table) {
        self.tables.borrow_mut().push(table);
    }

    /// `results` are parts [1, tokens of the vocabulary, 1, tokens] of the logits, or the hidden
    /// states if another chunk follows or the caller computes the logits.
    fn finish(
        self: Box<Self>,
        mut g: Graph,
        results: &[ValueId],
    ) -> Result<(Function, Vec<Table>), ModelError> {
        let f = &self.function;
        let parts = f.head_parts();
        let mut given = Vec::new();
        for (i, (result, rows)) in results.iter().zip(&parts).enumerate() {
            let of_part = head::outputs(&mut g, f.form.head, (*result, rows, f.n_given()))?;
            let several = |name: String| format!("{name}_{i}");
            given.extend(of_part.into_iter().map(|(name, value)| match parts.len() {
                1 => (name, value),
                _ => (several(name), value),
            }));
        }
        if parts.is_empty() {
            given.push(("output_hidden_states".to_owned(), results[0]));
        }
        let mut outputs = Vec::new();
        let vectors = self.vectors.get();
        outputs.extend(vectors.map(|v| ("output_per_layer_vectors".to_owned(), v)));
        if self.function.form.cache == CacheForm::Explicit {
            for ((layer, mask), [k, v]) in self.own.take().into_iter().zip(self.new.take()) {
                let number = numbered(layer, mask);
                outputs.push((format!("new_k_{number}"), k));
                outputs.push((format!("new_v_{number}"), v));
            }
            outputs.extend(self.recurrent.outputs());
        }
        if self.function.form.direct.is_some() {
            // Other ops of the call read these, too, which needs a copy without Core ML.
            g.at_module("");
            for (_, value) in &mut outputs {
                *value = g.op("identity", "given", [("x", *value)])?;
            }
        }
        given.append(&mut outputs);
        let outputs: Vec<(&str, ValueId)> = given.iter().map(|(n, v)| (&**n, *v)).collect();
        Ok((g.finish_all(&outputs), self.tables.take()))
    }
}
