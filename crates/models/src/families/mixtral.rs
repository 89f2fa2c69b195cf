//! Mixtral: Mistral whose feed-forward layers are mixtures of experts. llama.cpp names GGUF files
//! of these models `llama`.

use super::{DecoderResult, Family};
use crate::checkpoint::Config;
use crate::layers::decoder::Mask;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::mixture::{self, Mixture};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["mixtral"],
    about: "Mixtral 8x7B, 8x22B",
    checked: &["tiny/mixtral", "tiny-gguf/mixtral"],
    tensor_names: &[
        (
            "model.layers.{}.mlp.gate",
            "model.layers.{}.block_sparse_moe.gate",
        ),
        (
            "model.layers.{}.mlp.experts.{}.gate_proj",
            "model.layers.{}.block_sparse_moe.experts.{}.w1",
        ),
        (
            "model.layers.{}.mlp.experts.{}.up_proj",
            "model.layers.{}.block_sparse_moe.experts.{}.w3",
        ),
        (
            "model.layers.{}.mlp.experts.{}.down_proj",
            "model.layers.{}.block_sparse_moe.experts.{}.w2",
        ),
    ],
    gguf_as: Some("llama"),
    config: Some(from_config),
    ..Family::NONE
};

/// Defaults of MixtralConfig.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    kv_heads: KvHeads::NotNull(8),
    theta: 1_000_000.0,
    max_context: 131_072,
    ..Defaults::LLAMA
};

/// Its experts: all layers have them, and their probabilities are always normalized.
const MIXTURE: Mixture = Mixture {
    n_experts: 8,
    n_used: 2,
    intermediate: None,
    normalized: None,
    chooses_layers: false,
    shared: None,
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    mixture::from_config(c, &MIXTURE, &mut model)?;
    model.window = config::read_window(c, None)?;
    if model.window.is_some() {
        model.set_masks(&vec![Mask::Sliding; model.layers.len()]);
    }
    config::decoder(model, w)
}
