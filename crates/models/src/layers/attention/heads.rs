//! Heads in functions of any length and in encoders: queries, keys and values are projected,
//! normalized and rotated each by itself.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, Dim};

use super::layout::HeadLayout;
use super::segments::Segment;
use super::{Attended, InLayer, NormedHeads, Past, QkNorm, Remembered, Span};
use crate::graph::{Graph, Layout, ValueResult};
use crate::layers::activation::clip;
use crate::layers::norm::Norm;

impl InLayer<'_> {
    /// Projections of `x`, and what its tokens, or the last one, see.
    pub(super) fn attend_in_rows(&self, g: &mut Graph, x: ValueId) -> Result<Attended, BuildError> {
        let (a, needed) = (self.attention, self.inputs.needed_tokens(g, x)?);
        let project = |g: &mut Graph, name: &str, x: ValueId| {
            let (weight, bias) = self.projection(name);
            g.linear(name, x, &weight, bias.as_ref())
        };
        let (mut q, mut gate) = (project(g, "q_proj", needed)?, None);
        if a.gated {
            let [h, _, d] = a.sizes();
            let both = g.reshape(q, &[1, -1, h, 2 * d])?;
            let halves = g.halves(both, -1)?;
            q = g.reshape(halves[0], &[1, -1, h * d])?;
            gate = Some(g.reshape(halves[1], &[1, -1, h * d])?);
        }
        let (value, remembered) = if let Some(Past::Shared(shared)) = self.inputs.past {
            let q = self.queries(g, q)?;
            self.attend_to(g, q, [shared.keys, shared.values])?
        } else {
            let k = project(g, "k_proj", x)?;
            let v = match a.keys_are_values {
                true => k,
                false => project(g, "v_proj", x)?,
            };
            self.attend_projected(g, [q, k, v])?
        };
        Ok((value, gate, remembered))
    }

    /// Attention without its projections, in the layout of the graph; and the keys and values.
    pub(super) fn attend_projected(
        &self,
        g: &mut Graph,
        [q, k, v]: [ValueId; 3],
    ) -> Result<(ValueId, Remembered), BuildError> {
        let (a, rotary) = (self.attention, self.inputs.rotary);
        let (n, heads) = (a.n_kv_heads, &[("k_norm", a.n_kv_heads)]);
        let q = self.queries(g, q)?;
        let k = self.norm_of_all(g, heads, k)?;
        let (k, v) = (self.clipped(g, k)?, self.clipped(g, v)?);
        let (k, mut v) = (self.split(g, k, n)?, self.split(g, v, n)?);
        if let Some(norm) = a.v_norm {
            v = norm.without_weight(g, v, head_axis(g))?;
        }
        let norm = |g: &mut Graph, qk, x| self.normed(g, heads, (qk, x));
        let rotate = |g: &mut Graph, x| rotary.map_or(Ok(x), |rotary| rotary.apply(g, x));
        let k = a.norm_and_rotate(g, k, norm, rotate)?;
        self.attend_to(g, q, [k, v])
    }

    /// Queries of all heads, normalized and rotated.
    fn queries(&self, g: &mut Graph, q: ValueId) -> ValueResult {
        let (a, heads) = (self.attention, &[("q_norm", self.attention.n_heads)]);
        let q = self.norm_of_all(g, heads, q)?;
        let q = self.clipped(g, q)?;
        let q = self.split(g, q, a.n_heads)?;
        let last = self.inputs.last.and_then(|last| last.rotary);
        let rotary = last.or(self.inputs.rotary.copied());
        let norm = |g: &mut Graph, qk, x| self.normed(g, heads, (qk, x));
        let rotate = |g: &mut Graph, x| rotary.map_or(Ok(x), |r| r.apply_to_queries(g, x));
        a.norm_and_rotate(g, q, norm, rotate)
    }

    /// What queries see of keys and values, which go behind those in the cache if there is one.
    fn attend_to(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
    ) -> Result<(ValueId, Remembered), BuildError> {
        let (a, inputs) = (self.attention, &self.inputs);
        let layout = match g.spelling().layout {
            Layout::Rows => HeadLayout::rows(a, g.shape(q)[0] == Dim::Known(1)),
            Layout::Channels => HeadLayout::columns(a, g.len_along(q, 3)),
        };
        let divisor = if layout.fused { a.head_dim } else { 1 };
        let factor = a.scale * (divisor as f64).sqrt();
        let q = match (factor - 1.0).abs() > 1e-9 {
            true => g.scale(q, factor as f32)?,
            false => q,
        };
        let (mut keys, mut values) = (k, v);
        if let Some(Past::Cache { cache, begin, end }) = inputs.past {
            keys = update_cache(g, [begin, end], (cache.k, cache.dtype), k)?;
            values = update_cache(g, [begin, end], (cache.v, cache.dtype), v)?;
        }
        let mask = inputs.last.map_or(inputs.mask, |last| last.mask);
        let attended = layout.attend(g, q, &[Segment::new(&[[keys, values]], mask)])?;
        let new = None;
        Ok((attended, Remembered { keys, values, new }))
    }

    /// Queries, keys or values within the bound, if there is one.
    fn clipped(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let bound = self.attention.clip;
        bound.map_or(Ok(x), |bound| clip(g, x, bound))
    }

    /// Queries or keys of a model whose norm spans all heads, normalized.
    fn norm_of_all(&self, g: &mut Graph, heads: NormedHeads<'_>, x: ValueId) -> ValueResult {
        let norm = self.attention.qk_norm;
        let norm = norm.filter(|qk| qk.span == Span::AllHeads);
        norm.map_or(Ok(x), |qk| self.normed(g, heads, (qk, x)))
    }

    /// Queries or keys, normalized.
    fn normed(
        &self,
        g: &mut Graph,
        heads: NormedHeads<'_>,
        (qk, x): (QkNorm, ValueId),
    ) -> ValueResult {
        let (name, n) = heads[0];
        let (w, d, axis) = (self.w, self.attention.head_dim, head_axis(g));
        let module = format!("{}.{name}", self.module);
        match qk.span {
            Span::AllHeads => return qk.norm.apply(g, w, &module, x, n * d),
            Span::Head => return qk.norm.apply_along(g, w, &module, x, (axis, d)),
            Span::OwnHead => {}
        }
        let normed = match qk.norm {
            Norm::Rms(norm) => norm.without_weight(g, x, axis)?,
            Norm::Layer { norm, .. } => norm.without_weight(g, x, axis)?,
        };
        let weight = g.weight(&w.get(&module, "weight", &[n, d]))?;
        let weight = match g.spelling().layout {
            Layout::Rows => g.reshape(weight, &[1, n as i32, 1, d as i32])?,
            Layout::Channels => g.reshape(weight, &[1, n as i32, d as i32, 1])?,
        };
        g.mul(normed, weight)
    }

    /// Splits heads: [batch, tokens, n * head_dim] to [batch, n, tokens, head_dim], or in the
    /// channel layout [1, n * head_dim, 1, tokens] to [1, n, head_dim, tokens].
    fn split(&self, g: &mut Graph, x: ValueId, n: usize) -> ValueResult {
        let (n, head_dim) = (n as i32, self.attention.head_dim as i32);
        if g.spelling().layout == Layout::Channels {
            return g.reshape(x, &[1, n, head_dim, -1]);
        }
        let split = if g.shape(x)[0] == Dim::Known(1) {
            g.reshape(x, &[1, -1, n, head_dim])?
        } else {
            // Batch and tokens are both symbolic; 0 keeps a dimension.
            let row = g.expand_dims(x, &[2])?;
            g.reshape(row, &[0, 0, n, head_dim])?
        };
        g.transpose(split, &[0, 2, 1, 3])
    }
}

/// The axis of the elements of a head.
fn head_axis(g: &Graph) -> i32 {
    match g.spelling().layout {
        Layout::Rows => -1,
        Layout::Channels => 2,
    }
}

/// Writes `new` [1, kv_heads, tokens, head_dim] behind the tokens in the state, and returns all
/// tokens in the state as fp32.
fn update_cache(
    g: &mut Graph,
    [begin, end]: [ValueId; 2],
    (state, dtype): (ValueId, DType),
    new: ValueId,
) -> ValueResult {
    let new = g.cast(new, dtype)?;
    let (all, but_tokens) = (g.bools(&[true; 4])?, g.bools(&[true, true, false, true])?);
    let old = g.op("read_state", "past", [("input", state)])?;
    let updated = g.slice_update(old, new, [begin, end], but_tokens)?;
    let stored = g.store("stored", state, updated)?;
    let first = g.ints(&[0; 4])?;
    let present = g.slice("present", stored, [first, end], [all, but_tokens])?;
    g.cast(present, DType::Fp32)
}
