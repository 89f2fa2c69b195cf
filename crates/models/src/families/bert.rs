//! BERT and RoBERTa encoders: all-MiniLM, bge, e5; bge-m3, multilingual-e5.
//!
//! Learned positions. RoBERTa counts them from behind the id of the padding token. A text is one
//! segment: all tokens have type 0.

use super::{EncoderResult, Family};
use crate::checkpoint::{Config, Gguf};
use crate::encoder::config::{behind_padding, position_rows, read};
use crate::encoder::gguf::{self, Architecture};
use crate::encoder::post_norm::{ClassifierModules, Learned, Modules, Positions, Projections};
use crate::layers::activation::Activation;
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
