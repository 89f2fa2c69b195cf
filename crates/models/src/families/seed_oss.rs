//! Seed-OSS: Llama with biases of query, key and value.

use super::{DecoderResult, Family};
use crate::checkpoint::Config;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["seed_oss"],
    about: "Seed-OSS",
    checked: &["tiny/seed_oss", "tiny-gguf/seed_oss"],
    gguf_names: &[(
        "model.layers.{}.post_attention_layernorm",
        "blk.{}.post_attention_norm",
    )],
    config: Some(from_config),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    ..Family::NONE
};

/// Defaults of SeedOssConfig.
const DEFAULTS: Defaults = Defaults {
    head_dim: Some(128),
    kv_heads: KvHeads::OrHeads(8),
    max_context: 524_288,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    c.acknowledge(&["residual_dropout"]);
    let mut model = config::read(c, &DEFAULTS)?;
    let (qkv, output, mlp) = (
        c.bool_or("attention_bias", true)?,
        c.bool_or("attention_out_bias", false)?,
        c.bool_or("mlp_bias", false)?,
    );
    model.change_layers(|layer| {
        layer.attention.qkv_bias = qkv;
        layer.attention.output_bias = output;
        layer.mlp.bias = mlp;
    });
    config::decoder(model, w)
}
