//! Qwen3: the decoder, Qwen3-Embedding (the same weights, the last token's vector) and pplx-embed
//! (which sees both ways).
//!
//! Llama with a norm of each query and key head before rotation.

use super::keys::{bounded, check_heads, layers, masks, positive};
use super::llama::Llama;
use super::{EncoderRead, Family, Read};
use crate::checkpoint::{Config, Rope};
use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::decoder::Mask;
use crate::layers::encoder::Sight;
use crate::layers::mlp::{Activation, Mlp};
use crate::layers::norm::RmsNorm;
use crate::layers::rope::{Style, inverse_frequencies};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3"],
    config: Some(from_config),
    ..PPLX
};

/// pplx-embed, which is no decoder.
pub(super) const PPLX: Family = Family {
    names: &["bidirectional_pplx_qwen3"],
    base: "model",
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

fn from_config(c: &Config, w: &Weights<'_>) -> Read {
    let mut model = read(c)?;
    if model.sight == Sight::All {
        return Err(ModelError::unsupported(
            "use_bidirectional_attention",
            true,
            "decoders attend backwards only",
        ));
    }
    model.tied = w.is_tied(model.tied);
    Ok(Box::new(model))
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderRead {
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
            "layers that see everything are known",
        ));
    }
    let act = c.opt_str("hidden_act")?.unwrap_or("silu");
    if act != "silu" {
        return Err(ModelError::unsupported("hidden_act", act, "silu is known"));
    }
    let Rope::Uniform(rope) = c.rope()? else {
        return Err(ModelError::unsupported(
            "rope_parameters",
            "per layer type",
            "qwen3 has one for all layers",
        ));
    };
    let hidden = bounded("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = bounded("num_attention_heads", c.usize("num_attention_heads")?)?;
    let n_kv_heads = bounded(
        "num_key_value_heads",
        c.opt_usize("num_key_value_heads")?.unwrap_or(n_heads),
    )?;
    let head_dim = bounded("head_dim", c.opt_usize("head_dim")?.unwrap_or(128))?;
    check_heads(n_heads, n_kv_heads, head_dim)?;
    let n_layers = layers("num_hidden_layers", c.usize("num_hidden_layers")?)?;
    if masks(c, n_layers)?.is_some_and(|masks| masks.contains(&Mask::Sliding)) {
        return Err(ModelError::unsupported(
            "layer_types",
            "sliding_attention",
            "layers that see everything are known",
        ));
    }
    let bias = c.bool_or("attention_bias", false)?;
    let epsilon = positive("rms_norm_eps", c.opt_f64("rms_norm_eps")?.unwrap_or(1e-6))? as f32;
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
            intermediate: bounded("intermediate_size", c.usize("intermediate_size")?)?,
            activation: Activation::Silu,
            bias: false,
        },
        norm,
        inverse_frequencies: inverse_frequencies(&rope, rope.theta.unwrap_or(10_000.0), head_dim)?,
        style: Style::Half,
        n_layers,
        vocab_size: bounded("vocab_size", c.usize("vocab_size")?)?,
        max_context: bounded(
            "max_position_embeddings",
            c.opt_usize("max_position_embeddings")?.unwrap_or(32_768),
        )?,
        tied: c.bool_or("tie_word_embeddings", false)?,
        sight: if both_ways {
            Sight::All
        } else {
            Sight::Backwards
        },
    })
}
