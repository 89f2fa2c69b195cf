//! Ministral 3: Mistral with YaRN and queries that are scaled by their position. Multimodal
//! checkpoints (`mistral3`) have Ministral 3 as their text part, or Mistral or Ministral.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE, mistral};
use crate::checkpoint::{Config, Gguf, Range, RopeScaling, Yarn};
use crate::checks::acknowledge_common;
use crate::error::ModelError;
use crate::layers::decoder::Mask;
use crate::layers::rope::{QueryScaling, Style};
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf::{self, Keys};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["ministral3", "mistral3"],
    about: "Ministral 3, Mistral Small",
    checked: &["tiny/ministral3", "tiny-gguf/ministral3"],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Ministral3Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    kv_heads: KvHeads::NotNull(8),
    head_dim: Some(128),
    max_context: 262_144,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let Some(text) = c.opt_object("text_config")? else {
        return read(c, w);
    };
    let read_text = match text.opt_str("model_type")?.unwrap_or("mistral") {
        "ministral3" => read,
        "mistral" | "ministral" => mistral::of_text_part,
        other => {
            return Err(ModelError::unsupported(
                "text_config.model_type",
                other,
                "expected ministral3, mistral or ministral",
            ));
        }
    };
    c.acknowledge(&[
        "image_token_index",
        "multimodal_projector_bias",
        "projector_hidden_act",
        "spatial_merge_size",
        "vision_config",
        "vision_feature_layer",
    ]);
    acknowledge_common(&text);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    let mut model = read_text(&text, w)?;
    model.tied = w.is_tied(c.bool_or("tie_word_embeddings", true)?);
    Ok(model)
}

fn read(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let rope = c.object("rope_parameters")?;
    // Another spelling of the context length.
    rope.acknowledge(&["max_position_embeddings"]);
    let beta = rope.number("llama_4_scaling_beta", &Range::FACTOR_OR_ZERO)?;
    let scaling = QueryScaling {
        beta: beta as f32,
        context: trained_context(c, &rope)?,
    };
    let mut model = config::read(c, &DEFAULTS)?;
    scale_queries(&mut model, scaling);
    c.note_unused("layer_types", mistral::NO_LAYER_TYPES);
    model.window = config::read_window(c, None)?;
    if model.window.is_some() {
        model.change_layers(|layer| layer.mask = Mask::Sliding);
    }
    config::decoder(model, w)
}

/// The context length of training, from where scaling has it, by which queries are scaled too.
fn trained_context(c: &Config, rope: &Config) -> Result<usize, ModelError> {
    match config::uniform_rope(c, DEFAULTS.theta)?.scaling {
        RopeScaling::Yarn(Yarn {
            original_max_position_embeddings: original,
            ..
        })
        | RopeScaling::Llama3 {
            original_max_position_embeddings: original,
            ..
        }
        | RopeScaling::LongRope {
            original_max_position_embeddings: original,
            ..
        } => Ok(original),
        _ => Ok(rope.usize("original_max_position_embeddings")?.max(1)),
    }
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    // The converter permutes the rows of query and key.
    let defaults = Defaults {
        style: Style::Interleaved,
        ..DEFAULTS
    };
    let mut model = gguf::read(file, w, &defaults)?;
    if let Some(beta) = keys.opt_factor("attention.temperature_scale")? {
        let context = keys.opt_size("rope.scaling.original_context_length")?;
        let scaling = QueryScaling {
            beta: beta as f32,
            context: context.unwrap_or(model.max_context),
        };
        scale_queries(&mut model, scaling);
    }
    Ok(model)
}

fn scale_queries(model: &mut Transformer, scaling: QueryScaling) {
    let rotations = std::mem::take(&mut model.rotations).into_iter();
    model.rotations = rotations
        .map(|rotation| rotation.with_query_scaling(scaling))
        .collect();
}
