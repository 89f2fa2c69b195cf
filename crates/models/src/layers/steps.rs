//! The modules of sentence-transformers around the pooling: dense layers, norms, and lengths of 1.
//! The features are the last axis of their vectors, in either layout.

use thane_mil::program::ValueId;
use thane_mil::types::DType;

use super::activation::{Activation, sigmoid};
use super::norm::LayerNorm;
use crate::checkpoint::{Dense, DenseActivation, Step};
use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::weights::Weights;

/// Source: `torch.nn.LayerNorm`.
const NORM: LayerNorm = LayerNorm { epsilon: 1e-5 };

/// Applies steps in order, along the last axis of `x`.
pub fn apply(
    g: &mut Graph,
    w: &Weights<'_>,
    steps: &[Step],
    mut x: ValueId,
) -> Result<ValueId, ModelError> {
    for step in steps {
        x = match step {
            Step::Dense(layer) => dense(g, w, layer, x)?,
            Step::LayerNorm { folder, size } => {
                let module = format!("{folder}.norm");
                g.at_module(&module);
                let part = |name| w.get(&module, name, &[*size]);
                NORM.apply_along(g, x, &part("weight"), Some(&part("bias")), -1)?
            }
            Step::Normalize => {
                g.at_module("");
                normalize(g, x)?
            }
        };
    }
    g.at_module("");
    Ok(x)
}

fn dense(g: &mut Graph, w: &Weights<'_>, layer: &Dense, x: ValueId) -> Result<ValueId, ModelError> {
    let module = |name: &str| format!("{}.{name}", layer.folder);
    let sizes = [layer.outputs, layer.inputs];
    let linear = module("linear");
    g.at_module(&linear);
    let weight = w.get(&linear, "weight", &sizes);
    let bias = layer.bias.then(|| w.get(&linear, "bias", &[layer.outputs]));
    let product = g.rows_linear("product", x, &weight, bias.as_ref())?;
    let active = match layer.activation {
        DenseActivation::Named(name) => Activation::of_torch(name)?.apply(g, product)?,
        DenseActivation::Glu => {
            let [value, gate] = g.halves(product, -1)?;
            let open = sigmoid(g, gate)?;
            g.mul(value, open)?
        }
        DenseActivation::Prelu => {
            let slope = w.get(&module("activation_function"), "weight", &[1]);
            let slope = g.vector(&slope, 1)?;
            let positive = g.op("relu", "positive", [("x", product)])?;
            let negative = g.sub(product, positive)?;
            let negative = g.mul(negative, slope)?;
            g.add(positive, negative)?
        }
    };
    if !layer.residual {
        return Ok(active);
    }
    let kept = if layer.inputs == layer.outputs {
        x
    } else {
        let residual = module("residual");
        g.at_module(&residual);
        let weight = w.get(&residual, "weight", &sizes);
        g.rows_linear("kept", x, &weight, None)?
    };
    Ok(g.add(active, kept)?)
}

/// `x / max(norm(x), tiny)` along the last axis.
fn normalize(g: &mut Graph, x: ValueId) -> ValueResult {
    // torch's `normalize` uses 1e-12.
    let (x, tiny) = match g.spelling().float {
        DType::Fp16 => (scaled(g, x)?, TINY),
        _ => (x, 1e-12),
    };
    let tiny = g.float(tiny)?;
    let norm = g.reduce("reduce_l2_norm", x, -1)?;
    let norm = g.op("maximum", "at_least", [("x", norm), ("y", tiny)])?;
    g.op("real_div", "normalized", [("x", x), ("y", norm)])
}

/// The smallest positive fp16 number that no engine takes for 0.
const TINY: f32 = 1.0 / 16384.0;

/// `x` divided by its largest magnitude along the last axis, so that no square overflows fp16: from
/// 256 on, one does. Of zeros it is zero.
fn scaled(g: &mut Graph, x: ValueId) -> ValueResult {
    let magnitude = g.op("abs", "magnitude", [("x", x)])?;
    let largest = g.reduce("reduce_max", magnitude, -1)?;
    let tiny = g.float(TINY)?;
    let largest = g.op("maximum", "at_least", [("x", largest), ("y", tiny)])?;
    g.op("real_div", "scaled", [("x", x), ("y", largest)])
}
