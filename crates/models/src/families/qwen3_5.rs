//! Qwen3.5, text only: three of four layers are gated delta nets, and the others attention whose
//! output is gated.

use super::{DecoderResult, Family};
use crate::checkpoint::{Config, ConfigError, Gguf};
use crate::checks::{acknowledge_common, check_size};
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::delta_net::DeltaNet;
use crate::layers::norm::{Norm, RmsNorm};
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults, KvHeads, RMS_PLUS_ONE};
use crate::transformer::gguf::{self, Keys};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["qwen3_5_text", "qwen3_5", "qwen35"],
    about: "Qwen3.5, dense models (text)",
    checked: &["tiny/qwen3_5", "tiny/qwen3_5-image", "tiny-gguf/qwen3_5"],
    gguf_names: &[
        (
            "model.layers.{}.post_attention_layernorm",
            "blk.{}.post_attention_norm",
        ),
        ("model.layers.{}.linear_attn.in_proj_qkv", "blk.{}.attn_qkv"),
        ("model.layers.{}.linear_attn.in_proj_z", "blk.{}.attn_gate"),
        ("model.layers.{}.linear_attn.in_proj_a", "blk.{}.ssm_alpha"),
        ("model.layers.{}.linear_attn.in_proj_b", "blk.{}.ssm_beta"),
        ("model.layers.{}.linear_attn.conv1d", "blk.{}.ssm_conv1d"),
        ("model.layers.{}.linear_attn.norm", "blk.{}.ssm_norm"),
        ("model.layers.{}.linear_attn.out_proj", "blk.{}.ssm_out"),
        ("model.layers.{}.linear_attn.A_log", "blk.{}.ssm_a"),
        ("model.layers.{}.linear_attn.dt_bias", "blk.{}.ssm_dt.bias"),
    ],
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Qwen3_5TextConfig.
const DEFAULTS: Defaults = Defaults {
    norm: RMS_PLUS_ONE,
    head_dim: Some(256),
    kv_heads: KvHeads::NotNull(4),
    rotated_share: Some(0.25),
    max_context: 32_768,
    ..Defaults::LLAMA
};

/// Every fourth layer attends.
const INTERVAL: usize = 4;

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    // Layers that guess several tokens at once.
    w.ignore_module("mtp");
    config::decoder(read(c)?, w)
}

/// Reads the configuration, which may be the text part of a multimodal model.
fn read(c: &Config) -> Result<Transformer, ModelError> {
    let Some(text) = c.opt_object("text_config")? else {
        return read_text(c);
    };
    c.acknowledge(&[
        "image_token_id",
        "language_model_only",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    ]);
    acknowledge_common(&text);
    // transformers finds the weights of the text part by this name alone.
    const TYPE: &str = "model_type";
    let is_named = text.has(TYPE) || text.is_null(TYPE);
    if is_named && text.opt_str(TYPE)? != Some("qwen3_5_text") {
        return Err(text
            .refused(TYPE, "expected \"qwen3_5_text\", or no such key")
            .into());
    }
    Ok(Transformer {
        tied: is_tied(c, &text)?,
        ..read_text(&text)?
    })
}

/// Whether the head is tied. The class of the whole model in transformers reads the outer key, and
/// the class of the language model the inner one.
fn is_tied(c: &Config, text: &Config) -> Result<bool, ModelError> {
    let key = "tie_word_embeddings";
    match (c.opt_bool(key)?, text.opt_bool(key)?) {
        (Some(outer), Some(inner)) if outer != inner => Err(ConfigError::Contradiction {
            first: c.path(key),
            second: text.path(key),
            detail: format!("{outer} and {inner}"),
        }
        .into()),
        (outer, inner) => Ok(outer.or(inner).unwrap_or(false)),
    }
}

fn read_text(c: &Config) -> Result<Transformer, ModelError> {
    c.acknowledge(&[
        "mamba_ssm_dtype",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        // Of the mixtures of experts, whose keys some files of dense models have.
        "mlp_only_layers",
        "output_router_logits",
        "router_aux_loss_coef",
    ]);
    // The class of transformers has one gate; other programs read this key.
    if let Some(gate) = c.opt_str("output_gate_type")?
        && !matches!(gate, "swish" | "silu")
    {
        let reason = "expected swish, which the outputs of delta nets are gated with";
        return Err(ModelError::unsupported("output_gate_type", gate, reason));
    }
    if let Some(rope) = c.opt_object("rope_parameters")? {
        // The three positions of an image; those of text are equal.
        rope.acknowledge(&["mrope_interleaved", "mrope_section"]);
    }
    if !c.bool_or("attn_output_gate", true)? {
        let reason = "expected true, because the class of transformers always has a gate";
        return Err(ModelError::unsupported("attn_output_gate", false, reason));
    }
    let mut model = config::read(c, &DEFAULTS)?;
    // transformers applies the same activation after the convolutions of delta nets.
    let reason = "expected silu, which the convolutions of delta nets are computed with";
    config::require_silu(c, reason)?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    let delta = delta_net(c, &model)?;
    let attends = attends(c, model.layers.len())?;
    Ok(mixed(model, delta, &attends))
}

fn mixed(mut model: Transformer, delta: DeltaNet, attends: &[bool]) -> Transformer {
    for (layer, attends) in model.layers.iter_mut().zip(attends) {
        layer.delta = (!attends).then_some(delta);
        layer.attention.gated = true;
        if let Norm::Rms(norm) = layer.norm {
            layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        }
    }
    model
}

fn delta_net(c: &Config, model: &Transformer) -> Result<DeltaNet, ModelError> {
    let size = |key: &str, default: usize| -> Result<usize, ModelError> {
        check_size(key, c.opt_usize(key)?.unwrap_or(default))
    };
    let sizes = DeltaNet {
        hidden: model.hidden,
        taps: size("linear_conv_kernel_dim", 4)?,
        n_key_heads: size("linear_num_key_heads", 16)?,
        n_value_heads: size("linear_num_value_heads", 32)?,
        key_dim: size("linear_key_head_dim", 128)?,
        value_dim: size("linear_value_head_dim", 128)?,
        norm: head_norm(model),
        is_ggml_layout: false,
    };
    let names = [
        "linear_num_value_heads",
        "linear_num_key_heads",
        "linear_conv_kernel_dim",
        "2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads * \
         linear_value_head_dim",
    ];
    checked(sizes, names)
}

/// The norm of each head of a delta net's output, without the 1 that other norms may add.
fn head_norm(model: &Transformer) -> RmsNorm {
    let epsilon = match model.norm {
        Norm::Rms(norm) => norm.epsilon,
        Norm::Layer { norm, .. } => norm.epsilon,
    };
    RmsNorm {
        epsilon,
        plus_one: false,
    }
}

/// Checks that the sizes fit together. The names are the keys of value heads, key heads and taps,
/// and the sum of products that gives the channels.
fn checked(delta: DeltaNet, [values, keys, taps, all]: [&str; 4]) -> Result<DeltaNet, ModelError> {
    let (n_key_heads, n_value_heads) = (delta.n_key_heads, delta.n_value_heads);
    if !n_value_heads.is_multiple_of(n_key_heads) {
        let reason = format!("expected a multiple of `{keys}`, {n_key_heads}");
        return Err(ModelError::unsupported(values, n_value_heads, &reason));
    }
    if delta.taps == 1 {
        return Err(ModelError::unsupported(taps, 1, "expected 2 or more"));
    }
    let channels = (n_key_heads.saturating_mul(2 * delta.key_dim))
        .saturating_add(n_value_heads.saturating_mul(delta.value_dim));
    check_size(all, channels)?;
    Ok(delta)
}

/// Which layers attend.
fn attends(c: &Config, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = "full_attention_interval";
    let interval = check_size(interval, c.opt_usize(interval)?.unwrap_or(INTERVAL))?;
    let Some(types) = c.opt_strs("layer_types")? else {
        return Ok((0..n_layers)
            .map(|i| (i + 1).is_multiple_of(interval))
            .collect());
    };
    if types.len() != n_layers {
        let reason = format!("expected one per layer, and num_hidden_layers is {n_layers}");
        let found = format!("{} names", types.len());
        return Err(ModelError::unsupported("layer_types", found, &reason));
    }
    let attends = |ty: &&str| match *ty {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        other => Err(ModelError::unsupported(
            "layer_types",
            other,
            "expected full_attention or linear_attention",
        )),
    };
    types.iter().map(attends).collect()
}

/// Keys that llama.cpp's converter always writes, in addition to those of delta nets, which are
/// required where they are read. Source: `Qwen3_5TextModel` of its conversion/qwen.py (b11434), and
/// the published config.json, which all have the size of a head and the base.
const GGUF_KEYS: &[&str] = &[
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.freq_base",
];

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    keys.require(GGUF_KEYS)?;
    if !keys.has(RECURRENT) {
        keys.require(&["full_attention_interval"])?;
    }
    let mut model = gguf::read_plus_one(file, w, &DEFAULTS)?;
    let delta = delta_net_of_gguf(keys, &model)?;
    name_sizes(keys, w, &model, &delta);
    let attends = attends_of_gguf(file, keys, model.layers.len())?;
    check_sections(file, keys, model.rotations[0].n_pairs())?;
    // Layers that guess several tokens at once follow the others.
    let key = keys.key("nextn_predict_layers");
    let n_guessing = file.opt_u32(&key)?.unwrap_or(0) as usize;
    let n_layers = model.layers.len();
    if n_guessing >= n_layers {
        let all = keys.key("block_count");
        let reason = format!("expected less than `{all}`, {n_layers}");
        return Err(ModelError::unsupported(&key, n_guessing, &reason));
    }
    model.layers.truncate(n_layers - n_guessing);
    (n_layers - n_guessing..n_layers).for_each(|i| w.ignore_module(&format!("blk.{i}")));
    Ok(mixed(model, delta, &attends))
}

/// Says which keys the shapes follow from that only this family has.
fn name_sizes(keys: Keys<'_>, w: &Weights<'_>, model: &Transformer, delta: &DeltaNet) {
    let (groups, state, inner) = ("ssm.group_count", "ssm.state_size", "ssm.inner_size");
    let values = delta.n_value_heads * delta.value_dim;
    keys.name_size(w, values, &[inner]);
    keys.name_size(w, delta.n_value_heads, &["ssm.time_step_rank"]);
    keys.name_size(w, delta.taps, &["ssm.conv_kernel"]);
    let per_head = [inner, "ssm.time_step_rank"].map(|name| format!("`{}`", keys.key(name)));
    w.name_size(delta.value_dim, per_head.join(" / "));
    let channels = 2 * delta.n_key_heads * delta.key_dim + values;
    let [groups, state, inner] = [groups, state, inner].map(|name| keys.key(name));
    w.name_size(channels, format!("2 * `{groups}` * `{state}` + `{inner}`"));
    // A gate for each element of the heads.
    let attention = &model.layers[0].attention;
    let heads = ["attention.head_count", "attention.key_length"].map(|name| keys.key(name));
    w.name_size(
        2 * attention.n_heads * attention.head_dim,
        format!("2 * `{}` * `{}`", heads[0], heads[1]),
    );
}

fn delta_net_of_gguf(keys: Keys<'_>, model: &Transformer) -> Result<DeltaNet, ModelError> {
    let n_value_heads = keys.size("ssm.time_step_rank")?;
    let all = keys.size("ssm.inner_size")?;
    if !all.is_multiple_of(n_value_heads) {
        let key = keys.key("ssm.inner_size");
        let heads = keys.key("ssm.time_step_rank");
        let reason = format!("expected a multiple of `{heads}`, {n_value_heads}");
        return Err(ModelError::unsupported(&key, all, &reason));
    }
    let sizes = DeltaNet {
        hidden: model.hidden,
        taps: keys.size("ssm.conv_kernel")?,
        n_key_heads: keys.size("ssm.group_count")?,
        n_value_heads,
        key_dim: keys.size("ssm.state_size")?,
        value_dim: all / n_value_heads,
        norm: head_norm(model),
        is_ggml_layout: true,
    };
    let names = ["ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel"];
    let [values, groups, taps] = names.map(|name| keys.key(name));
    let [state, inner] = ["ssm.state_size", "ssm.inner_size"].map(|name| keys.key(name));
    let channels = format!("2 * {groups} * {state} + {inner}");
    checked(sizes, [&values, &groups, &taps, &channels])
}

/// The list of layers that do not attend, which newer files have.
const RECURRENT: &str = "attention.recurrent_layers";

/// Which layers attend, by a list or by the interval of layers that attend.
fn attends_of_gguf(file: &Gguf, keys: Keys<'_>, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = keys.opt_size("full_attention_interval")?;
    let interval = interval.unwrap_or(INTERVAL);
    let key = keys.key(RECURRENT);
    let Some(recurrent) = file.opt_bools(&key)? else {
        return Ok((1..=n_layers).map(|n| n.is_multiple_of(interval)).collect());
    };
    if recurrent.len() != n_layers {
        let reason = format!("expected one for each of the {n_layers} layers");
        let found = format!("a list of {}", recurrent.len());
        return Err(ModelError::unsupported(&key, found, &reason));
    }
    Ok(recurrent.into_iter().map(|recurs| !recurs).collect())
}

/// Checks that each pair is rotated by the position of the text. The sections say which pairs are
/// rotated by the time, row and column of an image, which are equal for text; a pair beyond them is
/// rotated by nothing. Source: `ggml_mrope_cache_init` of ggml (llama.cpp b11434).
fn check_sections(file: &Gguf, keys: Keys<'_>, n_pairs: usize) -> Result<(), ModelError> {
    let key = keys.key("rope.dimension_sections");
    let sections = file.i32s(&key)?;
    let sum: usize = sections
        .iter()
        .map(|n| usize::try_from(*n).unwrap_or(0))
        .sum();
    let rotates = |pair: usize| {
        let at = pair % sum.max(1);
        let section = sections.get(at % 3).copied().unwrap_or(0);
        usize::try_from(section).is_ok_and(|n| at < 3 * n)
    };
    if (0..n_pairs).all(rotates) {
        return Ok(());
    }
    let reason = format!("expected sections that cover the {n_pairs} rotated pairs");
    Err(ModelError::unsupported(
        &key,
        format!("{sections:?}"),
        &reason,
    ))
}
