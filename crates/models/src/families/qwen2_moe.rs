//! Qwen1.5 and Qwen2 whose feed-forward layers are mixtures of experts, beside one expert that all
//! tokens use.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::mixture::{self, Mixture};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen2_moe", "qwen2moe"],
    about: "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    checked: &["tiny/qwen2_moe", "tiny-gguf/qwen2_moe"],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Qwen2MoeConfig.
const DEFAULTS: Defaults = Defaults {
    kv_heads: KvHeads::NotNull(16),
    max_context: 32_768,
    ..Defaults::LLAMA
};

/// Its experts.
const MIXTURE: Mixture = Mixture {
    n_experts: 60,
    n_used: 4,
    intermediate: Some(("moe_intermediate_size", 1408)),
    normalized: Some(false),
    chooses_layers: true,
    shared: Some(("shared_expert_intermediate_size", 5632)),
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    mixture::from_config(c, &MIXTURE, &mut model)?;
    let bias = c.bool_or("qkv_bias", true)?;
    model.change_layers(|layer| layer.attention.qkv_bias = bias);
    // Not the layers that slide in Qwen2: every second one below `max_window_layers`.
    let slides = |layer: usize, end: usize| layer.is_multiple_of(2) && layer < end;
    config::sliding_by_switch(c, &mut model, slides)?;
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    mixture::read_gguf(file, w, &DEFAULTS, false)
}
