//! Activations and softmax. Source: coremltools `ops/defs/iOS15/activation.py`,
//! `iOS17/activation.py`.

use super::Opset::{CoreMl5, CoreMl7};
use super::{
    FLOAT, INT32, Infer, OpDef, Param, STRING, Type, TypeError, axis, constant, same, tensor,
};

const X: &[Param] = &[tensor("x", FLOAT)];
const ALPHA: &[Param] = &[tensor("x", FLOAT), constant("alpha", FLOAT)];
const ALPHA_BETA: &[Param] = &[
    tensor("x", FLOAT),
    constant("alpha", FLOAT),
    constant("beta", FLOAT),
];

/// From iOS 17 on, parameters may be of another element type than `x`.
pub(super) static OPS: &[OpDef] = &[
    // y = min(x, beta) where x >= 0, min(alpha * x, beta) elsewhere.
    OpDef::new("clamped_relu", CoreMl5, ALPHA_BETA, alike),
    OpDef::new("clamped_relu", CoreMl7, ALPHA_BETA, scalars),
    // y = x where x > 0, alpha * (exp(x) - 1) elsewhere.
    OpDef::new("elu", CoreMl5, ALPHA, alike),
    OpDef::new("elu", CoreMl7, ALPHA, scalars),
    // y = x / 2 * (1 + erf(x / sqrt(2))) for mode EXACT; TANH_APPROXIMATION and
    // SIGMOID_APPROXIMATION approximate it.
    OpDef::new(
        "gelu",
        CoreMl5,
        &[tensor("x", FLOAT), constant("mode", STRING).optional()],
        gelu,
    ),
    // y = x where x >= 0, alpha * x elsewhere.
    OpDef::new("leaky_relu", CoreMl5, ALPHA, alike),
    OpDef::new("leaky_relu", CoreMl7, ALPHA, scalars),
    // y = alpha * x + beta.
    OpDef::new("linear_activation", CoreMl5, ALPHA_BETA, alike),
    OpDef::new("linear_activation", CoreMl7, ALPHA_BETA, scalars),
    // y = x where x > 0, alpha[c] * x elsewhere; x [batch, c, ..].
    OpDef::new("prelu", CoreMl5, ALPHA, prelu_alike),
    OpDef::new("prelu", CoreMl7, ALPHA, prelu),
    // y = max(x, 0).
    OpDef::new("relu", CoreMl5, X, same),
    // y = min(max(x, 0), 6).
    OpDef::new("relu6", CoreMl5, X, same),
    // y = alpha * tanh(beta * x).
    OpDef::new("scaled_tanh", CoreMl5, ALPHA_BETA, alike),
    OpDef::new("scaled_tanh", CoreMl7, ALPHA_BETA, scalars),
    // y = 1 / (1 + exp(-x)).
    OpDef::new("sigmoid", CoreMl5, X, same),
    // y = min(max(alpha * x + beta, 0), 1).
    OpDef::new("sigmoid_hard", CoreMl5, ALPHA_BETA, alike),
    OpDef::new("sigmoid_hard", CoreMl7, ALPHA_BETA, scalars),
    // y = x * sigmoid(x).
    OpDef::new("silu", CoreMl5, X, same),
    // y = exp(x - max) / sum exp(x - max) along `axis` (default -1).
    OpDef::new(
        "softmax",
        CoreMl5,
        &[tensor("x", FLOAT), constant("axis", INT32).optional()],
        softmax,
    ),
    // y = ln(1 + exp(x)).
    OpDef::new("softplus", CoreMl5, X, same),
    // y = alpha[c] * ln(1 + exp(beta[c] * x)); x [batch, c, ..].
    OpDef::new(
        "softplus_parametric",
        CoreMl5,
        ALPHA_BETA,
        softplus_parametric_alike,
    ),
    OpDef::new(
        "softplus_parametric",
        CoreMl7,
        ALPHA_BETA,
        softplus_parametric,
    ),
    // y = x / (1 + abs(x)).
    OpDef::new("softsign", CoreMl5, X, same),
    // y = tanh(x).
    OpDef::new("tanh", CoreMl5, X, same),
    // y = x where x >= alpha, 0 elsewhere.
    OpDef::new("thresholded_relu", CoreMl5, ALPHA, alike),
    OpDef::new("thresholded_relu", CoreMl7, ALPHA, scalars),
];

fn alike(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "alpha", "beta"])?;
    scalars(i)
}

fn scalars(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.scalars(&["alpha", "beta"])?;
    same(i)
}

fn gelu(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.choice(
        "mode",
        &["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"],
        "EXACT",
    )?;
    same(i)
}

fn prelu_alike(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "alpha"])?;
    prelu(i)
}

fn prelu(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if !(3..=5).contains(&x.rank()) {
        return Err(TypeError(format!("`x` is {x}, rank 3 to 5 is needed")));
    }
    of_channels(i, "alpha")?;
    if x.rank() != 4
        && let Some(alpha) = i.floats("alpha")
        && alpha.iter().any(|a| (a - alpha[0]).abs() > 1e-5)
    {
        return Err(TypeError(format!(
            "`alpha` has different numbers, which `x` {x} may have in rank 4 only"
        )));
    }
    same(i)
}

fn softplus_parametric_alike(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.alike(&["x", "alpha", "beta"])?;
    softplus_parametric(i)
}

fn softplus_parametric(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 {
        return Err(TypeError(format!("`x` is {x}, rank 3 or more is needed")));
    }
    of_channels(i, "alpha")?;
    of_channels(i, "beta")?;
    same(i)
}

/// Refuse a parameter that has not one number for each channel of `x`, its axis 1.
fn of_channels(i: &Infer<'_>, name: &str) -> Result<(), TypeError> {
    let (x, ty) = (i.ty("x")?, i.ty(name)?);
    match ty.shape.as_slice() {
        [n] if n.compatible(x.shape[1]) => Ok(()),
        _ => Err(TypeError(format!(
            "`{name}` is {ty}, `x` is {x}: one number for each of axis 1 is needed"
        ))),
    }
}

fn softmax(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    axis(i.int_or("axis", -1)?, i.ty("x")?.rank())?;
    same(i)
}
