//! ERNIE 4.5, the dense models: Llama with interleaved rotary pairs.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::Config;
use crate::layers::rope::Style;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["ernie4_5"],
    about: "ERNIE 4.5, dense models",
    checked: &[
        "tiny/ernie4_5",
        "tiny/ernie4_5-plain",
        "tiny-gguf/ernie4_5",
        "tiny-gguf/ernie4_5-plain",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    ..Family::NONE
};

/// Defaults of Ernie4_5Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    head_dim: Some(128),
    kv_heads: KvHeads::OrHeads(2),
    theta: 500_000.0,
    style: Style::Interleaved,
    max_context: 131_072,
    tied: true,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    let bias = Some(("use_bias", false));
    config::read_biases(c, &mut model, bias, bias)?;
    config::decoder(model, w)
}
