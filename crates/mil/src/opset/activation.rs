//! Activation functions and softmax.
//!
//! Up to iOS 16, `alpha` and `beta` have the element type of `x`; from iOS 17 on, they may have
//! another. Source: coremltools `ops/defs/iOS15/activation.py`, `iOS17/activation.py`.

use super::OpKind::{Channelwise, Softmax, Unary};
use super::Opset::{CoreMl5, CoreMl7};
use super::*;

const X: &[Param] = &[tensor("x", FLOAT)];
const ALPHA: &[Param] = &[tensor("x", FLOAT), constant("alpha", FLOAT)];
const ALPHA_BETA: &[Param] = &[
    tensor("x", FLOAT),
    constant("alpha", FLOAT),
    constant("beta", FLOAT),
];

pub(super) static OPS: &[OpDef] = &[
    // y = min(x, beta) where x >= 0, min(alpha * x, beta) elsewhere.
    OpDef::new("clamped_relu", Unary, CoreMl5, ALPHA_BETA, scalars_like_x),
    OpDef::new("clamped_relu", Unary, CoreMl7, ALPHA_BETA, scalar_params),
    // y = x where x > 0, alpha * (exp(x) - 1) elsewhere.
    OpDef::new("elu", Unary, CoreMl5, ALPHA, scalars_like_x),
    OpDef::new("elu", Unary, CoreMl7, ALPHA, scalar_params),
    // y = x / 2 * (1 + erf(x / sqrt(2))) for mode EXACT (the default). TANH_APPROXIMATION and
    // SIGMOID_APPROXIMATION approximate this function.
    OpDef::new(
        "gelu",
        Unary,
        CoreMl5,
        &[tensor("x", FLOAT), constant("mode", STRING).optional()],
        gelu,
    ),
    // y = x where x >= 0, alpha * x elsewhere.
    OpDef::new("leaky_relu", Unary, CoreMl5, ALPHA, scalars_like_x),
    OpDef::new("leaky_relu", Unary, CoreMl7, ALPHA, scalar_params),
    // y = alpha * x + beta.
    OpDef::new(
        "linear_activation",
        Unary,
        CoreMl5,
        ALPHA_BETA,
        scalars_like_x,
    ),
    OpDef::new(
        "linear_activation",
        Unary,
        CoreMl7,
        ALPHA_BETA,
        scalar_params,
    ),
    // y = x where x > 0, alpha[c] * x elsewhere; x [batch, c, ..], alpha [c].
    OpDef::new("prelu", Channelwise, CoreMl5, ALPHA, prelu_like_x),
    OpDef::new("prelu", Channelwise, CoreMl7, ALPHA, prelu),
    // y = max(x, 0).
    OpDef::new("relu", Unary, CoreMl5, X, type_of_x).exact(),
    // y = min(max(x, 0), 6).
    OpDef::new("relu6", Unary, CoreMl5, X, type_of_x).exact(),
    // y = alpha * tanh(beta * x).
    OpDef::new("scaled_tanh", Unary, CoreMl5, ALPHA_BETA, scalars_like_x),
    OpDef::new("scaled_tanh", Unary, CoreMl7, ALPHA_BETA, scalar_params),
    // y = 1 / (1 + exp(-x)).
    OpDef::new("sigmoid", Unary, CoreMl5, X, type_of_x),
    // y = min(max(alpha * x + beta, 0), 1).
    OpDef::new("sigmoid_hard", Unary, CoreMl5, ALPHA_BETA, scalars_like_x),
    OpDef::new("sigmoid_hard", Unary, CoreMl7, ALPHA_BETA, scalar_params),
    // y = x * sigmoid(x).
    OpDef::new("silu", Unary, CoreMl5, X, type_of_x),
    // y = exp(x - max(x)) / sum(exp(x - max(x))) along `axis` (default -1).
    OpDef::new(
        "softmax",
        Softmax,
        CoreMl5,
        &[tensor("x", FLOAT), constant("axis", INT32).optional()],
        softmax,
    ),
    // y = ln(1 + exp(x)).
    OpDef::new("softplus", Unary, CoreMl5, X, type_of_x),
    // y = alpha[c] * ln(1 + exp(beta[c] * x)); x [batch, c, ..], alpha and beta [c].
    OpDef::new(
        "softplus_parametric",
        Channelwise,
        CoreMl5,
        ALPHA_BETA,
        softplus_parametric_like_x,
    ),
    OpDef::new(
        "softplus_parametric",
        Channelwise,
        CoreMl7,
        ALPHA_BETA,
        softplus_parametric,
    ),
    // y = x / (1 + abs(x)).
    OpDef::new("softsign", Unary, CoreMl5, X, type_of_x),
    // y = tanh(x).
    OpDef::new("tanh", Unary, CoreMl5, X, type_of_x),
    // y = x where x >= alpha, 0 elsewhere.
    OpDef::new("thresholded_relu", Unary, CoreMl5, ALPHA, scalars_like_x).exact(),
    OpDef::new("thresholded_relu", Unary, CoreMl7, ALPHA, scalar_params).exact(),
];

/// `alpha` and `beta` are numbers of the element type of `x`.
fn scalars_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "alpha", "beta"])?;
    scalar_params(i)
}

/// `alpha` and `beta` are numbers of any accepted type.
fn scalar_params(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_scalars(&["alpha", "beta"])?;
    type_of_x(i)
}

fn gelu(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.choice(
        "mode",
        &["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"],
        "EXACT",
    )?;
    type_of_x(i)
}

fn prelu_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "alpha"])?;
    prelu(i)
}

fn prelu(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if !(3..=5).contains(&x.rank()) {
        return Err(TypeError::new(format_args!(
            "`x`: expected rank 3 to 5, found {x}"
        )));
    }
    require_per_channel(i, "alpha")?;
    if x.rank() != 4
        && let Some(alpha) = i.floats("alpha")
        && alpha.iter().any(|a| (a - alpha[0]).abs() > 1e-5)
    {
        return Err(TypeError::new(format_args!(
            "`alpha`: expected one repeated number, since `x` is not of rank 4 but {x}"
        )));
    }
    type_of_x(i)
}

fn softplus_parametric_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "alpha", "beta"])?;
    softplus_parametric(i)
}

fn softplus_parametric(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 {
        return Err(TypeError::new(format_args!(
            "`x`: expected rank 3 or more, found {x}"
        )));
    }
    require_per_channel(i, "alpha")?;
    require_per_channel(i, "beta")?;
    type_of_x(i)
}

/// Requires parameter `name` to have one number per channel of `x` (axis 1).
fn require_per_channel(i: &Infer<'_>, name: &str) -> Result<(), TypeError> {
    let (x, ty) = (i.ty("x")?, i.ty(name)?);
    match ty.shape.as_slice() {
        [n] if n.compatible(x.shape[1]) => Ok(()),
        _ => Err(TypeError::new(format_args!(
            "`{name}`: expected one number per channel (axis 1) of `x` {x}, found {ty}"
        ))),
    }
}

fn softmax(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    axis(i.int_or("axis", -1)?, i.ty("x")?.rank())?;
    type_of_x(i)
}
