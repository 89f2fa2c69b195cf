//! Elementwise arithmetic, comparison and selection. Binary ops broadcast like numpy.
//!
//! Source: coremltools `ops/defs/iOS15/elementwise_binary.py`, `iOS15/elementwise_unary.py`,
//! `iOS15/control_flow.py`, `iOS17/elementwise_unary.py`.

use super::OpKind::{Cast, Elementwise, Unary, View};
use super::*;
use crate::types::DType;

const XY: &[Param] = &[tensor("x", NUMBER), tensor("y", NUMBER)];
const XY_BOOL: &[Param] = &[tensor("x", BOOL), tensor("y", BOOL)];
const X: &[Param] = &[tensor("x", NUMBER)];
const X_FLOAT: &[Param] = &[tensor("x", FLOAT)];
const X_EPSILON: &[Param] = &[tensor("x", FLOAT), constant("epsilon", FLOAT).optional()];
const CLIP: &[Param] = &[
    tensor("x", FLOAT),
    constant("alpha", FLOAT),
    constant("beta", FLOAT),
];

pub(super) static OPS: &[OpDef] = &[
    // y = x + y, x - y, x * y.
    OpDef::new("add", Elementwise, Opset::CoreMl5, XY, arithmetic),
    OpDef::new("sub", Elementwise, Opset::CoreMl5, XY, arithmetic),
    OpDef::new("mul", Elementwise, Opset::CoreMl5, XY, arithmetic),
    // y = x / y; integers truncate toward zero.
    OpDef::new("real_div", Elementwise, Opset::CoreMl5, XY, arithmetic),
    // y = floor(x / y).
    OpDef::new("floor_div", Elementwise, Opset::CoreMl5, XY, arithmetic),
    // y = x - floor(x / y) * y: the remainder has the sign of the divisor.
    OpDef::new("mod", Elementwise, Opset::CoreMl5, XY, arithmetic),
    // y = x^y, max(x, y), min(x, y).
    OpDef::new("pow", Elementwise, Opset::CoreMl5, XY, arithmetic),
    OpDef::new("maximum", Elementwise, Opset::CoreMl5, XY, arithmetic).exact(),
    OpDef::new("minimum", Elementwise, Opset::CoreMl5, XY, arithmetic).exact(),
    // y = the boolean result of the comparison.
    OpDef::new("equal", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new("not_equal", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new("less", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new("less_equal", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new("greater", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new("greater_equal", Elementwise, Opset::CoreMl5, XY, comparison),
    OpDef::new(
        "logical_and",
        Elementwise,
        Opset::CoreMl5,
        XY_BOOL,
        comparison,
    ),
    OpDef::new(
        "logical_or",
        Elementwise,
        Opset::CoreMl5,
        XY_BOOL,
        comparison,
    ),
    OpDef::new(
        "logical_xor",
        Elementwise,
        Opset::CoreMl5,
        XY_BOOL,
        comparison,
    ),
    OpDef::new(
        "logical_not",
        Unary,
        Opset::CoreMl5,
        &[tensor("x", BOOL)],
        type_of_x,
    ),
    // y = f(x) for the function that the op is named after.
    OpDef::new("abs", Unary, Opset::CoreMl5, X, type_of_x).exact(),
    OpDef::new("acos", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("asin", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("atan", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("atanh", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("ceil", Unary, Opset::CoreMl5, X_FLOAT, type_of_x).exact(),
    OpDef::new("cos", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("cosh", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("erf", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("exp", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    // y = 2^x.
    OpDef::new("exp2", Unary, Opset::CoreMl5, X, type_of_x),
    OpDef::new("floor", Unary, Opset::CoreMl5, X_FLOAT, type_of_x).exact(),
    OpDef::new(
        "identity",
        View,
        Opset::CoreMl5,
        &[tensor("x", ANY)],
        type_of_x,
    ),
    // y = 1 / (x + epsilon). From iOS 17 on, epsilon may have another element type than x, also in
    // the ops below.
    OpDef::new("inverse", Unary, Opset::CoreMl5, X_EPSILON, epsilon_like_x),
    OpDef::new("inverse", Unary, Opset::CoreMl7, X_EPSILON, epsilon),
    // y = ln(x + epsilon).
    OpDef::new("log", Unary, Opset::CoreMl5, X_EPSILON, epsilon_like_x),
    OpDef::new("log", Unary, Opset::CoreMl7, X_EPSILON, epsilon),
    // y = the nearest integer to x; ties go to the even one.
    OpDef::new("round", Unary, Opset::CoreMl5, X_FLOAT, type_of_x).exact(),
    // y = 1 / sqrt(x + epsilon).
    OpDef::new("rsqrt", Unary, Opset::CoreMl5, X_EPSILON, epsilon_like_x),
    OpDef::new("rsqrt", Unary, Opset::CoreMl7, X_EPSILON, epsilon),
    // y = -1, 0 or 1.
    OpDef::new("sign", Unary, Opset::CoreMl5, X, type_of_x).exact(),
    OpDef::new("sin", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("sinh", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("sqrt", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    OpDef::new("square", Unary, Opset::CoreMl5, X, type_of_x),
    OpDef::new("tan", Unary, Opset::CoreMl5, X_FLOAT, type_of_x),
    // y = max(x, alpha).
    OpDef::new(
        "threshold",
        Unary,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), constant("alpha", NUMBER)],
        threshold,
    )
    .exact(),
    // y = min(max(x, alpha), beta). From iOS 17 on, alpha must be less than beta.
    OpDef::new("clip", Unary, Opset::CoreMl5, CLIP, clip_like_x).exact(),
    OpDef::new("clip", Unary, Opset::CoreMl7, CLIP, clip).exact(),
    OpDef::new(
        "cast",
        Cast,
        Opset::CoreMl5,
        &[tensor("x", BASIC), constant("dtype", STRING)],
        |i| cast(i, BASIC),
    )
    .exact(),
    OpDef::new(
        "cast",
        Cast,
        Opset::CoreMl7,
        &[tensor("x", ANY), constant("dtype", STRING)],
        |i| cast(i, ANY),
    )
    .exact(),
    // y = cond ? a : b.
    OpDef::new(
        "select",
        Elementwise,
        Opset::CoreMl5,
        &[tensor("cond", BOOL), tensor("a", BASIC), tensor("b", BASIC)],
        select,
    )
    .exact(),
];

fn operands(i: &mut Infer<'_>, a: &str, b: &str) -> Result<(DType, Vec<Dim>), TypeError> {
    i.require_same_dtype(&[a, b])?;
    let (x, y) = (i.ty(a)?, i.ty(b)?);
    Ok((x.dtype, i.broadcast(&x.shape, &y.shape)?))
}

fn arithmetic(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (dtype, shape) = operands(i, "x", "y")?;
    tensor_result(dtype, shape)
}

fn comparison(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (_, shape) = operands(i, "x", "y")?;
    tensor_result(DType::Bool, shape)
}

/// `epsilon` is a number of the element type of `x`.
fn epsilon_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "epsilon"])?;
    epsilon(i)
}

/// `epsilon` is a number of any accepted type.
fn epsilon(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_scalars(&["epsilon"])?;
    type_of_x(i)
}

fn threshold(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "alpha"])?;
    i.require_scalars(&["alpha"])?;
    type_of_x(i)
}

fn clip_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "alpha", "beta"])?;
    i.require_scalars(&["alpha", "beta"])?;
    type_of_x(i)
}

fn clip(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match (i.float("alpha"), i.float("beta")) {
        (Some(alpha), Some(beta)) if alpha >= beta => Err(TypeError::new(format_args!(
            "`alpha`: expected a number below `beta` ({beta}), found {alpha}"
        ))),
        _ => clip_like_x(i),
    }
}

fn cast(i: &mut Infer<'_>, dtypes: &[DType]) -> Result<Vec<Type>, TypeError> {
    let name = i.string("dtype")?;
    let dtype = dtypes.iter().find(|d| d.name() == name);
    let dtype = dtype.ok_or_else(|| {
        TypeError::new(format_args!("`dtype`: cast to `{name}` is not supported"))
    })?;
    tensor_result(*dtype, i.ty("x")?.shape.clone())
}

fn select(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (dtype, shape) = operands(i, "a", "b")?;
    let shape = i.broadcast(&i.ty("cond")?.shape, &shape)?;
    tensor_result(dtype, shape)
}
