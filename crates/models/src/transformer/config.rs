//! Reads a [`Transformer`] from `config.json`.

use serde_json::Value;

use super::{Layer, Norms, Transformer};
use crate::checkpoint::{Config, Range, Rope, RopeConfig, RopeScaling};
use crate::checks::{
    HeadKeys, check_heads, check_layers, check_size, default_head_dim, layer_masks,
};
use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::decoder::Mask;
use crate::layers::encoder::Direction;
use crate::layers::mlp::{Activation, Mlp, MlpKind};
use crate::layers::norm::{LayerNorm, Norm, RmsNorm};
use crate::layers::rope::{Rotation, Style};
use crate::weights::Weights;

/// How a family spells its configuration, and what it means where the file says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// The key of the activation.
    pub activation_key: &'static str,
    /// The activation.
    pub activation: &'static str,
    /// The key of the size between the projections of the feed-forward layer.
    pub intermediate_key: &'static str,
    /// The key of the norms' epsilon.
    pub epsilon_key: &'static str,
    /// The epsilon of the norms.
    pub epsilon: f64,
    /// The norms of the layers and the norm after them, whose epsilon the file gives.
    pub norm: Norm,
    /// Where layers have norms.
    pub norms: Norms,
    /// Elements of a head; `None` for the hidden size divided by the number of heads.
    pub head_dim: Option<usize>,
    /// Number of key heads, where the file does not say it.
    pub kv_heads: KvHeads,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// The share of a head that is rotated; `None` for families that always rotate whole heads.
    pub rotated_share: Option<f64>,
    /// Which elements of a head are rotated together.
    pub style: Style,
    /// Context length in tokens.
    pub max_context: usize,
    /// Whether the output head shares the embedding's tensor.
    pub tied: bool,
    /// Which projections the feed-forward layer has.
    pub mlp: MlpKind,
    /// Sizes of the class in transformers, which published files of a multimodal model leave out.
    pub sizes: &'static [(&'static str, usize)],
}

/// What `num_key_value_heads` means where the file has no number.
#[derive(Clone, Copy, Debug)]
pub enum KvHeads {
    /// Absent or null: the number of heads.
    Heads,
    /// Absent: this number. Null: the number of heads.
    OrHeads(usize),
    /// Absent: this number. Null: an error, as in transformers.
    NotNull(usize),
}

impl Defaults {
    /// The defaults of `LlamaConfig`.
    pub const LLAMA: Self = Self {
        activation_key: "hidden_act",
        activation: "silu",
        intermediate_key: "intermediate_size",
        epsilon_key: "rms_norm_eps",
        epsilon: 1e-6,
        norm: RMS,
        norms: Norms::BEFORE,
        head_dim: None,
        kv_heads: KvHeads::Heads,
        theta: 10_000.0,
        rotated_share: None,
        style: Style::Half,
        max_context: 2048,
        tied: false,
        mlp: MlpKind::Gated,
        sizes: &[],
    };
}

/// RMSNorm.
pub const RMS: Norm = Norm::Rms(RmsNorm {
    epsilon: 0.0,
    plus_one: false,
});
/// RMSNorm whose factor is stored minus 1.
pub const RMS_PLUS_ONE: Norm = Norm::Rms(RmsNorm {
    epsilon: 0.0,
    plus_one: true,
});
/// LayerNorm without a bias.
pub const LAYER_NORM: Norm = Norm::Layer {
    norm: LayerNorm { epsilon: 0.0 },
    bias: false,
};
/// LayerNorm with a bias.
pub const LAYER_NORM_BIAS: Norm = Norm::Layer {
    norm: LayerNorm { epsilon: 0.0 },
    bias: true,
};

/// Reads the keys that almost all decoders have: layers of attention and a feed-forward layer with
/// one rotary embedding, full attention and no biases.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read(c: &Config, d: &Defaults) -> Result<Transformer, ModelError> {
    let rope = uniform_rope(c, d.theta)?;
    read_with_ropes(c, d, &[rope])
}

/// Like [`read`], with a rotary embedding for full-attention layers and, if there are two, another
/// one for sliding-window layers.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read_with_ropes(
    c: &Config,
    d: &Defaults,
    ropes: &[RopeConfig],
) -> Result<Transformer, ModelError> {
    let size = |key: &str| -> Result<usize, ModelError> {
        let default = d.sizes.iter().find(|(name, _)| *name == key);
        let given = match (c.opt_usize(key)?, default) {
            (Some(given), _) => given,
            (None, Some((_, default))) => *default,
            (None, None) => c.usize(key)?,
        };
        check_size(key, given)
    };
    c.check_not_null(&[d.epsilon_key, d.activation_key, "max_position_embeddings"])?;
    let hidden = size("hidden_size")?;
    let n_layers = check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?;
    let n_heads = size("num_attention_heads")?;
    let n_kv_heads = read_kv_heads(c, d.kv_heads, n_heads)?;
    let head_dim = match c.opt_usize("head_dim")?.or(d.head_dim) {
        Some(n) => check_size("head_dim", n)?,
        None => default_head_dim("head_dim", hidden, n_heads)?,
    };
    check_heads(HeadKeys::CONFIG, n_heads, n_kv_heads, head_dim)?;
    let epsilon = c.opt_number(d.epsilon_key, &Range::EPSILON)?;
    let norm = d.norm.with_epsilon(epsilon.unwrap_or(d.epsilon) as f32);
    let activation = c.opt_str(d.activation_key)?.unwrap_or(d.activation);
    let attention = Attention {
        n_kv_heads,
        ..Attention::multi_head(hidden, n_heads, head_dim, false)
    };
    let mlp = Mlp {
        hidden,
        intermediate: size(d.intermediate_key)?,
        activation: Activation::from_name(d.activation_key, activation)?,
        bias: false,
        kind: d.mlp,
    };
    let layer = Layer::new(attention, mlp, norm, d.norms);
    let context = "max_position_embeddings";
    let context = check_size(context, c.opt_usize(context)?.unwrap_or(d.max_context))?;
    let share = default_share(c, d)?;
    if share.is_none() {
        note_whole_heads(c);
    }
    let rotation = |rope: &RopeConfig| read_rotation(d, share, rope, head_dim);
    Ok(Transformer {
        rotations: ropes.iter().map(rotation).collect::<Result<_, _>>()?,
        tied: c.bool_or("tie_word_embeddings", d.tied)?,
        ..Transformer::of_layers(vec![layer; n_layers], size("vocab_size")?, context)
    })
}

/// The number of key heads.
fn read_kv_heads(c: &Config, default: KvHeads, n_heads: usize) -> Result<usize, ModelError> {
    let key = "num_key_value_heads";
    let n_kv_heads = match (c.opt_usize(key)?, default, c.is_null(key)) {
        (Some(n), _, _) => n,
        (None, KvHeads::OrHeads(n) | KvHeads::NotNull(n), false) => n,
        (None, KvHeads::Heads | KvHeads::OrHeads(_), _) => n_heads,
        (None, KvHeads::NotNull(n), true) => {
            let reason = format!("expected a number; without the key, it is {n}");
            return Err(ModelError::unsupported(key, "null", &reason));
        }
    };
    check_size(key, n_kv_heads)
}

/// The share of a head that is rotated where the rotary embedding has none. As in transformers, a
/// null is not the default of the family, but whole heads.
fn default_share(c: &Config, d: &Defaults) -> Result<Option<f64>, ModelError> {
    let key = "partial_rotary_factor";
    for object in ["rope_parameters", "rope_scaling"] {
        if d.rotated_share.is_some()
            && let Some(rope) = c.opt_object(object)?
            && rope.is_null(key)
        {
            let reason = "expected a number; without the key, the share is that of the family";
            return Err(ModelError::unsupported(&rope.path(key), "null", reason));
        }
    }
    Ok(d.rotated_share
        .map(|share| if c.is_null(key) { 1.0 } else { share }))
}

fn read_rotation(
    d: &Defaults,
    share: Option<f64>,
    rope: &RopeConfig,
    head_dim: usize,
) -> Result<Rotation, ModelError> {
    let rope = match share {
        None => whole_heads(rope)?,
        Some(share) => RopeConfig {
            partial_rotary_factor: rope.partial_rotary_factor.or(Some(share)),
            ..rope.clone()
        },
    };
    Rotation::new(&rope, d.theta, head_dim, d.style)
}

/// A rotary embedding without a share of rotated elements, for families whose class in transformers
/// has none. Without a scaling, the class rotates whole heads whatever the file says; with one, it
/// fails.
///
/// # Errors
///
/// If the embedding is scaled, and the share is not 1.
pub fn whole_heads(rope: &RopeConfig) -> Result<RopeConfig, ModelError> {
    // The class of `hunyuan` computes the base by itself.
    let own = matches!(
        rope.scaling,
        RopeScaling::Default | RopeScaling::NtkAlpha { .. }
    );
    match rope.partial_rotary_factor {
        Some(share) if share != 1.0 && !own => Err(ModelError::unsupported(
            "partial_rotary_factor",
            share,
            "expected 1, because this family rotates whole heads",
        )),
        _ => Ok(RopeConfig {
            partial_rotary_factor: None,
            ..rope.clone()
        }),
    }
}

/// Tells the user that a share of rotated elements is not used, wherever a file has one.
pub fn note_whole_heads(c: &Config) {
    let key = "partial_rotary_factor";
    if c.value(key).and_then(Value::as_f64) != Some(1.0) {
        let reason = "this family rotates whole heads, as its class in transformers does";
        c.note_unused(key, reason);
    }
    let [full, sliding] = ["full_attention", "sliding_attention"];
    for name in ["rope_parameters", "rope_scaling", full, sliding] {
        if c.is_object(name)
            && let Ok(Some(inner)) = c.opt_object(name)
        {
            note_whole_heads(&inner);
        }
    }
}

/// The rotary embedding that all layers share, in a family with the base `default`.
///
/// # Errors
///
/// If the file has one for each layer type.
pub fn uniform_rope(c: &Config, default: f64) -> Result<RopeConfig, ModelError> {
    match c.rope(Some(default))? {
        Rope::Uniform(rope) => Ok(rope),
        Rope::PerLayerType(_) => Err(ModelError::unsupported(
            "rope_parameters",
            "per layer type",
            "expected one rotary embedding for all layers",
        )),
    }
}

/// The rotary embeddings of full-attention layers and of sliding-window layers. One embedding for
/// all layers describes full-attention layers alone, as the spelling before transformers 5 does.
///
/// These classes do not read `type`, the old name of `rope_type`, and then scale nothing.
///
/// # Errors
///
/// If the new spelling has one embedding for all layers.
pub fn ropes_by_layer_type(c: &Config) -> Result<[RopeConfig; 2], ModelError> {
    let unset = || RopeConfig {
        theta: None,
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    Ok(match c.rope_by_layer_type()? {
        Rope::Uniform(_) if c.has("rope_parameters") => {
            let reason = "expected one rotary embedding for each layer type";
            return Err(ModelError::unsupported(
                "rope_parameters",
                "the same for all layers",
                reason,
            ));
        }
        // The old spelling describes full-attention layers unless `rope_local_base_freq` is present
        // too.
        Rope::Uniform(global) => [read_type_alone(c, global)?, unset()],
        rope => {
            let part = |ty: &str| rope.layer_type(ty).cloned().unwrap_or_else(unset);
            let global = read_type_alone(c, part("full_attention"))?;
            [global, part("sliding_attention")]
        }
    })
}

/// The embedding that the classes with one for each layer type make of the old spelling.
fn read_type_alone(c: &Config, rope: RopeConfig) -> Result<RopeConfig, ModelError> {
    let old = c.opt_object("rope_scaling")?;
    let old = old.filter(|old| !c.has("rope_parameters") && !old.has("rope_type"));
    let Some(old) = old.filter(|_| rope.scaling != RopeScaling::Default) else {
        return Ok(rope);
    };
    let reason = "the class of transformers reads `rope_type` alone, and nothing is scaled";
    old.note_unused("type", reason);
    Ok(RopeConfig {
        scaling: RopeScaling::Default,
        ..rope
    })
}

/// Reads the biases of attention and feed-forward layer from one key each.
///
/// # Errors
///
/// If a key is no bool.
pub fn read_biases(
    c: &Config,
    model: &mut Transformer,
    attention: Option<(&str, bool)>,
    mlp: Option<(&str, bool)>,
) -> Result<(), ModelError> {
    let read = |key: Option<(&str, bool)>| match key {
        None => Ok(false),
        Some((key, default)) => c.bool_or(key, default),
    };
    let (attention, mlp) = (read(attention)?, read(mlp)?);
    model.change_layers(|layer| {
        layer.attention.qkv_bias = attention;
        layer.attention.output_bias = attention;
        layer.mlp.bias = mlp;
    });
    Ok(())
}

/// Refuses an activation other than SiLU, for families that use SiLU elsewhere too, or whatever the
/// file says.
///
/// # Errors
///
/// If the file names another activation.
pub fn require_silu(c: &Config, reason: &str) -> Result<(), ModelError> {
    let key = Defaults::LLAMA.activation_key;
    match c.opt_str(key)? {
        Some(name) if Activation::from_name(key, name)? != Activation::Silu => {
            Err(ModelError::unsupported(key, name, reason))
        }
        _ => Ok(()),
    }
}

/// Reads the window of sliding-window layers. Without a window, all layers have full attention.
///
/// # Errors
///
/// If the window is not a size.
pub fn read_window(c: &Config, default: Option<usize>) -> Result<Option<usize>, ModelError> {
    // An explicit null says that there is no window.
    let absent = c.keys().all(|key| key != "sliding_window");
    let window = c.opt_usize("sliding_window")?;
    let window = if absent { default } else { window };
    window.map(|n| check_size("sliding_window", n)).transpose()
}

/// Makes layers slide as the keys of Qwen say: with `use_sliding_window`, those of which `slides`
/// is true, unless `layer_types` names them. `slides` takes the number of a layer, from 0, and
/// `max_window_layers`.
///
/// # Errors
///
/// If a key has the wrong type, or a layer is to slide without a window.
pub fn sliding_by_switch(
    c: &Config,
    model: &mut Transformer,
    slides: fn(usize, usize) -> bool,
) -> Result<(), ModelError> {
    let switch = c.bool_or("use_sliding_window", false)?;
    c.acknowledge(&["sliding_window"]);
    // Files without a window may say 0, and none of their layers may slide.
    let is_zero = switch && c.opt_usize("sliding_window")? == Some(0);
    let window = if switch && !is_zero {
        read_window(c, Some(4096))?
    } else {
        None
    };
    let first = c.opt_usize("max_window_layers")?.unwrap_or(28);
    let n_layers = model.layers.len();
    let named = layer_masks(c, n_layers)?;
    let by_number = |i: usize| {
        if (is_zero || window.is_some()) && slides(i, first) {
            Mask::Sliding
        } else {
            Mask::Full
        }
    };
    let masks = named.unwrap_or_else(|| (0..n_layers).map(by_number).collect());
    if window.is_none() && masks.contains(&Mask::Sliding) {
        return Err(ModelError::unsupported(
            "layer_types",
            "sliding_attention",
            "expected full_attention, because use_sliding_window is not true or the window is 0",
        ));
    }
    model.window = window;
    model.set_masks(&masks);
    Ok(())
}

/// The masks of layers that `layer_types` lists, or else every `pattern`-th of which has full
/// attention, as the value of `key` or by default.
///
/// # Errors
///
/// If the list is not one of masks for all layers, or `pattern` is not a size.
pub fn masks(
    c: &Config,
    n_layers: usize,
    (key, pattern): (&str, usize),
) -> Result<Vec<Mask>, ModelError> {
    match layer_masks(c, n_layers)? {
        Some(masks) => Ok(masks),
        None => by_pattern(key, n_layers, pattern),
    }
}

/// The masks of layers where every `pattern`-th layer has full attention.
///
/// # Errors
///
/// If `pattern` is not a size.
pub fn by_pattern(key: &str, n_layers: usize, pattern: usize) -> Result<Vec<Mask>, ModelError> {
    let pattern = check_size(key, pattern)?;
    let mask = |i: usize| {
        if (i + 1).is_multiple_of(pattern) {
            Mask::Full
        } else {
            Mask::Sliding
        }
    };
    Ok((0..n_layers).map(mask).collect())
}

/// Reads `is_causal`, which makes an embedding model of a decoder that attends to all tokens.
///
/// # Errors
///
/// If layers with a sliding window would attend to later tokens: the window of such a model is not
/// that of the class that is made for it.
pub fn read_is_causal(c: &Config, model: &mut Transformer) -> Result<(), ModelError> {
    let key = "is_causal";
    if c.bool_or(key, true)? {
        return Ok(());
    }
    if model.layers.iter().any(|layer| layer.mask == Mask::Sliding) {
        let reason = "expected true, because some layers have a sliding window";
        return Err(ModelError::unsupported(key, false, reason));
    }
    model.direction = Direction::Bidirectional;
    Ok(())
}

/// A decoder from its description: it attends to earlier tokens only, and the file's output head
/// decides whether the head is tied.
///
/// # Errors
///
/// If the model attends to later tokens too.
pub fn decoder(mut model: Transformer, w: &Weights<'_>) -> Result<Transformer, ModelError> {
    if model.direction == Direction::Bidirectional {
        return Err(ModelError::unsupported(
            "use_bidirectional_attention",
            true,
            "expected false, because a decoder attends to earlier tokens only",
        ));
    }
    model.tied = w.is_tied(model.tied);
    Ok(model)
}
