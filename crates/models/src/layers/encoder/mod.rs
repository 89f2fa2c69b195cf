//! What encoders have in common around their layers: inputs, positions, masks, and the output.
//!
//! The functions of an encoder take `input_ids` int32 [batch, tokens] and `attention_mask` [batch,
//! tokens], 1 for a token and 0 for padding; padding follows the tokens. They return `embedding`
//! [batch, dim], `token_embeddings` [batch, tokens, dim] or `logits` [batch, labels]. With
//! [`Encoding::Chunks`] there is one text, and the input `pool_matrix` [chunks, tokens] holds the
//! weight of each token in each chunk's vector. A model that leaves the prompt out of its pooling
//! takes `pooling_mask` [batch, tokens] beside the mask: 1 for a token that is pooled.

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, Dim, TensorType};

use super::attention::AttentionInputs;
use super::decoder::Mask;
use super::rope::{Rotary, Rotation};
use super::steps;
use crate::checkpoint::Step;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
use crate::pooling::{Pooling, Poolings};
use crate::weights::Weights;

/// The score of a masked key: far below any real score, and finite in fp16.
const MASKED_SCORE: f32 = -1e4;

/// What a function of an encoder returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// One vector for each text.
    #[default]
    Text,
    /// One vector for each chunk of one text.
    Chunks,
    /// One vector for each token.
    Tokens,
    /// One logit for each label, of a text or of two texts.
    Labels,
}

impl Encoding {
    /// Name of the function.
    pub fn function(self) -> &'static str {
        match self {
            Encoding::Text => "encode",
            Encoding::Chunks => "encode_chunks",
            Encoding::Tokens => "encode_tokens",
            Encoding::Labels => "classify",
        }
    }
}

/// Which tokens a token attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// All tokens.
    Bidirectional,
    /// The token itself and those before it.
    Causal,
}

/// The sizes of a function's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Whether a call takes exactly one text.
    pub single: bool,
    /// Tokens of each text, padding included; `None` for any number.
    pub tokens: Option<usize>,
    /// Rows of the pool matrix; `None` for any number.
    pub chunks: Option<usize>,
    /// Whether the tokens that are pooled have a mask of their own.
    pub has_pooling_mask: bool,
    /// Largest number of tokens that any function of the program takes.
    pub max_tokens: usize,
}

/// The inputs of a function and the values that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Token ids, int32 [batch, tokens].
    pub input_ids: ValueId,
    /// Positions of the tokens, int32 [tokens].
    pub positions: ValueId,
    /// 1 for a token that is pooled and 0 for others, in the graph's element type, [batch, tokens].
    pooled: ValueId,
    /// Whether that mask is an input of its own.
    has_pooling_mask: bool,
    pool_matrix: Option<ValueId>,
    full: ValueId,
    sliding: Option<ValueId>,
    max_tokens: usize,
}

impl Io {
    /// Declares the inputs. `group` is the number of queries that share a key head. With a
    /// `window`, sliding-window layers attend to tokens that are less than `window` positions away.
    pub fn new(
        g: &mut Graph,
        plan: &EncoderPlan<'_>,
        direction: Direction,
        group: usize,
        window: Option<usize>,
    ) -> Result<Self, ModelError> {
        let (encoding, extent) = (plan.head.encoding, plan.extent);
        g.at_module("");
        let single = extent.single || encoding == Encoding::Chunks;
        let batch = if single { Dim::Known(1) } else { g.symbol() };
        let tokens = extent.tokens.map_or_else(|| g.symbol(), Dim::Known);
        let float = g.spelling().float;
        let input_ids = g.input("input_ids", TensorType::new(DType::Int32, [batch, tokens]));
        // A program in fp16 casts no integers, so the mask arrives in the type of its use.
        let mask_type = if float == DType::Fp32 {
            DType::Int32
        } else {
            float
        };
        let valid = g.input(
            "attention_mask",
            TensorType::new(mask_type, [batch, tokens]),
        );
        let pooling_mask = (extent.has_pooling_mask && encoding == Encoding::Text).then(|| {
            let ty = TensorType::new(mask_type, [batch, tokens]);
            g.input("pooling_mask", ty)
        });
        let pool_matrix = (encoding == Encoding::Chunks).then(|| {
            let chunks = extent.chunks.map_or_else(|| g.symbol(), Dim::Known);
            g.input("pool_matrix", TensorType::new(float, [chunks, tokens]))
        });
        let valid = g.cast(valid, float)?;
        let pooled = match pooling_mask {
            Some(mask) => g.cast(mask, float)?,
            None => valid,
        };
        let positions = positions(g, input_ids, extent.tokens.is_some())?;
        let (full, sliding) = masks(g, valid, positions, direction, group, window)?;
        Ok(Self {
            input_ids,
            positions,
            pooled,
            has_pooling_mask: pooling_mask.is_some(),
            pool_matrix,
            full,
            sliding,
            max_tokens: extent.max_tokens,
        })
    }

    /// The inputs of a layer's attention.
    pub fn attention_inputs<'a>(
        &self,
        rotary: Option<&'a Rotary>,
        mask: Mask,
    ) -> AttentionInputs<'a> {
        let mask = if mask == Mask::Sliding {
            self.sliding.unwrap_or(self.full)
        } else {
            self.full
        };
        AttentionInputs {
            rotary,
            mask,
            past: None,
            last: None,
        }
    }

    /// Cosines and sines of this rotation at the positions of the tokens.
    pub fn rotary(&self, g: &mut Graph, rotation: &Rotation) -> Result<Rotary, ModelError> {
        if g.spelling().float == DType::Fp32 {
            let positions = g.cast(self.positions, DType::Fp32)?;
            return Rotary::new(g, positions, rotation, self.max_tokens);
        }
        Rotary::from_table(g, self.positions, rotation, self.max_tokens)
    }

    /// The positions of a model that counts them from `padding + 1`, where `padding` is the id of
    /// the padding token: int32 [batch, tokens]. A padding token has the position `padding` and is
    /// not counted, wherever it stands.
    pub fn positions_after(&self, g: &mut Graph, padding: i32) -> ValueResult {
        let (padding, axis, no) = (g.int(padding)?, g.int(1)?, g.bool(false)?);
        let is_text = g.op(
            "not_equal",
            "is_text",
            [("x", self.input_ids), ("y", padding)],
        )?;
        let is_text = g.cast(is_text, DType::Int32)?;
        let args = [
            ("x", is_text),
            ("axis", axis),
            ("exclusive", no),
            ("reverse", no),
        ];
        let counts = g.op("cumsum", "counts", args)?;
        let counts = g.mul(counts, is_text)?;
        g.add(counts, padding)
    }

    /// Declares the input `token_type_ids`, int32 [batch, tokens]: which of two texts each token
    /// belongs to.
    pub fn token_types(&self, g: &mut Graph) -> ValueId {
        let shape = g.shape(self.input_ids).to_vec();
        g.input("token_type_ids", TensorType::new(DType::Int32, shape))
    }

    /// Adds `bias` [1, heads, tokens, tokens] to the scores of full-attention layers.
    pub fn bias_scores(&mut self, g: &mut Graph, bias: ValueId) -> Result<(), ModelError> {
        self.full = g.add(self.full, bias)?;
        Ok(())
    }

    /// Converts hidden states [batch, tokens, features] to the layout of the graph.
    pub fn lay_out(&self, g: &mut Graph, rows: ValueId) -> ValueResult {
        if g.spelling().layout == Layout::Rows {
            return Ok(rows);
        }
        let columns = g.transpose(rows, &[0, 2, 1])?;
        g.expand_dims(columns, &[2])
    }

    /// The hidden state [batch, features] of the last token, or of the last whose id is not
    /// `padding`: of the first token, if all are padding.
    pub fn last(
        &self,
        g: &mut Graph,
        hidden: ValueId,
        padding: Option<usize>,
    ) -> Result<ValueId, ModelError> {
        let rows = Self::to_rows(g, hidden)?;
        let mut io = *self;
        if let Some(padding) = padding {
            let padding = g.int(i32::try_from(padding).unwrap_or(i32::MAX))?;
            let args = [("x", self.input_ids), ("y", padding)];
            let counts = g.op("not_equal", "is_text", args)?;
            let counts = g.cast(counts, g.spelling().float)?;
            let texts = g.mul(self.pooled, counts)?;
            let first = first_if_none(g, self.positions, texts)?;
            io.pooled = g.add(texts, first)?;
        }
        pool(g, &io, rows, Pooling::LastToken)
    }

    /// Converts hidden states from the layout of the graph to [batch, tokens, features].
    pub(super) fn to_rows(g: &mut Graph, hidden: ValueId) -> ValueResult {
        if g.spelling().layout == Layout::Rows {
            return Ok(hidden);
        }
        let columns = g.squeeze(hidden, &[2])?;
        g.transpose(columns, &[0, 2, 1])
    }
}

/// The positions 0, 1, .. as int32 [tokens].
fn positions(g: &mut Graph, input_ids: ValueId, counted: bool) -> Result<ValueId, ModelError> {
    if counted {
        // Computed from run-time values: a compiler that knew the positions would cut tables to
        // this length, and functions of other lengths could not share the tables.
        let (zero, one) = (g.int(0)?, g.int(1)?);
        let zeros = g.mul(input_ids, zero)?;
        let ones = g.add(zeros, one)?;
        let (axis, no) = (g.int(1)?, g.bool(false)?);
        let counts = g.op(
            "cumsum",
            "counts",
            [
                ("x", ones),
                ("axis", axis),
                ("exclusive", no),
                ("reverse", no),
            ],
        )?;
        let positions = g.sub(counts, one)?;
        return Ok(g.squeeze(positions, &[0])?);
    }
    let shape = g.op("shape", "shape", [("x", input_ids)])?;
    let (one, two) = (g.ints(&[1])?, g.ints(&[2])?);
    let n = g.op(
        "slice_by_index",
        "n_tokens",
        [("x", shape), ("begin", one), ("end", two)],
    )?;
    let (n, zero, step) = (g.squeeze(n, &[0])?, g.int(0)?, g.int(1)?);
    Ok(g.op(
        "range_1d",
        "positions",
        [("end", n), ("start", zero), ("step", step)],
    )?)
}

/// The additive masks of full-attention layers and of sliding-window layers.
fn masks(
    g: &mut Graph,
    valid: ValueId,
    positions: ValueId,
    direction: Direction,
    group: usize,
    window: Option<usize>,
) -> Result<(ValueId, Option<ValueId>), ModelError> {
    let one = g.float(1.0)?;
    let padding = g.sub(one, valid)?;
    let padding = g.expand_dims(padding, &[1, 2])?; // [batch, 1, 1, tokens]
    let (queries, keys) = (
        g.expand_dims(positions, &[1])?,
        g.expand_dims(positions, &[0])?,
    );
    let later = match direction {
        Direction::Bidirectional => None,
        Direction::Causal => Some(g.op("greater", "later", [("x", keys), ("y", queries)])?),
    };
    let full = match later {
        None => g.scale(padding, MASKED_SCORE)?,
        Some(later) => additive_mask(g, padding, later, group)?,
    };
    let Some(window) = window else {
        return Ok((full, None));
    };
    let window = g.int(i32::try_from(window).unwrap_or(i32::MAX))?;
    let distance = g.sub(queries, keys)?;
    let distance = if direction == Direction::Bidirectional {
        g.op("abs", "distance", [("x", distance)])?
    } else {
        distance
    };
    let far = g.op("greater_equal", "far", [("x", distance), ("y", window)])?;
    let hidden = match later {
        None => far,
        Some(later) => g.op("logical_or", "hidden", [("x", far), ("y", later)])?,
    };
    Ok((full, Some(additive_mask(g, padding, hidden, group)?)))
}

/// The additive mask of padding and of the keys in `hidden` [tokens, tokens], with one row for each
/// query that shares a key head.
fn additive_mask(g: &mut Graph, padding: ValueId, hidden: ValueId, group: usize) -> ValueResult {
    let hidden = g.cast(hidden, g.spelling().float)?;
    // [batch, 1, tokens, tokens]
    let both = g.op("maximum", "hidden", [("x", padding), ("y", hidden)])?;
    let mask = g.scale(both, MASKED_SCORE)?;
    if g.spelling().layout == Layout::Channels || group == 1 {
        return Ok(mask);
    }
    let reps = g.ints(&[1, 1, group as i32, 1])?;
    g.op("tile", "mask", [("x", mask), ("reps", reps)])
}

/// How hidden states become the output.
#[derive(Clone, Copy, Debug)]
pub struct EncoderHead<'a> {
    /// What the function returns.
    pub encoding: Encoding,
    /// How token vectors are pooled into one vector.
    pub pooling: Poolings,
    /// What changes the vector of each token before the pooling.
    pub token_steps: &'a [Step],
    /// What changes the vector behind the pooling.
    pub steps: &'a [Step],
    /// Whether the tokens of the prompt are pooled.
    pub include_prompt: bool,
    /// Whether the types of tokens are an input; otherwise all tokens have type 0.
    pub token_types: bool,
}

/// The settings of one function of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderPlan<'a> {
    /// The sizes of the inputs.
    pub extent: Extent,
    /// How hidden states become the output.
    pub head: EncoderHead<'a>,
    /// Divisor of the residual stream.
    pub residual_divisor: f32,
}

/// Pools the hidden states and finishes the function.
pub fn finish(
    mut g: Graph,
    w: &Weights<'_>,
    io: &Io,
    hidden: ValueId,
    head: EncoderHead<'_>,
) -> Result<Function, ModelError> {
    let g_ = &mut g;
    g_.at_module("");
    let rows = Io::to_rows(g_, hidden)?; // [batch, tokens, features]
    let rows = steps::apply(g_, w, head.token_steps, rows)?;
    let vectors = match (head.encoding, io.pool_matrix) {
        (Encoding::Tokens, _) => rows,
        (_, Some(matrix)) => {
            let rows = g_.squeeze(rows, &[0])?;
            g_.op("matmul", "pooled", [("x", matrix), ("y", rows)])?
        }
        _ => {
            let modes = head.pooling.modes().iter();
            let pooled = modes
                .map(|mode| pool(g_, io, rows, *mode))
                .collect::<Result<Vec<_>, _>>()?;
            match pooled[..] {
                [one] => one,
                _ => g_.join("concat", &pooled, -1)?,
            }
        }
    };
    let vectors = steps::apply(g_, w, head.steps, vectors)?;
    let name = if head.encoding == Encoding::Tokens {
        "token_embeddings"
    } else {
        "embedding"
    };
    Ok(g.finish(name, vectors))
}

/// The vector of the first token: [batch, tokens, features] to [batch, features].
fn first_of(g: &mut Graph, rows: ValueId) -> ValueResult {
    let (first, axis) = (g.int(0)?, g.int(1)?);
    let args = [("x", rows), ("indices", first), ("axis", axis)];
    g.op("gather", "first", args)
}

/// Pools [batch, tokens, features] to [batch, features].
pub(super) fn pool(
    g: &mut Graph,
    io: &Io,
    rows: ValueId,
    pooling: Pooling,
) -> Result<ValueId, ModelError> {
    let float = g.spelling().float;
    // The least sum of weights: a text without tokens gives a vector of zeros instead of NaN.
    let mut least = 1.0;
    let weights = match pooling {
        Pooling::Cls if !io.has_pooling_mask => return Ok(first_of(g, rows)?),
        Pooling::Cls => {
            let first = edge(g, io.pooled, false)?;
            let start = first_if_none(g, io.positions, io.pooled)?;
            g.add(first, start)?
        }
        Pooling::Max => {
            let one = g.float(1.0)?;
            let padding = g.sub(io.pooled, one)?;
            // Below every value that a hidden state can have.
            let padding = g.scale(padding, if float == DType::Fp16 { 6e4 } else { 1e9 })?;
            let padding = g.expand_dims(padding, &[2])?;
            let shown = g.add(rows, padding)?;
            let largest = g.reduce("reduce_max", shown, 1)?;
            return Ok(g.squeeze(largest, &[1])?);
        }
        Pooling::Mean | Pooling::MeanSqrtLen => io.pooled,
        Pooling::WeightedMean => {
            let one = g.int(1)?;
            let from_one = g.add(io.positions, one)?;
            let mut from_one = g.cast(from_one, float)?;
            if float == DType::Fp16 {
                // The sum of all positions is beyond fp16.
                least = 1.0 / io.max_tokens as f32;
                from_one = g.scale(from_one, least)?;
            }
            g.mul(io.pooled, from_one)?
        }
        Pooling::LastToken => edge(g, io.pooled, true)?,
    };
    let sum = g.reduce("reduce_sum", weights, -1)?;
    let least = g.float(least)?;
    let sum = g.op("maximum", "at_least", [("x", sum), ("y", least)])?;
    let sum = if pooling == Pooling::MeanSqrtLen {
        g.op("sqrt", "root", [("x", sum)])?
    } else {
        sum
    };
    let weights = g.op("real_div", "weights", [("x", weights), ("y", sum)])?;
    let weights = g.expand_dims(weights, &[1])?; // [batch, 1, tokens]
    let pooled = g.op("matmul", "pooled", [("x", weights), ("y", rows)])?;
    Ok(g.squeeze(pooled, &[1])?)
}

/// 1 at the first of all tokens [batch, tokens] if the mask has none, and 0 elsewhere.
fn first_if_none(g: &mut Graph, positions: ValueId, mask: ValueId) -> ValueResult {
    let any = g.reduce("reduce_max", mask, -1)?; // [batch, 1]
    let (one, start) = (g.float(1.0)?, g.int(0)?);
    let none = g.sub(one, any)?;
    let start = g.op("equal", "is_start", [("x", positions), ("y", start)])?;
    let start = g.cast(start, g.spelling().float)?;
    g.mul(none, start)
}

/// 1 at the last token of a mask, or else at the first, and 0 elsewhere: where the mask has counted
/// one token, which fp16 tells from every other count.
fn edge(g: &mut Graph, mask: ValueId, last: bool) -> ValueResult {
    let (axis, no, reverse, one) = (g.int(1)?, g.bool(false)?, g.bool(last)?, g.float(1.0)?);
    let args = [
        ("x", mask),
        ("axis", axis),
        ("exclusive", no),
        ("reverse", reverse),
    ];
    let counts = g.op("cumsum", "counts", args)?;
    let is_edge = g.op("equal", "is_edge", [("x", counts), ("y", one)])?;
    let is_edge = g.cast(is_edge, g.spelling().float)?;
    g.mul(mask, is_edge)
}
