//! The description of a transformer that predicts tokens, which family files fill in, and how it is
//! lowered: as a decoder, or as an encoder that pools hidden states.
//!
//! A [`Transformer`] says in what layers differ. [`config`] and [`gguf`] read what almost all files
//! say in the same keys; a family then changes what is its own.

pub mod config;
mod encoder;
pub mod gguf;
mod head;
mod labels;
mod layer;
pub mod mixture;

use std::ops::Range;

use thane_mil::program::{Function, ValueId};

use crate::Table;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::attention::{Attention, QkNorm, Remembered, Span};
use crate::layers::decoder::{Extent, FlexibleIo, Io, Lowering, Mask, Mode};
use crate::layers::encoder::Direction;
use crate::layers::norm::Norm;
use crate::layers::per_layer::PerLayer;
use crate::layers::rope::{Rotary, Rotation};
use crate::pooling::Pooling;
use crate::weights::Weights;
pub use labels::Labels;
use layer::LayerInputs;
pub use layer::{Layer, Norms};

/// The divisor of the residual stream unless a family has another one. The stream of Qwen3-0.6B
/// peaks above 37,000, near the limit of fp16: the model works with a divisor of 8 but not of 4.
/// Source: the published conversion of pplx-embed to Core ML.
const RESIDUAL_DIVISOR: f32 = 8.0;

/// A transformer, described by what its layers compute.
pub struct Transformer {
    /// Elements of a token's hidden state.
    pub hidden: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Context length that the model supports, in tokens.
    pub max_context: usize,
    /// Window of sliding-window layers, in tokens.
    pub window: Option<usize>,
    /// Factor of the embedding.
    pub embedding_factor: f32,
    /// Whether learned positions, one for each position of the context, are added to the embedding.
    pub learned_positions: bool,
    /// The rotary embeddings of the layers.
    pub rotations: Vec<Rotation>,
    /// A second embedding with vectors for each layer.
    pub per_layer: Option<PerLayer>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// The norm after the last layer.
    pub norm: Norm,
    /// Whether the output head shares the embedding's tensor.
    pub tied: bool,
    /// Whether the output head has a bias.
    pub head_bias: bool,
    /// Factor of the logits.
    pub logits_factor: f32,
    /// Bound of the logits: `cap * tanh(logits / cap)`.
    pub logits_soft_cap: Option<f32>,
    /// Which tokens a token attends to when the weights are used as an encoder.
    pub direction: Direction,
    /// The divisor of the residual stream that keeps the stream within the range of fp16.
    pub residual_divisor: f32,
    /// The pooling of the architecture, and whether the model itself gives int8 and bits, for
    /// embedding models whose files do not say.
    pub default_pooling: Option<(Pooling, bool)>,
    /// The labels of a text, if the model is a sequence classifier or used as one.
    pub labels: Option<Labels>,
}

impl Transformer {
    /// A decoder of equal layers, with one rotary embedding and nothing that only some families
    /// have.
    pub fn of_layers(layers: Vec<Layer>, vocab_size: usize, max_context: usize) -> Self {
        Self {
            hidden: layers[0].attention.hidden,
            vocab_size,
            max_context,
            window: None,
            embedding_factor: 1.0,
            learned_positions: false,
            rotations: Vec::new(),
            per_layer: None,
            norm: layers[0].norm,
            layers,
            tied: false,
            head_bias: false,
            logits_factor: 1.0,
            logits_soft_cap: None,
            direction: Direction::Causal,
            residual_divisor: RESIDUAL_DIVISOR,
            default_pooling: None,
            labels: None,
        }
    }

    /// The longest context of programs that were not asked for a longer one, and the longest
    /// context of all. They differ where dynamic scaling reaches beyond the length of training.
    pub fn contexts(&self) -> [usize; 2] {
        let dynamic = self.rotations.iter().filter_map(Rotation::dynamic_contexts);
        let shortest = dynamic.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1])]);
        shortest.unwrap_or([self.max_context; 2])
    }

    /// Builds one function of a decoder, and gives the tables that its caller looks up.
    pub fn decoder_function(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        mode: Mode,
        options: &Lowering,
    ) -> Result<(Function, Vec<Table>), ModelError> {
        let g_ = &mut g;
        g_.divide_residual(options.residual_divisor);
        let io: Box<dyn Io> = match &options.fixed {
            None => Box::new(FlexibleIo::new(g_, mode, self.extent(options)?)?),
            Some(function) => {
                self.refuse_for_ane()?;
                (function.io)(g_, function, &self.layers[0].attention)?
            }
        };
        let layers = match &options.fixed {
            None => 0..self.layers.len(),
            Some(function) => function.layers.clone(),
        };
        let used = |i: usize| {
            self.layers[layers.clone()]
                .iter()
                .any(|l| l.attends() && l.rotation == Some(i))
        };
        let rotaries = self.rotations.iter().enumerate();
        let rotaries = rotaries.map(|(i, rotation)| match used(i) {
            true => io.rotary(g_, (i, rotation)).map(Some),
            false => Ok(None),
        });
        let rotaries = rotaries.collect::<Result<Vec<Option<Rotary>>, ModelError>>()?;
        let shape = [self.vocab_size, self.hidden];
        let table = w.get("model.embed_tokens", "weight", &shape);
        let positions = self
            .learned_positions
            .then(|| w.get("model.embed_positions", "weight", &self.positions()));
        let factor = self.embedding_factor / options.residual_divisor;
        let h = io.enter(g_, &table, factor, positions.as_ref())?;
        self.declare_state(g_, &*io, layers.clone())?;
        let vectors = match &self.per_layer {
            Some(per_layer) if !layers.is_empty() => {
                per_layer.vectors(g_, w, &*io, (h, layers.clone()))?
            }
            _ => Vec::new(),
        };
        let h = self.apply_layers(g_, w, (h, layers), &vectors, |g, i, shared| {
            let layer = &self.layers[i];
            if let Some(conv) = &layer.conv {
                return io.conv_inputs(g, i, conv).map(LayerInputs::Conv);
            }
            if let Some(delta) = &layer.delta {
                return io.delta_inputs(g, i, delta).map(LayerInputs::Delta);
            }
            let rotary = layer.rotation.and_then(|i| rotaries[i].as_ref());
            let (attention, mask) = (&layer.attention, layer.mask);
            let shared = (layer.shares, shared);
            let inputs = io.attention_inputs(g, i, attention, rotary, mask, shared)?;
            Ok(LayerInputs::Attention(inputs))
        })?;
        let h = io.leave(g_, h)?;
        let results = match io.head_parts(self.vocab_size) {
            _ if io.has_head_on_host() => {
                self.add_head_tables(g_, w, (&*io, options));
                vec![self.final_norm(g_, w, h)?]
            }
            parts if !parts.is_empty() => self.head(g_, w, h, parts)?,
            _ if io.gives_normalized() => vec![self.final_norm(g_, w, h)?],
            _ => vec![h],
        };
        io.finish(g, &results)
    }

    /// Declares the states that hold the keys and values of these layers, and what others remember,
    /// if the cache is a state.
    fn declare_state(
        &self,
        g: &mut Graph,
        io: &dyn Io,
        layers: Range<usize>,
    ) -> Result<(), ModelError> {
        let remembered = self.layers[layers.clone()]
            .iter()
            .map(Layer::recurrent_parts);
        let remembered: Vec<_> = remembered.filter(|parts| !parts.is_empty()).collect();
        io.declare_recurrent_state(g, &remembered)?;
        let has_own = |layer: &&Layer| layer.attends() && layer.shares.is_none();
        let own = self.layers[layers].iter().filter(has_own);
        let Some(first) = own.clone().next() else {
            return Ok(());
        };
        let size = |layer: &Layer| (layer.attention.n_kv_heads, layer.attention.head_dim);
        if io.has_state() && own.clone().any(|layer| size(layer) != size(first)) {
            return Err(ModelError::MixedCaches);
        }
        io.declare_state(g, own.count(), &first.attention);
        Ok(())
    }

    /// Elements of the cache for one token, in all layers together. In functions of fixed length,
    /// convolutions remember the last tokens only.
    pub fn cache_elements(&self, is_fixed: bool) -> usize {
        let of = |layer: &Layer| match &layer.conv {
            Some(_) if is_fixed => 0,
            Some(conv) => conv.hidden,
            None if layer.shares.is_some() || layer.delta.is_some() => 0,
            None => 2 * layer.attention.n_kv_heads * layer.attention.head_dim,
        };
        self.layers.iter().map(of).sum()
    }

    /// Elements of the recurrent states, in all layers together.
    pub fn recurrent_elements(&self, is_fixed: bool) -> usize {
        let layers = self.layers.iter();
        let layers = layers.filter(|layer| is_fixed || layer.delta.is_some());
        let parts = layers.flat_map(Layer::recurrent_parts);
        let elements = parts.map(|part| part.shape.iter().product::<usize>());
        elements.sum()
    }

    /// Whether layers have delta nets.
    pub fn has_delta_nets(&self) -> bool {
        self.layers.iter().any(|layer| layer.delta.is_some())
    }

    /// The window of sliding-window layers, if there are such layers.
    pub fn window(&self) -> Option<usize> {
        let slides = self.layers.iter().any(|l| l.mask == Mask::Sliding);
        self.window.filter(|_| slides)
    }

    /// Makes layer `i` slide, and gives it a rotary embedding, as `masks` says: the first rotary
    /// embedding is that of full-attention layers, the second that of sliding-window layers if
    /// there are two.
    pub fn set_masks(&mut self, masks: &[Mask]) {
        let last = self.rotations.len().saturating_sub(1);
        for (layer, mask) in self.layers.iter_mut().zip(masks) {
            layer.mask = *mask;
            layer.rotation = Some(if *mask == Mask::Sliding { last } else { 0 });
        }
    }

    /// Changes all layers.
    pub fn change_layers(&mut self, change: impl FnMut(&mut Layer)) {
        self.layers.iter_mut().for_each(change);
    }

    /// Normalizes queries and keys as layers normalize hidden states.
    pub fn set_qk_norms(&mut self, span: Span, after_rotation: bool) {
        self.change_layers(|layer| {
            layer.attention.qk_norm = Some(QkNorm {
                norm: layer.norm,
                span,
                after_rotation,
            });
        });
    }

    fn positions(&self) -> [usize; 2] {
        [self.max_context, self.hidden]
    }

    /// The sizes of a decoder's inputs and caches, in functions of any length.
    fn extent(&self, options: &Lowering) -> Result<Extent, ModelError> {
        Ok(Extent {
            group: self.group(Mask::Full)?,
            sliding_group: self.group(Mask::Sliding)?,
            last_from: self.last_from(),
            window: self.window(),
            context: options.context,
            cache: options.cache,
        })
    }

    /// What the form of [`AneDecoder`](crate::AneDecoder) cannot have yet.
    fn refuse_for_ane(&self) -> Result<(), ModelError> {
        let any = |has: fn(&Layer) -> bool| self.layers.iter().any(has);
        let refused = [
            (
                "mixtures of experts (the text chooses the weights)",
                any(|layer| layer.experts.is_some()),
            ),
            (
                "clipped queries, keys and values",
                any(|layer| layer.attention.clip.is_some()),
            ),
        ];
        match refused.iter().find(|(_, has)| *has) {
            None => Ok(()),
            Some((what, _)) => Err(ModelError::EngineForm(what)),
        }
    }

    /// The first layer of which only the last token's output is needed for that token's logits: the
    /// last layer with keys and values of its own.
    fn last_from(&self) -> usize {
        let own = self.layers.iter().rposition(|l| l.shares.is_none());
        own.unwrap_or(0)
    }

    /// Number of queries that share a key head, in all layers with this mask.
    fn group(&self, mask: Mask) -> Result<usize, ModelError> {
        let layers = self.layers.iter().filter(|layer| layer.mask == mask);
        uniform(layers, Attention::group, "queries of a key head")
    }

    /// A property that must be the same in all layers.
    fn uniform(&self, of: impl Fn(&Attention) -> usize, what: &str) -> Result<usize, ModelError> {
        uniform(self.layers.iter(), of, what)
    }

    fn rotaries(
        &self,
        rotary: impl FnMut(&Rotation) -> Result<Rotary, ModelError>,
    ) -> Result<Vec<Rotary>, ModelError> {
        self.rotations.iter().map(rotary).collect()
    }

    fn final_norm(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        h: ValueId,
    ) -> Result<ValueId, ModelError> {
        g.at_module("model.norm");
        let norm = self.norm.for_divided_stream(g.residual_divisor());
        Ok(norm.apply(g, w, "model.norm", h, self.hidden)?)
    }

    /// Some layers of `h`, each with the inputs that `inputs` gives. `vectors` are those of the
    /// per-layer embeddings.
    fn apply_layers<'a>(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        (mut h, layers): (ValueId, Range<usize>),
        vectors: &[ValueId],
        inputs: impl Fn(&mut Graph, usize, Option<Remembered>) -> Result<LayerInputs<'a>, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let mut remembered = vec![None; self.layers.len()];
        if layers.start == 0 {
            g.set_small(h);
        }
        for (at, i) in layers.enumerate() {
            let layer = &self.layers[i];
            let name = format!("model.layers.{i}");
            g.at_module(&format!("{name}.{}", layer.mixer()));
            let shared = layer.shares.and_then(|i| remembered[i]);
            let inputs = inputs(g, i, shared)?;
            let (sum, own) = layer.apply(g, w, &name, h, inputs)?;
            remembered[i] = own;
            h = sum;
            if let (Some(per_layer), Some(vectors)) = (&self.per_layer, vectors.get(at)) {
                let vectors = inputs.needed_tokens(g, *vectors)?;
                let added = per_layer.apply(g, w, &name, h, vectors)?;
                h = g.add(h, added)?;
            }
            if layer.scaled {
                g.at_module(&name);
                let scalar = g.weight(&w.get(&name, "layer_scalar", &[1]))?;
                h = g.mul(h, scalar)?;
            }
        }
        Ok(h)
    }
}

/// A property that must be the same in all these layers.
fn uniform<'a>(
    layers: impl Iterator<Item = &'a Layer>,
    of: impl Fn(&Attention) -> usize,
    what: &str,
) -> Result<usize, ModelError> {
    let mut values = layers.map(|layer| of(&layer.attention));
    let first = values.next().unwrap_or(1);
    match values.find(|value| *value != first) {
        None => Ok(first),
        Some(other) => Err(ModelError::unsupported(
            what,
            format!("{first} in one layer and {other} in another"),
            "expected the same in all layers",
        )),
    }
}
