//! Command R (`cohere`) and Command R7B (`cohere2`): LayerNorm without biases, attention and
//! feed-forward layer side by side, interleaved rotary pairs, scaled logits. Command R7B has a
//! sliding window in three of four layers, and no rotary embedding in the others.

use super::{DecoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range};
use crate::layers::attention::Span;
use crate::layers::decoder::Mask;
use crate::layers::rope::Style;
use crate::transformer::config::{self, Defaults, LAYER_NORM};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["cohere", "cohere2", "command-r"],
    about: "Command R, R+ and R7B, Aya Expanse",
    checked: &[
        "tiny/cohere",
        "tiny/cohere2",
        "tiny/cohere-plain",
        "tiny/cohere2-plain",
        "tiny-gguf/cohere",
        "tiny-gguf/cohere-plain",
        "tiny-gguf/cohere2-plain",
    ],
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of CohereConfig.
const DEFAULTS: Defaults = Defaults {
    epsilon_key: "layer_norm_eps",
    epsilon: 1e-5,
    norm: LAYER_NORM,
    norms: Norms {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: None,
        after_mlp: None,
    },
    theta: 500_000.0,
    style: Style::Interleaved,
    max_context: 8192,
    tied: true,
    ..Defaults::LLAMA
};
/// Defaults of Cohere2Config.
const SECOND: Defaults = Defaults {
    theta: 10_000.0,
    ..DEFAULTS
};
const LOGITS_FACTOR: f64 = 0.0625;
/// Every fourth layer of Command R7B has full attention.
const PATTERN: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let second = c.str("model_type")? == "cohere2";
    let mut model = config::read(c, if second { &SECOND } else { &DEFAULTS })?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    let factor = c.opt_number("logit_scale", &Range::FACTOR)?;
    let factor = factor.unwrap_or(LOGITS_FACTOR);
    if second {
        // Notes of the published files on other software.
        c.acknowledge(&["layer_switch", "order_of_interleaved_layers", "rotary_pct"]);
        c.acknowledge(&["position_embedding_type", "use_embedding_sharing"]);
        c.acknowledge(&["use_gated_activation", "use_parallel_block"]);
        c.acknowledge(&[
            "use_parallel_embedding",
            "use_qk_norm",
            "_sliding_window_pattern",
        ]);
        model.window = config::read_window(c, Some(4096))?;
        let pattern = c.opt_usize("sliding_window_pattern")?.unwrap_or(PATTERN);
        let pattern = ("sliding_window_pattern", pattern);
        let masks = config::masks(c, model.layers.len(), pattern)?;
        slide(&mut model, &masks);
    } else if c.bool_or("use_qk_norm", false)? {
        norm_heads(&mut model);
    }
    config::decoder(finished(model, factor), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    let factor = keys.opt_factor("logit_scale")?.unwrap_or(LOGITS_FACTOR);
    model.window = keys.window()?;
    if model.window.is_some() {
        // Files do not contain the pattern. Source: llama.cpp, which has the same constant.
        let masks = gguf::masks(keys, model.layers.len(), PATTERN)?;
        slide(&mut model, &masks);
    }
    if w.has("model.layers.0.self_attn.q_norm", "weight") {
        norm_heads(&mut model);
    }
    Ok(finished(model, factor))
}

fn slide(model: &mut Transformer, masks: &[Mask]) {
    model.set_masks(masks);
    model.change_layers(|layer| {
        if layer.mask == Mask::Full {
            layer.rotation = None;
        }
    });
}

fn norm_heads(model: &mut Transformer) {
    model.set_qk_norms(Span::OwnHead, false);
}

fn finished(mut model: Transformer, factor: f64) -> Transformer {
    model.logits_factor = factor as f32;
    model.change_layers(|layer| layer.parallel = true);
    model
}
