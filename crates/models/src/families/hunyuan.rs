//! Hunyuan dense models: Llama with norms of query and key heads after rotation.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::layers::attention::{QkNorm, Span};
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
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    config::decoder(normed(model), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    Ok(normed(gguf::read(file, w, &DEFAULTS)?))
}

fn normed(mut model: Transformer) -> Transformer {
    model.change_layers(|layer| {
        layer.attention.qk_norm = Some(QkNorm {
            norm: layer.norm,
            span: Span::Head,
            after_rotation: true,
        });
    });
    model
}
