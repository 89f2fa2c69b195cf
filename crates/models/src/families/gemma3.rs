//! Gemma 3, text only.
//!
//! Gemma 2 with norms of query and key heads instead of soft caps, and a rotary base of their own
//! for sliding-window layers.

use super::gemma::scaled_embedding;
use super::{DecoderResult, EncoderResult, Family, GGUF_NORMS_AROUND};
use crate::checkpoint::{Config, Gguf, Range, RopeConfig, RopeScaling};
use crate::checks::acknowledge_common;
use crate::encoder::gguf::direction;
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::encoder::Direction;
use crate::layers::norm::Norm;
use crate::layers::rope::{Rotation, Style};
use crate::transformer::config::{self, Defaults, KvHeads, RMS_PLUS_ONE};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gemma3_text", "gemma3"],
    about: "Gemma 3 (text), EmbeddingGemma",
    checked: &[
        "tiny/gemma3",
        "tiny/gemma3-linear",
        "tiny/gemma3-bf16",
        "tiny/gemma3-image",
        "tiny-gguf/gemma3-linear",
        "tiny-gguf/gemma3-bf16",
        "tiny-embed/embeddinggemma",
    ],
    gguf_names: GGUF_NORMS_AROUND,
    config: Some(|c, w| config::decoder(read(c)?, w)),
    gguf: Some(from_gguf),
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

/// EmbeddingGemma in GGUF files, whose name of the architecture is its own. Every token sees all
/// others, in sliding layers those within half a window to each side.
pub(super) const EMBEDDING: Family = Family {
    names: &["gemma-embedding"],
    about: "EmbeddingGemma in GGUF files",
    checked: &["tiny-embed-gguf/embeddinggemma"],
    gguf_names: GGUF_NORMS_AROUND,
    gguf_encoder: Some(encoder_from_gguf),
    ..Family::NONE
};

/// Defaults of Gemma3TextConfig.
const DEFAULTS: Defaults = Defaults {
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    norm: RMS_PLUS_ONE,
    norms: Norms::AROUND,
    head_dim: Some(256),
    kv_heads: KvHeads::NotNull(4),
    theta: 1_000_000.0,
    max_context: 131_072,
    tied: true,
    ..Defaults::LLAMA
};
/// Default base of the rotary frequencies of sliding-window layers.
const LOCAL_THETA: f64 = 10_000.0;
/// By default every sixth layer has full attention.
const PATTERN: usize = 6;
/// Sizes that `text_config` of published models omits.
const PART_SIZES: &[(&str, usize)] = &[("vocab_size", 262_208), ("num_attention_heads", 8)];

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    let mut model = read(c)?;
    model.residual_divisor = 1.0;
    Ok(Box::new(model))
}

fn encoder_from_gguf(file: &Gguf, w: &Weights<'_>) -> EncoderResult {
    let mut model = from_gguf(file, w)?;
    let both_ways = Direction::Bidirectional;
    model.direction = direction(file, EMBEDDING.names[0], both_ways)?;
    model.residual_divisor = 1.0;
    Ok(Box::new(model))
}

/// Reads the configuration, which may be the text part of a multimodal model.
fn read(c: &Config) -> Result<Transformer, ModelError> {
    let Some(text) = c.opt_object("text_config")? else {
        return read_text(c, DEFAULTS);
    };
    c.acknowledge(&[
        "boi_token_id",
        "boi_token_index",
        "eoi_token_id",
        "eoi_token_index",
        "image_token_id",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
    ]);
    acknowledge_common(&text);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    let defaults = Defaults {
        sizes: PART_SIZES,
        ..DEFAULTS
    };
    let model = read_text(&text, defaults)?;
    let reason = "transformers caps no logits of a model that takes images";
    text.note_unused(LOGITS_CAP, reason);
    Ok(Transformer {
        tied: c.bool_or("tie_word_embeddings", true)?,
        logits_soft_cap: None,
        ..model
    })
}

fn read_text(c: &Config, d: Defaults) -> Result<Transformer, ModelError> {
    let [global, local] = config::ropes_by_layer_type(c)?;
    let local = RopeConfig {
        theta: Some(local.theta.unwrap_or(LOCAL_THETA)),
        ..local
    };
    match c.has("hidden_activation") {
        // Some files have both spellings.
        true => c.acknowledge(&["hidden_act"]),
        false => c.note_unused("hidden_act", "transformers reads `hidden_activation`"),
    }
    let mut model = config::read_with_ropes(c, &d, &[global, local])?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    if c.bool_or("use_bidirectional_attention", false)? {
        model.direction = Direction::Bidirectional;
    }
    let scalar = c.opt_number("query_pre_attn_scalar", &Range::FACTOR)?;
    let scale = scalar.unwrap_or(256.0).powf(-0.5);
    let pattern = c.opt_usize("sliding_window_pattern")?;
    let pattern = ("sliding_window_pattern", pattern.unwrap_or(PATTERN));
    // An attribute of the class, which files have beside `layer_types`.
    match c.has("layer_types") {
        true => c.acknowledge(&[ATTRIBUTE]),
        false => c.note_unused(ATTRIBUTE, "transformers reads `sliding_window_pattern`"),
    }
    let masks = config::masks(c, model.layers.len(), pattern)?;
    model.set_masks(&masks);
    model.window = config::read_window(c, Some(4096))?;
    let reason = "Gemma 3 normalizes queries and keys instead of capping scores";
    c.note_unused(SCORES_CAP, reason);
    let cap = c.opt_number(LOGITS_CAP, &Range::SOFT_CAP)?;
    Ok(finished(model, scale, cap.map(|cap| cap as f32)))
}

const ATTRIBUTE: &str = "_sliding_window_pattern";
const SCORES_CAP: &str = "attn_logit_softcapping";
const LOGITS_CAP: &str = "final_logit_softcapping";

/// Keys that llama.cpp's converter always writes. Source: `Gemma3Model` of its conversion/gemma.py
/// (b11434).
const GGUF_KEYS: &[&str] = &[
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.value_length",
    "rope.freq_base",
];

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    keys.require(GGUF_KEYS)?;
    let mut model = gguf::read_plus_one(file, w, &DEFAULTS)?;
    let attention = &model.layers[0].attention;
    let (n_heads, head_dim) = (attention.n_heads, attention.head_dim);
    let local = RopeConfig {
        theta: keys.opt_theta("rope.freq_base_swa")?,
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    let local = Rotation::new(&local, LOCAL_THETA, head_dim, Style::Half)?;
    model.rotations.push(local);
    let masks = gguf::masks(keys, model.layers.len(), PATTERN)?;
    model.set_masks(&masks);
    model.window = Some(keys.size("attention.sliding_window")?);
    // The file does not contain this value. Source: llama.cpp, which recognizes 27B by its 62
    // layers and uses integer division there.
    let scalar = if model.layers.len() == 62 {
        model.hidden / n_heads
    } else {
        head_dim
    };
    if let Some(cap) = keys.opt_cap(SCORES_CAP)? {
        let reason = "expected none, because Gemma 3 normalizes queries and keys instead";
        return Err(ModelError::unsupported(&keys.key(SCORES_CAP), cap, reason));
    }
    let cap = keys.opt_cap(LOGITS_CAP)?;
    Ok(finished(model, (scalar as f64).powf(-0.5), cap))
}

/// The model with its scale of scores, soft cap of logits, and norms of query and key heads.
fn finished(mut model: Transformer, scale: f64, cap: Option<f32>) -> Transformer {
    model.logits_soft_cap = cap;
    model.change_layers(|layer| {
        layer.attention.scale = scale;
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    });
    scaled_embedding(model)
}
