//! Normalisation.

use thane_mil::program::ValueId;
use thane_mil::types::DType;

use crate::checkpoint::Tensor;
use crate::graph::{Graph, Made, NormForm};

/// Root mean square normalisation as a family does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the checkpoint stores the factor less 1.
    pub plus_one: bool,
}

impl RmsNorm {
    /// The same of a stream that was divided.
    pub fn of_divided(self, divisor: f32) -> Self {
        Self {
            epsilon: self.epsilon / (divisor * divisor),
            ..self
        }
    }

    /// `x / sqrt(mean(x^2) + epsilon) * weight` along the features.
    pub fn apply(self, g: &mut Graph, x: ValueId, weight: &Tensor) -> Made {
        let axis = g.features();
        self.along(g, x, weight, axis)
    }

    /// The same along another axis of `x`.
    pub fn along(self, g: &mut Graph, x: ValueId, weight: &Tensor, axis: i32) -> Made {
        let normed = match g.form().norm {
            NormForm::Native => self.native(g, x, axis)?,
            NormForm::Cat => self.cat(g, x, axis)?,
            NormForm::Scaled => self.scaled(g, x, axis)?,
        };
        let rank = g.rank_from(x, axis);
        let mut weight = g.vector(weight, rank)?;
        if self.plus_one {
            let one = g.float(1.0)?;
            weight = g.add(weight, one)?;
        }
        g.mul(normed, weight)
    }

    fn native(self, g: &mut Graph, x: ValueId, axis: i32) -> Made {
        let square = g.mul(x, x)?;
        let mean = g.reduce("reduce_mean", square, axis)?;
        let epsilon = self.floor(g)?;
        let inverse = g.op("rsqrt", "inverse_norm", [("x", mean), ("epsilon", epsilon)])?;
        g.mul(x, inverse)
    }

    /// The epsilon, or the least number of the element type.
    fn floor(self, g: &mut Graph) -> Made {
        let least = if g.form().float == DType::Fp16 {
            6e-8
        } else {
            0.0
        };
        g.float(self.epsilon.max(least))
    }

    /// With m the largest element: `(x / m) / sqrt(mean((x / m)^2) + epsilon / m^2)`.
    fn scaled(self, g: &mut Graph, x: ValueId, axis: i32) -> Made {
        let magnitude = g.op("abs", "magnitude", [("x", x)])?;
        let largest = g.reduce("reduce_max", magnitude, axis)?;
        // A row of zeros stays one, and what is divided by it stays far below the end of fp16.
        let least = g.float(1e-4)?;
        let largest = g.op("maximum", "at_least", [("x", largest), ("y", least)])?;
        let x = g.op("real_div", "scaled", [("x", x), ("y", largest)])?;
        let square = g.mul(x, x)?;
        let mean = g.reduce("reduce_mean", square, axis)?;
        let root = g.float(self.epsilon.sqrt())?;
        let root = g.op("real_div", "scaled_root", [("x", root), ("y", largest)])?;
        let epsilon = g.mul(root, root)?;
        let mean = g.add(mean, epsilon)?;
        let none = g.float(0.0)?;
        let inverse = g.op("rsqrt", "inverse_norm", [("x", mean), ("epsilon", none)])?;
        g.mul(x, inverse)
    }

    /// The mean of x and -x is 0, and their variance the mean square.
    fn cat(self, g: &mut Graph, x: ValueId, axis: i32) -> Made {
        let minus = g.scale(x, -1.0)?;
        let both = g.join("concat", &[x, minus], axis)?;
        let (axes, epsilon) = (g.ints(&[axis])?, self.floor(g)?);
        let normed = g.op(
            "layer_norm",
            "normed",
            [("x", both), ("axes", axes), ("epsilon", epsilon)],
        )?;
        let [half, _] = g.halves(normed, axis)?;
        Ok(half)
    }
}

/// Layer normalisation as a family does it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl LayerNorm {
    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` along the features.
    pub fn apply(self, g: &mut Graph, x: ValueId, weight: &Tensor, bias: Option<&Tensor>) -> Made {
        let axis = g.features();
        let (axes, gamma, epsilon) = (
            g.ints(&[axis])?,
            g.vector(weight, 1)?,
            g.float(self.epsilon)?,
        );
        let args = [
            ("x", x),
            ("axes", axes),
            ("gamma", gamma),
            ("epsilon", epsilon),
        ];
        match bias {
            None => g.op("layer_norm", "normed", args),
            Some(bias) => {
                let [x, axes, gamma, epsilon] = args;
                let beta = g.vector(bias, 1)?;
                g.op(
                    "layer_norm",
                    "normed",
                    [x, axes, gamma, ("beta", beta), epsilon],
                )
            }
        }
    }
}
