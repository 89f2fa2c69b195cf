//! Qwen3: the decoder, Qwen3-Embedding (the same weights with last-token pooling), Qwen3-Reranker
//! (two logits of the last token, or a classifier) and pplx-embed (bidirectional attention).
//!
//! The architecture is Llama's with a norm of each query and key head before rotation.

use super::{EncoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::{Config, Gguf};
use crate::encoder::gguf::direction;
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::encoder::Direction;
use crate::layers::norm::Norm;
use crate::pooling::Pooling;
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::{Labels, Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3"],
    about: "Qwen3, Qwen3-Embedding, Qwen3-Reranker",
    checked: &[
        "tiny/qwen3",
        "tiny/qwen3-sliding",
        "tiny-embed/qwen3-embedding",
        "tiny/compressed-int4-zeros",
        "tiny/fp8",
        "tiny-gguf/qwen3",
        "tiny-embed-gguf/qwen3-embedding",
        "tiny-rerank/qwen3-labels",
        "tiny-rerank/qwen3-pairs",
        "tiny-rerank/qwen3-token",
        "tiny-rerank/qwen3-yes-no",
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(|c, w| config::decoder(read(c)?, w)),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    gguf_encoder: Some(encoder_from_gguf),
    ..PPLX
};

/// pplx-embed, which cannot be used as a decoder.
pub(super) const PPLX: Family = Family {
    names: &["bidirectional_pplx_qwen3"],
    about: "pplx-embed",
    checked: &["tiny-embed/qwen3-pplx", "tiny-embed/qwen3-pplx-context"],
    encoder: Some(encoder_from_config),
    ..Family::NONE
};

/// Defaults of Qwen3Config.
const DEFAULTS: Defaults = Defaults {
    head_dim: Some(128),
    kv_heads: KvHeads::OrHeads(32),
    max_context: 32_768,
    ..Defaults::LLAMA
};

fn read(c: &Config) -> Result<Transformer, ModelError> {
    c.acknowledge(&["auto_map"]);
    let key = "use_bidirectional_attention";
    let is_pplx = PPLX.names.contains(&c.str("model_type")?);
    let both_ways = c.bool_or(key, is_pplx)?;
    if both_ways && !is_pplx {
        let reason = "expected false, because the class of transformers does not read the key: \
                      write `\"is_causal\": false` for an embedding model that sees later tokens";
        return Err(ModelError::unsupported(key, true, reason));
    }
    let mut model = config::read(c, &DEFAULTS)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    model.change_layers(|layer| {
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    });
    config::sliding_by_switch(c, &mut model, |layer, first| layer >= first)?;
    if both_ways {
        model.direction = Direction::Bidirectional;
        // pplx-embed-context has no modules.json. Source: its model page.
        model.default_pooling = Some((Pooling::Mean, true));
    }
    Ok(model)
}

fn encoder_from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore("lm_head.weight");
    let mut model = read(c)?;
    config::read_is_causal(c, &mut model)?;
    model.labels = Labels::read(c, w, None)?;
    Ok(Box::new(model))
}

fn encoder_from_gguf(file: &Gguf, w: &Weights<'_>) -> EncoderResult {
    w.ignore("output.weight");
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    model.direction = direction(file, FAMILY.names[0], Direction::Causal)?;
    Ok(Box::new(model))
}
