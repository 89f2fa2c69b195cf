//! Functions that take any number of tokens: positions, angles and masks are computed from
//! `position` and that number.

use thane_mil::literal::Literal;
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, Dim, Symbol, TensorType, Type};

use super::{Extent, HIDDEN, Mask, Mode};
use crate::error::ModelError;
use crate::graph::{Graph, Made};
use crate::layers::attention::{Last, Past, Surroundings};
use crate::layers::rope::{Rotary, Style};

/// The values that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct Io<'a> {
    extent: Extent<'a>,
    mode: Mode,
    /// Token ids, int32 [1, tokens].
    pub input_ids: ValueId,
    /// Positions of the tokens, f32 [tokens].
    positions: ValueId,
    /// Where the cache is written, int32 [4]; only its third entry counts.
    begin: ValueId,
    /// Where the cache ends then, int32 [4]; only its third entry counts.
    end: ValueId,
    full: Seen,
    sliding: Option<Seen>,
}

/// Which keys queries see.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// bool [tokens, so far]
    seen: ValueId,
    /// f32 [group * tokens, so far], to be added to scores.
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

impl<'a> Io<'a> {
    /// Declare the inputs.
    pub fn new(g: &mut Graph, mode: Mode, extent: Extent<'a>) -> Result<Self, ModelError> {
        g.at("");
        let group = extent.attention.n_heads / extent.attention.n_kv_heads;
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
            _ => {
                let shape = g.op("shape", "shape", [("x", input_ids)])?;
                let (one, two) = (g.ints(&[1])?, g.ints(&[2])?);
                g.op(
                    "slice_by_index",
                    "n_tokens",
                    [("x", shape), ("begin", one), ("end", two)],
                )?
            }
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
        let full = Seen::new(g, seen, group)?;
        let sliding = match extent.window {
            None => None,
            Some(window) => {
                let window = g.int(i32::try_from(window).unwrap_or(i32::MAX))?;
                let edge = g.sub(queries, window)?;
                let near = g.op("greater", "near", [("x", keys), ("y", edge)])?;
                let both = g.op("logical_and", "seen_near", [("x", seen), ("y", near)])?;
                Some(Seen::new(g, both, group)?)
            }
        };
        Ok(Self {
            extent,
            mode,
            input_ids,
            positions,
            begin,
            end,
            full,
            sliding,
        })
    }

    /// The angles of these frequencies.
    pub fn rotary(
        &self,
        g: &mut Graph,
        inverse_frequencies: &[f32],
        style: Style,
    ) -> Result<Rotary, ModelError> {
        Rotary::new(g, self.positions, inverse_frequencies, style)
    }

    /// What the attention of layer `layer` is given.
    pub fn surroundings<'r>(
        &self,
        g: &mut Graph,
        layer: usize,
        rotary: &'r Rotary,
        mask: Mask,
    ) -> Result<Surroundings<'r>, ModelError> {
        let Extent {
            attention,
            n_layers,
            context,
            cache,
            ..
        } = self.extent;
        let cache = attention.cache(g, layer, context, cache);
        let past = Past::Cache {
            cache,
            begin: self.begin,
            end: self.end,
        };
        let Seen { seen, mask } = match mask {
            Mask::Full => self.full,
            Mask::Sliding => self.sliding.unwrap_or(self.full),
        };
        // What the last layer makes of other tokens nobody reads, but for their keys and values.
        let last = if self.mode == Mode::Prefill && layer + 1 == n_layers {
            let seen = g.last(seen, 0)?;
            let mask = additive(g, seen, attention.n_heads / attention.n_kv_heads)?;
            Some(Last {
                rotary: rotary.last(g)?,
                mask,
            })
        } else {
            None
        };
        Ok(Surroundings {
            rotary: Some(rotary),
            mask,
            past: Some(past),
            last,
        })
    }

    /// Hand the function over, with the range of its flexible input as Apple's compiler writes it.
    pub fn finish(&self, g: Graph, logits: ValueId) -> Function {
        let mut function = g.finish("logits", logits);
        if self.mode != Mode::Decode {
            function.attributes.push((
                "FlexibleShapeInformation".to_owned(),
                flexible(self.extent.context),
            ));
        }
        function
    }
}

fn additive(g: &mut Graph, seen: ValueId, group: usize) -> Made {
    // Not `select` of two scalars: coremltools takes its result for a scalar.
    let hidden = g.op("logical_not", "hidden", [("x", seen)])?;
    let hidden = g.cast(hidden, DType::Fp32)?;
    let mask = g.scale(hidden, HIDDEN)?;
    let reps = g.ints(&[group as i32, 1])?;
    g.op("tile", "mask", [("x", mask), ("reps", reps)])
}

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
