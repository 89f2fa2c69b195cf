//! A transformer as an encoder: its hidden states without a cache, pooled or classified.

use thane_mil::program::Function;

use super::layer::LayerInputs;
use super::{Layer, Transformer, labels};
use crate::encoder::body::{EncoderBody, EncoderSizes};
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::attention::Attention;
use crate::layers::encoder::{self, Direction, EncoderPlan, Encoding};
use crate::layers::rope::{DEPENDS_ON_LENGTH, Rotation, Style};
use crate::pooling::Pooling;
use crate::weights::Weights;

impl EncoderBody for Transformer {
    fn function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        self.refuse_for_encoder()?;
        g_.divide_residual(plan.residual_divisor);
        // A bidirectional window has one half on each side.
        let window = self.window.map(|window| match self.direction {
            Direction::Bidirectional => window / 2 + 1,
            Direction::Causal => window,
        });
        let group = self.uniform(Attention::group, "queries of a key head")?;
        let io = encoder::Io::new(g_, plan, self.direction, group, window)?;
        let rotaries = self.rotaries(|rotation| io.rotary(g_, rotation))?;
        let table = w.get(
            "model.embed_tokens",
            "weight",
            &[self.vocab_size, self.hidden],
        );
        g_.at_module("model.embed_tokens");
        let mut parts = vec![io.token_rows(g_, &table, self.embedding_factor)?];
        if self.learned_positions {
            let table = w.get("model.embed_positions", "weight", &self.positions());
            g_.at_module("model.embed_positions");
            parts.push(io.position_rows(g_, &table, None)?);
        }
        let h = io.sum_of(g_, &parts)?;
        let layers = 0..self.layers.len();
        let h = self.apply_layers(g_, w, (h, layers), &[], |_, i, _| {
            let layer = &self.layers[i];
            let rotary = layer.rotation.map(|i| &rotaries[i]);
            Ok(LayerInputs::Attention(
                io.attention_inputs(rotary, layer.mask),
            ))
        })?;
        let h = self.final_norm(g_, w, h)?;
        match (plan.head.encoding, &self.labels) {
            (Encoding::Labels, Some(labels)) => self.classify(g, w, (&io, h), labels),
            _ => {
                w.ignore_module(labels::SCORE);
                encoder::finish(g, w, &io, h, plan.head)
            }
        }
    }

    fn n_labels(&self) -> Option<usize> {
        self.labels.map(|labels| labels.count())
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.layers.len(),
            vocab_size: self.vocab_size,
            hidden: self.hidden,
            n_positions: self.max_context,
            is_open: !self.learned_positions && self.rotations.iter().all(Rotation::is_fixed),
            counts_padding: self.learned_positions,
            padding: None,
        }
    }

    fn default_pooling(&self) -> Option<(Pooling, bool)> {
        self.default_pooling
    }

    fn residual_divisor(&self) -> f32 {
        self.residual_divisor
    }
}

impl Transformer {
    /// What functions without a cache, of many texts at once, cannot have.
    fn refuse_for_encoder(&self) -> Result<(), ModelError> {
        let any = |has: fn(&Layer) -> bool| self.layers.iter().any(has);
        let turns = |has: &dyn Fn(&Rotation) -> bool| self.rotations.iter().any(has);
        let refused = [
            (
                DEPENDS_ON_LENGTH,
                turns(&|rotation| rotation.depends_on_length(self.max_context)),
            ),
            (
                "rotary embeddings of neighboring elements",
                turns(&|rotation| rotation.style() == Style::Interleaved),
            ),
            ("convolutions", any(|layer| layer.conv.is_some())),
            ("delta nets", any(|layer| layer.delta.is_some())),
            ("mixtures of experts", any(|layer| layer.experts.is_some())),
            (
                "shared keys and values",
                any(|layer| layer.shares.is_some()),
            ),
            ("per-layer embeddings", self.per_layer.is_some()),
        ];
        match refused.iter().find(|(_, has)| *has) {
            None => Ok(()),
            Some((what, _)) => Err(ModelError::EncoderForm(what)),
        }
    }
}
