//! ModernBERT encoders: ModernBERT, gte-modernbert, nomic-modernbert; gte-reranker-modernbert.
//!
//! Layers normalize before attention and MLP, except before the first attention, and use rotary
//! positions. Every third layer has full attention, the others a sliding window; each kind has its
//! own rotary base. Query, key and value are one projection, and so are the gate and up projections
//! of the MLP.

use thane_mil::program::{Function, ValueId};

use super::{EncoderResult, Family};
use crate::checkpoint::{Config, Range, Rope, RopeConfig, RopeScaling};
use crate::checks::{
    HeadKeys, check_heads, check_layers, check_size, default_head_dim, layer_masks, n_labels,
};
use crate::encoder::body::{EncoderBody, EncoderSizes};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::activation::Activation;
use crate::layers::attention::{Attention, Projected};
use crate::layers::classifier::Classifier;
use crate::layers::decoder::Mask;
use crate::layers::encoder::{self, Direction, EncoderPlan, Encoding, Io};
use crate::layers::norm::{LayerNorm, Norm};
use crate::layers::rope::{Rotary, Rotation};
use crate::pooling::Pooling;
use crate::transformer::config::whole_heads;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["modernbert"],
    about: "ModernBERT, gte-modernbert, gte-reranker-modernbert",
    checked: &[
        "tiny-embed/modernbert-cls",
        "tiny-embed/modernbert-mean",
        "tiny-rerank/modernbert",
        "tiny-rerank/modernbert-saved",
    ],
    base: "model",
    encoder: Some(from_config),
    ..Family::NONE
};

/// Module of the last layer of a sequence classifier.
const OUTPUT: &str = "classifier";

/// Default rotary bases. Source: ModernBertConfig.
const GLOBAL_THETA: f64 = 160_000.0;
const LOCAL_THETA: f64 = 10_000.0;

struct ModernBert {
    attention: Attention,
    intermediate: usize,
    activation: Activation,
    mlp_bias: bool,
    norm: LayerNorm,
    norm_bias: bool,
    masks: Vec<Mask>,
    /// Sliding-window layers attend to tokens that are less than this many positions away.
    window: usize,
    global: Rotation,
    local: Rotation,
    vocab_size: usize,
    n_positions: usize,
    /// The head, if the file is that of a sequence classifier.
    classifier: Option<Classifier>,
}

impl EncoderBody for ModernBert {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        let io = Io::new(g_, plan, Direction::Bidirectional, 1, Some(self.window))?;
        let (global, local) = (io.rotary(g_, &self.global)?, io.rotary(g_, &self.local)?);
        g_.at_module("model.embeddings");
        let table = w.get(
            "model.embeddings.tok_embeddings",
            "weight",
            &[self.vocab_size, self.attention.hidden],
        );
        let h = io.token_rows(g_, &table, 1.0)?;
        let h = io.sum_of(g_, &[h])?;
        let mut h = self.normed(g_, w, "model.embeddings.norm", h)?;
        for (i, mask) in self.masks.iter().enumerate() {
            let rotary = if *mask == Mask::Full { &global } else { &local };
            let layer = format!("model.layers.{i}");
            let x = if i == 0 {
                h
            } else {
                self.normed(g_, w, &format!("{layer}.attn_norm"), h)?
            };
            let a = self.attend(g_, w, &format!("{layer}.attn"), x, &io, rotary, *mask)?;
            h = g_.add(h, a)?;
            let x = self.normed(g_, w, &format!("{layer}.mlp_norm"), h)?;
            let m = self.feed_forward(g_, w, &format!("{layer}.mlp"), x)?;
            h = g_.add(h, m)?;
        }
        let h = self.normed(g_, w, "model.final_norm", h)?;
        match (plan.head.encoding, &self.classifier) {
            (Encoding::Labels, Some(classifier)) => {
                classifier.finish(g, w, &io, h, self.attention.hidden)
            }
            _ => {
                w.ignore_module("head");
                w.ignore_module(OUTPUT);
                encoder::finish(g, w, &io, h, plan.head)
            }
        }
    }

    fn n_labels(&self) -> Option<usize> {
        self.classifier.map(|classifier| classifier.n_labels)
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.masks.len(),
            vocab_size: self.vocab_size,
            hidden: self.attention.hidden,
            n_positions: self.n_positions,
            is_open: self.global.is_fixed() && self.local.is_fixed(),
            counts_padding: false,
            padding: None,
        }
    }
}

impl ModernBert {
    fn normed(&self, g: &mut Graph, w: &Weights<'_>, module: &str, x: ValueId) -> ValueResult {
        g.at_module(module);
        let part = |name| w.get(module, name, &[self.attention.hidden]);
        let bias = self.norm_bias.then(|| part("bias"));
        self.norm.apply(g, x, &part("weight"), bias.as_ref())
    }

    // The inputs of one layer; a struct for one caller would hide them
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        io: &Io,
        rotary: &Rotary,
        mask: Mask,
    ) -> ValueResult {
        let hidden = self.attention.hidden;
        g.at_module(module);
        let part = |name: &str, rows: usize| {
            let module = format!("{module}.{name}");
            let bias = self
                .attention
                .qkv_bias
                .then(|| w.get(&module, "bias", &[rows]));
            (w.get(&module, "weight", &[rows, hidden]), bias)
        };
        let (weight, bias) = part("Wqkv", 3 * hidden);
        let all = g.linear("Wqkv", x, &weight, bias.as_ref())?;
        let axis = g.features();
        let parts = g.split(all, 3, axis)?;
        let projected = Projected {
            q: parts[0],
            k: parts[1],
            v: parts[2],
        };
        let a = self.attention.attend(
            g,
            w,
            module,
            projected,
            io.attention_inputs(Some(rotary), mask),
        )?;
        let (weight, bias) = part("Wo", hidden);
        g.linear("Wo", a, &weight, bias.as_ref())
    }

    /// `Wo(activation(first half) * second half)` of `Wi(x)`.
    fn feed_forward(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
    ) -> ValueResult {
        g.at_module(module);
        let hidden = self.attention.hidden;
        let part = |name: &str, rows: usize, columns: usize| {
            let module = format!("{module}.{name}");
            let bias = self.mlp_bias.then(|| w.get(&module, "bias", &[rows]));
            (w.get(&module, "weight", &[rows, columns]), bias)
        };
        let (weight, bias) = part("Wi", 2 * self.intermediate, hidden);
        let both = g.linear("Wi", x, &weight, bias.as_ref())?;
        let axis = g.features();
        let [input, gate] = g.halves(both, axis)?;
        let active = self.activation.apply(g, input)?;
        let gated = g.mul(active, gate)?;
        let (weight, bias) = part("Wo", hidden, self.intermediate);
        g.linear("Wo", gated, &weight, bias.as_ref())
    }
}

fn from_config(c: &Config, w: &Weights<'_>) -> EncoderResult {
    ignore_training(c, w);
    let activation = c.opt_str("hidden_activation")?.unwrap_or("gelu");
    let hidden = check_size("hidden_size", c.usize("hidden_size")?)?;
    let n_heads = check_size("num_attention_heads", c.usize("num_attention_heads")?)?;
    let head_dim = default_head_dim("head_dim", hidden, n_heads)?;
    check_heads(HeadKeys::ENCODER, n_heads, n_heads, head_dim)?;
    let bias = c.bool_or("attention_bias", false)?;
    let n_layers = check_layers("num_hidden_layers", c.usize("num_hidden_layers")?)?;
    let (global, local) = ropes(c)?;
    let every = check_size(
        "global_attn_every_n_layers",
        c.opt_usize("global_attn_every_n_layers")?.unwrap_or(3),
    )?;
    let by_number = |i: usize| {
        if i.is_multiple_of(every) {
            Mask::Full
        } else {
            Mask::Sliding
        }
    };
    let epsilon = c.opt_number("norm_eps", &Range::EPSILON)?.unwrap_or(1e-5);
    let norm = LayerNorm {
        epsilon: epsilon as f32,
    };
    let norm_bias = c.bool_or("norm_bias", false)?;
    let classifies = w.has(OUTPUT, "weight");
    let n_positions = check_size(
        "max_position_embeddings",
        c.opt_usize("max_position_embeddings")?.unwrap_or(8192),
    )?;
    let model = ModernBert {
        attention: Attention::multi_head(hidden, n_heads, head_dim, bias),
        intermediate: check_size("intermediate_size", c.usize("intermediate_size")?)?,
        activation: Activation::from_name("hidden_activation", activation)?,
        mlp_bias: c.bool_or("mlp_bias", false)?,
        norm,
        norm_bias,
        masks: layer_masks(c, n_layers)?.unwrap_or_else(|| (0..n_layers).map(by_number).collect()),
        // Half of the window is on each side.
        window: check_size(
            "local_attention",
            c.opt_usize("local_attention")?.unwrap_or(128),
        )? / 2
            + 1,
        global: Rotation::of_encoder(&global, GLOBAL_THETA, head_dim, n_positions)?,
        local: Rotation::of_encoder(&local, LOCAL_THETA, head_dim, n_positions)?,
        vocab_size: check_size("vocab_size", c.usize("vocab_size")?)?,
        n_positions,
        classifier: classifies
            .then(|| classifier(c, (norm, norm_bias)))
            .transpose()?,
    };
    Ok(Box::new(model))
}

/// The head of a sequence classifier.
fn classifier(c: &Config, (norm, bias): (LayerNorm, bool)) -> Result<Classifier, ModelError> {
    let activation = c.opt_str("classifier_activation")?.unwrap_or("gelu");
    let pooling = match c.opt_str("classifier_pooling")?.unwrap_or("cls") {
        "cls" => Pooling::Cls,
        "mean" => Pooling::Mean,
        other => {
            let expected = "expected cls or mean";
            return Err(ModelError::unsupported(
                "classifier_pooling",
                other,
                expected,
            ));
        }
    };
    Ok(Classifier {
        pooling,
        dense: "head.dense",
        dense_bias: c.bool_or("classifier_bias", false)?,
        activation: Activation::from_name("classifier_activation", activation)?,
        norm: Some(("head.norm", Norm::Layer { norm, bias })),
        output: OUTPUT,
        n_labels: n_labels(c)?,
    })
}

/// Ignores keys and modules of training, which do not affect the encoder.
fn ignore_training(c: &Config, w: &Weights<'_>) {
    c.acknowledge(&[
        "attention_dropout",
        "classifier_activation",
        "classifier_bias",
        "classifier_dropout",
        "classifier_pooling",
        "cls_token_id",
        "decoder_bias",
        "deterministic_flash_attn",
        "embedding_dropout",
        "initializer_cutoff_factor",
        "mlp_dropout",
        "position_embedding_type",
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "layer_norm_eps",
        "tie_word_embeddings",
    ]);
    // Predicts the tokens that training masks.
    w.ignore_module("decoder");
}

/// The rotary embeddings of full-attention layers and of sliding-window layers.
fn ropes(c: &Config) -> Result<(RopeConfig, RopeConfig), ModelError> {
    let of = |theta| RopeConfig {
        theta,
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    let old = |key: &str| c.opt_number(key, &Range::THETA);
    let (global, local) = (old("global_rope_theta")?, old("local_rope_theta")?);
    match c.rope_by_layer_type()? {
        rope @ Rope::PerLayerType(_) if c.has("rope_parameters") && !c.has("rope_theta") => {
            let part = |name: &str, old: Option<f64>| {
                let rope = rope.layer_type(name).cloned().unwrap_or_else(|| of(None));
                RopeConfig {
                    theta: rope.theta.or(old),
                    ..rope
                }
            };
            let global = part("full_attention", global);
            let local = part("sliding_attention", local);
            Ok((whole_heads(&global)?, whole_heads(&local)?))
        }
        // Files written before transformers 5 have a key for each base.
        Rope::Uniform(rope) if rope == of(None) => Ok((of(global), of(local))),
        _ => Err(ModelError::unsupported(
            "rope_parameters",
            "the same for all layers, or in the keys of another family",
            "expected one rotary embedding for each layer type, or `global_rope_theta` and \
             `local_rope_theta`",
        )),
    }
}
