//! Arcee: Llama whose feed-forward layer has no gate and squares its ReLU.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE, llama};
use crate::checkpoint::{Config, Gguf};
use crate::layers::mlp::MlpKind;
use crate::transformer::config::{self, Defaults};
use crate::transformer::gguf;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["arcee"],
    about: "AFM 4.5B",
    checked: &[
        "tiny/arcee",
        "tiny/arcee-plain",
        "tiny-gguf/arcee",
        "tiny-gguf/arcee-plain",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of ArceeConfig.
const DEFAULTS: Defaults = Defaults {
    activation: "relu2",
    epsilon: 1e-5,
    max_context: 4096,
    mlp: MlpKind::Plain,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    let (attention, mlp) = (("attention_bias", false), ("mlp_bias", false));
    config::read_biases(c, &mut model, Some(attention), Some(mlp))?;
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let style = llama::GGUF.style;
    gguf::read(file, w, &Defaults { style, ..DEFAULTS })
}
