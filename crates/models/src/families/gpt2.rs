//! GPT-2: learned positions, LayerNorm, biases everywhere, a feed-forward layer without a gate.
//! Hugging Face folders store matrices as [inputs, outputs], with query, key and value side by
//! side.

use super::{DecoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range};
use crate::checks::{check_layers, check_size, default_head_dim};
use crate::error::ModelError;
use crate::layers::attention::Attention;
use crate::layers::mlp::{Activation, Mlp, MlpKind};
use crate::layers::norm::{LayerNorm, Norm};
use crate::transformer::config::{self, Defaults, LAYER_NORM_BIAS};
use crate::transformer::{Layer, Norms, Transformer, gguf};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["gpt2"],
    about: "GPT-2, DistilGPT2",
    checked: &["tiny/gpt2", "tiny/gpt2-f16", "tiny-gguf/gpt2"],
    base: "transformer",
    tensor_names: &[
        ("model.embed_tokens", "transformer.wte"),
        ("model.embed_positions", "transformer.wpe"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers.{}.input_layernorm", "transformer.h.{}.ln_1"),
        (
            "model.layers.{}.post_attention_layernorm",
            "transformer.h.{}.ln_2",
        ),
        (
            "model.layers.{}.self_attn.qkv_proj",
            "transformer.h.{}.attn.c_attn",
        ),
        (
            "model.layers.{}.self_attn.o_proj",
            "transformer.h.{}.attn.c_proj",
        ),
        ("model.layers.{}.mlp.up_proj", "transformer.h.{}.mlp.c_fc"),
        (
            "model.layers.{}.mlp.down_proj",
            "transformer.h.{}.mlp.c_proj",
        ),
    ],
    transposed: true,
    gguf_names: &[
        ("model.embed_positions", "position_embd"),
        super::GGUF_NORMS_BEFORE[0],
        ("model.layers.{}.self_attn.qkv_proj", "blk.{}.attn_qkv"),
    ],
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    c.acknowledge(&[
        "attn_pdrop",
        "embd_pdrop",
        // Another spelling of n_positions.
        "n_ctx",
        // Numbers are summed in fp32 anyway.
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ]);
    // Buffers of old checkpoints.
    w.ignore("attn.bias");
    w.ignore("attn.masked_bias");
    let key = "add_cross_attention";
    if c.bool_or(key, false)? {
        return Err(ModelError::unsupported(key, true, "expected false"));
    }
    let hidden = check_size("n_embd", c.usize("n_embd")?)?;
    let n_heads = check_size("n_head", c.usize("n_head")?)?;
    let head_dim = default_head_dim("head_dim", hidden, n_heads)?;
    let epsilon = "layer_norm_epsilon";
    let epsilon = c.opt_number(epsilon, &Range::EPSILON)?.unwrap_or(1e-5) as f32;
    let norm = Norm::Layer {
        norm: LayerNorm { epsilon },
        bias: true,
    };
    let mut attention = Attention::multi_head(hidden, n_heads, head_dim, true);
    attention.joined = true;
    if !c.bool_or("scale_attn_weights", true)? {
        attention.scale = 1.0;
    }
    let act = "activation_function";
    let inner = c.opt_usize("n_inner")?.unwrap_or(4 * hidden);
    let mlp = Mlp {
        hidden,
        intermediate: check_size("n_inner", inner)?,
        activation: Activation::from_name(act, c.opt_str(act)?.unwrap_or("gelu_new"))?,
        bias: true,
        kind: MlpKind::Plain,
    };
    let layer = Layer {
        rotation: None,
        ..Layer::new(attention, mlp, norm, Norms::BEFORE)
    };
    let n_layers = check_layers("n_layer", c.usize("n_layer")?)?;
    let vocab_size = check_size("vocab_size", c.usize("vocab_size")?)?;
    let context = check_size("n_positions", c.opt_usize("n_positions")?.unwrap_or(1024))?;
    let mut layers = vec![layer; n_layers];
    if c.bool_or("scale_attn_by_inverse_layer_idx", false)? {
        for (i, layer) in layers.iter_mut().enumerate() {
            layer.attention.scale /= (i + 1) as f64;
        }
    }
    let model = Transformer {
        learned_positions: true,
        tied: c.bool_or("tie_word_embeddings", true)?,
        ..Transformer::of_layers(layers, vocab_size, context)
    };
    config::decoder(model, w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let defaults = Defaults {
        activation: "gelu_new",
        norm: LAYER_NORM_BIAS,
        mlp: MlpKind::Plain,
        ..Defaults::LLAMA
    };
    let mut model = gguf::read(file, w, &defaults)?;
    model.rotations.clear();
    model.learned_positions = true;
    model.change_layers(|layer| {
        layer.rotation = None;
        layer.attention.joined = true;
    });
    Ok(model)
}
