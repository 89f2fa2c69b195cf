//! Phi-3, Phi-3.5 and Phi-4-mini: Llama with query, key and value as the rows of one matrix, gate
//! and up projection as those of another, and LongRoPE.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::layers::decoder::Mask;
use crate::layers::mlp::MlpKind;
use crate::transformer::config::{self, Defaults};
use crate::transformer::gguf::{self, Keys};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["phi3"],
    about: "Phi-3, Phi-3.5, Phi-4, Phi-4-mini",
    checked: &[
        "tiny/phi3",
        "tiny/phi3-long",
        "tiny/phi3-short",
        "tiny/compressed-int4",
        "tiny-gguf/phi3",
        "tiny-gguf/phi3-long",
        "tiny-gguf/phi3-short",
        "tiny-gguf/phi3-quantised",
    ],
    gguf_names: &[
        GGUF_NORMS_BEFORE[0],
        ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
        ("model.layers.{}.mlp.gate_up_proj", "blk.{}.ffn_up"),
    ],
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Phi3Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    rotated_share: Some(1.0),
    max_context: 4096,
    mlp: MlpKind::Joined,
    ..Defaults::LLAMA
};

/// The key of the context length before scaling, and its default in Phi3Config.
const ORIGINAL_CONTEXT: (&str, usize) = ("original_max_position_embeddings", 4096);

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    c.acknowledge(&["auto_map", "embd_pdrop", "resid_pdrop"]);
    // The class has the key: without one, its default comes before the key of the rotary embedding.
    let with_default = c.or_default(ORIGINAL_CONTEXT.0, ORIGINAL_CONTEXT.1);
    with_default.usize(ORIGINAL_CONTEXT.0)?;
    let mut model = config::read(&with_default, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    model.window = config::read_window(c, None)?;
    let mask = model.window.map_or(Mask::Full, |_| Mask::Sliding);
    model.change_layers(|layer| {
        layer.attention.joined = true;
        layer.mask = mask;
    });
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    // llama.cpp reads this window and ignores it; transformers slides.
    model.window = Keys::new(file)?.window()?;
    let mask = model.window.map_or(Mask::Full, |_| Mask::Sliding);
    model.change_layers(|layer| {
        layer.attention.joined = true;
        layer.mask = mask;
    });
    Ok(model)
}
