//! Granite 3: Llama with factors of the embedding, of the scores, of what layers add to the
//! residual stream, and of the logits.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE, llama};
use crate::checkpoint::{Config, Gguf, Range};
use crate::error::ModelError;
use crate::transformer::Transformer;
use crate::transformer::config::{self, Defaults};
use crate::transformer::gguf::{self, Keys};
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["granite"],
    about: "Granite 3.x, dense models",
    checked: &["tiny/granite", "tiny-gguf/granite"],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(from_gguf),
    ..Family::NONE
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    let mut model = config::read(c, &Defaults::LLAMA)?;
    let (attention, mlp) = (("attention_bias", false), ("mlp_bias", false));
    config::read_biases(c, &mut model, Some(attention), Some(mlp))?;
    let factor = |key: &str| -> Result<f64, ModelError> {
        Ok(c.opt_number(key, &Range::FACTOR)?.unwrap_or(1.0))
    };
    let factors = Factors {
        embedding: factor("embedding_multiplier")?,
        scores: factor("attention_multiplier")?,
        residual: factor("residual_multiplier")?,
        logits: factor("logits_scaling")?,
    };
    config::decoder(factors.apply(model), w)
}

fn from_gguf(file: &Gguf, w: &Weights<'_>) -> DecoderResult {
    let keys = Keys::new(file)?;
    let model = gguf::read(file, w, &llama::GGUF)?;
    let head_dim = model.layers[0].attention.head_dim as f64;
    let factor = |name: &str, default: f64| -> Result<f64, ModelError> {
        Ok(keys.opt_factor(name)?.unwrap_or(default))
    };
    let factors = Factors {
        embedding: factor("embedding_scale", 1.0)?,
        scores: factor("attention.scale", head_dim.powf(-0.5))?,
        residual: factor("residual_scale", 1.0)?,
        logits: factor("logit_scale", 1.0)?,
    };
    Ok(factors.apply(model))
}

struct Factors {
    embedding: f64,
    scores: f64,
    residual: f64,
    /// The divisor of the logits.
    logits: f64,
}

impl Factors {
    fn apply(self, mut model: Transformer) -> Transformer {
        model.embedding_factor = self.embedding as f32;
        model.logits_factor = self.logits.recip() as f32;
        model.change_layers(|layer| {
            layer.attention.scale = self.scores;
            layer.residual_factor = self.residual as f32;
        });
        model
    }
}
