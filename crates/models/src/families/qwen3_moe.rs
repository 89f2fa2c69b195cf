//! Qwen3 whose feed-forward layers are mixtures of experts.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::layers::attention::QkNorm;
use crate::layers::decoder::Mask;
use crate::layers::norm::Norm;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::mixture::{self, Mixture};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3_moe", "qwen3moe"],
    about: "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
    checked: &[
        "tiny/qwen3_moe",
        "tiny/qwen3_moe-sliding",
        "tiny-gguf/qwen3_moe",
        "tiny-gguf/qwen3_moe-quantised",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Qwen3MoeConfig.
const DEFAULTS: Defaults = Defaults {
    kv_heads: KvHeads::NotNull(4),
    max_context: 32_768,
    ..Defaults::LLAMA
};

/// Its experts.
const MIXTURE: Mixture = Mixture {
    n_experts: 128,
    n_used: 8,
    intermediate: Some(("moe_intermediate_size", 768)),
    normalized: Some(false),
    chooses_layers: true,
    shared: None,
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // All layers slide or none; this key is that of another class.
    c.acknowledge(&["max_window_layers"]);
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    mixture::from_config(c, &MIXTURE, &mut model)?;
    model.change_layers(|layer| {
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    });
    if c.bool_or("use_sliding_window", false)? {
        model.window = config::read_window(c, Some(4096))?;
        if model.window.is_some() {
            model.set_masks(&vec![Mask::Sliding; model.layers.len()]);
        }
    } else {
        c.acknowledge(&["sliding_window"]);
    }
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    mixture::read_gguf(file, w, &DEFAULTS, true)
}
