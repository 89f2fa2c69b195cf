//! Checks of configuration values that families share. Each check returns the value or an error
//! that names the key.

use serde_json::Map;

use crate::checkpoint::keys::{CONFIG, Class};
use crate::checkpoint::{Config, Range};
use crate::error::ModelError;
use crate::generation;
use crate::layers::decoder::Mask;

/// Rejects keys that nobody read.
pub(crate) fn reject_unknown_keys(
    family: &'static str,
    keys: Vec<String>,
) -> Result<(), ModelError> {
    if keys.is_empty() {
        Ok(())
    } else {
        Err(ModelError::UnknownKeys { family, keys })
    }
}

/// Rejects keys of `config.json` that nobody read.
pub(crate) fn reject_unread(family: &'static str, c: &Config) -> Result<(), ModelError> {
    let mut keys = c.unread();
    keys.retain(|key| refusal(key).is_none() || !c.says_nothing(key));
    for key in &mut keys {
        if let Some(reason) = refusal(key) {
            *key = format!("{key} ({reason})");
        }
    }
    reject_unknown_keys(family, keys)
}

/// Why a key is refused, if all families refuse it. The text part of a model has the same keys.
fn refusal(key: &str) -> Option<&'static str> {
    let row = CONFIG.row(key.strip_prefix("text_config.").unwrap_or(key))?;
    (row.class == Class::Refused).then_some(row.note)
}

/// Marks the keys of `config.json` as read that do not affect the forward computation: names,
/// training, other software, and those of generation, which [`generation`] reads.
pub(crate) fn acknowledge_common(c: &Config) {
    let harmless = CONFIG
        .keys
        .iter()
        .filter(|row| row.class == Class::Harmless);
    let names = harmless.map(|row| row.name).chain(generation::keys());
    names.for_each(|key| c.acknowledge(&[key]));
}

/// Largest accepted number of layers; published models have up to 126 (Llama 3.1 405B).
const MAX_LAYERS: usize = 1024;

/// Largest accepted head size; published models have up to 512.
const MAX_HEAD_DIM: usize = 1 << 16;

/// The attention mask of each layer from `layer_types`, or `None` if the file does not have the
/// key.
pub(crate) fn layer_masks(c: &Config, n_layers: usize) -> Result<Option<Vec<Mask>>, ModelError> {
    let Some(types) = c.opt_strs("layer_types")? else {
        return Ok(None);
    };
    if types.len() != n_layers {
        let reason = format!("expected one name per layer, and num_hidden_layers is {n_layers}");
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
            "expected full_attention or sliding_attention",
        )),
    };
    types.iter().map(mask).collect::<Result<_, _>>().map(Some)
}

/// Rejects an absurd number of layers before a loop runs over them.
pub(crate) fn check_layers(key: &str, value: usize) -> Result<usize, ModelError> {
    if value == 0 || value > MAX_LAYERS {
        return Err(ModelError::unsupported(
            key,
            value,
            &format!("expected 1 to {MAX_LAYERS} layers"),
        ));
    }
    Ok(value)
}

/// Number of labels of a sequence classifier: how many `config.json` names, or 2 as in
/// transformers.
pub(crate) fn n_labels(c: &Config) -> Result<usize, ModelError> {
    let classes = c.opt_strs("architectures")?.unwrap_or_default();
    if !classes
        .iter()
        .any(|class| class.ends_with("ForSequenceClassification"))
    {
        // As in sentence-transformers (6.2).
        return Ok(1);
    }
    let named = c.value("id2label").and_then(|names| names.as_object());
    match named.map(Map::len).or(c.opt_usize("num_labels")?) {
        Some(n) => check_size("id2label", n),
        None => Ok(2),
    }
}

/// Rejects a number that cannot be used as a divisor or under a root or logarithm.
pub(crate) fn check_positive(key: &str, value: f64) -> Result<f64, ModelError> {
    if !(value.is_finite() && value > 0.0) {
        return Err(ModelError::unsupported(
            key,
            value,
            "expected a number above 0",
        ));
    }
    Ok(value)
}

/// The head size if the file does not give one: the hidden size divided by the number of heads.
/// `key` is the one that would give the size.
pub(crate) fn default_head_dim(
    key: &str,
    hidden: usize,
    n_heads: usize,
) -> Result<usize, ModelError> {
    if !hidden.is_multiple_of(n_heads) {
        let value = format!("{n_heads} heads for a hidden size of {hidden}");
        return Err(ModelError::unsupported(
            key,
            value,
            "the key is missing, and the heads do not divide the hidden size",
        ));
    }
    Ok(hidden / n_heads)
}

/// The keys that say how many heads there are, and their size.
#[derive(Clone, Copy)]
pub(crate) struct HeadKeys<'a> {
    pub(crate) heads: &'a str,
    pub(crate) kv_heads: &'a str,
    /// The size of a head; a quotient of keys where the file has none for it.
    pub(crate) head_dim: &'a str,
}

impl HeadKeys<'_> {
    /// The keys of most `config.json`.
    pub(crate) const CONFIG: Self = Self {
        heads: "num_attention_heads",
        kv_heads: "num_key_value_heads",
        head_dim: "head_dim",
    };

    /// The keys of encoders, whose heads divide the hidden size.
    pub(crate) const ENCODER: Self = Self {
        head_dim: "hidden_size / num_attention_heads",
        ..Self::CONFIG
    };
}

/// Checks that the numbers of heads and the head size fit together.
pub(crate) fn check_heads(
    keys: HeadKeys<'_>,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
) -> Result<(), ModelError> {
    if !n_heads.is_multiple_of(n_kv_heads) {
        let reason = format!("expected a divisor of `{}`, {n_heads}", keys.heads);
        return Err(ModelError::unsupported(keys.kv_heads, n_kv_heads, &reason));
    }
    if head_dim % 2 == 1 || head_dim > MAX_HEAD_DIM {
        let reason = format!("expected an even size up to {MAX_HEAD_DIM}");
        return Err(ModelError::unsupported(keys.head_dim, head_dim, &reason));
    }
    check_size(
        &format!("{} * {}", keys.heads, keys.head_dim),
        n_heads.saturating_mul(head_dim),
    )
    .map(drop)
}

/// Rejects a size that would overflow the arithmetic of shapes.
pub(crate) fn check_size(key: &str, value: usize) -> Result<usize, ModelError> {
    if value == 0 || value > Range::MOST_SIZE {
        return Err(ModelError::unsupported(
            key,
            value,
            "expected a size from 1 to 16,777,216",
        ));
    }
    Ok(value)
}
