//! GLM-4-0414: norms around attention and feed-forward layer, interleaved rotary pairs in half of a
//! head, and gate and up projection as the rows of one matrix.

use super::{DecoderResult, Family};
use crate::checkpoint::Config;
use crate::layers::mlp::MlpKind;
use crate::layers::rope::Style;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::{Norms, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["glm4"],
    about: "GLM-4-0414",
    checked: &["tiny/glm4", "tiny/glm4-null", "tiny-gguf/glm4"],
    gguf_names: &[
        (
            "model.layers.{}.post_self_attn_layernorm",
            "blk.{}.post_attention_norm",
        ),
        (
            "model.layers.{}.post_attention_layernorm",
            "blk.{}.ffn_norm",
        ),
        ("model.layers.{}.post_mlp_layernorm", "blk.{}.post_ffw_norm"),
        ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    ],
    config: Some(from_config),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    ..Family::NONE
};

/// Defaults of Glm4Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 0.000_000_156_25,
    norms: Norms {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_self_attn_layernorm"),
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
    },
    head_dim: Some(128),
    kv_heads: KvHeads::NotNull(2),
    rotated_share: Some(0.5),
    style: Style::Interleaved,
    max_context: 131_072,
    mlp: MlpKind::Joined,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    let bias = c.bool_or("attention_bias", true)?;
    model.change_layers(|layer| layer.attention.qkv_bias = bias);
    config::decoder(model, w)
}
