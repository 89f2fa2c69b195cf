//! StableLM 2: LayerNorm, a quarter of each head rotated, and in some models attention and
//! feed-forward layer side by side, and norms of each query and key head by itself.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::error::ModelError;
use crate::layers::attention::{QkNorm, Span};
use crate::layers::norm::Norm;
use crate::transformer::config::{self, Defaults, KvHeads, LAYER_NORM_BIAS};
use crate::transformer::{Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["stablelm"],
    about: "StableLM 2 and 3B",
    checked: &[
        "tiny/stablelm",
        "tiny/stablelm-parallel",
        "tiny-gguf/stablelm",
        "tiny-gguf/stablelm-parallel",
    ],
    // Each head has a norm of its own.
    tensor_names: &[
        (
            "model.layers.{}.self_attn.q_norm.{}",
            "model.layers.{}.self_attn.q_layernorm.norms.{}",
        ),
        (
            "model.layers.{}.self_attn.k_norm.{}",
            "model.layers.{}.self_attn.k_layernorm.norms.{}",
        ),
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of StableLmConfig.
const DEFAULTS: Defaults = Defaults {
    epsilon_key: "layer_norm_eps",
    epsilon: 1e-5,
    norm: LAYER_NORM_BIAS,
    kv_heads: KvHeads::NotNull(32),
    rotated_share: Some(0.25),
    max_context: 4096,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    c.acknowledge(&["hidden_dropout"]);
    let key = "partial_rotary_factor";
    if c.is_null(key) {
        let reason = "expected a number; without the key, the share is 0.25";
        return Err(ModelError::unsupported(key, "null", reason));
    }
    let mut model = config::read(c, &DEFAULTS)?;
    let bias = c.bool_or("use_qkv_bias", false)?;
    let parallel = c.bool_or("use_parallel_residual", false)?;
    model.change_layers(|layer| layer.attention.qkv_bias = bias);
    if parallel {
        make_parallel(&mut model);
    }
    if c.bool_or("qk_layernorm", false)? {
        norm_heads(&mut model);
    }
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    let key = "stablelm.use_parallel_residual";
    // llama.cpp looks for the second norm instead of the key.
    file.opt_bool(key)?;
    if !w.has("model.layers.0.post_attention_layernorm", "weight") {
        make_parallel(&mut model);
    }
    if w.has("model.layers.0.self_attn.q_norm", "weight") {
        norm_heads(&mut model);
    }
    Ok(model)
}

fn norm_heads(model: &mut Transformer) {
    model.change_layers(|layer| {
        if let Norm::Layer { norm, .. } = layer.norm {
            layer.attention.qk_norm = Some(QkNorm {
                norm: Norm::Layer { norm, bias: false },
                span: Span::OwnHead,
                after_rotation: false,
            });
        }
    });
}

fn make_parallel(model: &mut Transformer) {
    model.change_layers(|layer| {
        layer.parallel = true;
        layer.norms.before_mlp = None;
    });
}
