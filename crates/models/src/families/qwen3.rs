//! Qwen3: the decoder, Qwen3-Embedding (the same weights with last-token pooling) and pplx-embed
//! (bidirectional attention).
//!
//! The architecture is Llama's with a norm of each query and key head before rotation.

use super::keys::{check_heads, check_layers, check_positive, check_size, layer_masks};
use super::llama::Llama;
use super::{DecoderResult, EncoderResult, Family};
use crate::checkpoint::{Config, Rope};
use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::decoder::Mask;
use crate::layers::encoder::Direction;
use crate::layers::mlp::{Activation, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Style, inverse_frequencies};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3"],
    config: Some(from_config),
    ..PPLX
};

/// pplx-embed, which cannot be used as a decoder.
pub(super) const PPLX: Family = Family {
    names: &["bidirectional_pplx_qwen3"],
    base: "model",
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

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

fn read(c: &Config) -> Result<Llama, ModelError> {
    c.acknowledge(&["auto_map", "max_window_layers", "sliding_window"]);
    let both_ways = c.bool_or(
        "use_bidirectional_attention",
        PPLX.names.contains(&c.str("model_type")?),
    )?;
    if c.bool_or("use_sliding_window", false)? {
        return Err(ModelError::unsupported(
            "use_sliding_window",
            true,
            "expected false, because only full attention is supported",
        ));
    }
    let act = c.opt_str("hidden_act")?.unwrap_or("silu");
    if act != "silu" {
        return Err(ModelError::unsupported("hidden_act", act, "expected silu"));
    }
    let Rope::Uniform(rope) = c.rope()? else {
        return Err(ModelError::unsupported(
            "rope_parameters",
            "per layer type",
            "expected one rotary embedding for all layers",
        ));
    };
    let hidden = check_size("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = check_size("num_attention_heads", c.usize("num_attention_heads")?)?;
    let n_kv_heads = check_size(
        "num_key_value_heads",
        c.opt_usize("num_key_value_heads")?.unwrap_or(n_heads),
    )?;
    let head_dim = check_size("head_dim", c.opt_usize("head_dim")?.unwrap_or(128))?;
    check_heads(n_heads, n_kv_heads, head_dim)?;
    let n_layers = check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?;
    if layer_masks(c, n_layers)?.is_some_and(|masks| masks.contains(&Mask::Sliding)) {
        return Err(ModelError::unsupported(
            "layer_types",
            "sliding_attention",
            "expected full_attention",
        ));
    }
    let bias = c.bool_or("attention_bias", false)?;
    let epsilon =
        check_positive("rms_norm_eps", c.opt_f64("rms_norm_eps")?.unwrap_or(1e-6))? as f32;
    let norm = RmsNorm {
        epsilon,
        plus_one: false,
    };
    let (qkv_bias, output_bias, scale) = (bias, bias, (head_dim as f64).powf(-0.5));
    Ok(Llama {
        attention: Attention {
            hidden,
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            qkv_bias,
            output_bias,
            qk_norm: Some(norm),
        },
        mlp: Mlp {
            hidden,
            intermediate: check_size("intermediate_size", c.usize("intermediate_size")?)?,
            activation: Activation::Silu,
            bias: false,
        },
        norm,
        inverse_frequencies: inverse_frequencies(&rope, rope.theta.unwrap_or(10_000.0), head_dim)?,
        style: Style::Half,
        n_layers,
        vocab_size: check_size("vocab_size", c.usize("vocab_size")?)?,
        max_context: check_size(
            "max_position_embeddings",
            c.opt_usize("max_position_embeddings")?.unwrap_or(32_768),
        )?,
        tied: c.bool_or("tie_word_embeddings", false)?,
        direction: if both_ways {
            Direction::Bidirectional
        } else {
            Direction::Causal
        },
    })
}
