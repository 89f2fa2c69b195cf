//! Self-attention with grouped queries and an optional KV cache.
//!
//! [`Attention`] describes that of a family. [`heads`] makes queries, keys and values in functions
//! of any length, [`joined`] in functions of fixed length. [`segments`] multiplies them, in one of
//! the layouts of [`layout`].

mod apart;
mod heads;
mod joined;
mod layout;
mod past;
mod segments;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::activation::{half_sigmoid, sigmoid};
use super::norm::{Norm, RmsNorm};
use super::rope::Rotary;
use crate::checkpoint::Tensor;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;
pub use past::{Apart, Cache, Past, Remembered, StreamingHeads};
pub use segments::soft_capped;

/// The sizes and options of a family's attention.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Bound of queries, keys and values, after the norms that span all heads. Functions of
    /// fixed length do not have it: `Transformer::refuse_for_ane`.
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
        self.last.map_or(Ok(x), |_| g.last(x, 1))
    }
}

impl Attention {
    /// Multi-head attention: as many key heads as query heads, scores scaled by `1 /
    /// sqrt(head_dim)`, no norms. `bias` applies to all projections.
    pub fn multi_head(hidden: usize, n_heads: usize, head_dim: usize, bias: bool) -> Self {
        let scale = (head_dim as f64).powf(-0.5);
        Self {
            hidden,
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
            scale,
            qkv_bias: bias,
            output_bias: bias,
            ..Self::default()
        }
    }

    /// Number of queries that share a key head.
    pub fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Query heads, key heads and elements of a head, as shapes have them.
    fn sizes(&self) -> [i32; 3] {
        [self.n_heads, self.n_kv_heads, self.head_dim].map(|n| n as i32)
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
        let layer = InLayer {
            attention: self,
            w,
            module,
            inputs,
        };
        let (mut value, gate, remembered) = match inputs.past {
            Some(Past::Apart(past)) => layer.attend_joined(g, x, past)?,
            _ => layer.attend_in_rows(g, x)?,
        };
        if let Some(gate) = gate {
            let open = match inputs.past {
                Some(Past::Apart(_)) => half_sigmoid(g, gate)?,
                _ => sigmoid(g, gate)?,
            };
            value = g.mul(value, open)?;
        }
        let output = format!("{module}.o_proj");
        let shape = [self.hidden, self.n_heads * self.head_dim];
        let weight = w.rows(&output, 0..self.hidden, shape);
        let bias = || w.get(&output, "bias", &[self.hidden]);
        let bias = self.output_bias.then(bias);
        let output = g.linear_to_residual("o_proj", value, &weight, bias.as_ref())?;
        Ok((output, Some(remembered)))
    }

    /// Attention without its projections: norms, rotation and products, in the layout of the graph.
    pub fn attend(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        Projected { q, k, v }: Projected,
        inputs: AttentionInputs<'_>,
    ) -> ValueResult {
        let layer = InLayer {
            attention: self,
            w,
            module,
            inputs,
        };
        layer.attend_projected(g, [q, k, v]).map(|(seen, _)| seen)
    }

    /// Norm and rotation of each head of queries or keys, in the order of the model.
    fn norm_and_rotate(
        &self,
        g: &mut Graph,
        x: ValueId,
        norm: impl Fn(&mut Graph, QkNorm, ValueId) -> ValueResult,
        rotate: impl Fn(&mut Graph, ValueId) -> ValueResult,
    ) -> ValueResult {
        let of_each = self.qk_norm.filter(|qk| qk.span != Span::AllHeads);
        let normed = |g: &mut Graph, x, after: bool| {
            let now = of_each.filter(|qk| qk.after_rotation == after);
            now.map_or(Ok(x), |qk| norm(g, qk, x))
        };
        let x = normed(g, x, false)?;
        let x = rotate(g, x)?;
        normed(g, x, true)
    }
}

/// What the tokens of a layer see, before the output projection; the gates, which are halved in
/// functions of fixed length; and the keys and values.
type Attended = (ValueId, Option<ValueId>, Remembered);

/// Heads that are normalized: the modules of their weights with the numbers of heads.
type NormedHeads<'a> = &'a [(&'a str, usize)];

/// The attention of one layer, with its weights and inputs.
#[derive(Clone, Copy)]
struct InLayer<'a> {
    attention: &'a Attention,
    w: &'a Weights<'a>,
    module: &'a str,
    inputs: AttentionInputs<'a>,
}

impl InLayer<'_> {
    /// Weight and bias of a projection of the hidden state. Where queries have gates, each head's
    /// gate follows its query.
    fn projection(&self, name: &str) -> (Tensor, Option<Tensor>) {
        let (a, w) = (self.attention, self.w);
        let (h, kv) = (a.n_heads, a.n_kv_heads);
        let (n, before) = match name {
            "q_proj" if a.gated => (2 * h, 0),
            "q_proj" => (h, 0),
            "k_proj" => (kv, h),
            _ => (kv, h + kv),
        };
        let (matrix, first, all) = match a.joined {
            true => ("qkv_proj", before, h + 2 * kv),
            false => (name, 0, n),
        };
        let module = format!("{}.{matrix}", self.module);
        let rows = first * a.head_dim..(first + n) * a.head_dim;
        let all = all * a.head_dim;
        let weight = w.rows(&module, rows.clone(), [all, a.hidden]);
        let bias = a.qkv_bias.then(|| w.bias_rows(&module, rows, all));
        (weight, bias)
    }
}
