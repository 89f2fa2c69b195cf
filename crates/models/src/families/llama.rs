//! Llama: SmolLM2, TinyLlama, Llama 2 and 3.x.
//!
//! Layers of grouped-query attention and a gated feed-forward layer, each preceded by a norm. GGUF
//! permutes the rows of query and key so that rotary pairs are adjacent, and stores Llama 3's
//! frequency scaling as a tensor of divisors.

use super::{DecoderResult, EncoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::error::ModelError;
use crate::layers::rope::Style;
use crate::transformer::config::{self, Defaults};
use crate::transformer::{Transformer, mixture};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["llama"],
    about: "Llama 2 and 3, TinyLlama, SmolLM2",
    checked: &[
        "tiny/llama-bias",
        "tiny/llama-rope3",
        "tiny/llama-linear",
        "tiny/llama-bf16",
        "tiny/llama-f16",
        "tiny/llama-head",
        "tiny-embed/llama-embedding",
        "tiny/llama-relu",
        "tiny/compressed-int8",
        "tiny/compressed-int8-tensor",
        "tiny/compressed-packed8",
        "tiny/compressed-fp8",
        "tiny/gptq",
        "tiny/gptq-order",
        "tiny-gguf/llama-bias",
        "tiny-gguf/llama-linear",
        "tiny-gguf/llama-bf16",
        "tiny-gguf/llama-quantised",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(|c, w| config::decoder(read(c, w)?, w)),
    gguf: Some(from_gguf),
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

/// GGUF files of this architecture, and of others whose converter permutes query and key too.
pub(super) const GGUF: Defaults = Defaults {
    style: Style::Interleaved,
    ..Defaults::LLAMA
};

fn read(c: &Config, w: &Weights<'_>) -> Result<Transformer, ModelError> {
    // Training notes, and buffers in old checkpoints that the configuration determines anyway.
    c.acknowledge(&["is_llama_config"]);
    w.ignore("rotary_emb.inv_freq");
    if c.opt_bool("rope_interleaved")?.unwrap_or(false) {
        return Err(ModelError::unsupported(
            "rope_interleaved",
            true,
            "expected false, because llama rotates halves of a head",
        ));
    }
    let mut model = config::read(c, &Defaults::LLAMA)?;
    let (attention, mlp) = (("attention_bias", false), ("mlp_bias", false));
    config::read_biases(c, &mut model, Some(attention), Some(mlp))?;
    Ok(model)
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    Ok(Box::new(read(c, w)?))
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    // GGUF files of Mixtral name this architecture too.
    mixture::read_gguf(file, w, &GGUF, true)
}
