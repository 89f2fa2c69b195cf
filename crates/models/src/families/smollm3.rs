//! SmolLM3: Llama with layers that have no rotary embedding.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE, llama};
use crate::checkpoint::{Config, Gguf};
use crate::checks::{check_size, layer_masks};
use crate::error::ModelError;
use crate::layers::decoder::Mask;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["smollm3"],
    about: "SmolLM3",
    checked: &[
        "tiny/smollm3",
        "tiny/smollm3-sliding",
        "tiny/smollm3-plain",
        "tiny-gguf/smollm3-plain",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of SmolLM3Config.
const DEFAULTS: Defaults = Defaults {
    kv_heads: KvHeads::OrHeads(4),
    theta: 2_000_000.0,
    max_context: 32_768,
    tied: true,
    ..Defaults::LLAMA
};
/// Every so many layers, one has no rotary embedding.
const INTERVAL: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // The window of layers that do not slide says nothing.
    c.acknowledge(&["max_window_layers"]);
    let mut model = config::read(c, &DEFAULTS)?;
    let (attention, mlp) = (("attention_bias", false), ("mlp_bias", false));
    config::read_biases(c, &mut model, Some(attention), Some(mlp))?;
    let n_layers = model.layers.len();
    let interval = "no_rope_layer_interval";
    let every = check_size(interval, c.opt_usize(interval)?.unwrap_or(INTERVAL))?;
    let rotates: Vec<bool> = match c.opt_usizes("no_rope_layers")? {
        // In spite of its name, 1 stands for a rotary embedding.
        Some(rotates) => rotates.iter().map(|r| *r != 0).collect(),
        None => (0..n_layers).map(|i| (i + 1) % every != 0).collect(),
    };
    if rotates.len() != n_layers {
        return Err(ModelError::unsupported(
            "no_rope_layers",
            format!("{} numbers", rotates.len()),
            &format!("expected one per layer, and num_hidden_layers is {n_layers}"),
        ));
    }
    let slides = c.bool_or("use_sliding_window", false)?;
    model.window = config::read_window(c, None)?.filter(|_| slides);
    let named = layer_masks(c, n_layers)?;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        layer.rotation = rotates[i].then_some(0);
        let sliding = match &named {
            Some(masks) => masks[i] == Mask::Sliding,
            None => !rotates[i],
        };
        if model.window.is_some() && sliding {
            layer.mask = Mask::Sliding;
        }
    }
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let mut model = gguf::read(
        file,
        w,
        &Defaults {
            theta: DEFAULTS.theta,
            ..llama::GGUF
        },
    )?;
    // The file does not say which layers. Source: llama.cpp, which has the same constant.
    for (i, layer) in model.layers.iter_mut().enumerate() {
        layer.rotation = ((i + 1) % INTERVAL != 0).then_some(0);
    }
    Ok(model)
}
