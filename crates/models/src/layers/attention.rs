//! Self-attention with grouped queries, over a KV cache where there is one.

use std::cell::RefCell;

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, Dim, TensorType, Type};

use super::norm::RmsNorm;
use super::rope::Rotary;
use crate::graph::{Graph, Layout, Made};
use crate::weights::Weights;

/// Sizes and habits of a family's attention.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Size of its input and output.
    pub hidden: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Whether query, key and value have biases.
    pub qkv_bias: bool,
    /// Whether the output has one.
    pub output_bias: bool,
    /// Normalisation of each query and key head.
    pub qk_norm: Option<RmsNorm>,
}

/// The cache of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    k: ValueId,
    v: ValueId,
    dtype: DType,
}

/// What the tokens of a call attend to beside each other: those before them.
#[derive(Clone, Copy, Debug)]
pub enum Past<'a> {
    /// The layer's own cache, which it writes and then reads.
    Cache {
        /// Where they are kept.
        cache: Cache,
        /// Where it is written, int32 [4].
        begin: ValueId,
        /// Where it ends then, int32 [4].
        end: ValueId,
    },
    /// What the cache held before the call.
    Beside {
        /// Keys, [1, kv_heads, context, head_dim].
        keys: ValueId,
        /// Values, likewise.
        values: ValueId,
        /// How many tokens they are of.
        context: usize,
        /// Where the layer puts down its new keys and values, [1, kv_heads, tokens, head_dim], to
        /// be written later.
        new: &'a RefCell<Vec<ValueId>>,
    },
}

/// Projections of one layer, features as the graph has them.
#[derive(Clone, Copy, Debug)]
pub struct Projected {
    /// Queries of all heads.
    pub q: ValueId,
    /// Keys.
    pub k: ValueId,
    /// Values.
    pub v: ValueId,
}

/// What a layer's attention is given beside its input.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Positions by rotation, where the model has them.
    pub rotary: Option<&'a Rotary>,
    /// Added to the scores, [.., rows or 1, keys].
    pub mask: ValueId,
    /// What came before, if anything can.
    pub past: Option<Past<'a>>,
    /// Where only the last token's output is asked for.
    pub last: Option<Last>,
}

/// What the last token of a call is given, where no other asks anything.
#[derive(Clone, Copy, Debug)]
pub struct Last {
    /// Its position.
    pub rotary: Rotary,
    /// Its rows of the mask.
    pub mask: ValueId,
}

impl Surroundings<'_> {
    /// The tokens whose output is asked for, of `x` [1, tokens, features].
    pub fn asked(&self, g: &mut Graph, x: ValueId) -> Made {
        if self.last.is_none() {
            Ok(x)
        } else {
            g.last(x, 1)
        }
    }
}

impl Attention {
    /// As many key heads as query heads, scores by the root of a head's size, no norms; `bias` for
    /// all products.
    pub fn plain(hidden: usize, n_heads: usize, head_dim: usize, bias: bool) -> Self {
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
        }
    }

    /// Declare the cache of layer `layer` as states [1, kv_heads, context, head_dim].
    pub fn cache(&self, g: &mut Graph, layer: usize, context: usize, dtype: DType) -> Cache {
        let ty = || {
            Type::State(TensorType::new(
                dtype,
                [1, self.n_kv_heads, context, self.head_dim],
            ))
        };
        let k = g.input(&format!("k_cache_{layer}"), ty());
        let v = g.input(&format!("v_cache_{layer}"), ty());
        Cache { k, v, dtype }
    }

    /// Attend from `x`, or its last token, to all tokens that the mask shows.
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        around: Surroundings<'_>,
    ) -> Made {
        g.at(module);
        let asked = around.asked(g, x)?;
        let project = |g: &mut Graph, name: &str, x: ValueId, n: usize| {
            let projection = format!("{module}.{name}");
            let weight = w.get(&projection, "weight", &[n * self.head_dim, self.hidden]);
            let bias = self
                .qkv_bias
                .then(|| w.get(&projection, "bias", &[n * self.head_dim]));
            g.linear(name, x, &weight, bias.as_ref())
        };
        let q = project(g, "q_proj", asked, self.n_heads)?;
        let (k, v) = (
            project(g, "k_proj", x, self.n_kv_heads)?,
            project(g, "v_proj", x, self.n_kv_heads)?,
        );
        let attended = self.attend(g, w, module, Projected { q, k, v }, around)?;
        let output = format!("{module}.o_proj");
        let weight = w.get(
            &output,
            "weight",
            &[self.hidden, self.n_heads * self.head_dim],
        );
        let bias = self
            .output_bias
            .then(|| w.get(&output, "bias", &[self.hidden]));
        g.linear_to_residual("o_proj", attended, &weight, bias.as_ref())
    }

    /// What lies between the projections and the output's; features as the graph has them.
    pub fn attend(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        projected: Projected,
        around: Surroundings<'_>,
    ) -> Made {
        let q = self.heads(g, projected.q, self.n_heads)?;
        let (k, v) = (
            self.heads(g, projected.k, self.n_kv_heads)?,
            self.heads(g, projected.v, self.n_kv_heads)?,
        );
        let (q, k) = match self.qk_norm {
            None => (q, k),
            Some(norm) => {
                let axis = if g.form().layout == Layout::Rows {
                    -1
                } else {
                    2
                };
                let q_weight = w.get(&format!("{module}.q_norm"), "weight", &[self.head_dim]);
                let k_weight = w.get(&format!("{module}.k_norm"), "weight", &[self.head_dim]);
                (
                    norm.along(g, q, &q_weight, axis)?,
                    norm.along(g, k, &k_weight, axis)?,
                )
            }
        };
        let (q, k) = match around.rotary {
            None => (q, k),
            Some(rotary) => (
                around
                    .last
                    .map_or(*rotary, |last| last.rotary)
                    .apply(g, q)?,
                rotary.apply(g, k)?,
            ),
        };
        if g.form().layout == Layout::Channels {
            return self.attend_in_channels(g, Projected { q, k, v }, around);
        }
        // The op itself divides by sqrt(head_dim).
        let factor = self.scale * (self.head_dim as f64).sqrt();
        let q = if (factor - 1.0).abs() > 1e-9 {
            g.scale(q, factor as f32)?
        } else {
            q
        };
        let (keys, values) = match around.past {
            Some(Past::Cache { cache, begin, end }) => {
                let mut remembered =
                    |state, new| remember(g, [begin, end], state, cache.dtype, new);
                (remembered(cache.k, k)?, remembered(cache.v, v)?)
            }
            // What lies beside is of the other layout.
            None | Some(Past::Beside { .. }) => (k, v),
        };
        let mask = around.last.map_or(around.mask, |last| last.mask);
        self.attend_in_rows(
            g,
            Projected {
                q,
                k: keys,
                v: values,
            },
            mask,
        )
    }

    /// [batch, tokens, n * head_dim] to [batch, n, tokens, head_dim]; [1, n * head_dim, 1, tokens]
    /// to [1, n, head_dim, tokens].
    fn heads(&self, g: &mut Graph, x: ValueId, n: usize) -> Made {
        let (n, head_dim) = (n as i32, self.head_dim as i32);
        if g.form().layout == Layout::Channels {
            return g.reshape(x, &[1, n, head_dim, -1]);
        }
        let split = if g.shape(x)[0] == Dim::Known(1) {
            g.reshape(x, &[1, -1, n, head_dim])?
        } else {
            // Both batch and tokens are open: 0 keeps a dimension.
            let row = g.expand_dims(x, &[2])?;
            g.reshape(row, &[0, 0, n, head_dim])?
        };
        g.transpose(split, &[0, 2, 1, 3])
    }

    /// The queries that share a key head become rows of it: head `h = kv * group + j` is rows
    /// `j * tokens ..`.
    fn attend_in_rows(&self, g: &mut Graph, p: Projected, mask: ValueId) -> Made {
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
        let args = [
            ("query", q),
            ("key", p.k),
            ("value", p.v),
            ("attn_mask", mask),
        ];
        let out = g.op("scaled_dot_product_attention", "attention", args)?;
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

    /// Products whose rows are the queries that share a key head; scores [1, heads, tokens, keys]
    /// for mask and softmax.
    fn attend_in_channels(&self, g: &mut Graph, p: Projected, around: Surroundings<'_>) -> Made {
        let (heads, kv_heads, head_dim) = (
            self.n_heads as i32,
            self.n_kv_heads as i32,
            self.head_dim as i32,
        );
        let tokens = g.shape(p.q)[3].known().map_or(-1, |n| n as i32);
        let q = g.scale(p.q, self.scale as f32)?;
        let q = g.transpose(q, &[0, 1, 3, 2])?; // [1, heads, tokens, head_dim]
        let q = g.reshape(q, &[1, kv_heads, -1, head_dim])?;
        let yes = g.bool(true)?;
        let mut scores = g.op("matmul", "scores", [("x", q), ("y", p.k)])?; // [1, kv_heads, group * tokens, keys]
        if let Some(Past::Beside { keys, .. }) = around.past {
            let past = g.op(
                "matmul",
                "past_scores",
                [("x", q), ("y", keys), ("transpose_y", yes)],
            )?;
            scores = g.join("concat", &[past, scores], -1)?;
        }
        let scores = g.reshape(scores, &[1, heads, tokens, -1])?;
        let scores = g.add(scores, around.mask)?;
        let axis = g.int(-1)?;
        let weights = g.op("softmax", "weights", [("x", scores), ("axis", axis)])?;
        let keys = g.shape(weights)[3].known().map_or(-1, |n| n as i32);
        let weights = g.reshape(weights, &[1, kv_heads, -1, keys])?;
        let out = match around.past {
            Some(Past::Beside {
                values,
                context,
                new,
                ..
            }) => {
                let (of_past, of_new) = cut(g, weights, context)?;
                // [1, kv_heads, tokens, head_dim]
                let (k, v) = (
                    g.transpose(p.k, &[0, 1, 3, 2])?,
                    g.transpose(p.v, &[0, 1, 3, 2])?,
                );
                new.borrow_mut().extend([k, v]);
                let past = g.op("matmul", "past_attended", [("x", of_past), ("y", values)])?;
                let own = g.op("matmul", "attended", [("x", of_new), ("y", v)])?;
                g.add(past, own)?
            }
            _ => g.op(
                "matmul",
                "attended",
                [("x", weights), ("y", p.v), ("transpose_y", yes)],
            )?,
        };
        let out = g.reshape(out, &[1, heads, -1, head_dim])?;
        let out = g.transpose(out, &[0, 1, 3, 2])?; // [1, heads, head_dim, tokens]
        g.reshape(out, &[1, heads * head_dim, 1, -1])
    }
}

/// The first `n` and the other elements of the last of four axes.
fn cut(g: &mut Graph, x: ValueId, n: usize) -> Result<(ValueId, ValueId), BuildError> {
    let at = g.ints(&[0, 0, 0, i32::try_from(n).unwrap_or(i32::MAX)])?;
    let zeros = g.ints(&[0; 4])?;
    let (all, but_last) = (g.bools(&[true; 4])?, g.bools(&[true, true, true, false])?);
    let mut slice = |[begin, end, begin_mask, end_mask]: [ValueId; 4]| {
        let args = [
            ("x", x),
            ("begin", begin),
            ("end", end),
            ("begin_mask", begin_mask),
            ("end_mask", end_mask),
        ];
        g.op("slice_by_index", "part", args)
    };
    Ok((
        slice([zeros, at, all, but_last])?,
        slice([at, zeros, but_last, all])?,
    ))
}

/// Write `new` [1, kv_heads, tokens, head_dim] behind what the state holds; everything that it
/// holds then, as f32.
fn remember(
    g: &mut Graph,
    [begin, end]: [ValueId; 2],
    state: ValueId,
    dtype: DType,
    new: ValueId,
) -> Made {
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
