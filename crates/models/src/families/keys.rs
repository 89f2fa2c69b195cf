//! Checks of configuration values that families share.

use crate::checkpoint::Config;
use crate::error::ModelError;
use crate::layers::decoder::Mask;

pub(super) fn refuse_unknown(family: &'static str, keys: Vec<String>) -> Result<(), ModelError> {
    if keys.is_empty() {
        Ok(())
    } else {
        Err(ModelError::UnknownKeys { family, keys })
    }
}

/// Keys of `config.json` that say nothing of the forward computation: names, training, generation,
/// other software.
pub(super) const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bad_words_ids",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "max_length",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// Most layers; published models have up to 126 (Llama 3.1 405B).
const MAX_LAYERS: usize = 1024;
/// Largest head; published models have up to 512.
const MAX_HEAD_DIM: usize = 1 << 16;

/// The kinds of the layers, where the file names them.
pub(super) fn masks(c: &Config, n_layers: usize) -> Result<Option<Vec<Mask>>, ModelError> {
    let Some(types) = c.opt_strs("layer_types")? else {
        return Ok(None);
    };
    if types.len() != n_layers {
        let reason = format!("num_hidden_layers is {n_layers}");
        return Err(ModelError::unsupported(
            "layer_types",
            format!("{} names", types.len()),
            &reason,
        ));
    }
    let mask = |ty: &&str| match *ty {
        "full_attention" => Ok(Mask::Full),
        "sliding_attention" => Ok(Mask::Sliding),
        other => Err(ModelError::unsupported(
            "layer_types",
            other,
            "full_attention and sliding_attention are known",
        )),
    };
    types.iter().map(mask).collect::<Result<_, _>>().map(Some)
}

/// Refuse a number of layers that no model has, before a loop runs over them.
pub(super) fn layers(key: &str, value: usize) -> Result<usize, ModelError> {
    if value == 0 || value > MAX_LAYERS {
        return Err(ModelError::unsupported(
            key,
            value,
            &format!("1 to {MAX_LAYERS} layers are due"),
        ));
    }
    Ok(value)
}

/// Refuse a number that a root, a quotient or a logarithm cannot take.
pub(super) fn positive(key: &str, value: f64) -> Result<f64, ModelError> {
    if !(value.is_finite() && value > 0.0) {
        return Err(ModelError::unsupported(
            key,
            value,
            "a number above 0 is due",
        ));
    }
    Ok(value)
}

/// The size of a head where the file does not say.
pub(super) fn head_dim_of(hidden: usize, n_heads: usize) -> Result<usize, ModelError> {
    if !hidden.is_multiple_of(n_heads) {
        let value = format!("{n_heads} heads for a hidden size of {hidden}");
        return Err(ModelError::unsupported(
            "head_dim",
            value,
            "the file does not say it, and they do not divide",
        ));
    }
    Ok(hidden / n_heads)
}

/// Refuse heads that do not fit together.
pub(super) fn check_heads(
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
) -> Result<(), ModelError> {
    if !n_heads.is_multiple_of(n_kv_heads) {
        let value = format!("{n_kv_heads}, for {n_heads} heads");
        return Err(ModelError::unsupported(
            "number of key-value heads",
            value,
            "it must divide the number of heads",
        ));
    }
    if head_dim % 2 == 1 || head_dim > MAX_HEAD_DIM {
        let reason = format!("an even size up to {MAX_HEAD_DIM} is due");
        return Err(ModelError::unsupported("head size", head_dim, &reason));
    }
    bounded(
        "number of heads * head size",
        n_heads.saturating_mul(head_dim),
    )
    .map(drop)
}

/// Refuse a number that would not fit the arithmetic of shapes, before anything is made of it.
pub(super) fn bounded(key: &str, value: usize) -> Result<usize, ModelError> {
    const MOST: usize = 1 << 24;
    if value == 0 || value > MOST {
        return Err(ModelError::unsupported(
            key,
            value,
            "a size from 1 to 16,777,216 is due",
        ));
    }
    Ok(value)
}
