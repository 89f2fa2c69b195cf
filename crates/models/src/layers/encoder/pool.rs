//! How the hidden states of a text become one vector.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::Io;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
use crate::pooling::Pooling;

/// The vectors of tokens: [batch, tokens, features], or [batch, features, tokens], so that none has
/// to be moved before a product.
#[derive(Clone, Copy, Debug)]
pub(in crate::layers) struct Vectors {
    pub value: ValueId,
    /// The axis of the tokens.
    pub axis: i32,
}

impl Vectors {
    /// Those of hidden states in the layout of the graph.
    pub fn of_hidden(g: &mut Graph, hidden: ValueId) -> Result<Self, BuildError> {
        Ok(match g.spelling().layout {
            Layout::Rows => Self::of_rows(hidden),
            Layout::Channels => Self {
                value: g.squeeze(hidden, &[2])?,
                axis: 2,
            },
        })
    }

    /// Those of [batch, tokens, features].
    pub fn of_rows(value: ValueId) -> Self {
        Self { value, axis: 1 }
    }

    /// The sums by `weights` [.., tokens] for each row of it.
    pub fn weighted(self, g: &mut Graph, weights: ValueId) -> ValueResult {
        let args = [("x", weights), ("y", self.value)];
        if self.axis == 1 {
            return g.op("matmul", "pooled", args);
        }
        let [x, y] = args;
        let transposed = ("transpose_y", g.bool(true)?);
        g.op("matmul", "pooled", [x, y, transposed])
    }
}

impl Io {
    /// The hidden state [batch, features] of the last token, or of the last whose id is not
    /// `padding`: of the first token, if all are padding.
    pub fn last(
        &self,
        g: &mut Graph,
        hidden: ValueId,
        padding: Option<usize>,
    ) -> Result<ValueId, ModelError> {
        let vectors = Vectors::of_hidden(g, hidden)?;
        let (Some(padding), Some(input_ids)) = (padding, self.input_ids) else {
            return pool(g, self, vectors, Pooling::LastToken);
        };
        let padding = g.int(i32::try_from(padding).unwrap_or(i32::MAX))?;
        let counts = g.op("not_equal", "is_text", [("x", input_ids), ("y", padding)])?;
        let counts = g.cast(counts, g.spelling().float)?;
        let texts = g.mul(self.pooled, counts)?;
        let first = first_if_none(g, self, texts)?;
        let texts = g.add(texts, first)?;
        // A text may have padding in its middle.
        let last = counted_edge(g, texts, true)?;
        Ok(weighted(g, vectors, last, (1.0, false))?)
    }
}

/// The vector of the first token: [batch, features].
fn first_of(g: &mut Graph, vectors: Vectors) -> ValueResult {
    let (first, axis) = (g.int(0)?, g.int(vectors.axis)?);
    let args = [("x", vectors.value), ("indices", first), ("axis", axis)];
    g.op("gather", "first", args)
}

/// Pools the vectors of tokens to [batch, features].
pub(in crate::layers) fn pool(
    g: &mut Graph,
    io: &Io,
    vectors: Vectors,
    pooling: Pooling,
) -> Result<ValueId, ModelError> {
    let float = g.spelling().float;
    // The least sum of weights: a text without tokens gives a vector of zeros instead of NaN.
    let mut least = 1.0;
    let weights = match pooling {
        Pooling::Cls if !io.has_pooling_mask => return Ok(first_of(g, vectors)?),
        Pooling::Cls => {
            let first = edge(g, io, false)?;
            let start = first_if_none(g, io, io.pooled)?;
            g.add(first, start)?
        }
        Pooling::Max => {
            let one = g.float(1.0)?;
            let padding = g.sub(io.pooled, one)?;
            // Below every value that a hidden state can have.
            let padding = g.scale(padding, if float == DType::Fp16 { 6e4 } else { 1e9 })?;
            let padding = g.expand_dims(padding, &[3 - vectors.axis])?;
            let shown = g.add(vectors.value, padding)?;
            let largest = g.reduce("reduce_max", shown, vectors.axis)?;
            return Ok(g.squeeze(largest, &[vectors.axis])?);
        }
        Pooling::Mean | Pooling::MeanSqrtLen => io.pooled,
        Pooling::WeightedMean if float == DType::Fp16 => {
            // The sum of all positions is beyond fp16.
            least = 1.0 / io.positions.max_tokens() as f32;
            let from_one = io.positions.floats(g, |at| (at + 1) as f32 * least)?;
            g.mul(io.pooled, from_one)?
        }
        Pooling::WeightedMean => {
            let (positions, one) = (io.positions.ints(g)?, g.int(1)?);
            let from_one = g.add(positions, one)?;
            let from_one = g.cast(from_one, float)?;
            g.mul(io.pooled, from_one)?
        }
        Pooling::LastToken => edge(g, io, true)?,
    };
    let is_root = pooling == Pooling::MeanSqrtLen;
    Ok(weighted(g, vectors, weights, (least, is_root))?)
}

/// The sum of `vectors` by `weights` [batch, tokens], divided by the sum of weights, at least
/// `least`, or by its root: [batch, features].
fn weighted(
    g: &mut Graph,
    vectors: Vectors,
    weights: ValueId,
    (least, is_root): (f32, bool),
) -> ValueResult {
    let sum = g.reduce("reduce_sum", weights, -1)?;
    let least = g.float(least)?;
    let sum = g.op("maximum", "at_least", [("x", sum), ("y", least)])?;
    let sum = if is_root {
        g.op("sqrt", "root", [("x", sum)])?
    } else {
        sum
    };
    let weights = g.op("real_div", "weights", [("x", weights), ("y", sum)])?;
    let weights = g.expand_dims(weights, &[1])?; // [batch, 1, tokens]
    let pooled = vectors.weighted(g, weights)?;
    g.squeeze(pooled, &[1])
}

/// 1 at the first of all tokens [batch, tokens] if the mask has none, and 0 elsewhere.
fn first_if_none(g: &mut Graph, io: &Io, mask: ValueId) -> ValueResult {
    let any = g.reduce("reduce_max", mask, -1)?; // [batch, 1]
    let one = g.float(1.0)?;
    let none = g.sub(one, any)?;
    let start = match g.spelling().float {
        DType::Fp16 => io.positions.floats(g, |at| f32::from(u8::from(at == 0)))?,
        float => {
            let (positions, start) = (io.positions.ints(g)?, g.int(0)?);
            let start = g.op("equal", "is_start", [("x", positions), ("y", start)])?;
            g.cast(start, float)?
        }
    };
    g.mul(none, start)
}

/// 1 at the last pooled token, or else at the first, and 0 elsewhere. Pooled tokens follow each
/// other.
fn edge(g: &mut Graph, io: &Io, last: bool) -> ValueResult {
    let mask = io.pooled;
    let Some(n) = io.positions.n_known() else {
        return counted_edge(g, mask, last);
    };
    // What is beside each token, by a slice, which is no count. No constant is the zero: the
    // function of any length has none such, and packages share their constants.
    let first = g.part("first", mask, 1, 0..1)?;
    let zero = g.scale(first, 0.0)?;
    let (values, range) = match last {
        true => ([mask, zero], 1..n + 1),
        false => ([zero, mask], 0..n),
    };
    let both = g.join("concat", &values, 1)?;
    let beside = g.part("beside", both, 1, range)?;
    let change = g.sub(mask, beside)?;
    g.op("relu", "is_edge", [("x", change)])
}

/// The same for any mask: where it has counted one token, which fp16 tells from every other count.
fn counted_edge(g: &mut Graph, mask: ValueId, last: bool) -> ValueResult {
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
