//! The heads of sequence classifiers: from the hidden states of a text to a logit for each label.

use thane_mil::program::{Function, ValueId};

use super::activation::Activation;
use super::encoder::{Io, Vectors, pool};
use super::norm::Norm;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::pooling::Pooling;
use crate::weights::Weights;

/// The layers of a sequence classifier over one vector of a text:
/// `output(norm(activation(dense(x))))`.
#[derive(Clone, Copy, Debug)]
pub struct Classifier {
    /// How hidden states become the vector.
    pub pooling: Pooling,
    /// Module of the first layer, which keeps the size.
    pub dense: &'static str,
    /// Whether the first layer has a bias.
    pub dense_bias: bool,
    /// Activation after the first layer.
    pub activation: Activation,
    /// The norm after the activation, with its module, if there is one.
    pub norm: Option<(&'static str, Norm)>,
    /// Module of the last layer.
    pub output: &'static str,
    /// Number of labels.
    pub n_labels: usize,
}

impl Classifier {
    /// Computes the logits [batch, labels] of hidden states of `size` elements, and finishes the
    /// function.
    pub fn finish(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        io: &Io,
        hidden: ValueId,
        size: usize,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        g_.at_module("");
        let vectors = Vectors::of_hidden(g_, hidden)?;
        let pooled = pool(g_, io, vectors, self.pooling)?; // [batch, features]
        let layer = |g: &mut Graph, module: &str, x, outputs: usize, has_bias: bool| {
            g.at_module(module);
            let weight = w.get(module, "weight", &[outputs, size]);
            let bias = has_bias.then(|| w.get(module, "bias", &[outputs]));
            g.rows_linear("product", x, &weight, bias.as_ref())
        };
        let x = layer(g_, self.dense, pooled, size, self.dense_bias)?;
        let mut x = self.activation.apply(g_, x)?;
        if let Some((module, norm)) = self.norm {
            g_.at_module(module);
            x = norm.apply_along(g_, w, module, x, (-1, size))?;
        }
        let logits = layer(g_, self.output, x, self.n_labels, true)?;
        Ok(g.finish("logits", logits))
    }
}
