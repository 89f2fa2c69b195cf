//! Element-wise arithmetic, comparison and choice.
//!
//! Source: coremltools `ops/defs/iOS15/elementwise_binary.py`, `elementwise_unary.py`, `control_flow.py`.

use super::{
    ANY, BASIC, BOOL, FLOAT, Infer, NUMBER, OpDef, Opset, Param, STRING, Type, TypeError, broadcast, constant, one,
    same, tensor,
};
use crate::types::DType;

const XY: &[Param] = &[tensor("x", NUMBER), tensor("y", NUMBER)];
const XY_BOOL: &[Param] = &[tensor("x", BOOL), tensor("y", BOOL)];
const X: &[Param] = &[tensor("x", NUMBER)];
const X_FLOAT: &[Param] = &[tensor("x", FLOAT)];
const X_EPSILON: &[Param] = &[tensor("x", FLOAT), constant("epsilon", FLOAT).optional()];

pub(super) static OPS: &[OpDef] = &[
    OpDef::new("add", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("sub", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("mul", Opset::CoreMl5, XY, arithmetic),
    // y truncated towards zero for integers.
    OpDef::new("real_div", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("floor_div", Opset::CoreMl5, XY, arithmetic),
    // Remainder with the sign of the divisor.
    OpDef::new("mod", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("pow", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("maximum", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("minimum", Opset::CoreMl5, XY, arithmetic),
    OpDef::new("equal", Opset::CoreMl5, XY, comparison),
    OpDef::new("not_equal", Opset::CoreMl5, XY, comparison),
    OpDef::new("less", Opset::CoreMl5, XY, comparison),
    OpDef::new("less_equal", Opset::CoreMl5, XY, comparison),
    OpDef::new("greater", Opset::CoreMl5, XY, comparison),
    OpDef::new("greater_equal", Opset::CoreMl5, XY, comparison),
    OpDef::new("logical_and", Opset::CoreMl5, XY_BOOL, comparison),
    OpDef::new("logical_or", Opset::CoreMl5, XY_BOOL, comparison),
    OpDef::new("logical_not", Opset::CoreMl5, &[tensor("x", BOOL)], same),
    OpDef::new("abs", Opset::CoreMl5, X, same),
    OpDef::new("cos", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("erf", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("exp", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("floor", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("identity", Opset::CoreMl5, &[tensor("x", ANY)], same),
    // y = 1 / (x + epsilon).
    OpDef::new("inverse", Opset::CoreMl5, X_EPSILON, same),
    // y = ln(x + epsilon).
    OpDef::new("log", Opset::CoreMl5, X_EPSILON, same),
    // y = 1 / sqrt(x + epsilon).
    OpDef::new("rsqrt", Opset::CoreMl5, X_EPSILON, same),
    OpDef::new("sin", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("sqrt", Opset::CoreMl5, X_FLOAT, same),
    OpDef::new("square", Opset::CoreMl5, X, same),
    // y = min(max(x, alpha), beta).
    OpDef::new("clip", Opset::CoreMl5, &[tensor("x", FLOAT), constant("alpha", FLOAT), constant("beta", FLOAT)], clip),
    OpDef::new("cast", Opset::CoreMl5, &[tensor("x", ANY), constant("dtype", STRING)], cast),
    // y = cond ? a : b.
    OpDef::new("select", Opset::CoreMl5, &[tensor("cond", BOOL), tensor("a", BASIC), tensor("b", BASIC)], select),
];

fn operands(i: &Infer<'_>, a: &str, b: &str) -> Result<(DType, Vec<super::Dim>), TypeError> {
    let (x, y) = (i.ty(a)?, i.ty(b)?);
    if x.dtype != y.dtype {
        return Err(TypeError(format!("`{a}` is {x} and `{b}` is {y}: the element types must be equal")));
    }
    Ok((x.dtype, broadcast(&x.shape, &y.shape)?))
}

fn arithmetic(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (dtype, shape) = operands(i, "x", "y")?;
    one(dtype, shape)
}

fn comparison(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (_, shape) = operands(i, "x", "y")?;
    one(DType::Bool, shape)
}

fn clip(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    match (i.float("alpha"), i.float("beta")) {
        (Some(alpha), Some(beta)) if alpha >= beta => {
            Err(TypeError(format!("`alpha` is {alpha}, `beta` is {beta}: it must be less")))
        }
        _ => same(i),
    }
}

fn cast(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let name = i.string("dtype")?;
    let dtype = DType::from_name(name).filter(|d| ANY.contains(d));
    let dtype = dtype.ok_or_else(|| TypeError(format!("`dtype` is `{name}`, which nothing can be cast to")))?;
    one(dtype, i.ty("x")?.shape.clone())
}

fn select(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (dtype, shape) = operands(i, "a", "b")?;
    one(dtype, broadcast(&i.ty("cond")?.shape, &shape)?)
}
