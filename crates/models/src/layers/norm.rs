//! Normalization layers.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;
use thane_mil::types::DType;

use crate::checkpoint::Tensor;
use crate::graph::{Graph, NormForm, ValueResult};
use crate::weights::Weights;

/// A normalization whose parameters are those of a module of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// RMSNorm with a weight.
    Rms(RmsNorm),
    /// LayerNorm with a weight.
    Layer {
        /// The computation.
        norm: LayerNorm,
        /// Whether the module has a bias.
        bias: bool,
    },
}

impl Norm {
    /// The same norm with another epsilon.
    pub fn with_epsilon(self, epsilon: f32) -> Self {
        match self {
            Self::Rms(norm) => Self::Rms(RmsNorm { epsilon, ..norm }),
            Self::Layer { bias, .. } => Self::Layer {
                norm: LayerNorm { epsilon },
                bias,
            },
        }
    }

    /// The norm that gives the same result for a residual stream that was divided by `divisor`.
    pub fn for_divided_stream(self, divisor: f32) -> Self {
        match self {
            Self::Rms(norm) => Self::Rms(norm.for_divided_stream(divisor)),
            Self::Layer { norm, bias } => Self::Layer {
                norm: norm.for_divided_stream(divisor),
                bias,
            },
        }
    }

    /// Normalizes the `size` features of `x` with the parameters of `module`.
    pub fn apply(
        self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        size: usize,
    ) -> ValueResult {
        let axis = g.features();
        self.apply_along(g, w, module, x, (axis, size))
    }

    /// Like [`Self::apply`], along another axis of `x`, which has `size` elements.
    pub fn apply_along(
        self,
        g: &mut Graph,
        w: &Weights<'_>,
        module: &str,
        x: ValueId,
        (axis, size): (i32, usize),
    ) -> ValueResult {
        let part = |name| w.get(module, name, &[size]);
        match self {
            Self::Rms(norm) => norm.apply_along(g, x, &part("weight"), axis),
            Self::Layer { norm, bias } => {
                let bias = bias.then(|| part("bias"));
                norm.apply_along(g, x, &part("weight"), bias.as_ref(), axis)
            }
        }
    }
}

/// How large epsilon may be beside the sum of squares of a row whose largest element is 1: its root
/// is then off by 2^-11.
const EPSILON_SHARE: f32 = 1.0 / 1024.0;

/// Root mean square normalization (RMSNorm).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f32,
    /// Whether the checkpoint stores the factor minus 1.
    pub plus_one: bool,
}

impl RmsNorm {
    /// The norm that gives the same result for a residual stream that was divided by `divisor`.
    pub fn for_divided_stream(self, divisor: f32) -> Self {
        Self {
            epsilon: self.epsilon / (divisor * divisor),
            ..self
        }
    }

    /// `x / sqrt(mean(x^2) + epsilon) * weight` along `axis` of `x`.
    pub fn apply_along(self, g: &mut Graph, x: ValueId, weight: &Tensor, axis: i32) -> ValueResult {
        let (normed, factor) = self.up_to_factor(g, x, axis)?;
        let rank = g.rank_from(x, axis);
        if g.spelling().is_for_ane() {
            let plus = if self.plus_one { 1.0 } else { 0.0 };
            let weight = g.vector_plus(weight, rank, plus, factor)?;
            return g.mul(normed, weight);
        }
        let mut weight = g.vector(weight, rank)?;
        if self.plus_one {
            let one = g.float(1.0)?;
            weight = g.add(weight, one)?;
        }
        g.mul(normed, weight)
    }

    /// `x / sqrt(mean(x^2) + epsilon)` along `axis`.
    pub fn without_weight(self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
        match self.up_to_factor(g, x, axis)? {
            (normed, 1.0) => Ok(normed),
            (normed, factor) => g.scale(normed, factor),
        }
    }

    /// `x / sqrt(mean(x^2) + epsilon) / factor` along `axis`, and the factor, which is for the
    /// weight that follows.
    pub fn up_to_factor(
        self,
        g: &mut Graph,
        x: ValueId,
        axis: i32,
    ) -> Result<(ValueId, f32), BuildError> {
        match g.spelling().norm {
            NormForm::Native => Ok((self.native(g, x, axis)?, 1.0)),
            NormForm::Cat => Ok((self.cat(g, x, axis)?, 1.0)),
            NormForm::Scaled if g.is_small(x) => Ok((self.scaled(g, x, axis)?, 1.0)),
            NormForm::Scaled => self.bounded(g, x, axis),
        }
    }

    /// `x * rsqrt(mean(x^2) + epsilon)`.
    fn native(self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
        let square = g.mul(x, x)?;
        let mean = g.reduce("reduce_mean", square, axis)?;
        let epsilon = self.floor(g)?;
        let inverse = g.op("rsqrt", "inverse_norm", [("x", mean), ("epsilon", epsilon)])?;
        g.mul(x, inverse)
    }

    /// Epsilon, or the smallest positive number of the element type if that is larger.
    fn floor(self, g: &mut Graph) -> ValueResult {
        let least = if g.spelling().float == DType::Fp16 {
            6e-8
        } else {
            0.0
        };
        g.float(self.epsilon.max(least))
    }

    /// `(x / m) / sqrt(mean((x / m)^2) + epsilon / m^2)`, where m is the largest magnitude in the
    /// row.
    fn scaled(self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
        let magnitude = g.op("abs", "magnitude", [("x", x)])?;
        let largest = g.reduce("reduce_max", magnitude, axis)?;
        // A row of zeros stays zero, and quotients by this bound stay within the range of fp16.
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

    /// `s / sqrt(sum(s^2) + n * epsilon / c^2)` with `s = x / max(m, c)`, where m is the largest
    /// magnitude in a row of n: four ops less than [`Self::scaled`].
    ///
    /// Up to m = c, that is the norm. Beyond, epsilon counts more than it should, by at most n *
    /// epsilon / c^2, and s has an element of 1: with c from [`EPSILON_SHARE`], the result is off
    /// by less than 2^-11, half a step of fp16, and for rows without outliers by far less. Squares
    /// of rows below c / 128 may be lost where subnormal numbers are (`Graph::is_small`).
    fn bounded(self, g: &mut Graph, x: ValueId, axis: i32) -> Result<(ValueId, f32), BuildError> {
        let n = g.len_along(x, axis) as f32;
        let c = (n * self.epsilon / EPSILON_SHARE).sqrt().max(1e-4);
        let magnitude = g.op("abs", "magnitude", [("x", x)])?;
        let largest = g.reduce("reduce_max", magnitude, axis)?;
        let least = g.float(c)?;
        let largest = g.op("maximum", "at_least", [("x", largest), ("y", least)])?;
        let scaled = g.op("real_div", "scaled", [("x", x), ("y", largest)])?;
        let sum = g.reduce("reduce_sum_square", scaled, axis)?;
        let epsilon = g.float(n * self.epsilon / (c * c))?;
        let inverse = g.op("rsqrt", "inverse_norm", [("x", sum), ("epsilon", epsilon)])?;
        Ok((g.mul(scaled, inverse)?, n.sqrt()))
    }

    /// `layer_norm` of x concatenated with -x: the mean is 0 and the variance is the mean square.
    fn cat(self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
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

/// Layer normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl LayerNorm {
    /// The norm that gives the same result for a residual stream that was divided by `divisor`.
    pub fn for_divided_stream(self, divisor: f32) -> Self {
        Self {
            epsilon: self.epsilon / (divisor * divisor),
        }
    }

    /// `(x - mean) / sqrt(variance + epsilon) * weight + bias` along the features.
    pub fn apply(
        self,
        g: &mut Graph,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> ValueResult {
        let axis = g.features();
        self.apply_along(g, x, weight, bias, axis)
    }

    /// Like [`Self::apply`], along another axis of `x`.
    pub fn apply_along(
        self,
        g: &mut Graph,
        x: ValueId,
        weight: &Tensor,
        bias: Option<&Tensor>,
        axis: i32,
    ) -> ValueResult {
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

    /// `(x - mean) / sqrt(variance + epsilon)` along `axis`.
    pub fn without_weight(self, g: &mut Graph, x: ValueId, axis: i32) -> ValueResult {
        let (axes, epsilon) = (g.ints(&[axis])?, g.float(self.epsilon)?);
        let args = [("x", x), ("axes", axes), ("epsilon", epsilon)];
        g.op("layer_norm", "normed", args)
    }
}
