//! Attention in functions of fixed length, where the cache before the call and the tokens of the
//! call are apart.
//!
//! Queries and keys of all heads are one tensor up to the products, so that norm and rotation are
//! done once. Pairs of elements that are rotated together, where a checkpoint stores them side by
//! side, are moved into the halves of a head by taking the rows of the projections in another
//! order: queries and keys are permuted alike, which their products do not see.

use std::sync::Arc;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::attention::{Apart, Attention, AttentionInputs, QkNorm, Remembered, Span, soft_capped};
use super::norm::Norm;
use crate::graph::{Graph, Part, ValueResult};
use crate::weights::Weights;

/// A norm, the modules of its weights with their numbers of heads, and the order of a head's
/// elements.
type HeadNorm<'a> = (QkNorm, &'a [(&'a str, usize)], Option<&'a [usize]>);

/// What a layer's projections give.
struct Heads {
    /// Queries [1, heads, head_dim, tokens], normalized, rotated and scaled.
    q: ValueId,
    /// Keys and values of the call's tokens, likewise; none if the layer has those of another one.
    own: Option<[ValueId; 2]>,
    /// Gates [1, heads * head_dim, 1, tokens].
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
            (Some([k, v]), _) => {
                let new = match past.in_lanes {
                    true => [self.as_lanes(g, k)?, self.as_lanes(g, v)?],
                    false => [self.as_rows(g, k)?, self.as_rows(g, v)?],
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
                let open = g.op("sigmoid", "open", [("x", gate)])?;
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
        let d = self.head_dim;
        let [h, kv] = [self.n_heads, self.n_kv_heads].map(|n| n as i32);
        let order = inputs.rotary.and_then(|rotary| rotary.order(d));
        let normed_together = self.qk_norm.is_none_or(|norm| norm.span != Span::AllHeads);
        // The scale is part of the norm's weight, or of the projection if no bit is lost.
        let exact = self.scale.log2().fract() == 0.0 && self.qk_norm.is_none();
        let mut parts = vec![Part {
            divisor: if exact {
                self.scale.recip() as f32
            } else {
                1.0
            },
            ..self.part(w, module, "q_proj", order.as_deref())
        }];
        if has_own {
            parts.push(self.part(w, module, "k_proj", order.as_deref()));
        }
        let both = g.joined_product("qk_proj", x, &parts)?;
        let v = if has_own && !self.keys_are_values {
            let part = self.part(w, module, "v_proj", None);
            let v = g.joined_product("v_proj", x, &[part])?;
            Some(g.reshape(v, &[1, kv, d as i32, -1])?)
        } else {
            None
        };
        let gate = if self.gated {
            let part = self.part(w, module, "gate", None);
            Some(g.joined_product("gate", x, &[part])?)
        } else {
            None
        };
        let all = if has_own { h + kv } else { h };
        let (q, k, raw) = if normed_together {
            let both = g.reshape(both, &[1, all, d as i32, -1])?;
            let turned = self.norm_and_rotate(g, w, module, both, (inputs, order.as_deref()))?;
            let (q, k) = self.parted(g, turned, has_own)?;
            let raw = match (has_own, v) {
                (true, None) => self.parted(g, both, true)?.1,
                _ => None,
            };
            (q, k, raw)
        } else {
            self.normed_apart(g, w, module, both, (inputs, order.as_deref(), has_own))?
        };
        let q = match inputs.rotary.and_then(|rotary| rotary.queries()) {
            None => q,
            Some(factors) => g.mul(q, factors)?,
        };
        let q = if exact || self.scale == 1.0 || self.qk_norm.is_some() {
            q
        } else {
            g.scale(q, self.scale as f32)?
        };
        let v = match (v.or(raw), self.v_norm) {
            (Some(v), Some(norm)) => Some(norm.without_weight(g, v, 2)?),
            (v, _) => v,
        };
        let own = k.zip(v).map(|(k, v)| [k, v]);
        Ok(Heads { q, own, gate })
    }

    /// Queries and, if there are any, keys, of one tensor.
    fn parted(
        &self,
        g: &mut Graph,
        both: ValueId,
        has_keys: bool,
    ) -> Result<(ValueId, Option<ValueId>), BuildError> {
        if !has_keys {
            return Ok((both, None));
        }
        let sizes = [self.n_heads as i32, self.n_kv_heads as i32];
        let parts = g.split_sizes(both, &sizes, 1)?;
        Ok((parts[0], Some(parts[1])))
    }

    /// Queries and keys whose norm spans all heads: each is normalized, split and rotated by
    /// itself. Also gives the keys before the norm.
    #[allow(clippy::type_complexity)] // one caller, which names the parts
    fn normed_apart(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        both: ValueId,
        (inputs, order, has_own): (AttentionInputs<'_>, Option<&[usize]>, bool),
    ) -> Result<(ValueId, Option<ValueId>, Option<ValueId>), BuildError> {
        let counts = [self.n_heads, self.n_kv_heads];
        let counts = if has_own { &counts[..] } else { &counts[..1] };
        let sizes: Vec<i32> = counts.iter().map(|n| (n * self.head_dim) as i32).collect();
        let parts = if has_own {
            g.split_sizes(both, &sizes, 1)?
        } else {
            vec![both]
        };
        let mut turned = Vec::new();
        for ((part, n), name) in parts.iter().zip(counts).zip(["q_norm", "k_norm"]) {
            let heads = [(name, *n)];
            let part = match self.qk_norm {
                None => *part,
                Some(qk) => self.normed_heads(g, w, module, *part, (qk, &heads, order))?,
            };
            let part = g.reshape(part, &[1, *n as i32, self.head_dim as i32, -1])?;
            turned.push(match inputs.rotary {
                None => part,
                Some(rotary) => rotary.apply(g, part)?,
            });
        }
        let raw = match parts.get(1) {
            Some(k) => Some(g.reshape(*k, &[1, self.n_kv_heads as i32, self.head_dim as i32, -1])?),
            None => None,
        };
        Ok((turned[0], turned.get(1).copied(), raw))
    }

    /// Norm and rotation of heads, in the order of the model. Queries come first, then keys.
    fn norm_and_rotate(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (inputs, order): (AttentionInputs<'_>, Option<&[usize]>),
    ) -> ValueResult {
        let all = g.shape(x)[1].known().unwrap_or_default();
        let heads = [
            ("q_norm", self.n_heads),
            ("k_norm", all.saturating_sub(self.n_heads)),
        ];
        let norm = |g: &mut Graph, x, after: bool| match self.qk_norm {
            Some(qk) if qk.after_rotation == after => {
                self.normed_heads(g, w, module, x, (qk, &heads, order))
            }
            _ => Ok(x),
        };
        let x = norm(g, x, false)?;
        let x = match inputs.rotary {
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
        (qk, heads, order): HeadNorm<'_>,
    ) -> ValueResult {
        let d = self.head_dim;
        let spans_all = qk.span == Span::AllHeads;
        let axis = if spans_all { 1 } else { 2 };
        let normed = match qk.norm {
            Norm::Rms(norm) => norm.without_weight(g, x, axis)?,
            Norm::Layer { norm, .. } => norm.without_weight(g, x, axis)?,
        };
        let plus = match qk.norm {
            Norm::Rms(norm) if norm.plus_one => 1.0,
            _ => 0.0,
        };
        let numbers = |g: &Graph, parameter: &str, plus: f32| {
            let mut all: Vec<f32> = Vec::new();
            for (name, n) in heads.iter().filter(|(_, n)| *n > 0) {
                let name = format!("{module}.{name}");
                let scale = if name.ends_with("q_norm") {
                    self.scale as f32
                } else {
                    1.0
                };
                let shape = match qk.span {
                    Span::Head => vec![d],
                    Span::AllHeads => vec![n * d],
                    Span::OwnHead => vec![*n, d],
                };
                g.note_use(&w.get(&name, parameter, &shape), 1.0);
                let stored = w.numbers(&name, parameter, &shape);
                // A fault is reported by `Weights::finish`.
                let stored = stored.unwrap_or_else(|| vec![1.0; d]);
                for head in 0..*n {
                    let elements = (0..d).map(|i| order.map_or(i, |order| order[i]));
                    all.extend(elements.map(|i| {
                        let at = (head * d + i) % stored.len();
                        (stored[at] + plus) * scale
                    }));
                }
            }
            all
        };
        let n: usize = heads.iter().map(|(_, n)| n).sum();
        let shape = if spans_all {
            [1, n * d, 1, 1]
        } else {
            [1, n, d, 1]
        };
        let weight = numbers(g, "weight", plus);
        let bias = match qk.norm {
            Norm::Layer { bias: true, .. } => Some(numbers(g, "bias", 0.0)),
            _ => None,
        };
        let weight = g.floats(&weight, &shape)?;
        let scaled = g.mul(normed, weight)?;
        match bias {
            None => Ok(scaled),
            Some(bias) => {
                let bias = g.floats(&bias, &shape)?;
                g.add(scaled, bias)
            }
        }
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
    pub(super) fn as_rows(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let heads = g.shape(x)[1].known().unwrap_or_default();
        if tokens(g, x) == 1 {
            return g.reshape(x, &[1, heads as i32, 1, self.head_dim as i32]);
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
        let [h, kv, d] = [self.n_heads, self.n_kv_heads, self.head_dim].map(|n| n as i32);
        let n = tokens(g, q);
        let many = n > 1;
        let q = self.as_rows(g, q)?;
        let q = g.reshape(q, &[1, kv, -1, d])?; // [1, kv_heads, group * tokens, head_dim]
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

/// The length of the last axis.
pub(super) fn tokens(g: &Graph, x: ValueId) -> usize {
    let shape = g.shape(x);
    shape.last().and_then(|dim| dim.known()).unwrap_or(1)
}
