//! Mistral and Ministral: Llama with sliding windows, in all layers or in those that the file
//! names. llama.cpp names GGUF files of these models `llama`.

use super::{DecoderResult, EncoderResult, Family};
use crate::checkpoint::Config;
use crate::checks::layer_masks;
use crate::error::ModelError;
use crate::layers::decoder::Mask;
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["mistral", "ministral"],
    about: "Mistral 7B, Ministral 8B, e5-mistral",
    checked: &[
        "tiny/mistral",
        "tiny/ministral",
        "tiny-embed/mistral-embedding",
        "tiny-embed/mistral-lasttoken",
    ],
    gguf_as: Some("llama"),
    config: Some(from_config),
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

/// Source: MistralConfig, as the text part of another model, and Ministral3Config, which warn.
pub(super) const NO_LAYER_TYPES: &str = "the layers of this class are all alike";

/// Defaults of MistralConfig and MinistralConfig.
const DEFAULTS: Defaults = Defaults {
    kv_heads: KvHeads::NotNull(8),
    max_context: 131_072,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    config::decoder(read_file(c)?, w)
}

/// As the text part of a model that sees images.
pub(super) fn of_text_part(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let names_layers = c.opt_str("model_type")? == Some("ministral");
    config::decoder(read(c, names_layers)?, w)
}

/// As a file of its own: AutoConfig of transformers takes Mistral with `layer_types`, even if that
/// is null, for Ministral.
fn read_file(c: &Config) -> Result<Transformer, ModelError> {
    let is_ministral = c.opt_str("model_type")? == Some("ministral");
    read(c, is_ministral || c.has("layer_types"))
}

fn read(c: &Config, names_layers: bool) -> Result<Transformer, ModelError> {
    let mut model = config::read(c, &DEFAULTS)?;
    model.window = config::read_window(c, Some(4096))?;
    let n_layers = model.layers.len();
    let everywhere = if model.window.is_some() {
        Mask::Sliding
    } else {
        Mask::Full
    };
    let masks = if names_layers {
        layer_masks(c, n_layers)?
    } else {
        c.note_unused("layer_types", NO_LAYER_TYPES);
        None
    };
    model.set_masks(&masks.unwrap_or_else(|| vec![everywhere; n_layers]));
    Ok(model)
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    Ok(Box::new(read_file(c)?))
}
