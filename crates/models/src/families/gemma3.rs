//! Gemma 3, text only.
//!
//! Norms before and after attention and MLP, whose factors `config.json` checkpoints store minus 1
//! (GGUF stores the factors themselves). Norms of query and key heads. An embedding scaled by
//! sqrt(hidden). A pattern of sliding-window layers, with a rotary base of their own, and
//! full-attention layers.

use thane_mil::program::{Function, ValueId};

use super::keys::{
    IGNORED_KEYS, check_heads, check_layers, check_positive, check_size, layer_masks,
};
use super::llama::{gguf_scaling, vocab_size};
use super::{
    Decoder, DecoderResult, Encoder, EncoderPlan, EncoderResult, EncoderSizes, Family, Lowering,
    Sizes,
};
use crate::checkpoint::{Config, Gguf, Rope, RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::attention::{Attention, AttentionInputs};
use crate::layers::decoder::{self, Io, Mask, Mode};
use crate::layers::encoder::{self, Direction};
use crate::layers::mlp::{Activation, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Style, inverse_frequencies};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gemma3_text", "gemma3"],
    gguf_names: &[
        (
            "model.layers.{}.post_attention_layernorm",
            "blk.{}.post_attention_norm",
        ),
        (
            "model.layers.{}.pre_feedforward_layernorm",
            "blk.{}.ffn_norm",
        ),
        (
            "model.layers.{}.post_feedforward_layernorm",
            "blk.{}.post_ffw_norm",
        ),
    ],
    base: "model",
    config: Some(from_config),
    gguf: Some(from_gguf),
    encoder: Some(encoder_from_config),
    gguf_encoder: None,
};

/// Default base of the rotary frequencies of sliding-window layers. Source: Gemma3TextConfig.
const LOCAL_THETA: f64 = 10_000.0;
/// By default every sixth layer has full attention. Source: Gemma3TextConfig.
const PATTERN: usize = 6;
/// Sizes that `text_config` of published models omits. Source: Gemma3TextConfig.
const PART_DEFAULTS: [(&str, usize); 3] = [
    ("vocab_size", 262_208),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
];

struct Gemma3 {
    attention: Attention,
    mlp: Mlp,
    norm: RmsNorm,
    global_frequencies: Vec<f32>,
    local_frequencies: Vec<f32>,
    masks: Vec<Mask>,
    window: usize,
    vocab_size: usize,
    max_context: usize,
    tied: bool,
    /// Which tokens a token attends to when the weights are used as an encoder.
    direction: Direction,
}

impl Decoder for Gemma3 {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        mode: Mode,
        options: &Lowering,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        let hidden = self.attention.hidden;
        let io = Io::new(
            g_,
            mode,
            options.extent(&self.attention, self.masks.len(), Some(self.window)),
        )?;
        let global = io.rotary(g_, &self.global_frequencies, Style::Half)?;
        let local = io.rotary(g_, &self.local_frequencies, Style::Half)?;
        let table = w.get("model.embed_tokens", "weight", &[self.vocab_size, hidden]);
        let divisor = options.residual_divisor;
        let h = io.embed(g_, &table, (hidden as f32).sqrt() / divisor)?;
        let h = self.layers(g_, w, h, divisor, |g, i, mask| {
            io.attention_inputs(
                g,
                i,
                if mask == Mask::Full { &global } else { &local },
                mask,
            )
        })?;
        let norm = w.get("model.norm", "weight", &[hidden]);
        let head = decoder::head_tensor(w, self.tied, self.vocab_size, hidden);
        let logits = io.head(g_, self.norm.for_divided_stream(divisor), &norm, &head, h)?;
        io.finish(g, logits)
    }

    fn residual_divisor(&self) -> f32 {
        // The residual stream of Gemma 3 270M overflows fp16 after "Why is the sky blue?". Divided
        // by 2, 16 and 64, the greedy tokens equal those of f32 in both forms. 16 leaves
        // room for larger models.
        16.0
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            n_layers: self.masks.len(),
            vocab_size: self.vocab_size,
            max_context: self.max_context,
            cache_elements: 2
                * self.masks.len()
                * self.attention.n_kv_heads
                * self.attention.head_dim,
            window: Some(self.window),
        }
    }
}

impl Encoder for Gemma3 {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        let hidden = self.attention.hidden;
        // A bidirectional window has one half on each side.
        let window = if self.direction == Direction::Bidirectional {
            self.window / 2 + 1
        } else {
            self.window
        };
        let group = self.attention.n_heads / self.attention.n_kv_heads;
        let io = encoder::Io::new(
            g_,
            plan.head.encoding,
            plan.extent,
            self.direction,
            group,
            Some(window),
        )?;
        let (global, local) = (
            io.rotary(g_, &self.global_frequencies)?,
            io.rotary(g_, &self.local_frequencies)?,
        );
        let table = w.get("model.embed_tokens", "weight", &[self.vocab_size, hidden]);
        g_.at_module("model.embed_tokens");
        let h = g_.rows_to_residual(&table, io.input_ids)?;
        // [batch, tokens, hidden]
        let h = g_.scale(h, (hidden as f32).sqrt() / plan.residual_divisor)?;
        let h = io.lay_out(g_, h)?;
        let h = self.layers(g_, w, h, plan.residual_divisor, |_, _, mask| {
            Ok(io.attention_inputs(
                Some(if mask == Mask::Full { &global } else { &local }),
                mask,
            ))
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
            n_layers: self.masks.len(),
            vocab_size: self.vocab_size,
            hidden: self.attention.hidden,
            n_positions: self.max_context,
        }
    }
}

impl Gemma3 {
    /// All layers, each with the attention inputs that `inputs` gives. What the layers add to the
    /// residual stream is divided by `divisor`.
    fn layers<'a>(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        mut h: ValueId,
        divisor: f32,
        inputs: impl Fn(&mut Graph, usize, Mask) -> Result<AttentionInputs<'a>, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let hidden = self.attention.hidden;
        let add = |g: &mut Graph, h, x| {
            let x = if divisor == 1.0 {
                x
            } else {
                g.scale(x, divisor.recip())?
            };
            g.add(h, x)
        };
        for (i, mask) in self.masks.iter().enumerate() {
            let module = |name: &str| format!("model.layers.{i}.{name}");
            let norm_as = |norm: RmsNorm, g: &mut Graph, x, name: &str| {
                g.at_module(&module(name));
                norm.apply(g, x, &w.get(&module(name), "weight", &[hidden]))
            };
            let residual_norm =
                |g: &mut Graph, x, name| norm_as(self.norm.for_divided_stream(divisor), g, x, name);
            let norm = |g: &mut Graph, x, name| norm_as(self.norm, g, x, name);
            g.at_module(&module("self_attn"));
            let inputs = inputs(g, i, *mask)?;
            let x = residual_norm(g, h, "input_layernorm")?;
            let a = self
                .attention
                .apply(g, w, &module("self_attn"), x, inputs)?;
            let a = norm(g, a, "post_attention_layernorm")?;
            h = inputs.needed_tokens(g, h)?;
            h = add(g, h, a)?;
            let x = residual_norm(g, h, "pre_feedforward_layernorm")?;
            let m = self.mlp.apply(g, w, &module("mlp"), x)?;
            let m = norm(g, m, "post_feedforward_layernorm")?;
            h = add(g, h, m)?;
        }
        Ok(h)
    }
}

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = read(c)?;
    if model.direction == Direction::Bidirectional {
        return Err(ModelError::unsupported(
            "use_bidirectional_attention",
            true,
            "expected false, because a decoder attends to earlier tokens only",
        ));
    }
    model.tied = w.is_tied(model.tied);
    Ok(Box::new(model))
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    Ok(Box::new(read(c)?))
}

/// Reads the configuration, which may be the text part of a multimodal model.
fn read(c: &Config) -> Result<Gemma3, ModelError> {
    let Some(text) = c.opt_object("text_config")? else {
        return read_text(c, false);
    };
    c.acknowledge(&[
        "boi_token_index",
        "eoi_token_index",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
    ]);
    text.acknowledge(IGNORED_KEYS);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    Ok(Gemma3 {
        tied: c.bool_or("tie_word_embeddings", true)?,
        ..read_text(&text, true)?
    })
}

fn read_text(c: &Config, is_part: bool) -> Result<Gemma3, ModelError> {
    refuse_softcaps(c)?;
    check_activation(c)?;
    let direction = if c.bool_or("use_bidirectional_attention", false)? {
        Direction::Bidirectional
    } else {
        Direction::Causal
    };
    let size = |key: &str| -> Result<usize, ModelError> {
        let default = PART_DEFAULTS
            .iter()
            .find(|(name, _)| is_part && *name == key)
            .map(|(_, size)| *size);
        check_size(
            key,
            c.opt_usize(key)?
                .or(default)
                .map_or_else(|| c.usize(key), Ok)?,
        )
    };
    let hidden = size("hidden_size")?;
    let n_layers = check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?;
    let head_dim = check_size("head_dim", c.opt_usize("head_dim")?.unwrap_or(256))?;
    let (n_heads, n_kv_heads) = (size("num_attention_heads")?, size("num_key_value_heads")?);
    let epsilon =
        check_positive("rms_norm_eps", c.opt_f64("rms_norm_eps")?.unwrap_or(1e-6))? as f32;
    let norm = RmsNorm {
        epsilon,
        plus_one: true,
    };
    let bias = c.bool_or("attention_bias", false)?;
    let score = check_positive(
        "query_pre_attn_scalar",
        c.opt_f64("query_pre_attn_scalar")?.unwrap_or(256.0),
    )?;
    let (global, local) = ropes(c)?;
    let pattern = c
        .opt_usize("sliding_window_pattern")?
        .or(c.opt_usize("_sliding_window_pattern")?);
    let masks = match layer_masks(c, n_layers)? {
        Some(masks) => masks,
        None => by_pattern(n_layers, pattern.unwrap_or(PATTERN))?,
    };
    let model = Gemma3 {
        attention: attention(
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            score.powf(-0.5),
            bias,
            norm,
        )?,
        mlp: mlp(hidden, size("intermediate_size")?),
        norm,
        global_frequencies: inverse_frequencies(
            &global,
            global.theta.unwrap_or(1_000_000.0),
            head_dim,
        )?,
        local_frequencies: inverse_frequencies(
            &local,
            local.theta.unwrap_or(LOCAL_THETA),
            head_dim,
        )?,
        masks,
        window: check_size(
            "sliding_window",
            c.opt_usize("sliding_window")?.unwrap_or(4096),
        )?,
        vocab_size: size("vocab_size")?,
        max_context: check_size(
            "max_position_embeddings",
            c.opt_usize("max_position_embeddings")?.unwrap_or(131_072),
        )?,
        tied: c.bool_or("tie_word_embeddings", true)?,
        direction,
    };
    Ok(model)
}

fn check_activation(c: &Config) -> Result<(), ModelError> {
    let act = c
        .opt_str("hidden_activation")?
        .or(c.opt_str("hidden_act")?)
        .unwrap_or("gelu_pytorch_tanh");
    if act != "gelu_pytorch_tanh" {
        return Err(ModelError::unsupported(
            "hidden_activation",
            act,
            "expected gelu_pytorch_tanh",
        ));
    }
    Ok(())
}

fn refuse_softcaps(c: &Config) -> Result<(), ModelError> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = c.opt_f64(key)? {
            return Err(ModelError::unsupported(
                key,
                cap,
                "expected no softcapping, because Gemma 3 has none",
            ));
        }
    }
    Ok(())
}

fn refuse_gguf_softcaps(gguf: &Gguf) -> Result<(), ModelError> {
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let key = format!("gemma3.{name}");
        if let Some(cap) = gguf.opt_f32(&key)? {
            return Err(ModelError::unsupported(
                &key,
                cap,
                "expected no softcapping, because Gemma 3 has none",
            ));
        }
    }
    Ok(())
}

/// The rotary embeddings of full-attention layers and of sliding-window layers.
fn ropes(c: &Config) -> Result<(RopeConfig, RopeConfig), ModelError> {
    let unset = || RopeConfig {
        theta: None,
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    Ok(match c.rope()? {
        Rope::Uniform(_) if c.has("rope_parameters") => {
            let reason = "expected one rotary embedding for each layer type";
            return Err(ModelError::unsupported(
                "rope_parameters",
                "the same for all layers",
                reason,
            ));
        }
        // The old spelling describes full-attention layers unless `rope_local_base_freq` is present
        // too.
        Rope::Uniform(global) => (global, unset()),
        rope => {
            let part = |ty: &str| rope.layer_type(ty).cloned().unwrap_or_else(unset);
            (part("full_attention"), part("sliding_attention"))
        }
    })
}

/// The masks of layers where every `pattern`-th layer has full attention.
fn by_pattern(n_layers: usize, pattern: usize) -> Result<Vec<Mask>, ModelError> {
    let pattern = check_size("sliding_window_pattern", pattern)?;
    let mask = |i: usize| {
        if (i + 1).is_multiple_of(pattern) {
            Mask::Full
        } else {
            Mask::Sliding
        }
    };
    Ok((0..n_layers).map(mask).collect())
}

fn from_gguf(gguf: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let key = |name: &str| format!("gemma3.{name}");
    let size = |name: &str| -> Result<usize, ModelError> {
        check_size(&key(name), gguf.u32(&key(name))? as usize)
    };
    refuse_gguf_softcaps(gguf)?;
    let (hidden, n_heads) = (size("embedding_length")?, size("attention.head_count")?);
    let n_layers = check_layers(&key("block_count"), gguf.u32(&key("block_count"))? as usize)?;
    let head_dim = size("attention.key_length")?;
    let rotated = gguf
        .opt_u32(&key("rope.dimension_count"))?
        .map_or(head_dim, |n| n as usize);
    for (name, value) in [
        ("attention.value_length", size("attention.value_length")?),
        ("rope.dimension_count", rotated),
    ] {
        if value != head_dim {
            return Err(ModelError::unsupported(
                &key(name),
                value,
                "expected the size of a key head",
            ));
        }
    }
    let epsilon = key("attention.layer_norm_rms_epsilon");
    let norm = RmsNorm {
        epsilon: check_positive(&epsilon, gguf.f32(&epsilon)?.into())? as f32,
        plus_one: false,
    };
    // The file does not contain this value. Source: llama.cpp, which recognizes 27B by its 62
    // layers and uses integer division there.
    let score = if n_layers == 62 {
        hidden / n_heads
    } else {
        head_dim
    };
    let score = check_positive(&key("attention.head_count"), score as f64)?;
    let rope = |scaling| RopeConfig {
        theta: None,
        scaling,
        partial_rotary_factor: None,
    };
    let theta = |name: &str, default| -> Result<f64, ModelError> {
        check_positive(
            &key(name),
            gguf.opt_f32(&key(name))?.map_or(default, f64::from),
        )
    };
    let (theta, local_theta) = (
        theta("rope.freq_base", 1_000_000.0)?,
        theta("rope.freq_base_swa", LOCAL_THETA)?,
    );
    let pattern = gguf
        .opt_u32(&key("attention.sliding_window_pattern"))?
        .map_or(PATTERN, |n| n as usize);
    let model = Gemma3 {
        attention: attention(
            hidden,
            n_heads,
            size("attention.head_count_kv")?,
            head_dim,
            score.powf(-0.5),
            false,
            norm,
        )?,
        mlp: mlp(hidden, size("feed_forward_length")?),
        norm,
        global_frequencies: inverse_frequencies(
            &rope(gguf_scaling(gguf, "gemma3")?),
            theta,
            head_dim,
        )?,
        local_frequencies: inverse_frequencies(&rope(RopeScaling::Default), local_theta, head_dim)?,
        masks: by_pattern(n_layers, pattern)?,
        window: size("attention.sliding_window")?,
        vocab_size: vocab_size(gguf, w, "gemma3")?,
        max_context: size("context_length")?,
        tied: !w.has("lm_head", "weight"),
        direction: Direction::Causal,
    };
    Ok(Box::new(model))
}

fn mlp(hidden: usize, intermediate: usize) -> Mlp {
    Mlp {
        hidden,
        intermediate,
        activation: Activation::GeluTanh,
        bias: false,
    }
}

fn attention(
    hidden: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    scale: f64,
    bias: bool,
    norm: RmsNorm,
) -> Result<Attention, ModelError> {
    check_heads(n_heads, n_kv_heads, head_dim)?;
    let (qkv_bias, output_bias) = (bias, bias);
    Ok(Attention {
        hidden,
        n_heads,
        n_kv_heads,
        head_dim,
        scale,
        qkv_bias,
        output_bias,
        qk_norm: Some(norm),
    })
}
