//! MPNet encoders: all-mpnet-base, multi-qa-mpnet.
//!
//! BERT without token types. Positions are counted from behind the padding token like in RoBERTa,
//! and the scores of all layers have a bias by distance and head.

use super::bert;
use super::{EncoderResult, Family};
use crate::checkpoint::Config;
use crate::encoder::config::{self, behind_padding};
use crate::encoder::post_norm::{Buckets, Modules, Positions, PostNorm, Projections};
use crate::error::ModelError;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["mpnet"],
    about: "all-mpnet-base, multi-qa-mpnet",
    checked: &["tiny-embed/mpnet"],
    base: MODULES.base,
    encoder: Some(from_config),
    ..Family::NONE
};

const MODULES: Modules = Modules {
    base: "mpnet",
    projections: Projections::Separate([
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
    ]),
    attention_output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    classifier: bert::ROBERTA_CLASSIFIER,
    ..bert::MODULES
};

/// Id of the padding token, whatever `pad_token_id` says. Source: MPNetEmbeddings of transformers.
const PADDING: usize = 1;

fn from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    // Other software wrote it; the model has no token types.
    c.acknowledge(&["type_vocab_size"]);
    w.ignore_module("lm_head");
    let rows = c
        .opt_usize("relative_attention_num_buckets")?
        .unwrap_or(Buckets::USED);
    let buckets = Buckets {
        module: "encoder.relative_attention_bias",
        rows,
    };
    if buckets.n_tokens() < 2 {
        let expected =
            "expected 18 or more, because a text of two tokens reads row 17 of the table";
        let key = "relative_attention_num_buckets";
        return Err(ModelError::unsupported(key, rows, expected));
    }
    let mut learned = behind_padding(c, PADDING)?;
    learned.buckets = Some(buckets);
    let model = PostNorm {
        n_types: 0,
        ..config::read(c, w, MODULES, Positions::Learned(learned))?
    };
    Ok(Box::new(model))
}
