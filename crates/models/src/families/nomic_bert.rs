//! Nomic BERT encoders: nomic-embed-text.
//!
//! BERT with rotary positions, a gate in the feed-forward layer, and products without biases.
//! Published files have the keys and names of Nomic's own code; transformers since 5 has others.

use super::{EncoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range, RopeConfig, RopeScaling};
use crate::checks::{HeadKeys, check_heads, check_layers, check_size, default_head_dim};
use crate::encoder::config::{self, ignore_training};
use crate::encoder::gguf::{self, Architecture};
use crate::encoder::post_norm::{ClassifierModules, Modules, Positions, PostNorm, Projections};
use crate::error::ModelError;
use crate::layers::activation::Activation;
use crate::layers::attention::Attention;
use crate::layers::norm::LayerNorm;
use crate::layers::rope::{Rotation, Style};
use crate::transformer::config::{note_whole_heads, uniform_rope, whole_heads};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["nomic_bert", "nomic-bert"],
    about: "nomic-embed-text v1 and v1.5",
    checked: &[
        "tiny-embed/nomic-bert",
        "tiny-embed/nomic-bert-new",
        "tiny-embed-gguf/nomic-bert",
    ],
    base: MODULES.base,
    gguf_names: &[
        ("nomic_bert.embeddings.word_embeddings", "token_embd"),
        ("nomic_bert.embeddings.token_type_embeddings", "token_types"),
        ("nomic_bert.emb_ln", "token_embd_norm"),
        ("nomic_bert.encoder.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"),
        (
            "nomic_bert.encoder.layers.{}.attn.out_proj",
            "blk.{}.attn_output",
        ),
        (
            "nomic_bert.encoder.layers.{}.norm1",
            "blk.{}.attn_output_norm",
        ),
        ("nomic_bert.encoder.layers.{}.mlp.fc11", "blk.{}.ffn_up"),
        ("nomic_bert.encoder.layers.{}.mlp.fc12", "blk.{}.ffn_gate"),
        ("nomic_bert.encoder.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
        (
            "nomic_bert.encoder.layers.{}.norm2",
            "blk.{}.layer_output_norm",
        ),
    ],
    encoder: Some(from_config),
    gguf_encoder: Some(from_gguf),
    ..Family::NONE
};

/// The names in transformers.
const MODULES: Modules = Modules {
    base: "nomic_bert",
    embedding_norm: "embeddings.LayerNorm",
    layers: "layers",
    projections: Projections::Separate([
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
    ]),
    attention_output: "self_attn.o_proj",
    attention_norm: "post_attention_layernorm",
    up: "mlp.up_proj",
    gate: Some("mlp.gate_proj"),
    down: "mlp.down_proj",
    output_norm: "post_mlp_layernorm",
    classifier: CLASSIFIER,
};

/// The names in Nomic's code. Source: the renaming of `nomic_bert` in transformers'
/// conversion_mapping.py (5.24).
const NOMIC_MODULES: Modules = Modules {
    base: MODULES.base,
    embedding_norm: "emb_ln",
    layers: "encoder.layers",
    projections: Projections::Fused("attn.Wqkv"),
    attention_output: "attn.out_proj",
    attention_norm: "norm1",
    up: "mlp.fc11",
    gate: Some("mlp.fc12"),
    down: "mlp.fc2",
    output_norm: "norm2",
    classifier: CLASSIFIER,
};

const CLASSIFIER: ClassifierModules = ClassifierModules {
    dense: "nomic_bert.pooler.dense",
    activation: Activation::Tanh,
    output: "classifier",
};

/// Default rotary base. Source: NomicBertConfig of transformers.
const THETA: f64 = 1000.0;

fn from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    ignore_training(c, w);
    w.ignore_module("cls");
    let first = format!("{}.encoder.layers.0.attn.Wqkv", MODULES.base);
    let modules = if w.has(&first, "weight") {
        NOMIC_MODULES
    } else {
        MODULES
    };
    let model = if c.has("n_embd") {
        from_nomic(c, w, modules)?
    } else {
        from_transformers(c, w, modules)?
    };
    check_heads(
        HeadKeys::ENCODER,
        model.attention.n_heads,
        model.attention.n_heads,
        model.attention.head_dim,
    )?;
    Ok(Box::new(model))
}

fn from_gguf(gguf: &Gguf, w: &Weights<'_>) -> EncoderResult {
    let architecture = Architecture {
        name: "nomic-bert",
        modules: NOMIC_MODULES,
        activation: Activation::Silu,
        is_rotary: true,
    };
    Ok(Box::new(gguf::read(gguf, w, architecture)?))
}

/// Reads the keys of transformers.
fn from_transformers(
    c: &Config,
    w: &Weights<'_>,
    modules: Modules,
) -> Result<PostNorm, ModelError> {
    let key = "max_position_embeddings";
    let n_positions = check_size(key, c.opt_usize(key)?.unwrap_or(2048))?;
    let rope = uniform_rope(c, THETA)?;
    note_whole_heads(c);
    let rope = whole_heads(&rope)?;
    let none = Positions::Rotary {
        rotation: None,
        n_positions,
    };
    let model = config::read(c, w, modules, none)?;
    let head_dim = model.attention.head_dim;
    if let Some(other) = c.opt_usize("head_dim")?.filter(|n| *n != head_dim) {
        let reason = format!("expected {head_dim}, the hidden size divided by the heads");
        return Err(ModelError::unsupported("head_dim", other, &reason));
    }
    let theta = rope.theta.unwrap_or(THETA);
    let activation = c.opt_str("hidden_act")?.unwrap_or("silu");
    Ok(PostNorm {
        attention: Attention {
            qkv_bias: false,
            output_bias: false,
            ..model.attention
        },
        activation: Activation::from_name("hidden_act", activation)?,
        mlp_bias: false,
        positions: Positions::Rotary {
            rotation: Some(Rotation::of_encoder(&rope, theta, head_dim, n_positions)?),
            n_positions,
        },
        ..model
    })
}

/// Reads the keys of Nomic's code. Source: NomicBertConfig and modeling_hf_nomic_bert.py of
/// nomic-ai/contrastors.
fn from_nomic(c: &Config, w: &Weights<'_>, modules: Modules) -> Result<PostNorm, ModelError> {
    ignore_nomic_training(c);
    refuse_other_forms(c)?;
    let size = |key: &str| check_size(key, c.usize(key)?);
    let (hidden, n_heads) = (size("n_embd")?, size("n_head")?);
    let head_dim = default_head_dim("head_dim", hidden, n_heads)?;
    let theta = c.number("rotary_emb_base", &Range::THETA)?;
    let rope = RopeConfig {
        theta: Some(theta),
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    let epsilon = c.number("layer_norm_epsilon", &Range::EPSILON)?;
    Ok(PostNorm {
        modules,
        attention: Attention::multi_head(hidden, n_heads, head_dim, c.bool("qkv_proj_bias")?),
        intermediate: size("n_inner")?,
        activation: Activation::Silu,
        mlp_bias: c.bool("mlp_fc1_bias")?,
        norm: LayerNorm {
            epsilon: epsilon as f32,
        },
        n_layers: check_layers("n_layer", c.usize("n_layer")?)?,
        vocab_size: size("vocab_size")?,
        positions: Positions::Rotary {
            rotation: Some(Rotation::new(&rope, theta, head_dim, Style::Half)?),
            n_positions: size("n_positions")?,
        },
        n_types: c.usize("type_vocab_size")?,
        n_labels: modules.n_labels(c, w)?,
    })
}

/// Ignores keys of training and of GPT-2, from which Nomic's configuration is derived.
fn ignore_nomic_training(c: &Config) {
    c.acknowledge(&[
        "attn_pdrop",
        "auto_map",
        "dense_seq_output",
        "embd_pdrop",
        "fused_bias_fc",
        "fused_dropout_add_ln",
        // Where the reference would begin to scale rotary positions, if it scaled them.
        "max_trained_positions",
        // The vocabulary size in the file is padded already.
        "pad_vocab_size_multiple",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
        "use_flash_attn",
        "use_xentropy",
    ]);
}

/// Rejects values of keys that would change the computation.
fn refuse_other_forms(c: &Config) -> Result<(), ModelError> {
    let activation = c.str("activation_function")?;
    if activation != "swiglu" {
        return Err(ModelError::unsupported(
            "activation_function",
            activation,
            "expected swiglu",
        ));
    }
    let biases = (c.bool("mlp_fc1_bias")?, c.bool("mlp_fc2_bias")?);
    let expected = [
        ("causal", false),
        ("mlp_fc2_bias", biases.0),
        ("parallel_block", false),
        ("parallel_block_tied_norm", false),
        ("prenorm", false),
        ("rotary_emb_interleaved", false),
        ("scale_attn_by_inverse_layer_idx", false),
        ("scale_attn_weights", true),
        ("use_rms_norm", false),
    ];
    for (key, expected) in expected {
        let found = c.bool_or(key, expected)?;
        if found != expected {
            return Err(ModelError::unsupported(
                key,
                found,
                &format!("expected {expected}"),
            ));
        }
    }
    let fraction = c.f64("rotary_emb_fraction")?;
    if fraction != 1.0 {
        return Err(ModelError::unsupported(
            "rotary_emb_fraction",
            fraction,
            "expected 1, because only whole heads can be rotated",
        ));
    }
    for key in ["rotary_emb_scale_base", "rotary_scaling_factor"] {
        if let Some(value) = c.opt_f64(key)? {
            return Err(ModelError::unsupported(
                key,
                value,
                "expected null, because rotary positions are not scaled",
            ));
        }
    }
    Ok(())
}
