//! BERT and RoBERTa encoders: all-MiniLM, bge, e5; bge-m3, multilingual-e5.
//!
//! Learned positions. RoBERTa counts them from behind the id of the padding token. A text is one
//! segment: all tokens have type 0.

use super::{EncoderResult, Family};
use crate::checkpoint::{Config, Gguf, Range};
use crate::checks::{check_layers, check_size, default_head_dim};
use crate::encoder::gguf::{self, Architecture};
use crate::encoder::post_norm::{
    ClassifierModules, Learned, Modules, Positions, PostNorm, Projections,
};
use crate::error::ModelError;
use crate::layers::activation::Activation;
use crate::layers::attention::Attention;
use crate::layers::norm::LayerNorm;
use crate::weights::Weights;

pub(super) const BERT: Family = Family {
    names: &["bert"],
    about: "all-MiniLM, BGE, E5, GTE",
    checked: &[
        "tiny-embed/bert-cls",
        "tiny-embed/bert-mean",
        "tiny-embed/bert-prompt",
        "tiny-embed/bert-steps",
        "tiny-embed/bert-weighted",
        "tiny-embed-gguf/bert-cls",
        "tiny-rerank/bert",
    ],
    base: "bert",
    gguf_names: &[
        ("bert.embeddings.word_embeddings", "token_embd"),
        ("bert.embeddings.position_embeddings", "position_embd"),
        ("bert.embeddings.token_type_embeddings", "token_types"),
        ("bert.embeddings.LayerNorm", "token_embd_norm"),
        (
            "bert.encoder.layer.{}.attention.self.query",
            "blk.{}.attn_q",
        ),
        ("bert.encoder.layer.{}.attention.self.key", "blk.{}.attn_k"),
        (
            "bert.encoder.layer.{}.attention.self.value",
            "blk.{}.attn_v",
        ),
        (
            "bert.encoder.layer.{}.attention.output.dense",
            "blk.{}.attn_output",
        ),
        (
            "bert.encoder.layer.{}.attention.output.LayerNorm",
            "blk.{}.attn_output_norm",
        ),
        ("bert.encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"),
        ("bert.encoder.layer.{}.output.dense", "blk.{}.ffn_down"),
        (
            "bert.encoder.layer.{}.output.LayerNorm",
            "blk.{}.layer_output_norm",
        ),
    ],
    encoder: Some(bert),
    gguf_encoder: Some(bert_gguf),
    ..Family::NONE
};

pub(super) const ROBERTA: Family = Family {
    names: &["roberta", "xlm-roberta", "camembert"],
    about: "bge-m3, multilingual-e5",
    checked: &[
        "tiny-embed/roberta",
        "tiny-embed/xlm-roberta",
        "tiny-rerank/xlm-roberta",
    ],
    base: "roberta",
    encoder: Some(roberta),
    ..Family::NONE
};

/// The modules of BERT; RoBERTa has them below another name.
pub(super) const MODULES: Modules = Modules {
    base: "bert",
    embedding_norm: "embeddings.LayerNorm",
    layers: "encoder.layer",
    projections: Projections::Separate([
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ]),
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    gate: None,
    down: "output.dense",
    output_norm: "output.LayerNorm",
    classifier: ClassifierModules {
        dense: "bert.pooler.dense",
        activation: Activation::Tanh,
        output: "classifier",
    },
};

/// The classifier of RoBERTa and MPNet.
pub(super) const ROBERTA_CLASSIFIER: ClassifierModules = ClassifierModules {
    dense: "classifier.dense",
    activation: Activation::Tanh,
    output: "classifier.out_proj",
};

/// Id of RoBERTa's padding token if the file does not name it. Source: RobertaConfig,
/// XLMRobertaConfig and CamembertConfig.
const ROBERTA_PADDING: usize = 1;

fn bert(c: &Config, w: &Weights<'_>) -> EncoderResult {
    w.ignore_module("cls");
    let learned = Learned {
        rows: position_rows(c)?,
        padding: None,
        buckets: None,
    };
    Ok(Box::new(read(c, w, MODULES, Positions::Learned(learned))?))
}

/// The file does not name the activation; that of every published BERT is the exact GELU.
fn bert_gguf(gguf: &Gguf, w: &Weights<'_>) -> EncoderResult {
    let architecture = Architecture {
        name: "bert",
        modules: MODULES,
        activation: Activation::GeluErf,
        is_rotary: false,
    };
    Ok(Box::new(gguf::read(gguf, w, architecture)?))
}

fn roberta(c: &Config, w: &Weights<'_>) -> EncoderResult {
    c.acknowledge(&["output_past"]);
    w.ignore_module("lm_head");
    let padding = c.opt_usize("pad_token_id")?.unwrap_or(ROBERTA_PADDING);
    let modules = Modules {
        base: ROBERTA.base,
        classifier: ROBERTA_CLASSIFIER,
        ..MODULES
    };
    let positions = Positions::Learned(behind_padding(c, padding)?);
    Ok(Box::new(read(c, w, modules, positions)?))
}

/// A table whose rows up to `padding` are not positions of a text.
pub(super) fn behind_padding(c: &Config, padding: usize) -> Result<Learned, ModelError> {
    let rows = position_rows(c)?;
    if rows <= padding + 1 {
        let reason = format!(
            "expected more than {}, because positions begin there",
            padding + 1
        );
        return Err(ModelError::unsupported(
            "max_position_embeddings",
            rows,
            &reason,
        ));
    }
    Ok(Learned {
        rows,
        padding: Some(padding),
        buckets: None,
    })
}

fn position_rows(c: &Config) -> Result<usize, ModelError> {
    let key = "max_position_embeddings";
    check_size(key, c.usize(key)?)
}

/// Reads the keys that BERT shares with its descendants.
pub(super) fn read(
    c: &Config,
    w: &Weights<'_>,
    modules: Modules,
    positions: Positions,
) -> Result<PostNorm, ModelError> {
    ignore_training(c, w);
    refuse_other_forms(c)?;
    let hidden = check_size("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = check_size("num_attention_heads", c.usize("num_attention_heads")?)?;
    let head_dim = default_head_dim("head_dim", hidden, n_heads)?;
    let activation = c.opt_str("hidden_act")?.unwrap_or("gelu");
    let epsilon = c.opt_number("layer_norm_eps", &Range::EPSILON)?;
    let n_types = c.opt_usize("type_vocab_size")?.unwrap_or(2);
    Ok(PostNorm {
        modules,
        attention: Attention::multi_head(hidden, n_heads, head_dim, true),
        intermediate: check_size("intermediate_size", c.usize("intermediate_size")?)?,
        activation: Activation::from_name("hidden_act", activation)?,
        mlp_bias: true,
        norm: LayerNorm {
            epsilon: epsilon.unwrap_or(1e-12) as f32,
        },
        n_layers: check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?,
        vocab_size: check_size("vocab_size", c.usize("vocab_size")?)?,
        positions,
        n_types: check_size("type_vocab_size", n_types)?,
        n_labels: modules.n_labels(c, w)?,
    })
}

/// Ignores keys and tensors that do not affect the encoder: training, a buffer, and heads.
pub(super) fn ignore_training(c: &Config, w: &Weights<'_>) {
    c.acknowledge(&[
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "hidden_dropout_prob",
        // Belongs to the masked-language-model head.
        "tie_word_embeddings",
    ]);
    w.ignore("embeddings.position_ids");
    for name in ["pooler.dense.weight", "pooler.dense.bias"] {
        w.ignore(name);
    }
}

/// Rejects values of keys that would change the computation.
pub(super) fn refuse_other_forms(c: &Config) -> Result<(), ModelError> {
    let positions = c.opt_str("position_embedding_type")?.unwrap_or("absolute");
    if positions != "absolute" {
        return Err(ModelError::unsupported(
            "position_embedding_type",
            positions,
            "expected absolute",
        ));
    }
    for key in ["is_decoder", "add_cross_attention", "is_encoder_decoder"] {
        if c.bool_or(key, false)? {
            return Err(ModelError::unsupported(
                key,
                true,
                "expected false, because only encoders are supported",
            ));
        }
    }
    Ok(())
}
