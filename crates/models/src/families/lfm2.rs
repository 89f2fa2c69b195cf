//! LFM2: layers of attention with norms of query and key heads, and layers of gated short
//! convolutions.

use super::{DecoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range};
use crate::checks::check_size;
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::norm::Norm;
use crate::layers::short_conv::ShortConv;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["lfm2"],
    about: "LFM2, LFM2.5, dense models",
    checked: &["tiny/lfm2", "tiny/lfm2-plain", "tiny-gguf/lfm2-plain"],
    tensor_names: &[
        ("model.norm", "model.embedding_norm"),
        (
            "model.layers.{}.self_attn.o_proj",
            "model.layers.{}.self_attn.out_proj",
        ),
        (
            "model.layers.{}.self_attn.q_norm",
            "model.layers.{}.self_attn.q_layernorm",
        ),
        (
            "model.layers.{}.self_attn.k_norm",
            "model.layers.{}.self_attn.k_layernorm",
        ),
        (
            "model.layers.{}.mlp.gate_proj",
            "model.layers.{}.feed_forward.w1",
        ),
        (
            "model.layers.{}.mlp.up_proj",
            "model.layers.{}.feed_forward.w3",
        ),
        (
            "model.layers.{}.mlp.down_proj",
            "model.layers.{}.feed_forward.w2",
        ),
    ],
    gguf_names: &[
        ("model.norm", "token_embd_norm"),
        ("model.layers.{}.operator_norm", "blk.{}.attn_norm"),
        ("model.layers.{}.ffn_norm", "blk.{}.ffn_norm"),
        ("model.layers.{}.conv.in_proj", "blk.{}.shortconv.in_proj"),
        ("model.layers.{}.conv.out_proj", "blk.{}.shortconv.out_proj"),
        ("model.layers.{}.conv.conv", "blk.{}.shortconv.conv"),
    ],
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Lfm2Config.
const DEFAULTS: Defaults = Defaults {
    epsilon_key: "norm_eps",
    epsilon: 1e-5,
    norms: Norms {
        before_attention: Some("operator_norm"),
        after_attention: None,
        before_mlp: Some("ffn_norm"),
        after_mlp: None,
    },
    kv_heads: KvHeads::NotNull(8),
    theta: 1_000_000.0,
    max_context: 128_000,
    tied: true,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Sizes of the published files that repeat others, and notes on training.
    c.acknowledge(&[
        "block_dim",
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "num_heads",
        "theta",
        "use_pos_enc",
    ]);
    c.note_unused("rms_norm_eps", "the norms of lfm2 have `norm_eps`");
    // An old spelling, which transformers reads first.
    let intermediate_key = if c.has("block_ff_dim") {
        c.acknowledge(&["intermediate_size"]);
        "block_ff_dim"
    } else {
        "intermediate_size"
    };
    let d = Defaults {
        intermediate_key,
        ..DEFAULTS
    };
    // An old spelling, which transformers reads first.
    let tied = c.opt_bool("tie_embedding")?;
    let mut model = config::read(c, &d)?;
    model.tied = tied.unwrap_or(model.tied);
    config::require_silu(c, "expected silu, which transformers always computes")?;
    let inner = intermediate(c, model.layers[0].mlp.intermediate)?;
    let n_layers = model.layers.len();
    let attends = attends(c, n_layers)?;
    if attends.len() != n_layers {
        return Err(ModelError::unsupported(
            "layer_types",
            format!("{} names", attends.len()),
            &format!("expected one per layer, and num_hidden_layers is {n_layers}"),
        ));
    }
    model.change_layers(|layer| layer.mlp.intermediate = inner);
    let conv = ShortConv {
        hidden: model.hidden,
        taps: check_size("conv_L_cache", c.opt_usize("conv_L_cache")?.unwrap_or(3))?,
        bias: c.bool_or("conv_bias", false)?,
    };
    config::decoder(mixed(model, conv, &attends), w)
}

/// Which layers attend.
fn attends(c: &Config, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let attends = |ty: &&str| match *ty {
        "full_attention" => Ok(true),
        "conv" => Ok(false),
        other => Err(ModelError::unsupported(
            "layer_types",
            other,
            "expected full_attention or conv",
        )),
    };
    match (c.opt_strs("layer_types")?, c.opt_usizes("full_attn_idxs")?) {
        (Some(types), _) => types.iter().map(attends).collect(),
        (None, Some(layers)) => Ok((0..n_layers).map(|i| layers.contains(&i)).collect()),
        (None, None) => Ok(vec![true; n_layers]),
    }
}

/// The size between the projections of the feed-forward layer: two thirds of the size in the file,
/// times a factor, rounded up, unless the file says that it is the size.
fn intermediate(c: &Config, size: usize) -> Result<usize, ModelError> {
    let multiplier = c.opt_number("block_ffn_dim_multiplier", &Range::FACTOR)?;
    let multiplier = multiplier.unwrap_or(1.0);
    let multiple = "block_multiple_of";
    let multiple = check_size(multiple, c.opt_usize(multiple)?.unwrap_or(256))?;
    if !c.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(size);
    }
    let scaled = (multiplier * (2 * size / 3) as f64) as usize;
    let rounded = scaled.div_ceil(multiple).saturating_mul(multiple);
    check_size("intermediate_size", rounded)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    let model = gguf::read(file, w, &DEFAULTS)?;
    let taps = keys.size("shortconv.l_cache")?;
    let conv = ShortConv {
        hidden: model.hidden,
        taps,
        bias: false,
    };
    // The number of key heads of a layer without attention is 0.
    let n_kv_heads = keys.opt_list_of_layers("attention.head_count_kv")?;
    let n_kv_heads = n_kv_heads.unwrap_or_else(|| vec![1; model.layers.len()]);
    let attends: Vec<bool> = n_kv_heads.iter().map(|n| *n != 0).collect();
    Ok(mixed(model, conv, &attends))
}

fn mixed(mut model: Transformer, conv: ShortConv, attends: &[bool]) -> Transformer {
    for (layer, attends) in model.layers.iter_mut().zip(attends) {
        layer.conv = (!attends).then_some(conv);
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    }
    model
}
