//! Llama: SmolLM2, TinyLlama, Llama 2 and 3.x.
//!
//! Layers of grouped-query attention and a SiLU-gated MLP, each preceded by a norm. GGUF permutes
//! the rows of query and key so that rotary pairs are adjacent, and stores Llama 3's frequency
//! scaling as a tensor of divisors.

use thane_mil::program::{Function, ValueId};

use super::keys::{check_heads, check_layers, check_positive, check_size, default_head_dim};
use super::{Decoder, DecoderResult, Encoder, EncoderPlan, EncoderSizes, Family, Lowering, Sizes};
use crate::checkpoint::{Config, Gguf, Rope, RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Attention, AttentionInputs};
use crate::layers::decoder::{self, Io, Mask, Mode};
use crate::layers::encoder::{self, Direction};
use crate::layers::mlp::{Activation, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Style, inverse_frequencies};
use crate::pooling::Pooling;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["llama"],
    gguf_names: &[(
        "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_norm",
    )],
    base: "model",
    config: Some(from_config),
    gguf: Some(from_gguf),
    encoder: None,
    gguf_encoder: None,
};

/// The residual stream of Qwen3-0.6B peaks above 37,000, near the limit of fp16: the model works
/// with a divisor of 8 but not of 4. Source: the conversion of pplx-embed for the Neural Engine.
const RESIDUAL_DIVISOR: f32 = 8.0;

/// The configuration of Llama and of families that differ from it in numbers only.
pub(super) struct Llama {
    pub attention: Attention,
    pub mlp: Mlp,
    pub norm: RmsNorm,
    pub inverse_frequencies: Vec<f32>,
    pub style: Style,
    pub n_layers: usize,
    pub vocab_size: usize,
    pub max_context: usize,
    pub tied: bool,
    /// Which tokens a token attends to when the weights are used as an encoder.
    pub direction: Direction,
}

impl Decoder for Llama {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        mode: Mode,
        options: &Lowering,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        g_.divide_residual(options.residual_divisor);
        let hidden = self.attention.hidden;
        let io = Io::new(
            g_,
            mode,
            options.extent(&self.attention, self.n_layers, None),
        )?;
        let rotary = io.rotary(g_, &self.inverse_frequencies, self.style)?;
        let table = w.get("model.embed_tokens", "weight", &[self.vocab_size, hidden]);
        let h = io.embed(g_, &table, options.residual_divisor.recip())?;
        let h = self.layers(g_, w, h, |g, i| {
            io.attention_inputs(g, i, &rotary, Mask::Full)
        })?;
        let norm = w.get("model.norm", "weight", &[hidden]);
        let head = decoder::head_tensor(w, self.tied, self.vocab_size, hidden);
        let logits = io.head(
            g_,
            self.norm.for_divided_stream(options.residual_divisor),
            &norm,
            &head,
            h,
        )?;
        io.finish(g, logits)
    }

    fn residual_divisor(&self) -> f32 {
        RESIDUAL_DIVISOR
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            n_layers: self.n_layers,
            vocab_size: self.vocab_size,
            max_context: self.max_context,
            cache_elements: 2 * self.n_layers * self.attention.n_kv_heads * self.attention.head_dim,
            window: None,
        }
    }
}

impl Encoder for Llama {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        g_.divide_residual(plan.residual_divisor);
        let hidden = self.attention.hidden;
        let group = self.attention.n_heads / self.attention.n_kv_heads;
        let io = encoder::Io::new(
            g_,
            plan.head.encoding,
            plan.extent,
            self.direction,
            group,
            None,
        )?;
        let rotary = io.rotary(g_, &self.inverse_frequencies)?;
        let table = w.get("model.embed_tokens", "weight", &[self.vocab_size, hidden]);
        g_.at_module("model.embed_tokens");
        let h = g_.rows_to_residual(&table, io.input_ids)?;
        let h = io.lay_out(g_, h)?;
        let h = self.layers(g_, w, h, |_, _| {
            Ok(io.attention_inputs(Some(&rotary), Mask::Full))
        })?;
        g_.at_module("model.norm");
        let h = self.norm.for_divided_stream(plan.residual_divisor).apply(
            g_,
            h,
            &w.get("model.norm", "weight", &[hidden]),
        )?;
        encoder::finish(g, w, &io, h, plan.head)
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.n_layers,
            vocab_size: self.vocab_size,
            hidden: self.attention.hidden,
            n_positions: self.max_context,
        }
    }

    fn default_pooling(&self) -> Option<(Pooling, bool)> {
        // pplx-embed-context has no modules.json. Source: its model page.
        (self.direction == Direction::Bidirectional).then_some((Pooling::Mean, true))
    }

    fn residual_divisor(&self) -> f32 {
        RESIDUAL_DIVISOR
    }
}

impl Llama {
    /// All layers, each with the attention inputs that `inputs` gives.
    fn layers<'a>(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        mut h: ValueId,
        inputs: impl Fn(&mut Graph, usize) -> Result<AttentionInputs<'a>, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let residual_norm = self.norm.for_divided_stream(g.residual_divisor());
        for i in 0..self.n_layers {
            let module = |name: &str| format!("model.layers.{i}.{name}");
            let norm = |g: &mut Graph, x, name: &str| -> ValueResult {
                g.at_module(&module(name));
                residual_norm.apply(
                    g,
                    x,
                    &w.get(&module(name), "weight", &[self.attention.hidden]),
                )
            };
            g.at_module(&module("self_attn"));
            let inputs = inputs(g, i)?;
            let x = norm(g, h, "input_layernorm")?;
            let a = self
                .attention
                .apply(g, w, &module("self_attn"), x, inputs)?;
            h = inputs.needed_tokens(g, h)?;
            h = g.add(h, a)?;
            let x = norm(g, h, "post_attention_layernorm")?;
            let m = self.mlp.apply(g, w, &module("mlp"), x)?;
            h = g.add(h, m)?;
        }
        Ok(h)
    }
}

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Training notes, and buffers in old checkpoints that the configuration determines anyway.
    c.acknowledge(&["is_llama_config"]);
    w.ignore("rotary_emb.inv_freq");
    let rope = match c.rope()? {
        Rope::Uniform(rope) => rope,
        Rope::PerLayerType(_) => {
            return Err(ModelError::unsupported(
                "rope_parameters",
                "per layer type",
                "expected one rotary embedding for all layers",
            ));
        }
    };
    if c.opt_bool("rope_interleaved")?.unwrap_or(false) {
        return Err(ModelError::unsupported(
            "rope_interleaved",
            true,
            "expected false, because llama rotates halves of a head",
        ));
    }
    let act = c.opt_str("hidden_act")?.unwrap_or("silu");
    if act != "silu" {
        return Err(ModelError::unsupported("hidden_act", act, "expected silu"));
    }
    let hidden = check_size("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = check_size("num_attention_heads", c.usize("num_attention_heads")?)?;
    let n_kv_heads = check_size(
        "num_key_value_heads",
        c.opt_usize("num_key_value_heads")?.unwrap_or(n_heads),
    )?;
    let head_dim = match c.opt_usize("head_dim")? {
        Some(n) => check_size("head_dim", n)?,
        None => default_head_dim(hidden, n_heads)?,
    };
    let bias = c.bool_or("attention_bias", false)?;
    let tied = w.is_tied(c.bool_or("tie_word_embeddings", false)?);
    let model = Llama {
        attention: attention(hidden, [n_heads, n_kv_heads], head_dim, [bias; 2])?,
        mlp: Mlp {
            hidden,
            intermediate: check_size("intermediate_size", c.usize("intermediate_size")?)?,
            activation: Activation::Silu,
            bias: c.bool_or("mlp_bias", false)?,
        },
        norm: RmsNorm {
            epsilon: check_positive("rms_norm_eps", c.opt_f64("rms_norm_eps")?.unwrap_or(1e-6))?
                as f32,
            plus_one: false,
        },
        inverse_frequencies: inverse_frequencies(&rope, rope.theta.unwrap_or(10_000.0), head_dim)?,
        style: Style::Half,
        n_layers: check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?,
        vocab_size: check_size("vocab_size", c.usize("vocab_size")?)?,
        max_context: check_size(
            "max_position_embeddings",
            c.opt_usize("max_position_embeddings")?.unwrap_or(2048),
        )?,
        tied,
        direction: Direction::Causal,
    };
    Ok(Box::new(model))
}

fn from_gguf(gguf: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let key = |name: &str| format!("llama.{name}");
    let size = |name: &str| -> Result<usize, ModelError> {
        check_size(&key(name), gguf.u32(&key(name))? as usize)
    };
    let opt = |name: &str, default: usize| -> Result<usize, ModelError> {
        check_size(
            &key(name),
            gguf.opt_u32(&key(name))?.map_or(default, |v| v as usize),
        )
    };
    if let Some(n) = gguf.opt_u32(&key("expert_count"))?.filter(|n| *n > 0) {
        return Err(ModelError::unsupported(
            &key("expert_count"),
            n,
            "mixtures of experts are not supported",
        ));
    }
    let (hidden, n_heads) = (size("embedding_length")?, size("attention.head_count")?);
    let n_kv_heads = opt("attention.head_count_kv", n_heads)?;
    let head_dim = match gguf.opt_u32(&key("attention.key_length"))? {
        Some(n) => check_size(&key("attention.key_length"), n as usize)?,
        None => default_head_dim(hidden, n_heads)?,
    };
    for (name, value) in [
        (
            "attention.value_length",
            opt("attention.value_length", head_dim)?,
        ),
        (
            "rope.dimension_count",
            opt("rope.dimension_count", head_dim)?,
        ),
    ] {
        if value != head_dim {
            return Err(ModelError::unsupported(
                &key(name),
                value,
                "expected the size of a key head",
            ));
        }
    }
    let vocab_size = vocab_size(gguf, w, "llama")?;
    let rope = RopeConfig {
        theta: None,
        scaling: gguf_scaling(gguf, "llama")?,
        partial_rotary_factor: None,
    };
    let theta = check_positive(
        &key("rope.freq_base"),
        gguf.opt_f32(&key("rope.freq_base"))?
            .unwrap_or(10_000.0)
            .into(),
    )?;
    let mut frequencies = inverse_frequencies(&rope, theta, head_dim)?;
    divide_by_tensor(&mut frequencies, w)?;
    let biases =
        ["q_proj", "o_proj"].map(|name| w.has(&format!("model.layers.0.self_attn.{name}"), "bias"));
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let model = Llama {
        attention: attention(hidden, [n_heads, n_kv_heads], head_dim, biases)?,
        mlp: Mlp {
            hidden,
            intermediate: size("feed_forward_length")?,
            activation: Activation::Silu,
            bias: w.has("model.layers.0.mlp.gate_proj", "bias"),
        },
        norm: RmsNorm {
            epsilon: check_positive(&epsilon, gguf.f32(&epsilon)?.into())? as f32,
            plus_one: false,
        },
        inverse_frequencies: frequencies,
        style: Style::Interleaved,
        n_layers: check_layers(&key("block_count"), gguf.u32(&key("block_count"))? as usize)?,
        vocab_size,
        max_context: size("context_length")?,
        tied: !w.has("lm_head", "weight"),
        direction: Direction::Causal,
    };
    Ok(Box::new(model))
}

/// Number of rows of the embedding: the key if it is present, otherwise the shape of the tensor.
pub(super) fn vocab_size(
    gguf: &Gguf,
    w: &Weights<'_>,
    architecture: &str,
) -> Result<usize, ModelError> {
    let key = format!("{architecture}.vocab_size");
    let rows = w.rows("model.embed_tokens", "weight").unwrap_or(1);
    check_size(&key, gguf.opt_u32(&key)?.map_or(rows, |n| n as usize))
}

/// The frequency scaling in the metadata. A factor without a type means linear scaling, as in
/// llama.cpp.
pub(super) fn gguf_scaling(gguf: &Gguf, architecture: &str) -> Result<RopeScaling, ModelError> {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let (ty, factor) = (gguf.opt_str(&key("type"))?, gguf.opt_f32(&key("factor"))?);
    match (ty, factor) {
        (None | Some("none"), None) => Ok(RopeScaling::Default),
        (Some("none"), Some(1.0)) => Ok(RopeScaling::Default),
        (Some("none"), Some(factor)) => Err(ModelError::unsupported(
            &key("factor"),
            factor,
            "expected no factor, because the type is none",
        )),
        (None | Some("linear"), _) => Ok(RopeScaling::Linear {
            factor: check_positive(&key("factor"), gguf.f32(&key("factor"))?.into())?,
        }),
        (Some(other), _) => Err(ModelError::unsupported(
            &key("type"),
            other,
            "expected none or linear",
        )),
    }
}

/// Applies Llama 3's frequency scaling as GGUF stores it: one divisor for each frequency.
fn divide_by_tensor(frequencies: &mut [f32], w: &Weights<'_>) -> Result<(), ModelError> {
    if !w.has("rope_freqs", "weight") {
        return Ok(());
    }
    let Some(divisors) = w.floats("rope_freqs", "weight", frequencies.len()) else {
        return Ok(());
    };
    for (frequency, divisor) in frequencies.iter_mut().zip(divisors) {
        *frequency /= check_positive("rope_freqs.weight", divisor.into())? as f32;
    }
    Ok(())
}

/// Llama's attention. `biases` say whether query, key and value have biases, and whether the output
/// has one.
fn attention(
    hidden: usize,
    [n_heads, n_kv_heads]: [usize; 2],
    head_dim: usize,
    [qkv_bias, output_bias]: [bool; 2],
) -> Result<Attention, ModelError> {
    check_heads(n_heads, n_kv_heads, head_dim)?;
    let scale = (head_dim as f64).powf(-0.5);
    Ok(Attention {
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        scale,
        qkv_bias,
        output_bias,
        qk_norm: None,
    })
}
