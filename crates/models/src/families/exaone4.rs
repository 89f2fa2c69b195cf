//! EXAONE 4: norms after attention and feed-forward layer and of query and key heads. In models
//! with sliding-window layers, full-attention layers have no rotary embedding.

use super::{DecoderResult, Family, GGUF_NORMS_AROUND};
use crate::checkpoint::{Config, Gguf};
use crate::checks::layer_masks;
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::decoder::Mask;
use crate::layers::norm::Norm;
use crate::transformer::config::{self, Defaults, KvHeads, by_pattern};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["exaone4"],
    about: "EXAONE 4.0",
    checked: &[
        "tiny/exaone4",
        "tiny/exaone4-full",
        "tiny-gguf/exaone4",
        "tiny-gguf/exaone4-full",
    ],
    gguf_names: GGUF_NORMS_AROUND,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Exaone4Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    norms: Norms::AFTER,
    kv_heads: KvHeads::NotNull(32),
    ..Defaults::LLAMA
};
/// Every fourth layer has full attention, if there are sliding windows.
const PATTERN: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &DEFAULTS)?;
    model.window = config::read_window(c, Some(4096))?;
    let n_layers = model.layers.len();
    let pattern = pattern(c)?;
    let masks = match layer_masks(c, n_layers)? {
        Some(masks) => masks,
        None if model.window.is_none() => vec![Mask::Full; n_layers],
        None => pattern(n_layers)?,
    };
    config::decoder(finished(model, &masks), w)
}

/// The masks by the pattern in the file: a number, or a text of `L` (sliding) and `G` (full) that
/// is repeated.
fn pattern(c: &Config) -> Result<impl Fn(usize) -> Result<Vec<Mask>, ModelError>, ModelError> {
    let key = "sliding_window_pattern";
    let text = match c.value(key) {
        Some(value) if value.is_string() => c.opt_str(key)?.map(str::to_owned),
        _ => None,
    };
    let number = match text {
        Some(_) => PATTERN,
        None => c.opt_usize(key)?.unwrap_or(PATTERN),
    };
    Ok(move |n_layers: usize| match &text {
        None => by_pattern(key, n_layers, number),
        Some(text) => {
            let masks = text.chars().map(|c| match c {
                'L' => Ok(Mask::Sliding),
                'G' => Ok(Mask::Full),
                _ => Err(ModelError::unsupported(
                    key,
                    text,
                    "expected a number or a text of L and G",
                )),
            });
            let masks: Vec<Mask> = masks.collect::<Result<_, _>>()?;
            if masks.is_empty() {
                return Err(ModelError::unsupported(
                    key,
                    "an empty text",
                    "expected a number or a text of L and G",
                ));
            }
            Ok(masks.iter().copied().cycle().take(n_layers).collect())
        }
    })
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    let keys = Keys::new(file)?;
    // llama.cpp ignores the window unless there are 64 layers, as in the 32B model, which is the
    // only published one that has a window.
    model.window = keys.window()?;
    let masks = match model.window {
        Some(_) => gguf::masks(keys, model.layers.len(), PATTERN)?,
        None => vec![Mask::Full; model.layers.len()],
    };
    Ok(finished(model, &masks))
}

fn finished(mut model: Transformer, masks: &[Mask]) -> Transformer {
    model.set_masks(masks);
    let hybrid = model.window.is_some();
    // What is added to the residual stream is normalized, and layers read the stream as it is.
    model.residual_divisor = 1.0;
    model.change_layers(|layer| {
        if hybrid && layer.mask == Mask::Full {
            layer.rotation = None;
        }
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    });
    model
}
