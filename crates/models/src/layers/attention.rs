//! Self-attention with grouped queries and an optional KV cache.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, Dim};

use super::activation::{clip, sigmoid};
use super::norm::{Norm, RmsNorm};
pub use super::past::{Apart, Cache, Past, Remembered, StreamingHeads};
use super::rope::Rotary;
use crate::graph::{Graph, Layout, ValueResult};
use crate::weights::Weights;

/// The sizes and options of a family's attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Elements of a token's hidden state.
    pub hidden: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key heads, and of value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the attention scores.
    pub scale: f64,
    /// Whether the query, key and value projections have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Normalization of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Bound of queries, keys and values, after the norms that span all heads. Programs of the form
    /// for the Neural Engine do not have it: `Transformer::refuse_for_engine`.
    pub clip: Option<f32>,
    /// Bound of the scores: `cap * tanh(scores / cap)`.
    pub soft_cap: Option<f32>,
    /// Whether query, key and value projection are the rows of one matrix, `qkv_proj`.
    pub joined: bool,
    /// RMSNorm without a weight of each value head.
    pub v_norm: Option<RmsNorm>,
    /// Whether the key projection gives the values too, before norm and rotation.
    pub keys_are_values: bool,
    /// Whether the query projection gives a gate too, behind the query of each head: what is
    /// attended to is multiplied by the gate's sigmoid.
    pub gated: bool,
}

/// The normalization of queries and keys, with the modules `q_norm` and `k_norm`.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm {
    /// The computation.
    pub norm: Norm,
    /// What is normalized together.
    pub span: Span,
    /// Whether the rotary embedding comes first.
    pub after_rotation: bool,
}

/// The elements that a norm of queries or keys normalizes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Each head by itself; all heads have the same weight.
    Head,
    /// All heads of a token.
    AllHeads,
    /// Each head by itself; each head has its own weight.
    OwnHead,
}

impl QkNorm {
    /// The step of the attention that the norm follows.
    fn step(self) -> Step {
        match self.span {
            Span::AllHeads => Step::Projected,
            _ if self.after_rotation => Step::Rotated,
            _ => Step::Split,
        }
    }

    /// An RMSNorm of each head before rotation.
    pub fn of_heads(norm: RmsNorm) -> Self {
        Self {
            norm: Norm::Rms(norm),
            span: Span::Head,
            after_rotation: false,
        }
    }
}

/// The projections of one layer, in the layout of the graph.
#[derive(Clone, Copy, Debug)]
pub struct Projected {
    /// Queries of all heads.
    pub q: ValueId,
    /// Keys of all key heads.
    pub k: ValueId,
    /// Values of all value heads.
    pub v: ValueId,
}

/// The inputs of a layer's attention besides the hidden state.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// Rotary embedding, if the model has one.
    pub rotary: Option<&'a Rotary>,
    /// Added to the attention scores, [.., rows or 1, keys].
    pub mask: ValueId,
    /// The tokens before the call, if the function has a cache.
    pub past: Option<Past<'a>>,
    /// Inputs for the last token alone, if only its output is needed.
    pub last: Option<Last>,
}

/// The inputs of the last token's query, in a layer that computes no other queries.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// Rotation at the position of the last token, if the layer rotates.
    pub rotary: Option<Rotary>,
    /// The mask rows of the last token.
    pub mask: ValueId,
}

impl AttentionInputs<'_> {
    /// The tokens of `x` [1, tokens, features] whose output is needed: all of them, or the last.
    pub fn needed_tokens(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        if self.last.is_none() {
            Ok(x)
        } else {
            g.last(x, 1)
        }
    }
}

impl Attention {
    /// Multi-head attention: as many key heads as query heads, scores scaled by `1 /
    /// sqrt(head_dim)`, no norms. `bias` applies to all projections.
    pub fn multi_head(hidden: usize, n_heads: usize, head_dim: usize, bias: bool) -> Self {
        let scale = (head_dim as f64).powf(-0.5);
        let (n_kv_heads, qkv_bias, output_bias) = (n_heads, bias, bias);
        Self {
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            qkv_bias,
            output_bias,
            qk_norm: None,
            clip: None,
            soft_cap: None,
            joined: false,
            v_norm: None,
            keys_are_values: false,
            gated: false,
        }
    }

    /// Number of queries that share a key head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Attention with its projections: `o_proj(softmax(scale * q k^T + mask) v)`, for every token
    /// of `x` or for the last one; and the keys and values, for layers that share them.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        inputs: AttentionInputs<'_>,
    ) -> Result<(ValueId, Option<Remembered>), BuildError> {
        g.at_module(module);
        if let Some(Past::Apart(past)) = inputs.past {
            return self.apply_apart(g, w, module, x, (inputs, past));
        }
        let needed = inputs.needed_tokens(g, x)?;
        let [q_rows, kv_rows] = [self.n_heads, self.n_kv_heads].map(|n| n * self.head_dim);
        let all_rows = q_rows + 2 * kv_rows;
        // The projection `name` of x, which has `n` rows that begin at row `first` of a joined
        // matrix.
        let project = |g: &mut Graph, name: &str, x: ValueId, first: usize, n: usize| {
            let (matrix, first, all) = if self.joined {
                ("qkv_proj", first, all_rows)
            } else {
                (name, 0, n)
            };
            let matrix = format!("{module}.{matrix}");
            let weight = w.rows(&matrix, first..first + n, [all, self.hidden]);
            let bias = self
                .qkv_bias
                .then(|| w.bias_rows(&matrix, first..first + n, all));
            g.linear(name, x, &weight, bias.as_ref())
        };
        let (q, gate) = if self.gated {
            let both = project(g, "q_proj", needed, 0, 2 * q_rows)?;
            let [q, gate] = self.split_gate(g, both)?;
            (q, Some(gate))
        } else {
            (project(g, "q_proj", needed, 0, q_rows)?, None)
        };
        let (attended, remembered) = if let Some(Past::Shared(shared)) = inputs.past {
            let q = self.queries(g, w, module, q, &inputs)?;
            let mask = inputs.last.map_or(inputs.mask, |last| last.mask);
            let q = self.scaled_for_rows(g, q)?;
            let (k, v) = (shared.keys, shared.values);
            (self.attend_in_rows(g, Projected { q, k, v }, mask)?, None)
        } else {
            let k = project(g, "k_proj", x, q_rows, kv_rows)?;
            let v = if self.keys_are_values {
                k
            } else {
                project(g, "v_proj", x, q_rows + kv_rows, kv_rows)?
            };
            self.attend_and_remember(g, w, module, Projected { q, k, v }, inputs)?
        };
        let attended = match gate {
            None => attended,
            Some(gate) => {
                let open = sigmoid(g, gate)?;
                g.mul(attended, open)?
            }
        };
        let output = format!("{module}.o_proj");
        let weight = w.rows(&output, 0..self.hidden, [self.hidden, q_rows]);
        let bias = self
            .output_bias
            .then(|| w.get(&output, "bias", &[self.hidden]));
        let output = g.linear_to_residual("o_proj", attended, &weight, bias.as_ref())?;
        Ok((output, remembered))
    }

    /// Queries and gates, [1, tokens, heads * head_dim] each, of rows in which a gate follows the
    /// query of each head.
    fn split_gate(&self, g: &mut Graph, both: ValueId) -> Result<[ValueId; 2], BuildError> {
        let [heads, size] = [self.n_heads, self.head_dim].map(|n| n as i32);
        let both = g.reshape(both, &[1, -1, heads, 2 * size])?;
        let [q, gate] = g.halves(both, -1)?;
        let row = [1, -1, heads * size];
        Ok([g.reshape(q, &row)?, g.reshape(gate, &row)?])
    }

    /// Attention without its projections: norms, rotation, cache and products, in the layout of the
    /// graph.
    pub fn attend(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        projected: Projected,
        inputs: AttentionInputs<'_>,
    ) -> ValueResult {
        let (attended, _) = self.attend_and_remember(g, w, module, projected, inputs)?;
        Ok(attended)
    }

    /// Like [`Self::attend`]; in the row layout, the keys and values too.
    fn attend_and_remember(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        projected: Projected,
        inputs: AttentionInputs<'_>,
    ) -> Result<(ValueId, Option<Remembered>), BuildError> {
        let q = self.queries(g, w, module, projected.q, &inputs)?;
        let k = self.normed(g, w, module, Part::K, projected.k, Step::Projected)?;
        let (k, v) = (self.clipped(g, k)?, self.clipped(g, projected.v)?);
        let (k, v) = (
            self.heads(g, k, self.n_kv_heads)?,
            self.heads(g, v, self.n_kv_heads)?,
        );
        let v = match self.v_norm {
            None => v,
            Some(norm) => norm.without_weight(g, v, head_axis(g))?,
        };
        let k = self.normed(g, w, module, Part::K, k, Step::Split)?;
        let k = match inputs.rotary {
            None => k,
            Some(rotary) => rotary.apply(g, k)?,
        };
        let k = self.normed(g, w, module, Part::K, k, Step::Rotated)?;
        if g.form().layout == Layout::Channels {
            let attended = self.attend_in_channels(g, Projected { q, k, v }, inputs)?;
            return Ok((attended, None));
        }
        let q = self.scaled_for_rows(g, q)?;
        let (keys, values) = match inputs.past {
            Some(Past::Cache { cache, begin, end }) => {
                let mut remembered =
                    |state, new| update_cache(g, [begin, end], state, cache.dtype, new);
                (remembered(cache.k, k)?, remembered(cache.v, v)?)
            }
            _ => (k, v),
        };
        let mask = inputs.last.map_or(inputs.mask, |last| last.mask);
        let (k, v) = (keys, values);
        let attended = self.attend_in_rows(g, Projected { q, k, v }, mask)?;
        let new = None;
        Ok((attended, Some(Remembered { keys, values, new })))
    }

    /// Queries of all heads, normalized and rotated.
    fn queries(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        q: ValueId,
        inputs: &AttentionInputs<'_>,
    ) -> ValueResult {
        let q = self.normed(g, w, module, Part::Q, q, Step::Projected)?;
        let q = self.clipped(g, q)?;
        let q = self.heads(g, q, self.n_heads)?;
        let q = self.normed(g, w, module, Part::Q, q, Step::Split)?;
        let last = inputs.last.and_then(|last| last.rotary);
        let q = match last.or(inputs.rotary.copied()) {
            None => q,
            Some(rotary) => rotary.apply_to_queries(g, q)?,
        };
        self.normed(g, w, module, Part::Q, q, Step::Rotated)
    }

    /// The queries times the scale of the scores, for [`Self::attend_in_rows`].
    fn scaled_for_rows(&self, g: &mut Graph, q: ValueId) -> ValueResult {
        // The op for attention itself divides the scores by sqrt(head_dim); soft caps exclude it.
        let divisor = if self.soft_cap.is_none() {
            (self.head_dim as f64).sqrt()
        } else {
            1.0
        };
        let factor = self.scale * divisor;
        if (factor - 1.0).abs() > 1e-9 {
            g.scale(q, factor as f32)
        } else {
            Ok(q)
        }
    }

    /// Queries, keys or values within the bound, if there is one.
    fn clipped(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        self.clip.map_or(Ok(x), |bound| clip(g, x, bound))
    }

    /// Queries or keys, normalized if the norm belongs after this step.
    fn normed(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        part: Part,
        x: ValueId,
        step: Step,
    ) -> ValueResult {
        let Some(qk) = self.qk_norm.filter(|norm| norm.step() == step) else {
            return Ok(x);
        };
        let (name, n_heads) = match part {
            Part::Q => ("q_norm", self.n_heads),
            Part::K => ("k_norm", self.n_kv_heads),
        };
        let module = format!("{module}.{name}");
        match qk.span {
            Span::AllHeads => qk.norm.apply(g, w, &module, x, n_heads * self.head_dim),
            Span::Head => {
                let axis = (head_axis(g), self.head_dim);
                qk.norm.apply_along(g, w, &module, x, axis)
            }
            Span::OwnHead => self.norm_of_own_heads(g, w, (&module, qk.norm), x, n_heads),
        }
    }

    /// Normalizes each head of `x`, whose weights are the rows of a matrix [heads, head_dim].
    fn norm_of_own_heads(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        (module, norm): (&str, Norm),
        x: ValueId,
        n_heads: usize,
    ) -> ValueResult {
        let axis = head_axis(g);
        let rows = g.form().layout == Layout::Rows;
        let normed = match norm {
            Norm::Rms(norm) => norm.without_weight(g, x, axis)?,
            Norm::Layer { norm, .. } => norm.without_weight(g, x, axis)?,
        };
        let (n, head_dim) = (n_heads as i32, self.head_dim as i32);
        let weight = g.weight(&w.get(module, "weight", &[n_heads, self.head_dim]))?;
        let shape = if rows {
            [1, n, 1, head_dim]
        } else {
            [1, n, head_dim, 1]
        };
        let weight = g.reshape(weight, &shape)?;
        g.mul(normed, weight)
    }

    /// Splits heads: [batch, tokens, n * head_dim] to [batch, n, tokens, head_dim], or in the
    /// channel layout [1, n * head_dim, 1, tokens] to [1, n, head_dim, tokens].
    fn heads(&self, g: &mut Graph, x: ValueId, n: usize) -> ValueResult {
        let (n, head_dim) = (n as i32, self.head_dim as i32);
        if g.form().layout == Layout::Channels {
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

    /// Attention in the row layout. The queries that share a key head become rows of that head:
    /// query head `h = kv * group + j` is rows `j * tokens ..`.
    fn attend_in_rows(&self, g: &mut Graph, p: Projected, mask: ValueId) -> ValueResult {
        let (heads, kv_heads, head_dim) = (
            self.n_heads as i32,
            self.n_kv_heads as i32,
            self.head_dim as i32,
        );
        let one = g.shape(p.q)[0] == Dim::Known(1);
        let batch = i32::from(one);
        let grouped = heads != kv_heads || one;
        // [batch, kv_heads, group * tokens, head_dim]
        let q = if grouped {
            g.reshape(p.q, &[batch, kv_heads, -1, head_dim])?
        } else {
            p.q
        };
        let out = match self.soft_cap {
            None => {
                let args = [
                    ("query", q),
                    ("key", p.k),
                    ("value", p.v),
                    ("attn_mask", mask),
                ];
                g.op("scaled_dot_product_attention", "attention", args)?
            }
            Some(cap) => {
                let yes = g.bool(true)?;
                let args = [("x", q), ("y", p.k), ("transpose_y", yes)];
                let scores = g.op("matmul", "scores", args)?;
                let scores = soft_capped(g, scores, cap)?;
                let scores = g.add(scores, mask)?;
                let axis = g.int(-1)?;
                let weights = g.op("softmax", "weights", [("x", scores), ("axis", axis)])?;
                g.op("matmul", "attended", [("x", weights), ("y", p.v)])?
            }
        };
        let out = if grouped {
            g.reshape(out, &[batch, heads, -1, head_dim])?
        } else {
            out
        };
        let out = g.transpose(out, &[0, 2, 1, 3])?;
        if one {
            return g.reshape(out, &[1, -1, heads * head_dim]);
        }
        let out = g.reshape(out, &[0, 0, 1, heads * head_dim])?;
        g.squeeze(out, &[2])
    }
}

/// Queries or keys.
#[derive(Clone, Copy, Debug)]
enum Part {
    Q,
    K,
}

/// What has been done with queries or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Projected from the hidden state.
    Projected,
    /// Split into heads.
    Split,
    /// Rotated by their position.
    Rotated,
}

/// The axis of the elements of a head.
fn head_axis(g: &Graph) -> i32 {
    if g.form().layout == Layout::Rows {
        -1
    } else {
        2
    }
}

/// `cap * tanh(x / cap)`.
pub fn soft_capped(g: &mut Graph, x: ValueId, cap: f32) -> ValueResult {
    let x = g.scale(x, cap.recip())?;
    let bounded = g.op("tanh", "bounded", [("x", x)])?;
    g.scale(bounded, cap)
}

/// Writes `new` [1, kv_heads, tokens, head_dim] behind the tokens in the state, and returns all
/// tokens in the state as fp32.
fn update_cache(
    g: &mut Graph,
    [begin, end]: [ValueId; 2],
    state: ValueId,
    dtype: DType,
    new: ValueId,
) -> ValueResult {
    let new = g.cast(new, dtype)?;
    let (all, but_tokens) = (g.bools(&[true; 4])?, g.bools(&[true, true, false, true])?);
    let old = g.op("read_state", "past", [("input", state)])?;
    let args = [
        ("x", old),
        ("update", new),
        ("begin", begin),
        ("end", end),
        ("begin_mask", but_tokens),
        ("end_mask", but_tokens),
    ];
    let updated = g.op("slice_update", "updated", args)?;
    let stored = g.op(
        "coreml_update_state",
        "stored",
        [("state", state), ("value", updated)],
    )?;
    let zeros = g.ints(&[0; 4])?;
    let args = [
        ("x", stored),
        ("begin", zeros),
        ("end", end),
        ("begin_mask", all),
        ("end_mask", but_tokens),
    ];
    let present = g.op("slice_by_index", "present", args)?;
    g.cast(present, DType::Fp32)
}
