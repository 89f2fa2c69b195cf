//! OLMoE: OLMo 2 with norms before attention and mixtures of experts, and norms of all query heads
//! and all key heads together.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf, Range};
use crate::layers::attention::Span;
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults};
use crate::transformer::mixture::{self, Mixture};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["olmoe"],
    about: "OLMoE-1B-7B",
    checked: &["tiny/olmoe", "tiny/olmoe-clip", "tiny-gguf/olmoe"],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of OlmoeConfig.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    max_context: 4096,
    ..Defaults::LLAMA
};

/// Its experts, which all layers have.
const MIXTURE: Mixture = Mixture {
    n_experts: 64,
    n_used: 8,
    intermediate: None,
    normalized: Some(false),
    chooses_layers: false,
    shared: None,
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    mixture::from_config(c, &MIXTURE, &mut model)?;
    let bound = c.opt_number("clip_qkv", &Range::SOFT_CAP)?;
    model.change_layers(|layer| layer.attention.clip = bound.map(|bound| bound as f32));
    config::decoder(normed(model), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    Ok(normed(mixture::read_gguf(file, w, &DEFAULTS, false)?))
}

fn normed(mut model: Transformer) -> Transformer {
    model.set_qk_norms(Span::AllHeads, false);
    model
}
