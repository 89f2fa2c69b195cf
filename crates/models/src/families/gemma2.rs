//! Gemma 2: Gemma with norms around attention and feed-forward layer, soft caps of scores and
//! logits, and a sliding window in every other layer.

use super::gemma::scaled_embedding;
use super::{DecoderResult, Family, GGUF_NORMS_AROUND};
use crate::checkpoint::{Config, Gguf, Range};
use crate::error::ModelError;
use crate::layers::encoder::Direction;
use crate::transformer::config::{self, Defaults, KvHeads, RMS_PLUS_ONE};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gemma2"],
    about: "Gemma 2",
    checked: &["tiny/gemma2", "tiny-gguf/gemma2"],
    gguf_names: GGUF_NORMS_AROUND,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Gemma2Config.
const DEFAULTS: Defaults = Defaults {
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    norm: RMS_PLUS_ONE,
    norms: Norms::AROUND,
    head_dim: Some(256),
    kv_heads: KvHeads::NotNull(4),
    max_context: 8192,
    tied: true,
    ..Defaults::LLAMA
};
const SCORES_CAP: f64 = 50.0;
const LOGITS_CAP: f64 = 30.0;
const WINDOW: usize = 4096;
/// Every second layer has full attention.
const PATTERN: usize = 2;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Written beside `hidden_activation`, which transformers reads.
    c.acknowledge(&["hidden_act"]);
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    if c.bool_or("use_bidirectional_attention", false)? {
        model.direction = Direction::Bidirectional;
    }
    let scalar = c.opt_number("query_pre_attn_scalar", &Range::FACTOR)?;
    let scale = scalar.unwrap_or(256.0).powf(-0.5);
    model.window = config::read_window(c, Some(WINDOW))?;
    let pattern = ("sliding_window_pattern", PATTERN);
    let masks = config::masks(c, model.layers.len(), pattern)?;
    model.set_masks(&masks);
    let cap = |key: &str, default: f64| -> Result<Option<f32>, ModelError> {
        // An explicit null says that there is no cap.
        if !c.has(key) && c.keys().any(|k| k == key) {
            return Ok(None);
        }
        let cap = c.opt_number(key, &Range::SOFT_CAP)?;
        Ok(Some(cap.unwrap_or(default) as f32))
    };
    let scores = cap("attn_logit_softcapping", SCORES_CAP)?;
    let logits = cap("final_logit_softcapping", LOGITS_CAP)?;
    config::decoder(capped(model, scores, logits, scale), w)
}

/// Keys that llama.cpp's converter always writes. Source: `Gemma2Model` of its conversion/gemma.py
/// (b11434).
const GGUF_KEYS: &[&str] = &[
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.value_length",
    "attn_logit_softcapping",
    "final_logit_softcapping",
];

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    keys.require(GGUF_KEYS)?;
    let mut model = gguf::read_plus_one(file, w, &DEFAULTS)?;
    model.window = Some(keys.size("attention.sliding_window")?);
    let masks = gguf::masks(keys, model.layers.len(), PATTERN)?;
    model.set_masks(&masks);
    let scores = keys.opt_cap("attn_logit_softcapping")?;
    let logits = keys.opt_cap("final_logit_softcapping")?;
    // The file does not contain this value. Source: llama.cpp, which recognizes 27B by its 46
    // layers and uses integer division there.
    let attention = &model.layers[0].attention;
    let scalar = if model.layers.len() == 46 {
        model.hidden / attention.n_heads
    } else {
        attention.head_dim
    };
    let scale = (scalar as f64).powf(-0.5);
    Ok(capped(model, scores, logits, scale))
}

fn capped(
    mut model: Transformer,
    scores: Option<f32>,
    logits: Option<f32>,
    scale: f64,
) -> Transformer {
    model.logits_soft_cap = logits;
    model.change_layers(|layer| {
        layer.attention.soft_cap = scores;
        layer.attention.scale = scale;
    });
    scaled_embedding(model)
}
