//! Qwen3.5, text only: three of four layers are gated delta nets, and the others attention whose
//! output is gated.

use super::keys::{IGNORED_KEYS, check_size};
use super::{DecoderResult, Family};
use crate::checkpoint::Config;
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::delta_net::DeltaNet;
use crate::layers::norm::{Norm, RmsNorm};
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults, RMS_PLUS_ONE};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3_5_text", "qwen3_5"],
    about: "Qwen3.5, dense models (text)",
    checked: &["tiny/qwen3_5", "tiny/qwen3_5-image"],
    config: Some(from_config),
    ..Family::NONE
};

/// Defaults of Qwen3_5TextConfig.
const DEFAULTS: Defaults = Defaults {
    norm: RMS_PLUS_ONE,
    head_dim: Some(256),
    n_kv_heads: Some(4),
    rotated_share: Some(0.25),
    max_context: 32_768,
    ..Defaults::LLAMA
};

/// Every fourth layer attends.
const INTERVAL: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Layers that guess several tokens at once.
    w.ignore_module("mtp");
    config::decoder(read(c)?, w)
}

/// Reads the configuration, which may be the text part of a multimodal model.
fn read(c: &Config) -> Result<Transformer, ModelError> {
    let Some(text) = c.opt_object("text_config")? else {
        return read_text(c);
    };
    c.acknowledge(&[
        "image_token_id",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ]);
    text.acknowledge(IGNORED_KEYS);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    let tied = c.bool_or("tie_word_embeddings", false)?;
    Ok(Transformer {
        tied,
        ..read_text(&text)?
    })
}

fn read_text(c: &Config) -> Result<Transformer, ModelError> {
    c.acknowledge(&[
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
    ]);
    if let Some(rope) = c.opt_object("rope_parameters")? {
        // The three positions of an image; those of text are equal.
        rope.acknowledge(&["mrope_interleaved", "mrope_section"]);
    }
    if !c.bool_or("attn_output_gate", true)? {
        let reason = "expected true, because the class of transformers always has a gate";
        return Err(ModelError::unsupported("attn_output_gate", false, reason));
    }
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    let delta = delta_net(c, &model)?;
    let attends = attends(c, model.layers.len())?;
    for (layer, attends) in model.layers.iter_mut().zip(attends) {
        layer.delta = (!attends).then_some(delta);
        layer.attention.gated = true;
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    }
    Ok(model)
}

fn delta_net(c: &Config, model: &Transformer) -> Result<DeltaNet, ModelError> {
    let size = |key: &str, default: usize| -> Result<usize, ModelError> {
        check_size(key, c.opt_usize(key)?.unwrap_or(default))
    };
    let (keys, values) = ("linear_num_key_heads", "linear_num_value_heads");
    let (n_key_heads, n_value_heads) = (size(keys, 16)?, size(values, 32)?);
    if !n_value_heads.is_multiple_of(n_key_heads) {
        let reason = format!("expected a multiple of {keys}, {n_key_heads}");
        return Err(ModelError::unsupported(values, n_value_heads, &reason));
    }
    let taps = size("linear_conv_kernel_dim", 4)?;
    if taps == 1 {
        let key = "linear_conv_kernel_dim";
        return Err(ModelError::unsupported(key, taps, "expected 2 or more"));
    }
    let (key_dim, value_dim) = (
        size("linear_key_head_dim", 128)?,
        size("linear_value_head_dim", 128)?,
    );
    let channels = (n_key_heads.saturating_mul(2 * key_dim))
        .saturating_add(n_value_heads.saturating_mul(value_dim));
    check_size("channels of linear attention", channels)?;
    let epsilon = match model.norm {
        Norm::Rms(norm) => norm.epsilon,
        Norm::Layer { norm, .. } => norm.epsilon,
    };
    Ok(DeltaNet {
        hidden: model.hidden,
        taps,
        n_key_heads,
        n_value_heads,
        key_dim,
        value_dim,
        norm: RmsNorm {
            epsilon,
            plus_one: false,
        },
    })
}

/// Which layers attend.
fn attends(c: &Config, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = "full_attention_interval";
    let interval = check_size(interval, c.opt_usize(interval)?.unwrap_or(INTERVAL))?;
    let Some(types) = c.opt_strs("layer_types")? else {
        return Ok((0..n_layers)
            .map(|i| (i + 1).is_multiple_of(interval))
            .collect());
    };
    if types.len() != n_layers {
        let reason = format!("expected one per layer, and num_hidden_layers is {n_layers}");
        let found = format!("{} names", types.len());
        return Err(ModelError::unsupported("layer_types", found, &reason));
    }
    let attends = |ty: &&str| match *ty {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => Err(ModelError::unsupported(
            "layer_types",
            other,
            "expected full_attention or linear_attention",
        )),
    };
    types.iter().map(attends).collect()
}
