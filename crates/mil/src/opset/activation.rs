//! Activations and softmax. Source: coremltools `ops/defs/iOS15/activation.py`.

use super::{FLOAT, INT32, Infer, OpDef, Opset, STRING, Type, TypeError, axis, constant, same, tensor};

pub(super) static OPS: &[OpDef] = &[
    // y = x / 2 * (1 + erf(x / sqrt(2))) for mode EXACT; TANH_APPROXIMATION and SIGMOID_APPROXIMATION approximate it.
    OpDef::new("gelu", Opset::CoreMl5, &[tensor("x", FLOAT), constant("mode", STRING).optional()], gelu),
    // y = max(x, 0).
    OpDef::new("relu", Opset::CoreMl5, &[tensor("x", FLOAT)], same),
    // y = 1 / (1 + exp(-x)).
    OpDef::new("sigmoid", Opset::CoreMl5, &[tensor("x", FLOAT)], same),
    // y = x * sigmoid(x).
    OpDef::new("silu", Opset::CoreMl5, &[tensor("x", FLOAT)], same),
    // y = exp(x - max) / sum exp(x - max) along `axis` (default -1).
    OpDef::new("softmax", Opset::CoreMl5, &[tensor("x", FLOAT), constant("axis", INT32).optional()], softmax),
    // y = tanh(x).
    OpDef::new("tanh", Opset::CoreMl5, &[tensor("x", FLOAT)], same),
];

fn gelu(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    const MODES: [&str; 3] = ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"];
    if i.has("mode") && !MODES.contains(&i.string("mode")?) {
        return Err(TypeError(format!("`mode` is `{}`, one of {} is needed", i.string("mode")?, MODES.join(", "))));
    }
    same(i)
}

fn softmax(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    axis(i.int_or("axis", -1)?, i.ty("x")?.rank())?;
    same(i)
}
