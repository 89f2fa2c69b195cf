//! Decoder functions of any number of tokens. Positions, angles and masks are computed from the
//! input `position` and the number of tokens.

use std::ops::Range;

use thane_mil::literal::Literal;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, Dim, Symbol, TensorType, Type};

use super::{Extent, Io, MASKED_SCORE, Mask, Mode};
use crate::Table;
use crate::checkpoint::Tensor;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Attention, AttentionInputs, Cache, Last, Past, Remembered};
use crate::layers::delta_net::{DeltaInputs, DeltaNet};
use crate::layers::rope::{Rotary, Rotation};
use crate::layers::short_conv::{ByPosition, ConvInputs, ConvPast, ShortConv};

/// The inputs of a function and the values that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct FlexibleIo {
    extent: Extent,
    mode: Mode,
    /// Token ids, int32 [1, tokens].
    input_ids: ValueId,
    /// Position of the first token, int32 [1].
    position: ValueId,
    /// Positions of the tokens, f32 [tokens].
    positions: ValueId,
    /// Begin of the cache slice to write, int32 [4]; only the third entry counts.
    begin: ValueId,
    /// End of the cache slice to write, int32 [4]; only the third entry counts.
    end: ValueId,
    full: Seen,
    sliding: Option<Seen>,
}

/// The keys that queries attend to.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Whether a query attends to a key, bool [tokens, past + tokens].
    seen: ValueId,
    /// The same as fp32 [group * tokens, past + tokens], to be added to the scores.
    mask: ValueId,
}

impl Seen {
    fn new(g: &mut Graph, seen: ValueId, group: usize) -> Result<Self, ModelError> {
        Ok(Self {
            seen,
            mask: additive(g, seen, group)?,
        })
    }
}

impl FlexibleIo {
    /// Declares the inputs of the function `mode`.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent) -> Result<Self, ModelError> {
        g.at_module("");
        let tokens = if mode == Mode::Decode {
            Dim::Known(1)
        } else {
            g.symbol()
        };
        let input_ids = g.input(
            "input_ids",
            TensorType::new(DType::Int32, [Dim::Known(1), tokens]),
        );
        let position = g.input("position", TensorType::new(DType::Int32, [1usize]));
        let n_tokens = match mode {
            Mode::Decode => g.ints(&[1])?,
            _ => g.n_tokens(input_ids)?,
        };
        let total = g.add(position, n_tokens)?; // [1]
        let (start, stop, zero, step) = (
            g.squeeze(position, &[0])?,
            g.squeeze(total, &[0])?,
            g.int(0)?,
            g.int(1)?,
        );
        let queries = g.op(
            "range_1d",
            "query_positions",
            [("end", stop), ("start", start), ("step", step)],
        )?;
        let keys = g.op(
            "range_1d",
            "key_positions",
            [("end", stop), ("start", zero), ("step", step)],
        )?;
        let positions = g.cast(queries, DType::Fp32)?; // [tokens]
        let (pad, last) = (g.ints(&[0, 0])?, g.ints(&[0])?);
        let begin = g.join("concat", &[pad, position, last], 0)?;
        let end = g.join("concat", &[pad, total, last], 0)?;
        let (queries, keys) = (g.expand_dims(queries, &[1])?, g.expand_dims(keys, &[0])?);
        let seen = g.op("less_equal", "seen", [("x", keys), ("y", queries)])?; // [tokens, so far]
        let full = Seen::new(g, seen, extent.group)?;
        let sliding = match extent.window {
            None => None,
            Some(window) => {
                let window = g.int(i32::try_from(window).unwrap_or(i32::MAX))?;
                let edge = g.sub(queries, window)?;
                let near = g.op("greater", "near", [("x", keys), ("y", edge)])?;
                let both = g.op("logical_and", "seen_near", [("x", seen), ("y", near)])?;
                Some(Seen::new(g, both, extent.sliding_group)?)
            }
        };
        Ok(Self {
            extent,
            mode,
            input_ids,
            position,
            positions,
            begin,
            end,
            full,
            sliding,
        })
    }
}

impl Io for FlexibleIo {
    fn rotary(
        &self,
        g: &mut Graph,
        (_, rotation): (usize, &Rotation),
    ) -> Result<Rotary, ModelError> {
        Rotary::new(g, self.positions, rotation, self.extent.context)
    }

    fn rows_of_tokens(
        &self,
        g: &mut Graph,
        table: &Tensor,
        (_, factor): (&str, f32),
    ) -> Result<ValueId, ModelError> {
        let table = g.weight(table)?;
        let rows = g.gather(table, self.input_ids)?;
        if factor == 1.0 {
            return Ok(rows);
        }
        Ok(g.scale(rows, factor)?)
    }

    fn rows_of_positions(&self, g: &mut Graph, table: &Tensor) -> Result<ValueId, ModelError> {
        let table = g.weight_for_residual(table)?;
        let positions = g.cast(self.positions, DType::Int32)?;
        let rows = g.gather(table, positions)?;
        Ok(g.expand_dims(rows, &[0])?) // [1, tokens, features]
    }

    fn attention_inputs<'r>(
        &'r self,
        g: &mut Graph,
        layer: usize,
        attention: &Attention,
        rotary: Option<&'r Rotary>,
        mask: Mask,
        (_, shared): (Option<usize>, Option<Remembered>),
    ) -> Result<AttentionInputs<'r>, ModelError> {
        let Extent {
            last_from,
            context,
            cache,
            ..
        } = self.extent;
        let past = match shared {
            Some(shared) => Past::Shared(shared),
            None => {
                let shape = [1, attention.n_kv_heads, context, attention.head_dim];
                Past::Cache {
                    cache: Cache::new(g, layer, shape, cache),
                    begin: self.begin,
                    end: self.end,
                }
            }
        };
        let (Seen { seen, mask }, group) = match (mask, self.sliding) {
            (Mask::Sliding, Some(sliding)) => (sliding, self.extent.sliding_group),
            _ => (self.full, self.extent.group),
        };
        // In the last layer with keys and values of its own, `prefill` computes them for every
        // token but everything else only for the last token.
        let last = if self.mode == Mode::Prefill && layer >= last_from {
            let seen = g.last(seen, 0)?;
            let mask = additive(g, seen, group)?;
            Some(Last {
                rotary: rotary.map(|rotary| rotary.last(g)).transpose()?,
                mask,
            })
        } else {
            None
        };
        Ok(AttentionInputs {
            rotary,
            mask,
            past: Some(past),
            last,
        })
    }

    fn conv_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        conv: &ShortConv,
    ) -> Result<ConvInputs<'_>, ModelError> {
        let Extent {
            last_from,
            context,
            cache,
            ..
        } = self.extent;
        let state = conv.state(g, layer, context, cache);
        let before = i32::try_from(conv.taps - 1).unwrap_or(i32::MAX);
        let offset = g.ints(&[0, 0, before, 0])?;
        let rows = ByPosition {
            state,
            dtype: cache,
            begin: g.add(self.begin, offset)?,
            end: g.add(self.end, offset)?,
            first: self.begin,
        };
        Ok(ConvInputs {
            past: ConvPast::All(rows),
            last: self.mode == Mode::Prefill && layer >= last_from,
        })
    }

    fn delta_inputs(
        &self,
        g: &mut Graph,
        layer: usize,
        delta: &DeltaNet,
    ) -> Result<DeltaInputs<'_>, ModelError> {
        let last = self.mode == Mode::Prefill && layer >= self.extent.last_from;
        let one_token = self.mode == Mode::Decode;
        let positions = (self.position, self.positions);
        Ok(delta.inputs(g, layer, positions, (one_token, last), self.extent.cache)?)
    }

    fn head_parts(&self, n_rows: usize) -> Vec<Range<usize>> {
        std::iter::once(0..n_rows).collect()
    }

    fn finish(
        self: Box<Self>,
        g: Graph,
        results: &[ValueId],
    ) -> Result<(Function, Vec<Table>), ModelError> {
        let mut function = g.finish("logits", results[0]);
        // The range of the flexible input, in the form that Apple's compiler writes.
        if self.mode != Mode::Decode {
            function.attributes.push((
                "FlexibleShapeInformation".to_owned(),
                flexible(self.extent.context),
            ));
        }
        Ok((function, Vec::new()))
    }
}

/// 0 where `seen` is true and [`MASKED_SCORE`] where not, repeated for each query that shares a key
/// head.
fn additive(g: &mut Graph, seen: ValueId, group: usize) -> ValueResult {
    // Not a `select` of two scalars, because coremltools infers a scalar as its result type.
    let hidden = g.op("logical_not", "hidden", [("x", seen)])?;
    let hidden = g.cast(hidden, DType::Fp32)?;
    let mask = g.scale(hidden, MASKED_SCORE)?;
    let reps = g.ints(&[group as i32, 1])?;
    g.op("tile", "mask", [("x", mask), ("reps", reps)])
}

/// The attribute `FlexibleShapeInformation` for 1 to `context` tokens.
fn flexible(context: usize) -> Literal {
    let string = || Type::Tensor(TensorType::scalar(DType::String));
    let input = || Literal::string("input_ids");
    let vector = Type::Tensor(TensorType::new(DType::Int32, [Dim::Symbol(Symbol(0))]));
    let pair = Type::Tensor(TensorType::new(DType::Int32, [2usize]));
    let most = i32::try_from(context).unwrap_or(i32::MAX);
    let default = Literal::Dict(string(), vector, vec![(input(), Literal::i32s(&[1, 1]))]);
    let ranges = Literal::List(
        pair.clone(),
        vec![Literal::i32s(&[1, 1]), Literal::i32s(&[1, most])],
    );
    let ranges = Literal::Dict(
        string(),
        Type::List(Box::new(pair), None),
        vec![(input(), ranges)],
    );
    let named = |name: &str, dict| Literal::Tuple(vec![Literal::string(name), dict]);
    Literal::Tuple(vec![
        named("DefaultShapes", default),
        named("RangeDims", ranges),
    ])
}
