//! Rotary position embedding (RoPE).
//!
//! In fp32 the angles are computed from run-time positions, once per function instead of once per
//! layer, like the reference implementation does, and no table of the context's length is stored.
//! Programs in fp16 gather cosines and sines from tables.

mod frequencies;

use std::borrow::Cow;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use crate::checkpoint::RopeConfig;
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};
use frequencies::{Long, scaled_frequencies};

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Element i with element i + head_dim / 2: Hugging Face.
    Half,
    /// Element 2i with element 2i + 1: Cohere, GLM-4 and ERNIE, and GGUF files of the llama
    /// architecture, whose rows are permuted accordingly.
    Interleaved,
}

/// The rotary embedding of some layers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    /// The inverse frequency of each pair of elements. Elements of a head beyond the pairs are not
    /// rotated.
    frequencies: Vec<f32>,
    /// The frequencies of programs for long contexts.
    long: Option<Long>,
    /// Factor of cosines and sines.
    factor: f32,
    style: Style,
    /// Scaling of queries by their position.
    query_scaling: Option<QueryScaling>,
}

/// Scaling of queries by their position: `1 + beta * ln(1 + floor(position / context))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScaling {
    /// Factor of the logarithm.
    pub beta: f32,
    /// Tokens of the context before extension.
    pub context: usize,
}

/// What functions of encoders cannot have.
pub const DEPENDS_ON_LENGTH: &str = "rotary embeddings that depend on the length of a text";

impl Rotation {
    /// The rotary embedding that a configuration describes, for heads of `head_dim` elements.
    /// `theta` is the base of the frequencies where the configuration gives none.
    ///
    /// # Errors
    ///
    /// If the scaling is not supported or does not fit the head.
    pub fn new(
        rope: &RopeConfig,
        theta: f64,
        head_dim: usize,
        style: Style,
    ) -> Result<Self, ModelError> {
        let theta = rope.theta.unwrap_or(theta);
        let (frequencies, long, factor) = scaled_frequencies(rope, theta, head_dim)?;
        let long_ones = long.iter().flat_map(Long::set);
        let mut all = frequencies.iter().chain(long_ones);
        if !factor.is_finite() || !all.all(|frequency| frequency.is_finite()) {
            return Err(ModelError::unsupported(
                "rope_theta",
                theta,
                "its frequencies, scaled as the file says, are no finite numbers",
            ));
        }
        Ok(Self {
            frequencies,
            long,
            factor: factor as f32,
            style,
            query_scaling: None,
        })
    }

    /// The same rotation with frequencies divided by `divisors`, one for each pair.
    pub fn divided(mut self, divisors: &[f32]) -> Self {
        for (frequency, divisor) in self.frequencies.iter_mut().zip(divisors) {
            *frequency /= divisor;
        }
        self
    }

    /// The rotation of an encoder, whose functions of several lengths share its tables.
    ///
    /// # Errors
    ///
    /// Also if texts of up to `n_positions` tokens have different frequencies by their length.
    pub fn of_encoder(
        rope: &RopeConfig,
        theta: f64,
        head_dim: usize,
        n_positions: usize,
    ) -> Result<Self, ModelError> {
        let rotation = Self::new(rope, theta, head_dim, Style::Half)?;
        match rotation.depends_on_length(n_positions) {
            true => Err(ModelError::EncoderForm(DEPENDS_ON_LENGTH)),
            false => Ok(rotation),
        }
    }

    /// The same rotation for queries that are scaled by their position.
    pub fn with_query_scaling(mut self, scaling: QueryScaling) -> Self {
        self.query_scaling = Some(scaling);
        self
    }

    /// Whether the frequencies are the same for texts of all lengths.
    pub fn is_fixed(&self) -> bool {
        self.long.is_none()
    }

    /// Number of pairs of elements that are rotated.
    pub fn n_pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Cosines of the first `context` positions, in a program for `context` tokens: for each
    /// position as many as elements are rotated.
    pub fn cosines(&self, context: usize) -> Vec<f32> {
        self.rows(context, f32::cos, 1.0)
    }

    /// The sines by which the partners of elements are multiplied, likewise: those of each pair's
    /// first element are negated.
    pub fn sines(&self, context: usize) -> Vec<f32> {
        self.rows(context, f32::sin, -1.0)
    }

    /// Factors of the queries, one for each position, if queries are scaled by their position.
    pub fn query_factors(&self, context: usize) -> Option<impl Fn() -> Vec<f32>> {
        let scaling = self.query_scaling?;
        Some(move || (0..context).map(|p| scaling.factor(p)).collect())
    }

    fn rows(&self, context: usize, f: fn(f32) -> f32, first_sign: f32) -> Vec<f32> {
        let frequencies = self.frequencies(context);
        let mut rows = Vec::with_capacity(context * 2 * frequencies.len());
        for p in 0..context {
            let start = rows.len();
            rows.extend(frequencies.iter().map(|w| self.factor * f(p as f32 * w)));
            rows.extend_from_within(start..);
            let first = rows[start..].iter_mut().take(frequencies.len());
            first.for_each(|x| *x *= first_sign);
        }
        rows
    }

    /// With dynamic scaling: the tokens that the model was trained for, and the most that it is
    /// scaled to.
    pub fn dynamic_contexts(&self) -> Option<[usize; 2]> {
        self.long.as_ref()?.dynamic_contexts()
    }

    /// Whether texts of up to `context` tokens have different frequencies by their length.
    pub fn depends_on_length(&self, context: usize) -> bool {
        self.long
            .as_ref()
            .is_some_and(|long| context > long.trained)
    }

    /// Which elements of a head are rotated together.
    pub fn style(&self) -> Style {
        self.style
    }

    /// The inverse frequencies in a program for `context` tokens.
    fn frequencies(&self, context: usize) -> Cow<'_, [f32]> {
        match &self.long {
            Some(long) if context > long.trained => long.for_context(context, 2 * self.n_pairs()),
            _ => Cow::Borrowed(&self.frequencies),
        }
    }
}

/// Cosines and sines for one function, both [tokens, pairs], or [pairs, tokens] in the channel
/// layout. In functions of fixed length they have a row for each rotated element.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    cos: ValueId,
    sin: ValueId,
    /// The axis of a head's elements, if there is a row for each rotated element, as
    /// [`Rotation::cosines`] has them. Pairs are then element i and element i + half.
    whole: Option<i32>,
    /// Factors of the queries, [tokens, 1], or [1, tokens] in the channel layout.
    queries: Option<ValueId>,
    n_pairs: usize,
    style: Style,
}

impl Rotary {
    /// Computes the angles of `positions` [tokens], which are floats, in a program for `context`
    /// tokens.
    pub fn new(
        g: &mut Graph,
        positions: ValueId,
        rotation: &Rotation,
        context: usize,
    ) -> Result<Self, ModelError> {
        g.at_module("rotary");
        let frequencies = rotation.frequencies(context);
        let column = g.expand_dims(positions, &[1])?; // [tokens, 1]
        let row = g.floats(&frequencies, &[1, frequencies.len()])?;
        let angles = g.mul(column, row)?; // [tokens, pairs]
        let mut wave = |op: &str| -> ValueResult {
            let wave = g.op(op, op, [("x", angles)])?;
            if rotation.factor == 1.0 {
                Ok(wave)
            } else {
                g.scale(wave, rotation.factor)
            }
        };
        let (cos, sin) = (wave("cos")?, wave("sin")?);
        let queries = match rotation.query_scaling {
            None => None,
            Some(scaling) => Some(scaling.factors(g, column)?),
        };
        Ok(Self::of(rotation, None, [cos, sin], queries))
    }

    /// Like [`Self::new`], but takes the rows of the tokens from tables of the `context` positions,
    /// as `rows` does.
    ///
    /// fp16 cannot represent angles beyond a few hundred precisely, and a table of all positions is
    /// the same constant in functions of every length.
    pub fn from_table(
        g: &mut Graph,
        rows: impl Fn(&mut Graph, ValueId) -> ValueResult,
        rotation: &Rotation,
        context: usize,
    ) -> Result<Self, ModelError> {
        g.at_module("rotary");
        let frequencies = rotation.frequencies(context);
        let table = |f: fn(f32) -> f32| -> Vec<f32> {
            (0..context)
                .flat_map(|p| frequencies.iter().map(move |w| (p, w)))
                .map(|(p, w)| rotation.factor * f(p as f32 * w))
                .collect()
        };
        let mut part = |values: &[f32]| -> ValueResult {
            let table = g.floats(values, &[context, values.len() / context])?;
            let rows = rows(g, table)?; // [tokens, pairs]
            if g.spelling().layout == Layout::Rows {
                Ok(rows)
            } else {
                g.transpose(rows, &[1, 0])
            }
        };
        let (cos, sin) = (part(&table(f32::cos))?, part(&table(f32::sin))?);
        let queries = match rotation.query_scaling {
            None => None,
            Some(scaling) => {
                let factors: Vec<f32> = (0..context).map(|p| scaling.factor(p)).collect();
                Some(part(&factors)?)
            }
        };
        Ok(Self::of(rotation, None, [cos, sin], queries))
    }

    /// Numbers of `n_tokens` positions, given as [tokens, columns] or [1, 1, columns, tokens], as
    /// [`Self::whole`] takes them: [1, columns] of one token, else with the tokens last.
    pub fn laid_out(g: &mut Graph, x: ValueId, n_columns: usize, n_tokens: usize) -> ValueResult {
        match (g.shape(x).len(), n_tokens) {
            (2, 1) => Ok(x),
            (2, _) => g.transpose(x, &[1, 0]),
            (_, 1) => g.reshape(x, &[1, n_columns as i32]),
            _ => Ok(x),
        }
    }

    /// Cosines and sines of `rotation`, and factors of the queries, as [`Self::laid_out`] gives
    /// them. Heads must have their elements in [`Self::order`], along axis
    /// 2, or 3 in functions of one token.
    pub fn whole(
        rotation: &Rotation,
        n_tokens: usize,
        waves: [ValueId; 2],
        queries: Option<ValueId>,
    ) -> Self {
        let axis = if n_tokens == 1 { 3 } else { 2 };
        Self::of(rotation, Some(axis), waves, queries)
    }

    fn of(
        rotation: &Rotation,
        whole: Option<i32>,
        [cos, sin]: [ValueId; 2],
        queries: Option<ValueId>,
    ) -> Self {
        Self {
            cos,
            sin,
            whole,
            queries,
            n_pairs: rotation.n_pairs(),
            style: rotation.style,
        }
    }

    /// The elements of a head of `head_dim` elements in the order in which [`Self::whole`] takes
    /// them; `None` if that is the order in which they are stored.
    pub fn order(&self, head_dim: usize) -> Option<Vec<usize>> {
        let rotated = (2 * self.n_pairs).min(head_dim);
        let first = (0..rotated).step_by(2);
        let order = first
            .chain((1..rotated).step_by(2))
            .chain(rotated..head_dim);
        (self.style == Style::Interleaved).then(|| order.collect())
    }

    /// Factors of the queries, if they are scaled by their position.
    pub fn queries(&self) -> Option<ValueId> {
        self.queries
    }

    /// Cosines and sines of the last token, in the row layout.
    pub fn last(&self, g: &mut Graph) -> Result<Self, BuildError> {
        let queries = self.queries.map(|factors| g.last(factors, 0)).transpose()?;
        Ok(Self {
            cos: g.last(self.cos, 0)?,
            sin: g.last(self.sin, 0)?,
            queries,
            ..*self
        })
    }

    /// Rotates queries and scales them by their position, if the model does so.
    pub fn apply_to_queries(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let x = self.apply(g, x)?;
        self.queries.map_or(Ok(x), |factors| g.mul(x, factors))
    }

    /// Rotates `x` [batch, heads, tokens, head_dim], or [1, heads, head_dim, tokens] in the channel
    /// layout.
    pub fn apply(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let axis = match (self.whole, g.spelling().layout) {
            (Some(axis), _) => axis,
            (None, Layout::Rows) => -1,
            (None, Layout::Channels) => 2,
        };
        let head_dim = g.len_along(x, axis);
        let rotated = 2 * self.n_pairs;
        if rotated >= head_dim {
            return self.apply_to_all(g, x, axis);
        }
        let sizes = [rotated as i32, (head_dim - rotated) as i32];
        let parts = g.split_sizes(x, &sizes, axis)?;
        let first = self.apply_to_all(g, parts[0], axis)?;
        g.join("concat", &[first, parts[1]], axis)
    }

    /// Rotates all elements of the heads, which lie along `axis`.
    fn apply_to_all(&self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
        if self.whole.is_some() {
            let [a, b] = g.halves(x, axis)?;
            let partners = g.join("concat", &[b, a], axis)?;
            let (kept, turned) = (g.mul(x, self.cos)?, g.mul(partners, self.sin)?);
            return g.add(kept, turned);
        }
        match self.style {
            Style::Half => {
                let [a, b] = g.halves(x, axis)?;
                let (left, right) = self.rotate(g, a, b)?;
                g.join("concat", &[left, right], axis)
            }
            Style::Interleaved if g.spelling().layout == Layout::Channels => {
                let (a, b) = (every_second(g, x, 0)?, every_second(g, x, 1)?);
                let (left, right) = self.rotate(g, a, b)?;
                // Queries and keys come out in the same permuted order, which their dot products do
                // not see.
                g.join("concat", &[left, right], 2)
            }
            Style::Interleaved => {
                let dims: Vec<i32> = g
                    .shape(x)
                    .iter()
                    .map(|d| d.known().map_or(-1, |n| n as i32))
                    .collect();
                let pairs = g.reshape(x, &[dims[0], dims[1], dims[2], dims[3] / 2, 2])?;
                let [a, b] = g.halves(pairs, -1)?;
                let (a, b) = (g.squeeze(a, &[-1])?, g.squeeze(b, &[-1])?);
                let (left, right) = self.rotate(g, a, b)?;
                let pairs = g.join("stack", &[left, right], -1)?;
                g.reshape(pairs, &dims)
            }
        }
    }

    /// `(a cos - b sin, b cos + a sin)`.
    fn rotate(
        &self,
        g: &mut Graph,
        a: ValueId,
        b: ValueId,
    ) -> Result<(ValueId, ValueId), BuildError> {
        let (ac, bs) = (g.mul(a, self.cos)?, g.mul(b, self.sin)?);
        let (bc, as_) = (g.mul(b, self.cos)?, g.mul(a, self.sin)?);
        Ok((g.sub(ac, bs)?, g.add(bc, as_)?))
    }
}

/// The elements `first`, `first + 2`, .. of each head in `x` [1, heads, head_dim, tokens].
fn every_second(g: &mut Graph, x: ValueId, first: i32) -> ValueResult {
    let (begin, end, stride) = (
        g.ints(&[0, 0, first, 0])?,
        g.ints(&[0; 4])?,
        g.ints(&[1, 1, 2, 1])?,
    );
    let (begin_mask, end_mask) = (g.bools(&[true, true, false, true])?, g.bools(&[true; 4])?);
    let args = [
        ("x", x),
        ("begin", begin),
        ("end", end),
        ("stride", stride),
        ("begin_mask", begin_mask),
        ("end_mask", end_mask),
    ];
    g.op("slice_by_index", "of_pairs", args)
}

impl QueryScaling {
    /// The factor of a query at `position`.
    fn factor(self, position: usize) -> f32 {
        1.0 + self.beta * ((1 + position / self.context) as f32).ln()
    }

    /// The factors of queries at `positions` [tokens, 1].
    fn factors(self, g: &mut Graph, positions: ValueId) -> ValueResult {
        let context = g.float(self.context as f32)?;
        let times = g.op("floor_div", "times", [("x", positions), ("y", context)])?;
        let one = g.float(1.0)?;
        let times = g.add(times, one)?;
        let tiny = g.float(0.0)?;
        let log = g.op("log", "log", [("x", times), ("epsilon", tiny)])?;
        let log = g.scale(log, self.beta)?;
        g.add(log, one)
    }
}
