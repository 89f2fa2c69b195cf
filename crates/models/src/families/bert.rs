//! BERT encoders: all-MiniLM, bge, e5.
//!
//! Learned positions, and a norm after each attention and each feed-forward layer. A text is one
//! segment: all tokens have type 0.

use thane_mil::program::{Function, ValueId};

use super::keys::{check_layers, check_positive, check_size, default_head_dim};
use super::{Encoder, EncoderPlan, EncoderResult, EncoderSizes, Family};
use crate::checkpoint::Config;
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::attention::{Attention, Projected};
use crate::layers::decoder::Mask;
use crate::layers::encoder::{self, Direction, Io};
use crate::layers::mlp::Activation;
use crate::layers::norm::LayerNorm;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["bert"],
    about: "all-MiniLM, BGE, E5, GTE",
    checked: &[
        "tiny-embed/bert-cls",
        "tiny-embed/bert-mean",
        "tiny-embed/bert-weighted",
    ],
    base: "bert",
    encoder: Some(from_config),
    ..Family::NONE
};

struct Bert {
    attention: Attention,
    intermediate: usize,
    activation: Activation,
    norm: LayerNorm,
    n_layers: usize,
    vocab_size: usize,
    n_positions: usize,
    n_types: usize,
}

impl Encoder for Bert {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        let io = Io::new(
            g_,
            plan.head.encoding,
            plan.extent,
            Direction::Bidirectional,
            1,
            None,
        )?;
        let mut h = self.embed(g_, w, &io)?;
        for i in 0..self.n_layers {
            h = self.layer(g_, w, &format!("bert.encoder.layer.{i}"), h, &io)?;
        }
        encoder::finish(g, w, &io, h, plan.head)
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.n_layers,
            vocab_size: self.vocab_size,
            hidden: self.attention.hidden,
            n_positions: self.n_positions,
        }
    }
}

impl Bert {
    fn embed(&self, g: &mut Graph, w: &Weights<'_>, io: &Io) -> ValueResult {
        let hidden = self.attention.hidden;
        let module = |name: &str| format!("bert.embeddings.{name}");
        let table = |name: &str, rows| w.get(&module(name), "weight", &[rows, hidden]);
        g.at_module("bert.embeddings");
        let words = g.rows_to_residual(&table("word_embeddings", self.vocab_size), io.input_ids)?;
        let positions = g.rows_to_residual(
            &table("position_embeddings", self.n_positions),
            io.positions,
        )?;
        let first = g.ints(&[0])?;
        // [1, hidden]
        let kind = g.rows_to_residual(&table("token_type_embeddings", self.n_types), first)?;
        let sum = g.add(words, positions)?;
        let sum = g.add(sum, kind)?; // [batch, tokens, hidden]
        let sum = io.lay_out(g, sum)?;
        self.normed(g, w, &module("LayerNorm"), sum)
    }

    fn normed(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        let part = |name| w.get(module, name, &[self.attention.hidden]);
        self.norm.apply(g, x, &part("weight"), Some(&part("bias")))
    }

    fn layer(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        layer: &str,
        x: ValueId,
        io: &Io,
    ) -> ValueResult {
        let hidden = self.attention.hidden;
        let product = |g: &mut Graph, name: &str, x, outputs: usize, inputs: usize| {
            let module = format!("{layer}.{name}");
            g.at_module(&module);
            let (weight, bias) = (
                w.get(&module, "weight", &[outputs, inputs]),
                w.get(&module, "bias", &[outputs]),
            );
            g.linear("product", x, &weight, Some(&bias))
        };
        let q = product(g, "attention.self.query", x, hidden, hidden)?;
        let k = product(g, "attention.self.key", x, hidden, hidden)?;
        let v = product(g, "attention.self.value", x, hidden, hidden)?;
        let module = format!("{layer}.attention.self");
        g.at_module(&module);
        let inputs = io.attention_inputs(None, Mask::Full);
        let a = self
            .attention
            .attend(g, w, &module, Projected { q, k, v }, inputs)?;
        let a = product(g, "attention.output.dense", a, hidden, hidden)?;
        let x = g.add(x, a)?;
        let x = self.normed(g, w, &format!("{layer}.attention.output.LayerNorm"), x)?;
        let m = product(g, "intermediate.dense", x, self.intermediate, hidden)?;
        let m = self.activation.apply(g, m)?;
        let m = product(g, "output.dense", m, hidden, self.intermediate)?;
        let x = g.add(x, m)?;
        self.normed(g, w, &format!("{layer}.output.LayerNorm"), x)
    }
}

fn from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    c.acknowledge(&[
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        // Belongs to the masked-language-model head.
        "tie_word_embeddings",
    ]);
    // A buffer, the next-sentence head, and heads that are used in training only.
    w.ignore("embeddings.position_ids");
    for name in ["pooler.dense.weight", "pooler.dense.bias"] {
        w.ignore(name);
    }
    w.ignore_module("cls");
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
    if let Some(n) = c.opt_usize("chunk_size_feed_forward")?.filter(|n| *n > 0) {
        return Err(ModelError::unsupported(
            "chunk_size_feed_forward",
            n,
            "expected 0",
        ));
    }
    let activation = match c.opt_str("hidden_act")?.unwrap_or("gelu") {
        "gelu" => Activation::GeluErf,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        other => {
            return Err(ModelError::unsupported(
                "hidden_act",
                other,
                "expected gelu, gelu_new or gelu_pytorch_tanh",
            ));
        }
    };
    let hidden = check_size("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = check_size("num_attention_heads", c.usize("num_attention_heads")?)?;
    let head_dim = default_head_dim(hidden, n_heads)?;
    let bert = Bert {
        attention: Attention::multi_head(hidden, n_heads, head_dim, true),
        intermediate: check_size("intermediate_size", c.usize("intermediate_size")?)?,
        activation,
        norm: LayerNorm {
            epsilon: check_positive(
                "layer_norm_eps",
                c.opt_f64("layer_norm_eps")?.unwrap_or(1e-12),
            )? as f32,
        },
        n_layers: check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?,
        vocab_size: check_size("vocab_size", c.usize("vocab_size")?)?,
        n_positions: check_size(
            "max_position_embeddings",
            c.usize("max_position_embeddings")?,
        )?,
        n_types: check_size(
            "type_vocab_size",
            c.opt_usize("type_vocab_size")?.unwrap_or(2),
        )?,
    };
    Ok(Box::new(bert))
}
