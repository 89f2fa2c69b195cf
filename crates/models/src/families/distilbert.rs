//! DistilBERT encoders: multi-qa-distilbert, msmarco-distilbert.
//!
//! BERT without token types, under other names. Files store the table of positions also where it is
//! made of sines.

use super::{EncoderResult, Family};
use crate::checkpoint::Config;
use crate::checks::{check_layers, check_size, default_head_dim};
use crate::encoder::config::{ignore_training, refuse_other_forms};
use crate::encoder::post_norm::{
    ClassifierModules, Learned, Modules, Positions, PostNorm, Projections,
};
use crate::layers::activation::Activation;
use crate::layers::attention::Attention;
use crate::layers::norm::LayerNorm;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["distilbert"],
    about: "multi-qa-distilbert",
    checked: &["tiny-embed/distilbert", "tiny-rerank/distilbert"],
    base: MODULES.base,
    encoder: Some(from_config),
    ..Family::NONE
};

const MODULES: Modules = Modules {
    base: "distilbert",
    embedding_norm: "embeddings.LayerNorm",
    layers: "transformer.layer",
    projections: Projections::Separate(["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
    attention_output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    gate: None,
    down: "ffn.lin2",
    output_norm: "output_layer_norm",
    classifier: ClassifierModules {
        dense: "pre_classifier",
        activation: Activation::Relu,
        output: "classifier",
    },
};

/// Epsilon of all norms. Source: modeling_distilbert.py of transformers.
const EPSILON: f32 = 1e-12;

fn from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    c.acknowledge(&[
        "dropout",
        "qa_dropout",
        "seq_classif_dropout",
        // How the table of positions begins; training changes it, and the file has it.
        "sinusoidal_pos_embds",
        "tie_weights_",
    ]);
    ignore_training(c, w);
    refuse_other_forms(c)?;
    for head in [
        "vocab_transform",
        "vocab_layer_norm",
        "vocab_projector",
        "qa_outputs",
    ] {
        w.ignore_module(head);
    }
    let size = |key: &str| check_size(key, c.usize(key)?);
    let (hidden, n_heads) = (size("dim")?, size("n_heads")?);
    let head_dim = default_head_dim("head_dim", hidden, n_heads)?;
    let activation = c.opt_str("activation")?.unwrap_or("gelu");
    let model = PostNorm {
        modules: MODULES,
        attention: Attention::multi_head(hidden, n_heads, head_dim, true),
        intermediate: size("hidden_dim")?,
        activation: Activation::from_name("activation", activation)?,
        mlp_bias: true,
        norm: LayerNorm { epsilon: EPSILON },
        n_layers: check_layers("n_layers", c.usize("n_layers")?)?,
        vocab_size: size("vocab_size")?,
        positions: Positions::Learned(Learned {
            rows: size("max_position_embeddings")?,
            padding: None,
            buckets: None,
        }),
        n_types: 0,
        n_labels: MODULES.n_labels(c, w)?,
    };
    Ok(Box::new(model))
}
