//! OLMo 2 and OLMo 3: norms after attention and feed-forward layer, and norms of all query heads
//! and all key heads together. OLMo 3 has a sliding window in three of four layers.

use super::{DecoderResult, Family, GGUF_NORMS_AROUND};
use crate::checkpoint::{Config, Gguf, Range};
use crate::error::ModelError;
use crate::layers::attention::Span;
use crate::transformer::config::{self, Defaults};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["olmo2", "olmo3"],
    about: "OLMo 2, OLMo 3",
    checked: &[
        "tiny/olmo2",
        "tiny/olmo3",
        "tiny/olmo3-old",
        "tiny-gguf/olmo2",
        "tiny-gguf/olmo3",
        "tiny-gguf/olmo3-old",
    ],
    gguf_names: GGUF_NORMS_AROUND,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Olmo2Config and Olmo3Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    norms: Norms::AFTER,
    ..Defaults::LLAMA
};
/// Every fourth layer of OLMo 3 has full attention.
const PATTERN: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let third = c.str("model_type")? == "olmo3";
    let mut model = if third {
        let theta = 500_000.0;
        if let Some(base) = c.opt_number("rope_local_base_freq", &Range::THETA)? {
            let reason = "expected no such key, which transformers reads in Gemma 3 alone";
            return Err(ModelError::unsupported(
                "rope_local_base_freq",
                base,
                reason,
            ));
        }
        let ropes = config::ropes_by_layer_type(c)?;
        config::read_with_ropes(c, &Defaults { theta, ..DEFAULTS }, &ropes)?
    } else {
        config::read(c, &DEFAULTS)?
    };
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    if third {
        model.window = config::read_window(c, Some(4096))?;
        let masks = config::masks(c, model.layers.len(), ("layer_types", PATTERN))?;
        model.set_masks(&masks);
    }
    config::decoder(normed(model), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    // OLMo 3 is called `olmo2` too, and has a window.
    model.window = keys.window()?;
    let masks = gguf::masks(keys, model.layers.len(), PATTERN)?;
    if model.window.is_some() {
        let sliding = gguf::sliding_rotation(keys, &DEFAULTS, model.layers[0].attention.head_dim)?;
        model.rotations.push(sliding);
        model.set_masks(&masks);
    }
    Ok(normed(model))
}

fn normed(mut model: Transformer) -> Transformer {
    // What is added to the residual stream is normalized, and layers read the stream as it is.
    model.residual_divisor = 1.0;
    model.set_qk_norms(Span::AllHeads, false);
    model
}
