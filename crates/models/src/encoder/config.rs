//! Reads the keys of `config.json` that BERT shares with its descendants.

use super::post_norm::{Learned, Modules, Positions, PostNorm};
use crate::checkpoint::{Config, Range};
use crate::checks::{check_layers, check_size, default_head_dim};
use crate::error::ModelError;
use crate::layers::activation::Activation;
use crate::layers::attention::Attention;
use crate::layers::norm::LayerNorm;
use crate::weights::Weights;

/// A table whose rows up to `padding` are not positions of a text.
pub(crate) fn behind_padding(c: &Config, padding: usize) -> Result<Learned, ModelError> {
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

/// Rows of a table of learned positions.
pub(crate) fn position_rows(c: &Config) -> Result<usize, ModelError> {
    let key = "max_position_embeddings";
    check_size(key, c.usize(key)?)
}

/// The description of an encoder with these modules and positions.
pub(crate) fn read(
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
pub(crate) fn ignore_training(c: &Config, w: &Weights<'_>) {
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
pub(crate) fn refuse_other_forms(c: &Config) -> Result<(), ModelError> {
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
