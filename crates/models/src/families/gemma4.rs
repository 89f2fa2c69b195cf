//! Gemma 4, text only, without experts: Gemma 3 with wider heads in full-attention layers, a norm
//! of value heads, vectors of its own for each layer, and later layers that use the keys and values
//! of earlier ones.

use super::gemma::scaled_embedding;
use super::{DecoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range, RopeConfig, RopeScaling};
use crate::checks::{HeadKeys, acknowledge_common, check_heads, check_size};
use crate::error::ModelError;
use crate::layers::attention::QkNorm;
use crate::layers::decoder::Mask;
use crate::layers::norm::{Norm, RmsNorm};
use crate::layers::per_layer::PerLayer;
use crate::layers::rope::{Rotation, Style};
use crate::transformer::config::{self, Defaults, KvHeads};
use crate::transformer::gguf::{self, Keys};
use crate::transformer::{Layer, Norms, Transformer};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gemma4_text", "gemma4"],
    about: "Gemma 4 E2B, E4B, 31B (text)",
    checked: &[
        "tiny/gemma4",
        "tiny/gemma4-plain",
        "tiny-gguf/gemma4",
        "tiny-gguf/gemma4-plain",
    ],
    gguf_names: &[
        (
            "model.layers.{}.post_attention_layernorm",
            "blk.{}.post_attention_norm",
        ),
        (
            "model.layers.{}.pre_feedforward_layernorm",
            "blk.{}.ffn_norm",
        ),
        (
            "model.layers.{}.post_feedforward_layernorm",
            "blk.{}.post_ffw_norm",
        ),
        ("model.layers.{}.per_layer_input_gate", "blk.{}.inp_gate"),
        ("model.layers.{}.per_layer_projection", "blk.{}.proj"),
        (
            "model.layers.{}.post_per_layer_input_norm",
            "blk.{}.post_norm",
        ),
        (
            "model.layers.{}.layer_scalar",
            "blk.{}.layer_output_scale.weight",
        ),
        ("model.embed_tokens_per_layer", "per_layer_token_embd"),
        ("model.per_layer_model_projection", "per_layer_model_proj"),
        ("model.per_layer_projection_norm", "per_layer_proj_norm"),
    ],
    config: Some(|c, w| config::decoder(read(c, w)?, w)),
    gguf: Some(from_gguf),
    ..Family::NONE
};

/// Defaults of Gemma4TextConfig.
const DEFAULTS: Defaults = Defaults {
    activation_key: "hidden_activation",
    activation: "gelu_pytorch_tanh",
    norms: Norms::AROUND,
    head_dim: Some(256),
    kv_heads: KvHeads::NotNull(4),
    theta: 10_000.0,
    rotated_share: Some(1.0),
    max_context: 131_072,
    tied: true,
    ..Defaults::LLAMA
};
const GLOBAL_HEAD_DIM: usize = 512;
const GLOBAL_THETA: f64 = 1_000_000.0;
/// By default every sixth layer has full attention, and the last one.
const PATTERN: usize = 6;

/// Reads the configuration, which may be the text part of a multimodal model.
fn read(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let Some(text) = c.opt_object("text_config")? else {
        return read_text(c, w);
    };
    c.acknowledge(&[
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "boi_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "eoi_token_id",
        "image_token_id",
        "video_token_id",
        "vision_config",
        "vision_soft_tokens_per_image",
    ]);
    acknowledge_common(&text);
    // The head belongs to the whole model, so the outer key decides whether it is tied.
    text.acknowledge(&["tie_word_embeddings"]);
    Ok(Transformer {
        tied: c.bool_or("tie_word_embeddings", true)?,
        ..read_text(&text, w)?
    })
}

fn read_text(c: &Config, w: &Weights<'_>) -> DecoderResult {
    if c.bool_or("enable_moe_block", false)? {
        return Err(ModelError::unsupported(
            "enable_moe_block",
            true,
            "mixtures of experts are not supported",
        ));
    }
    c.acknowledge(&["moe_intermediate_size", "num_experts", "top_k_experts"]);
    match c.opt_str("use_bidirectional_attention")? {
        // Tokens of images, which a text does not have.
        None | Some("vision") => {}
        Some(other) => {
            return Err(ModelError::unsupported(
                "use_bidirectional_attention",
                other,
                "expected null or vision, because a decoder attends to earlier tokens only",
            ));
        }
    }
    require_ropes(c)?;
    let [full, sliding] = config::ropes_by_layer_type(c)?;
    let full = rotated_part(c, "full_attention", full)?;
    let sliding = rotated_part(c, "sliding_attention", sliding)?;
    let mut model = config::read_with_ropes(c, &DEFAULTS, &[sliding])?;
    config::read_biases(c, &mut model, Some(("attention_bias", false)), None)?;
    let n_layers = model.layers.len();
    let mut masks = config::masks(c, n_layers, ("layer_types", PATTERN))?;
    // transformers forces this too.
    masks[n_layers - 1] = Mask::Full;
    let full_layers = FullLayers::read(c)?;
    let wide = full_layers.head_dim;
    let rotation = Rotation::new(&full, GLOBAL_THETA, wide, Style::Half)?;
    model.rotations.insert(0, rotation);
    model.set_masks(&masks);
    let window = c.opt_usize("sliding_window")?.unwrap_or(512);
    model.window = Some(check_size("sliding_window", window)?);
    set_heads(c, &mut model, full_layers)?;
    let n_shared = c.opt_usize("num_kv_shared_layers")?.unwrap_or(0);
    let keys = ["num_kv_shared_layers", "num_hidden_layers"];
    let sharing = share(keys, n_shared, w, &mut model)?;
    if c.bool_or("use_double_wide_mlp", false)? {
        sharing
            .iter_mut()
            .for_each(|layer| layer.mlp.intermediate *= 2);
    }
    let cap = "final_logit_softcapping";
    let cap = c.opt_number(cap, &Range::SOFT_CAP)?;
    model.logits_soft_cap = cap.map(|cap| cap as f32);
    read_per_layer(c, &mut model)?;
    Ok(scaled_embedding(model))
}

/// Requires the rotary embeddings of both types of layers, which all published files have. A
/// program that rotates whole heads of full-attention layers still gives fluent text.
fn require_ropes(c: &Config) -> Result<(), ModelError> {
    let ropes = c.object("rope_parameters")?;
    for ty in ["full_attention", "sliding_attention"] {
        let rope = ropes.object(ty)?;
        rope.str("rope_type")?;
        rope.f64("rope_theta")?;
    }
    Ok(())
}

/// The rotary embedding of a type of layers, of which only a proportional one has a share of
/// rotated elements: transformers (5.24) ignores the share without a scaling, and fails on one with
/// another scaling.
fn rotated_part(c: &Config, ty: &str, rope: RopeConfig) -> Result<RopeConfig, ModelError> {
    if matches!(rope.scaling, RopeScaling::Proportional { .. }) {
        return Ok(rope);
    }
    let key = "partial_rotary_factor";
    let file = c.object("rope_parameters")?.object(ty)?;
    match rope.partial_rotary_factor.filter(|share| *share != 1.0) {
        Some(share) if rope.scaling != RopeScaling::Default => {
            let reason = "expected 1, or the rope_type proportional";
            return Err(ModelError::unsupported(&file.path(key), share, reason));
        }
        Some(_) => {
            let reason = "whole heads are rotated, because rope_type is not proportional";
            file.note_unused(key, reason);
        }
        None => {}
    }
    Ok(RopeConfig {
        partial_rotary_factor: None,
        ..rope
    })
}

/// The sizes of full-attention layers, where they are not those of the others.
struct FullLayers {
    head_dim: usize,
    n_kv_heads: Option<usize>,
}

impl FullLayers {
    /// Reads the sizes by name, as models are published, or for each layer by itself, as
    /// transformers writes them.
    fn read(c: &Config) -> Result<Self, ModelError> {
        let Some(layers) = c.opt_object("per_layer_config")? else {
            let (head_dim, heads) = ("global_head_dim", "num_global_key_value_heads");
            let head_dim = c.opt_usize(head_dim)?.unwrap_or(GLOBAL_HEAD_DIM);
            let heads = c.opt_usize(heads)?;
            return Self::checked("global_head_dim", head_dim, heads);
        };
        let mut all: Option<(Option<usize>, Option<usize>)> = None;
        let names: Vec<String> = layers.keys().map(str::to_owned).collect();
        for name in names {
            let layer = layers.object(&name)?;
            let sizes = (
                layer.opt_usize("head_dim")?,
                layer.opt_usize("num_key_value_heads")?,
            );
            if all.is_some_and(|first| first != sizes) {
                return Err(ModelError::unsupported(
                    "per_layer_config",
                    format!("{sizes:?} in layer {name}"),
                    "expected the same in all layers",
                ));
            }
            all = Some(sizes);
        }
        let (head_dim, heads) = all.unwrap_or_default();
        Self::checked("head_dim", head_dim.unwrap_or(GLOBAL_HEAD_DIM), heads)
    }

    fn checked(key: &str, head_dim: usize, heads: Option<usize>) -> Result<Self, ModelError> {
        let check = |n| check_size("num_global_key_value_heads", n);
        Ok(Self {
            head_dim: check_size(key, head_dim)?,
            n_kv_heads: heads.map(check).transpose()?,
        })
    }
}

/// Sets the sizes of full-attention layers, and the norms of all heads.
fn set_heads(c: &Config, model: &mut Transformer, full: FullLayers) -> Result<(), ModelError> {
    let keys_are_values = c.bool_or("attention_k_eq_v", false)?;
    let n_kv_heads = full.n_kv_heads.filter(|_| keys_are_values);
    let wide = full.head_dim;
    let keys = HeadKeys {
        kv_heads: "num_global_key_value_heads",
        head_dim: "global_head_dim",
        ..HeadKeys::CONFIG
    };
    for layer in &mut model.layers {
        let attention = &mut layer.attention;
        if layer.mask == Mask::Full {
            attention.head_dim = wide;
            attention.n_kv_heads = n_kv_heads.unwrap_or(attention.n_kv_heads);
            attention.keys_are_values = keys_are_values;
            check_heads(keys, attention.n_heads, attention.n_kv_heads, wide)?;
        }
        set_scales(layer);
    }
    Ok(())
}

/// Sets the norms of all heads and the scalar of the layer.
fn set_scales(layer: &mut Layer) {
    layer.attention.scale = 1.0;
    if let Norm::Rms(norm) = layer.norm {
        layer.attention.qk_norm = Some(QkNorm::of_heads(norm));
        layer.attention.v_norm = Some(norm);
    }
    layer.scaled = true;
}

/// Makes the last `n_shared` layers, which are returned, use the keys and values of the last layer
/// of their type before them. `key` says how many share, and `all` how many layers there are.
fn share<'m>(
    [key, all]: [&str; 2],
    n_shared: usize,
    w: &Weights<'_>,
    model: &'m mut Transformer,
) -> Result<&'m mut [Layer], ModelError> {
    let n_layers = model.layers.len();
    let refused = |reason: &str| Err(ModelError::unsupported(key, n_shared, reason));
    if n_shared >= n_layers {
        return refused(&format!("expected less than `{all}`, {n_layers}"));
    }
    let first = n_layers - n_shared;
    let (own, sharing) = model.layers.split_at_mut(first);
    for (layer, i) in sharing.iter_mut().zip(first..) {
        layer.shares = own.iter().rposition(|l| l.mask == layer.mask);
        if layer.shares.is_none() {
            return refused("expected a layer of each type before those that share");
        }
        // Published files have these tensors, which transformers and llama.cpp ignore.
        for name in ["k_proj", "v_proj", "k_norm"] {
            for parameter in ["weight", "bias"] {
                w.ignore(&format!("layers.{i}.self_attn.{name}.{parameter}"));
            }
        }
        for name in ["attn_k", "attn_v", "attn_k_norm"] {
            w.ignore(&format!("blk.{i}.{name}.weight"));
        }
    }
    Ok(sharing)
}

fn read_per_layer(c: &Config, model: &mut Transformer) -> Result<(), ModelError> {
    let key = "vocab_size_per_layer_input";
    let vocab_size = check_size(key, c.opt_usize(key)?.unwrap_or(262_144))?;
    let key = "hidden_size_per_layer_input";
    let size = c.opt_usize(key)?.unwrap_or(256);
    if size != 0 {
        let keys = [key, "num_hidden_layers"];
        model.per_layer = Some(per_layer(model, keys, size, vocab_size)?);
    }
    Ok(())
}

/// The vectors that each layer has of its own. The keys are those of their size and of the number
/// of layers.
fn per_layer(
    model: &Transformer,
    [key, layers]: [&str; 2],
    size: usize,
    vocab_size: usize,
) -> Result<PerLayer, ModelError> {
    let n_layers = model.layers.len();
    let all = size.saturating_mul(n_layers);
    check_size(&format!("{key} * {layers}"), all)?;
    let epsilon = match model.norm {
        Norm::Rms(norm) => norm.epsilon,
        Norm::Layer { norm, .. } => norm.epsilon,
    };
    Ok(PerLayer {
        hidden: model.hidden,
        size: check_size(key, size)?,
        vocab_size,
        n_layers,
        norm: RmsNorm {
            epsilon,
            plus_one: false,
        },
        activation: model.layers[0].mlp.activation,
    })
}

/// Sets what follows from the tensors of all layers: what one layer has, others must have.
fn own_tensors(w: &Weights<'_>, model: &mut Transformer) {
    let has =
        |i: usize, module: &str, tensor: &str| w.has(&format!("model.layers.{i}{module}"), tensor);
    let mut layers = 0..model.layers.len();
    let scaled = layers.clone().any(|i| has(i, "", "layer_scalar"));
    let reads_values = |i: &usize| {
        let layer = &model.layers[*i];
        layer.shares.is_none() && layer.mask != Mask::Sliding
    };
    // Only layers with full attention may take keys for values.
    let has_values = layers.any(|i| reads_values(&i) && has(i, ".self_attn.v_proj", "weight"));
    for layer in &mut model.layers {
        layer.scaled = scaled;
        let own = layer.shares.is_none() && layer.mask != Mask::Sliding;
        layer.attention.keys_are_values = own && !has_values;
    }
}

/// Says which keys the shapes follow from that only this family has.
fn name_sizes(keys: Keys<'_>, w: &Weights<'_>, model: &Transformer, narrow: usize) {
    let (heads, kv, swa) = (
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length_swa",
    );
    keys.name_size(w, narrow, &[swa]);
    let slides = |layer: &&Layer| layer.mask == Mask::Sliding;
    for Layer { attention, .. } in model.layers.iter().filter(slides) {
        keys.name_size(w, attention.n_heads * narrow, &[heads, swa]);
        keys.name_size(w, attention.n_kv_heads * narrow, &[kv, swa]);
    }
    if let Some(per_layer) = &model.per_layer {
        let size = "embedding_length_per_layer_input";
        keys.name_size(w, per_layer.size, &[size]);
        keys.name_size(
            w,
            per_layer.size * per_layer.n_layers,
            &[size, "block_count"],
        );
    }
}

/// Keys that llama.cpp's converter always writes. Source: `Gemma4Model` of its conversion/gemma.py
/// (b11434), and the published config.json, which all have a cap of the logits.
const GGUF_KEYS: &[&str] = &[
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    LOGITS_CAP,
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.freq_base",
    "rope.freq_base_swa",
];
const LOGITS_CAP: &str = "final_logit_softcapping";

/// Reads the metadata of a GGUF file. Its keys of heads and of the rotary embedding are those of
/// full-attention layers, and the same keys with `_swa` those of the others.
fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    keys.require(GGUF_KEYS)?;
    // Files of dense models may have the size of experts.
    file.opt_u32(&keys.key("expert_feed_forward_length"))?;
    let mut model = gguf::read(file, w, &DEFAULTS)?;
    // The divisors say which pairs of a head are rotated, so the file must have them.
    w.get("rope_freqs", "weight", &[model.rotations[0].n_pairs()]);
    let n_heads = model.layers[0].attention.n_heads;
    let narrow = keys.head_size("attention.key_length_swa", n_heads)?;
    for name in ["attention.value_length_swa", "rope.dimension_count_swa"] {
        if let Some(other) = keys.opt_size(name)?.filter(|n| *n != narrow) {
            let key = keys.key("attention.key_length_swa");
            let reason = format!("expected the size of a key head, `{key}`, {narrow}");
            return Err(ModelError::unsupported(&keys.key(name), other, &reason));
        }
    }
    let sliding = gguf::sliding_rotation(keys, &DEFAULTS, narrow)?;
    model.rotations.push(sliding);
    let masks = gguf::masks(keys, model.layers.len(), PATTERN)?;
    model.set_masks(&masks);
    model.window = Some(keys.size("attention.sliding_window")?);
    for layer in &mut model.layers {
        if layer.mask == Mask::Sliding {
            layer.attention.head_dim = narrow;
        }
        set_scales(layer);
    }
    let all = keys.key("block_count");
    let key = keys.key("attention.shared_kv_layers");
    let n_shared = file.u32(&key)? as usize;
    share([&key, &all], n_shared, w, &mut model)?;
    own_tensors(w, &mut model);
    // A cap of 0 means that there is none, as in llama.cpp.
    if file.f32(&keys.key(LOGITS_CAP))? != 0.0 {
        model.logits_soft_cap = keys.opt_cap(LOGITS_CAP)?;
    }
    let key = keys.key("embedding_length_per_layer_input");
    let size = file.u32(&key)? as usize;
    if size != 0 {
        let rows = w.shape_of("model.embed_tokens_per_layer", "weight");
        let vocab_size = rows.and_then(|s| s.first().copied());
        let vocab_size = vocab_size.unwrap_or(model.vocab_size);
        model.per_layer = Some(per_layer(&model, [&key, &all], size, vocab_size)?);
    }
    name_sizes(keys, w, &model, narrow);
    Ok(scaled_embedding(model))
}
