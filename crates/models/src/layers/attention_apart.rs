//! Attention in functions of fixed length, where the cache before the call and the tokens of the
//! call are apart.
//!
//! Queries and keys of all heads are one tensor up to the products, so that norm and rotation are
//! done once. The rows of the projections are taken in the order of the key heads: the queries that
//! share a key head, this key head, its value head. So one product makes all of them, and the
//! queries that are rows of one product later lie together. In functions of one token, the elements
//! of a head are the last axis, as the products want them. Pairs of elements that are rotated
//! together, where a checkpoint stores them side by side, are moved into the halves of a head by
//! taking the rows of the projections in another order: queries and keys are permuted alike, which
//! their products do not see.

use std::sync::Arc;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::activation::half_sigmoid;
use super::attention::{Apart, Attention, AttentionInputs, QkNorm, Remembered, Span, soft_capped};
use super::norm::Norm;
use super::rope::Rotary;
use crate::graph::{Graph, Part, ValueResult};
use crate::weights::Weights;

/// A norm, and the modules of its weights with their numbers of heads.
type HeadNorm<'a> = (QkNorm, &'a [(&'a str, usize)]);

/// The rows of queries, keys and values, of those that a layer projects.
type Parts = [Option<Part>; 3];

/// Queries, keys and values, as [`Heads`] has them, of those that a layer projects.
type Projected = (ValueId, Option<ValueId>, Option<ValueId>);

/// How heads are rotated, and the layout that their number of tokens calls for: with heads of
/// `head_dim` elements [.., head_dim, tokens], and [.., head_dim] for one token.
#[derive(Clone, Copy)]
struct Turn<'a> {
    rotary: Option<&'a Rotary>,
    /// The order of a head's elements, if not that of the checkpoint.
    order: Option<&'a [usize]>,
    n_tokens: usize,
}

impl Turn<'_> {
    fn is_one(self) -> bool {
        self.n_tokens == 1
    }
}

/// What a layer's projections give.
struct Heads {
    /// Queries [1, kv_heads, group * tokens, head_dim], normalized, rotated and scaled.
    q: ValueId,
    /// Keys and values of the call's tokens, [1, kv_heads, tokens, head_dim]; none if the layer has
    /// those of another one.
    own: Option<[ValueId; 2]>,
    /// Half the gates, [1, heads * head_dim, 1, tokens].
    gate: Option<ValueId>,
}

impl Attention {
    /// Attention with its projections, for every token of `x` [1, hidden, 1, tokens]; and the keys
    /// and values, for layers that share them.
    pub(super) fn apply_apart(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (inputs, past): (AttentionInputs<'_>, Apart<'_>),
    ) -> Result<(ValueId, Option<Remembered>), BuildError> {
        let heads = self.project_heads(g, w, module, x, (inputs, past.shared.is_none()))?;
        let new = match (heads.own, past.shared) {
            (Some(own), _) => {
                let new = if past.in_lanes {
                    let [k, v] = own;
                    [self.as_lanes(g, k)?, self.as_lanes(g, v)?]
                } else {
                    own
                };
                if past.streaming.is_none() {
                    past.new.borrow_mut().push(new);
                }
                new
            }
            (None, Some(shared)) => shared,
            // A layer without keys and values of its own shares those of another.
            (None, None) => [past.keys, past.values],
        };
        let attended = match past.streaming {
            None if past.in_lanes => self.attend_in_lanes(g, heads.q, new, past, inputs.mask)?,
            None => self.attend_apart(g, heads.q, new, past, inputs.mask)?,
            Some(streaming) => {
                self.attend_by_heads(g, heads.q, new, (past, inputs.mask), streaming)?
            }
        };
        let attended = match heads.gate {
            None => attended,
            Some(gate) => {
                let open = half_sigmoid(g, gate)?;
                g.mul(attended, open)?
            }
        };
        let rows = self.n_heads * self.head_dim;
        let output = format!("{module}.o_proj");
        let weight = w.rows(&output, 0..self.hidden, [self.hidden, rows]);
        let bias = self
            .output_bias
            .then(|| w.get(&output, "bias", &[self.hidden]));
        let output = g.linear_to_residual("o_proj", attended, &weight, bias.as_ref())?;
        let (keys, values) = (past.keys, past.values);
        let new = Some(new);
        Ok((output, Some(Remembered { keys, values, new })))
    }

    /// Projections, norms and rotation.
    fn project_heads(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (inputs, has_own): (AttentionInputs<'_>, bool),
    ) -> Result<Heads, BuildError> {
        let order = inputs.rotary.and_then(|rotary| rotary.order(self.head_dim));
        let turn = Turn {
            rotary: inputs.rotary,
            order: order.as_deref(),
            n_tokens: g.len_along(x, -1),
        };
        // The scale is part of the norm's weight, or of the projection if no bit is lost.
        let exact = self.scale.log2().fract() == 0.0 && self.qk_norm.is_none();
        let q = Part {
            divisor: if exact {
                self.scale.recip() as f32
            } else {
                1.0
            },
            ..self.part(w, module, "q_proj", order.as_deref())
        };
        let k = has_own.then(|| self.part(w, module, "k_proj", order.as_deref()));
        let has_values = has_own && !self.keys_are_values;
        let v = has_values.then(|| self.part(w, module, "v_proj", None));
        let gate = if self.gated {
            let part = Part {
                divisor: 2.0,
                ..self.part(w, module, "gate", None)
            };
            Some(g.joined_product("gate", x, &[part])?)
        } else {
            None
        };
        let spans_all = self.qk_norm.is_some_and(|qk| qk.span == Span::AllHeads);
        let (q, k, v) = if spans_all {
            self.project_apart(g, w, module, x, ([Some(q), k, v], turn))?
        } else {
            self.project_together(g, w, module, x, ([Some(q), k, v], turn))?
        };
        let q = if exact || self.scale == 1.0 || self.qk_norm.is_some() {
            q
        } else {
            g.scale(q, self.scale as f32)?
        };
        let v = match (v, self.v_norm) {
            (Some(v), Some(norm)) => Some(norm.without_weight(g, v, 3)?),
            (v, _) => v,
        };
        let own = k.zip(v).map(|(k, v)| [k, v]);
        Ok(Heads { q, own, gate })
    }

    /// Makes queries, keys and values by one product, in the order of the key heads.
    fn project_together(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (parts, turn): (Parts, Turn<'_>),
    ) -> Result<Projected, BuildError> {
        let (d, kv, group) = (self.head_dim, self.n_kv_heads, self.group());
        let (has_keys, has_values) = (parts[1].is_some(), parts[2].is_some());
        let of_head = |head: usize| {
            let parts = parts.iter().zip([group, 1, 1]);
            parts.filter_map(move |(part, n)| {
                let rows = head * n * d..(head + 1) * n * d;
                part.as_ref().map(|part| part.within(rows))
            })
        };
        let rows: Vec<Part> = (0..kv).flat_map(of_head).collect();
        let all = g.joined_product("qkv_proj", x, &rows)?;
        // Heads of a key head that are rotated, and all.
        let turned = group + usize::from(has_keys);
        let (both, v) = if has_values {
            let all = self.by_key_head(g, all, turned + 1, turn)?;
            let unit = if turn.is_one() { 1 } else { d as i32 };
            let parts = g.split_sizes(all, &[turned as i32 * unit, unit], 2)?;
            (parts[0], Some(self.as_rows(g, parts[1], turn)?))
        } else {
            (self.by_key_head(g, all, turned, turn)?, None)
        };
        let both = if turn.is_one() {
            both
        } else {
            g.reshape(both, &[1, (kv * turned) as i32, d as i32, -1])?
        };
        let heads = [
            ("q_norm", self.n_heads),
            ("k_norm", if has_keys { kv } else { 0 }),
        ];
        let rotated = self.norm_and_rotate(g, w, module, both, (&heads, turn))?;
        let (q, k) = self.parted(g, rotated, (has_keys, turn))?;
        let v = match v {
            None if has_keys => self.parted(g, both, (true, turn))?.1,
            v => v,
        };
        Ok((self.scaled_by_position(g, q, turn)?, k, v))
    }

    /// A product as `heads` heads for each key head: [1, kv_heads, heads * head_dim, tokens], or
    /// [1, kv_heads, heads, head_dim] for one token.
    fn by_key_head(&self, g: &mut Graph, x: ValueId, heads: usize, turn: Turn<'_>) -> ValueResult {
        let (kv, heads, d) = (self.n_kv_heads as i32, heads as i32, self.head_dim as i32);
        if turn.is_one() {
            g.reshape(x, &[1, kv, heads, d])
        } else {
            g.reshape(x, &[1, kv, heads * d, -1])
        }
    }

    /// Queries and, if there are any, keys, as [`Heads`] has them, of `both` [1, kv_heads * heads,
    /// head_dim, tokens], or [1, kv_heads, heads, head_dim] for one token.
    fn parted(
        &self,
        g: &mut Graph,
        both: ValueId,
        (has_keys, turn): (bool, Turn<'_>),
    ) -> Result<(ValueId, Option<ValueId>), BuildError> {
        let (d, kv) = (self.head_dim as i32, self.n_kv_heads as i32);
        let both = if turn.is_one() {
            both
        } else {
            let rows = g.transpose(both, &[0, 1, 3, 2])?;
            g.reshape(rows, &[1, kv, -1, d])?
        };
        if !has_keys {
            return Ok((both, None));
        }
        let [group, n] = [self.group(), turn.n_tokens].map(|n| n as i32);
        let parts = g.split_sizes(both, &[group * n, n], 2)?;
        Ok((parts[0], Some(parts[1])))
    }

    /// Queries as [`Heads`] has them, times the factors of their positions, if the model has some.
    fn scaled_by_position(&self, g: &mut Graph, q: ValueId, turn: Turn<'_>) -> ValueResult {
        let Some(factors) = turn.rotary.and_then(Rotary::queries) else {
            return Ok(q);
        };
        if turn.is_one() {
            return g.mul(q, factors);
        }
        let [h, kv, d] = [self.n_heads, self.n_kv_heads, self.head_dim].map(|n| n as i32);
        let n = turn.n_tokens as i32;
        let q = g.reshape(q, &[1, h, n, d])?;
        let factors = g.reshape(factors, &[n, 1])?;
        let q = g.mul(q, factors)?;
        g.reshape(q, &[1, kv, -1, d])
    }

    /// Like [`Self::project_together`], of a model whose norm of queries and keys spans all heads:
    /// each is projected, normalized and rotated by itself.
    fn project_apart(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (parts, turn): (Parts, Turn<'_>),
    ) -> Result<Projected, BuildError> {
        let (d, kv) = (self.head_dim as i32, self.n_kv_heads);
        let split = |g: &mut Graph, x, n: usize| match turn.n_tokens {
            1 => g.reshape(x, &[1, n as i32, 1, d]),
            _ => g.reshape(x, &[1, n as i32, d, -1]),
        };
        let names = [("q_proj", "q_norm", self.n_heads), ("k_proj", "k_norm", kv)];
        let [q, k, v] = parts;
        let (mut rows, mut raw) = (Vec::new(), None);
        for (part, (name, norm, n)) in [q, k].into_iter().zip(names) {
            let Some(part) = part else { continue };
            let product = g.joined_product(name, x, &[part])?;
            let normed = match self.qk_norm {
                None => product,
                Some(qk) => self.normed_heads(g, w, module, product, ((qk, &[(norm, n)]), turn))?,
            };
            let heads = split(g, normed, n)?;
            let heads = match turn.rotary {
                None => heads,
                Some(rotary) => rotary.apply(g, heads)?,
            };
            rows.push(self.as_rows(g, heads, turn)?);
            raw = Some((product, n));
        }
        let v = match (v, raw) {
            (Some(v), _) => Some((g.joined_product("v_proj", x, &[v])?, kv)),
            (None, Some(raw)) if rows.len() > 1 => Some(raw),
            _ => None,
        };
        let v = match v {
            None => None,
            Some((v, n)) => {
                let heads = split(g, v, n)?;
                Some(self.as_rows(g, heads, turn)?)
            }
        };
        let q = g.reshape(rows[0], &[1, kv as i32, -1, d])?;
        Ok((
            self.scaled_by_position(g, q, turn)?,
            rows.get(1).copied(),
            v,
        ))
    }

    /// Norm and rotation of heads, in the order of the model.
    fn norm_and_rotate(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (heads, turn): (&[(&str, usize)], Turn<'_>),
    ) -> ValueResult {
        let norm = |g: &mut Graph, x, after: bool| match self.qk_norm {
            Some(qk) if qk.after_rotation == after => {
                self.normed_heads(g, w, module, x, ((qk, heads), turn))
            }
            _ => Ok(x),
        };
        let x = norm(g, x, false)?;
        let x = match turn.rotary {
            None => x,
            Some(rotary) => rotary.apply(g, x)?,
        };
        norm(g, x, true)
    }

    /// Normalizes heads by the weights of these modules. Weights of queries carry the scale of the
    /// scores.
    fn normed_heads(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        ((qk, heads), turn): (HeadNorm<'_>, Turn<'_>),
    ) -> ValueResult {
        let shape = g.shape(x).iter().map(|dim| dim.known().unwrap_or(1));
        let mut shape: Vec<usize> = shape.collect();
        let axis = match (qk.span, turn.n_tokens) {
            (Span::AllHeads, _) => 1,
            (_, 1) => 3,
            _ => 2,
        };
        if axis != 3 {
            shape[3] = 1;
        }
        let (normed, factor, plus) = match qk.norm {
            Norm::Rms(norm) => {
                let (normed, factor) = norm.up_to_factor(g, x, axis)?;
                (normed, factor, if norm.plus_one { 1.0 } else { 0.0 })
            }
            Norm::Layer { norm, .. } => (norm.without_weight(g, x, axis)?, 1.0, 0.0),
        };
        let weight = ("weight", plus, factor);
        let weight = self.norm_numbers(g, w, module, weight, ((qk, heads), turn.order));
        let weight = g.floats(&weight, &shape)?;
        let scaled = g.mul(normed, weight)?;
        let Norm::Layer { bias: true, .. } = qk.norm else {
            return Ok(scaled);
        };
        let bias = ("bias", 0.0, 1.0);
        let bias = self.norm_numbers(g, w, module, bias, ((qk, heads), turn.order));
        let bias = g.floats(&bias, &shape)?;
        g.add(scaled, bias)
    }

    /// `(number + plus) * factor` of a parameter of these modules, for each element of each head:
    /// for every key head the queries that share it, then itself.
    fn norm_numbers(
        &self,
        g: &Graph,
        w: &Weights<'_>,
        module: &str,
        (parameter, plus, factor): (&str, f32, f32),
        ((qk, heads), order): (HeadNorm<'_>, Option<&[usize]>),
    ) -> Vec<f32> {
        let d = self.head_dim;
        let of_module = |(name, n): &(&str, usize)| -> Vec<f32> {
            let scale = match *name {
                "q_norm" => self.scale as f32,
                _ => 1.0,
            };
            let shape = match qk.span {
                Span::Head => vec![d],
                Span::AllHeads => vec![n * d],
                Span::OwnHead => vec![*n, d],
            };
            let name = format!("{module}.{name}");
            g.note_use(&w.get(&name, parameter, &shape), factor.recip());
            // A fault is reported by `Weights::finish`.
            let stored = w.numbers(&name, parameter, &shape);
            let stored = stored.unwrap_or_else(|| vec![1.0; d]);
            let number = |at: usize| {
                let i = order.map_or(at % d, |order| order[at % d]);
                (stored[(at / d * d + i) % stored.len()] + plus) * scale * factor
            };
            (0..n * d).map(number).collect()
        };
        let of_modules: Vec<_> = heads
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(of_module)
            .collect();
        let n_groups = if of_modules.len() > 1 {
            self.n_kv_heads
        } else {
            1
        };
        let group = |i| {
            let part = move |all: &Vec<f32>| {
                let len = all.len() / n_groups;
                all[i * len..(i + 1) * len].to_vec()
            };
            of_modules.iter().flat_map(part).collect::<Vec<f32>>()
        };
        (0..n_groups).flat_map(group).collect()
    }

    /// The rows of a projection, as a part of a joined product. `order` is that of the elements of
    /// a head.
    fn part(&self, w: &Weights<'_>, module: &str, name: &str, order: Option<&[usize]>) -> Part {
        let (d, h, kv) = (self.head_dim, self.n_heads, self.n_kv_heads);
        let (n, before) = match name {
            "q_proj" | "gate" => (h, 0),
            "k_proj" => (kv, h),
            _ => (kv, h + kv),
        };
        // Where queries have gates, each head's gate follows its query.
        let is_query = matches!(name, "q_proj" | "gate");
        let (stride, skip) = match (self.gated && is_query, name) {
            (true, "gate") => (2 * d, d),
            (true, _) => (2 * d, 0),
            _ => (d, 0),
        };
        let all_rows = if self.gated && is_query {
            2 * h * d
        } else {
            n * d
        };
        let (matrix, first, all) = if self.joined {
            ("qkv_proj", before * d, (h + 2 * kv) * d)
        } else if name == "gate" {
            ("q_proj", 0, all_rows)
        } else {
            (name, 0, all_rows)
        };
        let matrix = format!("{module}.{matrix}");
        let rows = first..first + all_rows;
        let weight = w.rows(&matrix, rows.clone(), [all, self.hidden]);
        let bias = self.qkv_bias.then(|| w.bias_rows(&matrix, rows, all));
        let element = |i: usize| order.map_or(i, |order| order[i]);
        let row = |head: usize| (0..d).map(move |i| head * stride + skip + element(i));
        let reordered = order.is_some() || (self.gated && is_query);
        Part {
            rows: reordered.then(|| (0..n).flat_map(row).collect::<Arc<[usize]>>()),
            ..Part::new(weight, bias)
        }
    }

    /// `x` [1, heads, head_dim, tokens] with a row for each token: [1, heads, tokens, head_dim].
    /// For one token, `x` is that already.
    fn as_rows(&self, g: &mut Graph, x: ValueId, turn: Turn<'_>) -> ValueResult {
        if turn.is_one() {
            return Ok(x);
        }
        g.transpose(x, &[0, 1, 3, 2])
    }

    /// The products. The queries that share a key head become rows of one product.
    pub(super) fn attend_apart(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
        past: Apart<'_>,
        mask: ValueId,
    ) -> ValueResult {
        if let Some(tile) = past.tile.filter(|tile| *tile < past.context) {
            return self.attend_by_tiles(g, q, [k, v], (past, tile), mask);
        }
        let [h, kv] = [self.n_heads, self.n_kv_heads].map(|n| n as i32);
        let n = g.len_along(q, 2) / self.group();
        let many = n > 1;
        let yes = g.bool(true)?;
        let mut product = |name: &str, keys| {
            let args = [("x", q), ("y", keys), ("transpose_y", yes)];
            g.op("matmul", name, args)
        };
        let (before, own) = (product("past_scores", past.keys)?, product("scores", k)?);
        let scores = g.join("concat", &[before, own], -1)?;
        let n_keys = (past.context + n) as i32;
        let scores = if many {
            g.reshape(scores, &[1, h, n as i32, n_keys])?
        } else {
            scores
        };
        let scores = match self.soft_cap {
            None => scores,
            Some(cap) => soft_capped(g, scores, cap)?,
        };
        let scores = g.add(scores, mask)?;
        let axis = g.int(-1)?;
        let weights = g.op("softmax", "weights", [("x", scores), ("axis", axis)])?;
        let weights = if many {
            g.reshape(weights, &[1, kv, -1, n_keys])?
        } else {
            weights
        };
        let parts = g.split_sizes(weights, &[past.context as i32, n as i32], -1)?;
        let mut product =
            |name: &str, weights, values| g.op("matmul", name, [("x", weights), ("y", values)]);
        let (before, own) = (
            product("past_attended", parts[0], past.values)?,
            product("attended", parts[1], v)?,
        );
        let out = g.add(before, own)?;
        self.as_features(g, out, n)
    }

    /// `x` [1, kv_heads, group * tokens, head_dim] as features [1, heads * head_dim, 1, tokens].
    pub(super) fn as_features(&self, g: &mut Graph, x: ValueId, n: usize) -> ValueResult {
        let [h, d] = [self.n_heads, self.head_dim].map(|n| n as i32);
        if n == 1 {
            return g.reshape(x, &[1, h * d, 1, 1]);
        }
        let x = g.reshape(x, &[1, h, n as i32, d])?;
        let x = g.transpose(x, &[0, 1, 3, 2])?;
        g.reshape(x, &[1, h * d, 1, n as i32])
    }
}
