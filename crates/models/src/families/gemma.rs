//! Gemma: Llama with an embedding scaled by sqrt(hidden), norms whose factors are stored minus 1
//! (GGUF stores the factors themselves), and GELU.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::layers::encoder::Direction;
use crate::layers::mlp::Activation;
use crate::transformer::config::{self, Defaults, KvHeads, RMS_PLUS_ONE};
use crate::transformer::{Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gemma"],
    about: "Gemma, CodeGemma",
    checked: &["tiny/gemma", "tiny-gguf/gemma"],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of GemmaConfig.
const DEFAULTS: Defaults = Defaults {
    activation: "gelu_pytorch_tanh",
    norm: RMS_PLUS_ONE,
    head_dim: Some(256),
    kv_heads: KvHeads::NotNull(16),
    max_context: 8192,
    tied: true,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // A later spelling of `hidden_act`, which transformers does not read.
    c.acknowledge(&["hidden_activation"]);
    let mut model = config::read(c, &DEFAULTS)?;
    // The first files say `gelu` and mean the approximation, as transformers reads them too.
    if c.opt_str("hidden_act")? == Some("gelu") {
        model.change_layers(|layer| layer.mlp.activation = Activation::GeluTanh);
    }
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    if c.bool_or("use_bidirectional_attention", false)? {
        model.direction = Direction::Bidirectional;
    }
    config::decoder(scaled_embedding(model), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let model = gguf::read_plus_one(file, w, &DEFAULTS)?;
    Ok(scaled_embedding(model))
}

/// The model with an embedding scaled by sqrt(hidden), and the divisor of its residual stream.
pub(super) fn scaled_embedding(model: Transformer) -> Transformer {
    Transformer {
        embedding_factor: (model.hidden as f32).sqrt(),
        residual_divisor: RESIDUAL_DIVISOR,
        ..model
    }
}

/// The residual stream of Gemma 3 270M overflows fp16 after "Why is the sky blue?". Divided by 2,
/// 16 and 64, the greedy tokens equal those of f32 in both forms. 16 leaves room for larger models.
const RESIDUAL_DIVISOR: f32 = 16.0;
