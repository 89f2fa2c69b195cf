//! One layer of a transformer, and how it is lowered.

use thane_mil::program::ValueId;

use crate::error::ModelError;
use crate::graph::{Graph, Layout};
use crate::layers::attention::{Attention, AttentionInputs, Remembered};
use crate::layers::decoder::Mask;
use crate::layers::delta_net::{DeltaInputs, DeltaNet};
use crate::layers::experts::Experts;
use crate::layers::mlp::{Mlp, MlpKind};
use crate::layers::norm::Norm;
use crate::layers::recent::Memory;
use crate::layers::short_conv::{ConvInputs, ShortConv};
use crate::weights::Weights;

/// One layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The attention.
    pub attention: Attention,
    /// The convolution that the layer has instead of attention.
    pub conv: Option<ShortConv>,
    /// The delta net that the layer has instead of attention.
    pub delta: Option<DeltaNet>,
    /// Which tokens a token attends to.
    pub mask: Mask,
    /// Index of the rotary embedding, if there is one.
    pub rotation: Option<usize>,
    /// The feed-forward layer.
    pub mlp: Mlp,
    /// The mixture of experts that the layer has instead of that feed-forward layer.
    pub experts: Option<Experts>,
    /// The computation of all norms of the layer.
    pub norm: Norm,
    /// Where there are norms.
    pub norms: Norms,
    /// Whether attention and feed-forward layer read the same normalized hidden state, and both
    /// results are added to the residual stream together.
    pub parallel: bool,
    /// Factor of what is added to the residual stream.
    pub residual_factor: f32,
    /// The earlier layer whose keys and values the layer uses.
    pub shares: Option<usize>,
    /// Whether the residual stream is multiplied by the tensor `layer_scalar` after the layer.
    pub scaled: bool,
}

/// The inputs of a layer besides the hidden state.
#[derive(Clone, Copy, Debug)]
pub(super) enum LayerInputs<'a> {
    Attention(AttentionInputs<'a>),
    Conv(ConvInputs<'a>),
    Delta(DeltaInputs<'a>),
}

impl LayerInputs<'_> {
    /// The tokens of `x` [1, tokens, features] whose output is needed: all of them, or the last.
    pub(super) fn needed_tokens(&self, g: &mut Graph, x: ValueId) -> Result<ValueId, ModelError> {
        match self {
            Self::Attention(inputs) => Ok(inputs.needed_tokens(g, x)?),
            Self::Conv(inputs) if inputs.last => Ok(g.last(x, 1)?),
            Self::Delta(inputs) if inputs.last => Ok(g.last(x, 1)?),
            Self::Conv(_) | Self::Delta(_) => Ok(x),
        }
    }
}

/// The modules of a layer's norms, by their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Norms {
    /// Of what the attention reads.
    pub before_attention: Option<&'static str>,
    /// Of what the attention returns.
    pub after_attention: Option<&'static str>,
    /// Of what the feed-forward layer reads.
    pub before_mlp: Option<&'static str>,
    /// Of what the feed-forward layer returns.
    pub after_mlp: Option<&'static str>,
}

impl Norms {
    /// Before attention and feed-forward layer, as in Llama.
    pub const BEFORE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
    };
    /// After attention and feed-forward layer, as in OLMo 2.
    pub const AFTER: Self = Self {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    };
    /// Before and after attention and feed-forward layer, as in Gemma 2.
    pub const AROUND: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    };
}

impl Layer {
    /// A layer with full attention and the first rotary embedding.
    pub fn new(attention: Attention, mlp: Mlp, norm: Norm, norms: Norms) -> Self {
        Self {
            attention,
            conv: None,
            delta: None,
            mask: Mask::Full,
            rotation: Some(0),
            mlp,
            experts: None,
            norm,
            norms,
            parallel: false,
            residual_factor: 1.0,
            shares: None,
            scaled: false,
        }
    }

    /// Elements of the layer's matrices.
    pub fn weight_elements(&self) -> usize {
        let a = &self.attention;
        let own = if self.shares.is_some() {
            0
        } else {
            2 * a.n_kv_heads
        };
        let queries = if a.gated {
            3 * a.n_heads
        } else {
            2 * a.n_heads
        };
        let matrices = match self.mlp.kind {
            MlpKind::Plain => 2,
            MlpKind::Gated | MlpKind::Joined => 3,
        };
        let mixed = (queries + own) * a.head_dim * a.hidden;
        mixed + matrices * self.mlp.hidden * self.mlp.intermediate
    }

    /// Whether the layer has attention.
    pub fn attends(&self) -> bool {
        self.conv.is_none() && self.delta.is_none()
    }

    /// What a layer without attention remembers between calls, in functions of fixed length.
    pub(super) fn recurrent_parts(&self) -> Vec<Memory> {
        match (&self.conv, &self.delta) {
            (Some(conv), _) => conv.parts(),
            (None, Some(delta)) => delta.parts().to_vec(),
            (None, None) => Vec::new(),
        }
    }

    /// The module that mixes tokens.
    pub(super) fn mixer(&self) -> &'static str {
        if self.conv.is_some() {
            "conv"
        } else if self.delta.is_some() {
            "linear_attn"
        } else {
            "self_attn"
        }
    }

    /// The layer `name` of `h`, the residual stream; and its keys and values.
    pub(super) fn apply(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        name: &str,
        h: ValueId,
        inputs: LayerInputs<'_>,
    ) -> Result<(ValueId, Option<Remembered>), ModelError> {
        let stream = self.norm.for_divided_stream(g.residual_divisor());
        let normed = |g: &mut Graph, norm: Norm, place: Option<&str>, x| {
            let Some(place) = place else {
                return Ok(x);
            };
            let module = format!("{name}.{place}");
            g.at_module(&module);
            norm.apply(g, w, &module, x, self.attention.hidden)
        };
        let module = |name_of: &str| format!("{name}.{name_of}");
        let read = |g: &mut Graph, place: Option<&str>, x| {
            // Without a norm, the layer reads the stream as it is.
            if place.is_none() && g.residual_divisor() != 1.0 {
                return g.scale(x, g.residual_divisor());
            }
            normed(g, stream, place, x)
        };
        let x = read(g, self.norms.before_attention, h)?;
        let to = Target::new(self, self.norms.after_attention, g);
        let mixer = module(self.mixer());
        let (a, remembered) = to.write(g, |g| match (inputs, &self.conv, &self.delta) {
            (LayerInputs::Attention(inputs), ..) => self.attention.apply(g, w, &mixer, x, inputs),
            (LayerInputs::Conv(inputs), Some(conv), _) => {
                Ok((conv.apply(g, w, &mixer, x, inputs)?, None))
            }
            (LayerInputs::Delta(inputs), _, Some(delta)) => {
                Ok((delta.apply(g, w, &mixer, x, inputs)?, None))
            }
            (LayerInputs::Conv(_) | LayerInputs::Delta(_), ..) => Ok((x, None)),
        })?;
        let a = normed(g, self.norm, self.norms.after_attention, a)?;
        let a = to.scaled(g, a)?;
        let kept = inputs.needed_tokens(g, h)?;
        let sum = g.add(kept, a)?;
        let x = if self.parallel {
            inputs.needed_tokens(g, x)?
        } else {
            read(g, self.norms.before_mlp, sum)?
        };
        let to = Target::new(self, self.norms.after_mlp, g);
        let m = to.write(g, |g| match &self.experts {
            Some(experts) => experts.apply(g, w, &module("mlp"), x),
            None => self.mlp.apply(g, w, &module("mlp"), x),
        })?;
        let m = normed(g, self.norm, self.norms.after_mlp, m)?;
        let m = to.scaled(g, m)?;
        Ok((g.add(sum, m)?, remembered))
    }
}

/// How a result comes to the residual stream: its weights are divided, or the result is scaled.
#[derive(Clone, Copy)]
struct Target {
    /// Divisor of the weights that write the result.
    divisor: f32,
    /// Factor of the result.
    factor: f32,
    /// Divisor of the residual stream.
    stream: f32,
}

impl Target {
    /// For a result of `layer` that is normalized by `after` before it is added.
    fn new(layer: &Layer, after: Option<&str>, g: &Graph) -> Self {
        let stream = g.residual_divisor();
        let factor = layer.residual_factor / stream;
        // A norm undoes whatever its input is divided by. Programs of the portable form keep the
        // weights as they are stored.
        let folds = after.is_none() && g.spelling().layout == Layout::Channels;
        let (divisor, factor) = if folds {
            (factor.recip(), 1.0)
        } else if after.is_none() && layer.residual_factor == 1.0 {
            (stream, 1.0)
        } else {
            (1.0, factor)
        };
        Self {
            divisor,
            factor,
            stream,
        }
    }

    fn write<T>(self, g: &mut Graph, write: impl FnOnce(&mut Graph) -> T) -> T {
        g.divide_residual(self.divisor);
        let written = write(g);
        g.divide_residual(self.stream);
        written
    }

    fn scaled(self, g: &mut Graph, x: ValueId) -> Result<ValueId, ModelError> {
        if self.factor == 1.0 {
            Ok(x)
        } else {
            Ok(g.scale(x, self.factor)?)
        }
    }
}
