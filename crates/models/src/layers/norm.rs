//! Root mean square normalisation.

use thane_mil::program::ValueId;

use crate::checkpoint::Tensor;
use crate::graph::{Graph, Made};

/// How a family normalises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the checkpoint stores the factor less 1.
    pub plus_one: bool,
}

impl RmsNorm {
    /// `x / sqrt(mean(x^2) + epsilon) * weight` along the last axis.
    pub fn apply(self, g: &mut Graph, x: ValueId, weight: &Tensor) -> Made {
        let square = g.mul(x, x)?;
        let (axes, keep) = (g.ints(&[-1])?, g.bool(true)?);
        let mean = g.op("reduce_mean", "mean_square", [("x", square), ("axes", axes), ("keep_dims", keep)])?;
        let epsilon = g.float(self.epsilon)?;
        let inverse = g.op("rsqrt", "inverse_norm", [("x", mean), ("epsilon", epsilon)])?;
        let normed = g.mul(x, inverse)?;
        let mut weight = g.weight(weight)?;
        if self.plus_one {
            let one = g.float(1.0)?;
            weight = g.add(weight, one)?;
        }
        g.mul(normed, weight)
    }
}
