//! Hunyuan dense models: Llama with norms of query and key heads after rotation.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf, Range, RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::layers::attention::Span;
use crate::transformer::config::{self, Defaults};
use crate::transformer::{Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["hunyuan_v1_dense", "hunyuan-dense"],
    about: "Hunyuan, dense models",
    checked: &["tiny/hunyuan", "tiny-gguf/hunyuan"],
    tensor_names: &[
        (
            "model.layers.{}.self_attn.q_norm",
            "model.layers.{}.self_attn.query_layernorm",
        ),
        (
            "model.layers.{}.self_attn.k_norm",
            "model.layers.{}.self_attn.key_layernorm",
        ),
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of HunYuanDenseV1Config.
const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Token ids and training notes of the published files.
    c.acknowledge(&["eod_token_id", "im_end_id", "im_newline_id", "im_start_id"]);
    let mut model = config::read_with_ropes(c, &DEFAULTS, &[read_rope(c)?])?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    config::decoder(normed(model), w)
}

/// The rotary embedding. In place of dynamic scaling, this class alone raises the base by `alpha`.
fn read_rope(c: &Config) -> Result<RopeConfig, ModelError> {
    let rope = config::uniform_rope(c, DEFAULTS.theta)?;
    let old = c.opt_object("rope_scaling")?;
    let old = old.filter(|old| old.keys().next().is_some());
    let parameters = old.map_or_else(|| c.opt_object("rope_parameters"), |old| Ok(Some(old)))?;
    let (RopeScaling::Dynamic { .. }, Some(parameters)) = (&rope.scaling, parameters) else {
        return Ok(rope);
    };
    let alpha = parameters.opt_number("alpha", &Range::FACTOR)?;
    let scaling = alpha.map(|alpha| RopeScaling::NtkAlpha { alpha });
    Ok(RopeConfig {
        scaling: scaling.unwrap_or(rope.scaling),
        ..rope
    })
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    Ok(normed(gguf::read(file, w, &DEFAULTS)?))
}

fn normed(mut model: Transformer) -> Transformer {
    model.set_qk_norms(Span::Head, true);
    model
}
