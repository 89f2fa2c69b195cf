//! Ministral 3: Mistral with YaRN and queries that are scaled by their position, also as the text
//! part of a multimodal checkpoint (`mistral3`).

use super::keys::IGNORED_KEYS;
use super::{DecoderResult, Family};
use crate::checkpoint::Config;
use crate::error::ModelError;
use crate::layers::decoder::Mask;
use crate::layers::rope::QueryScaling;
use crate::transformer::config::{self, Defaults};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["ministral3", "mistral3"],
    about: "Ministral 3",
    checked: &["tiny/ministral3"],
    config: Some(from_config),
    ..Family::NONE
};

/// Defaults of Ministral3Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    n_kv_heads: Some(8),
    head_dim: Some(128),
    max_context: 262_144,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let Some(text) = c.opt_object("text_config")? else {
        return read(c, w);
    };
    let ty = text.str("model_type")?;
    if ty != "ministral3" {
        return Err(ModelError::unsupported(
            "text_config.model_type",
            ty,
            "expected ministral3",
        ));
    }
    c.acknowledge(&[
        "image_token_index",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "spatial_merge_size",
        "vision_config",
        "vision_feature_layer",
    ]);
    text.acknowledge(IGNORED_KEYS);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    let mut model = read(&text, w)?;
    model.tied = w.is_tied(c.bool_or("tie_word_embeddings", true)?);
    Ok(model)
}

fn read(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let rope = c.object("rope_parameters")?;
    // Another spelling of the context length.
    rope.acknowledge(&["max_position_embeddings"]);
    let scaling = QueryScaling {
        beta: rope.f64("llama_4_scaling_beta")? as f32,
        context: rope.usize("original_max_position_embeddings")?.max(1),
    };
    let mut model = config::read(c, &DEFAULTS)?;
    model.rotations = model
        .rotations
        .into_iter()
        .map(|rotation| rotation.with_query_scaling(scaling))
        .collect();
    model.window = config::read_window(c, None)?;
    if model.window.is_some() {
        model.change_layers(|layer| layer.mask = Mask::Sliding);
    }
    config::decoder(model, w)
}
