//! Self-attention with grouped queries over a KV cache.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::{DType, TensorType, Type};

use super::decoder::{Io, Mask};
use super::norm::RmsNorm;
use super::rope::Rotary;
use crate::graph::{Graph, Made};
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

impl Attention {
    /// Declare the cache of layer `layer` as states [1, kv_heads, context, head_dim].
    pub fn cache(&self, g: &mut Graph, layer: usize, context: usize, dtype: DType) -> Cache {
        let ty = || Type::State(TensorType::new(dtype, [1, self.n_kv_heads, context, self.head_dim]));
        let k = g.input(&format!("k_cache_{layer}"), ty());
        let v = g.input(&format!("v_cache_{layer}"), ty());
        Cache { k, v, dtype }
    }

    /// Attend from `x` [1, tokens, hidden] to all tokens so far that `mask` shows.
    #[allow(clippy::too_many_arguments)] // the parts of one layer; a struct for one caller would hide them
    pub fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        io: &Io,
        rotary: &Rotary,
        mask: Mask,
        cache: Cache,
    ) -> Made {
        g.at(module);
        let q = self.heads(g, w, module, "q_proj", x, self.n_heads)?; // [1, heads, tokens, head_dim]
        let k = self.heads(g, w, module, "k_proj", x, self.n_kv_heads)?; // [1, kv_heads, tokens, head_dim]
        let v = self.heads(g, w, module, "v_proj", x, self.n_kv_heads)?;
        let (q, k) = match self.qk_norm {
            None => (q, k),
            Some(norm) => {
                let q_weight = w.get(&format!("{module}.q_norm"), "weight", &[self.head_dim]);
                let k_weight = w.get(&format!("{module}.k_norm"), "weight", &[self.head_dim]);
                (norm.apply(g, q, &q_weight)?, norm.apply(g, k, &k_weight)?)
            }
        };
        let (mut q, k) = (rotary.apply(g, q)?, rotary.apply(g, k)?);
        // The op itself divides by sqrt(head_dim).
        let factor = self.scale * (self.head_dim as f64).sqrt();
        if (factor - 1.0).abs() > 1e-9 {
            q = g.scale(q, factor as f32)?;
        }
        let keys = remember(g, io, cache.k, cache.dtype, k)?; // [1, kv_heads, so far, head_dim]
        let values = remember(g, io, cache.v, cache.dtype, v)?;
        let attended = self.attend(g, q, keys, values, io.mask(mask))?;
        let output = format!("{module}.o_proj");
        let weight = w.get(&output, "weight", &[self.hidden, self.n_heads * self.head_dim]);
        let bias = self.output_bias.then(|| w.get(&output, "bias", &[self.hidden]));
        g.linear("o_proj", attended, &weight, bias.as_ref())
    }

    fn heads(&self, g: &mut Graph, w: &Weights<'_>, module: &str, name: &str, x: ValueId, n: usize) -> Made {
        let projection = format!("{module}.{name}");
        let weight = w.get(&projection, "weight", &[n * self.head_dim, self.hidden]);
        let bias = self.qkv_bias.then(|| w.get(&projection, "bias", &[n * self.head_dim]));
        let flat = g.linear(name, x, &weight, bias.as_ref())?; // [1, tokens, n * head_dim]
        let split = g.reshape(flat, &[1, -1, n as i32, self.head_dim as i32])?;
        g.transpose(split, &[0, 2, 1, 3])
    }

    /// The queries that share a key head become rows of it: head `h = kv * group + j` is rows `j * tokens ..`.
    fn attend(&self, g: &mut Graph, q: ValueId, keys: ValueId, values: ValueId, mask: ValueId) -> Made {
        let (heads, kv_heads, head_dim) = (self.n_heads as i32, self.n_kv_heads as i32, self.head_dim as i32);
        let q = g.reshape(q, &[1, kv_heads, -1, head_dim])?; // [1, kv_heads, group * tokens, head_dim]
        let args = [("query", q), ("key", keys), ("value", values), ("attn_mask", mask)];
        let out = g.op("scaled_dot_product_attention", "attention", args)?;
        let out = g.reshape(out, &[1, heads, -1, head_dim])?;
        let out = g.transpose(out, &[0, 2, 1, 3])?;
        g.reshape(out, &[1, -1, heads * head_dim])
    }
}

/// Write `new` [1, kv_heads, tokens, head_dim] behind what the state holds; everything that it holds then, as f32.
fn remember(g: &mut Graph, io: &Io, state: ValueId, dtype: DType, new: ValueId) -> Result<ValueId, BuildError> {
    let new = g.cast(new, dtype)?;
    let (all, but_tokens) = (g.bools(&[true; 4])?, g.bools(&[true, true, false, true])?);
    let old = g.op("read_state", "past", [("input", state)])?;
    let args = [
        ("x", old),
        ("update", new),
        ("begin", io.begin),
        ("end", io.end),
        ("begin_mask", but_tokens),
        ("end_mask", but_tokens),
    ];
    let updated = g.op("slice_update", "updated", args)?;
    let stored = g.op("coreml_update_state", "stored", [("state", state), ("value", updated)])?;
    let zeros = g.ints(&[0; 4])?;
    let args = [("x", stored), ("begin", zeros), ("end", io.end), ("begin_mask", all), ("end_mask", but_tokens)];
    let present = g.op("slice_by_index", "present", args)?;
    g.cast(present, DType::Fp32)
}
