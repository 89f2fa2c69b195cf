//! Heads in functions of fixed length: one product makes queries, keys and values.
//!
//! Queries and keys of all heads are one tensor up to the products, so that norm and rotation are
//! done once. The rows of the projections are taken in the order of the key heads: the queries that
//! share a key head, this key head, its value head. So one product makes all of them, and the
//! queries that are rows of one product later lie together. In functions of one token, the elements
//! of a head are the last axis, as the products want them. Pairs of elements that are rotated
//! together, where a checkpoint stores them side by side, are moved into the halves of a head by
//! taking the rows of the projections in another order: queries and keys are permuted alike, which
//! their products do not see.

use std::slice::from_ref;
use std::sync::Arc;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::{Apart, Attended, Attention, InLayer, NormedHeads, QkNorm, Remembered, Span};
use crate::graph::{Graph, Matrix, ValueResult};
use crate::layers::norm::Norm;
use crate::layers::rope::Rotary;

/// Queries [1, kv_heads, group * tokens, head_dim], and keys and values [1, kv_heads, tokens,
/// head_dim] of a layer that has some of its own.
type Projected = (ValueId, Option<[ValueId; 2]>);

/// A layer, and the layout that its number of tokens calls for: with heads of `head_dim` elements
/// [.., head_dim, tokens], and [.., head_dim] for one token.
struct Joined<'a> {
    a: &'a Attention,
    layer: InLayer<'a>,
    /// The order of a head's elements, if not that of the checkpoint.
    order: Option<Vec<usize>>,
    n_tokens: usize,
}

impl InLayer<'_> {
    /// Projections of `x` [1, hidden, 1, tokens], and what its tokens see.
    pub(super) fn attend_joined(
        &self,
        g: &mut Graph,
        x: ValueId,
        past: Apart<'_>,
    ) -> Result<Attended, BuildError> {
        let (a, rotary) = (self.attention, self.inputs.rotary);
        let joined = Joined {
            a,
            layer: *self,
            order: rotary.and_then(|rotary| rotary.order(a.head_dim)),
            n_tokens: g.len_along(x, -1),
        };
        let gate = match a.gated {
            true => Some(g.joined_product("gate", x, &[joined.part("gate")])?),
            false => None,
        };
        let (q, own) = joined.project(g, x, past.shared.is_none())?;
        // A layer without keys and values of its own shares those of another.
        let mut new = own.or(past.shared).unwrap_or([past.keys, past.values]);
        if let Some([k, v]) = own {
            if past.in_lanes {
                new = [joined.as_lanes(g, k)?, joined.as_lanes(g, v)?];
            }
            if past.streaming.is_none() {
                past.new.borrow_mut().push(new);
            }
        }
        let seen = (past, self.inputs.mask);
        let value = match past.streaming {
            None => a.attend_apart(g, q, new, seen)?,
            Some(streaming) => a.attend_by_heads(g, q, new, seen, streaming)?,
        };
        let (keys, values, new) = (past.keys, past.values, Some(new));
        Ok((value, gate, Remembered { keys, values, new }))
    }
}

impl Joined<'_> {
    fn is_one(&self) -> bool {
        self.n_tokens == 1
    }

    /// Whether the projection of queries takes in the scale of the scores: no bit is lost.
    fn scales_exactly(&self) -> bool {
        let a = self.a;
        a.scale.log2().fract() == 0.0 && a.qk_norm.is_none()
    }

    /// Heads, normalized, rotated and scaled.
    fn project(&self, g: &mut Graph, x: ValueId, has_own: bool) -> Result<Projected, BuildError> {
        let a = self.a;
        let n_parts = match (has_own, a.keys_are_values) {
            (false, _) => 1,
            (true, true) => 2,
            (true, false) => 3,
        };
        let names = ["q_proj", "k_proj", "v_proj"].into_iter().take(n_parts);
        let parts: Vec<Matrix> = names.map(|name| self.part(name)).collect();
        let (mut q, mut own) = match a.qk_norm {
            Some(qk) if qk.span == Span::AllHeads => self.project_each(g, x, qk, &parts)?,
            _ => self.project_together(g, x, &parts)?,
        };
        // Or else the scale is part of the norm's weight.
        if a.qk_norm.is_none() && a.scale != 1.0 && !self.scales_exactly() {
            q = g.scale(q, a.scale as f32)?;
        }
        if let (Some([_, v]), Some(norm)) = (&mut own, a.v_norm) {
            *v = norm.without_weight(g, *v, 3)?;
        }
        Ok((q, own))
    }

    /// Makes queries, keys and values by one product, in the order of the key heads.
    fn project_together(
        &self,
        g: &mut Graph,
        x: ValueId,
        parts: &[Matrix],
    ) -> Result<Projected, BuildError> {
        let a = self.a;
        let (d, kv, group) = (a.head_dim, a.n_kv_heads, a.group());
        let of_head = |head: usize| {
            let parts = parts.iter().zip([group, 1, 1]);
            parts.map(move |(part, n)| part.within(head * n * d..(head + 1) * n * d))
        };
        let rows: Vec<Matrix> = (0..kv).flat_map(of_head).collect();
        let mut both = g.joined_product("qkv_proj", x, &rows)?;
        // Heads of a key head that are rotated.
        let (has_own, mut v) = (parts.len() > 1, None);
        let turned = group + usize::from(has_own);
        both = self.split(g, both, [kv, group + parts.len() - 1])?;
        if parts.len() > 2 {
            let unit = if self.is_one() { 1 } else { d as i32 };
            let split = g.split_sizes(both, &[turned as i32 * unit, unit], 2)?;
            (both, v) = (split[0], Some(self.as_rows(g, split[1])?));
        }
        if !self.is_one() {
            both = g.reshape(both, &[1, (kv * turned) as i32, d as i32, -1])?;
        }
        let heads = [("q_norm", a.n_heads), ("k_norm", kv)];
        let heads = &heads[..1 + usize::from(has_own)];
        let norm = |g: &mut Graph, qk, x| self.normed(g, heads, (qk, x));
        let rotated = a.norm_and_rotate(g, both, norm, |g, x| self.rotated(g, x))?;
        let (q, k) = self.parted(g, rotated, has_own)?;
        if v.is_none() && has_own {
            v = self.parted(g, both, true)?.1;
        }
        Ok((self.scaled_by_position(g, q)?, k.zip(v).map(<[_; 2]>::from)))
    }

    /// A product as `n` times `heads` heads: [1, n, heads * head_dim, tokens], or [1, n, heads,
    /// head_dim] for one token.
    fn split(&self, g: &mut Graph, x: ValueId, [n, heads]: [usize; 2]) -> ValueResult {
        let [n, heads, d] = [n, heads, self.a.head_dim].map(|n| n as i32);
        match self.is_one() {
            true => g.reshape(x, &[1, n, heads, d]),
            false => g.reshape(x, &[1, n, heads * d, -1]),
        }
    }

    /// Queries and, if there are any, keys, as [`Projected`] has them, of `both` [1, kv_heads *
    /// heads, head_dim, tokens], or [1, kv_heads, heads, head_dim] for one token.
    fn parted(
        &self,
        g: &mut Graph,
        mut both: ValueId,
        has_keys: bool,
    ) -> Result<(ValueId, Option<ValueId>), BuildError> {
        let [_, kv, d] = self.a.sizes();
        if !self.is_one() {
            let rows = self.as_rows(g, both)?;
            both = g.reshape(rows, &[1, kv, -1, d])?;
        }
        if !has_keys {
            return Ok((both, None));
        }
        let [group, n] = [self.a.group(), self.n_tokens].map(|n| n as i32);
        let parts = g.split_sizes(both, &[group * n, n], 2)?;
        Ok((parts[0], Some(parts[1])))
    }

    /// Queries as [`Projected`] has them, times the factors of their positions, if there are any.
    fn scaled_by_position(&self, g: &mut Graph, q: ValueId) -> ValueResult {
        let Some(factors) = self.layer.inputs.rotary.and_then(Rotary::queries) else {
            return Ok(q);
        };
        if self.is_one() {
            return g.mul(q, factors);
        }
        let ([h, kv, d], n) = (self.a.sizes(), self.n_tokens as i32);
        let q = g.reshape(q, &[1, h, n, d])?;
        let factors = g.reshape(factors, &[n, 1])?;
        let q = g.mul(q, factors)?;
        g.reshape(q, &[1, kv, -1, d])
    }

    /// Like [`Self::project_together`], of a model whose norm of queries and keys spans all heads:
    /// each is projected, normalized and rotated by itself.
    fn project_each(
        &self,
        g: &mut Graph,
        x: ValueId,
        qk: QkNorm,
        parts: &[Matrix],
    ) -> Result<Projected, BuildError> {
        let a = self.a;
        let norms = [("q_norm", a.n_heads), ("k_norm", a.n_kv_heads)];
        let (mut rows, mut product) = (Vec::new(), x);
        for ((part, norm), name) in parts.iter().zip(norms).zip(["q_proj", "k_proj"]) {
            product = g.joined_product(name, x, from_ref(part))?;
            let normed = self.normed(g, &[norm], (qk, product))?;
            let heads = self.split(g, normed, [norm.1, 1])?;
            let heads = self.rotated(g, heads)?;
            rows.push(self.as_rows(g, heads)?);
        }
        if let Some(v) = parts.get(2) {
            product = g.joined_product("v_proj", x, from_ref(v))?;
        }
        if parts.len() > 1 {
            let v = self.split(g, product, [a.n_kv_heads, 1])?;
            rows.push(self.as_rows(g, v)?);
        }
        let [_, kv, d] = a.sizes();
        let q = g.reshape(rows[0], &[1, kv, -1, d])?;
        let own = rows.get(1).zip(rows.get(2)).map(|(k, v)| [*k, *v]);
        Ok((self.scaled_by_position(g, q)?, own))
    }

    fn rotated(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let rotary = self.layer.inputs.rotary;
        rotary.map_or(Ok(x), |rotary| rotary.apply(g, x))
    }

    /// Normalizes heads by the weights of their modules. Weights of queries carry the scale of the
    /// scores.
    fn normed(
        &self,
        g: &mut Graph,
        heads: NormedHeads<'_>,
        (qk, x): (QkNorm, ValueId),
    ) -> ValueResult {
        let shape = g.shape(x).iter().map(|dim| dim.known().unwrap_or(1));
        let mut shape: Vec<usize> = shape.collect();
        let axis = match qk.span {
            Span::AllHeads => 1,
            _ if self.is_one() => 3,
            _ => 2,
        };
        if axis != 3 {
            shape[3] = 1;
        }
        let (normed, factor, plus) = match qk.norm {
            Norm::Rms(norm) => {
                let (normed, factor) = norm.up_to_factor(g, x, axis)?;
                (normed, factor, f32::from(u8::from(norm.plus_one)))
            }
            Norm::Layer { norm, .. } => (norm.without_weight(g, x, axis)?, 1.0, 0.0),
        };
        let weight = self.norm_numbers(g, heads, qk.span, ("weight", plus, factor));
        let weight = g.floats(&weight, &shape)?;
        let scaled = g.mul(normed, weight)?;
        let Norm::Layer { bias: true, .. } = qk.norm else {
            return Ok(scaled);
        };
        let bias = self.norm_numbers(g, heads, qk.span, ("bias", 0.0, 1.0));
        let bias = g.floats(&bias, &shape)?;
        g.add(scaled, bias)
    }

    /// `(number + plus) * factor` of a parameter, for each element of each head: for every key head
    /// the queries that share it, then itself.
    fn norm_numbers(
        &self,
        g: &Graph,
        heads: NormedHeads<'_>,
        span: Span,
        (parameter, plus, factor): (&str, f32, f32),
    ) -> Vec<f32> {
        let (w, d, kv) = (self.layer.w, self.a.head_dim, self.a.n_kv_heads);
        let of_module = |(name, n): &(&str, usize)| -> Vec<f32> {
            let scale = match *name {
                "q_norm" => self.a.scale as f32,
                _ => 1.0,
            };
            let shape = match span {
                Span::Head => vec![d],
                Span::AllHeads => vec![n * d],
                Span::OwnHead => vec![*n, d],
            };
            let name = format!("{}.{name}", self.layer.module);
            g.note_use(&w.get(&name, parameter, &shape), factor.recip());
            // A fault is reported by `Weights::finish`.
            let stored = w.numbers(&name, parameter, &shape);
            let stored = stored.unwrap_or_else(|| vec![1.0; d]);
            let number = |at: usize| {
                let i = self.order.as_ref().map_or(at % d, |order| order[at % d]);
                (stored[(at / d * d + i) % stored.len()] + plus) * scale * factor
            };
            (0..n * d).map(number).collect()
        };
        let of_modules: Vec<Vec<f32>> = heads.iter().map(of_module).collect();
        let of_head = |(i, all): (usize, &Vec<f32>)| {
            let len = all.len() / kv;
            all[i * len..(i + 1) * len].to_vec()
        };
        let parts = (0..kv).flat_map(|i| of_modules.iter().map(move |all| (i, all)));
        parts.flat_map(of_head).collect()
    }

    /// The rows of a projection, as a part of a joined product. Gates are halved.
    fn part(&self, name: &str) -> Matrix {
        let (a, d) = (self.a, self.a.head_dim);
        let (matrix, n, divisor) = match name {
            "gate" => ("q_proj", a.n_heads, 2.0),
            "q_proj" if self.scales_exactly() => (name, a.n_heads, a.scale.recip() as f32),
            "q_proj" => (name, a.n_heads, 1.0),
            _ => (name, a.n_kv_heads, 1.0),
        };
        let is_rotated = matches!(name, "q_proj" | "k_proj");
        let order = self.order.as_ref().filter(|_| is_rotated);
        let has_gates = a.gated && matrix == "q_proj";
        let stride = if has_gates { 2 * d } else { d };
        let first = if name == "gate" { d } else { 0 };
        let row = |head: usize| {
            let element = move |i: usize| order.map_or(i, |order| order[i]);
            (0..d).map(move |i| head * stride + first + element(i))
        };
        let reordered = order.is_some() || has_gates;
        let (weight, bias) = self.layer.projection(matrix);
        Matrix {
            divisor,
            rows: reordered.then(|| (0..n).flat_map(row).collect::<Arc<[usize]>>()),
            ..Matrix::new(weight, bias)
        }
    }

    /// `x` [1, heads, head_dim, tokens] with a row for each token: [1, heads, tokens, head_dim].
    /// For one token, `x` is that already.
    fn as_rows(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        match self.is_one() {
            true => Ok(x),
            false => g.transpose(x, &[0, 1, 3, 2]),
        }
    }

    /// `x` [1, heads, sequences, head_dim] as [1, sequences * heads, 1, head_dim].
    fn as_lanes(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let rows = g.transpose(x, &[0, 2, 1, 3])?; // [1, sequences, heads, head_dim]
        g.reshape(rows, &[1, -1, 1, self.a.head_dim as i32])
    }
}
