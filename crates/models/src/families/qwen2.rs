//! Qwen2 and Qwen2.5: Llama with biases of query, key and value; some layers may have a sliding
//! window.

use super::{EncoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::Config;
use crate::error::ModelError;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::{Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen2"],
    about: "Qwen2, Qwen2.5, gte-Qwen2",
    checked: &[
        "tiny/qwen2",
        "tiny/qwen2-yarn",
        "tiny/qwen2-dynamic",
        "tiny-embed/qwen2-embedding",
        "tiny-embed/qwen2-both-ways",
        "tiny/awq",
        "tiny-gguf/qwen2-yarn",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(|c, w| config::decoder(read(c)?, w)),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

/// Defaults of Qwen2Config.
const DEFAULTS: Defaults = Defaults {
    kv_heads: KvHeads::OrHeads(32),
    max_context: 32_768,
    ..Defaults::LLAMA
};

fn read(c: &Config) -> Result<Transformer, ModelError> {
    let mut model = config::read(c, &DEFAULTS)?;
    model.change_layers(|layer| layer.attention.qkv_bias = true);
    config::sliding_by_switch(c, &mut model, |layer, first| layer >= first)?;
    Ok(model)
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    // gte-Qwen2 names code of its own, which attends as `is_causal` says.
    c.acknowledge(&["auto_map"]);
    let mut model = read(c)?;
    config::read_is_causal(c, &mut model)?;
    Ok(Box::new(model))
}
