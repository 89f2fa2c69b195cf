//! Scatter ops.
//!
//! Source: coremltools `ops/defs/iOS15/scatter_gather.py`, `iOS17/scatter_gather.py`.

use super::OpKind::Other;
use super::gather::{check_bounds, index_depth, require_same_except};
use super::*;
use crate::types::TensorType;

const DATA: Param = tensor("data", NUMBER);
const INDICES: Param = tensor("indices", INT32);
const UPDATES: Param = tensor("updates", NUMBER);
const AXIS: Param = constant("axis", INT32).optional();
const MODE: Param = constant("mode", STRING).optional();
const VALIDATE: Param = constant("validate_indices", BOOL).optional();

/// Values of `mode`: how an update combines with an element. The first is the default.
const MODES: [&str; 7] = ["add", "update", "sub", "mul", "div", "max", "min"];

pub(super) static OPS: &[OpDef] = &[
    // y = data, then y[.., indices[i], ..] = mode(y[.., indices[i], ..], updates[.., i, ..]) along
    // `axis`, for each i in order.
    OpDef::new(
        "scatter",
        Other,
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, AXIS, MODE],
        scatter,
    )
    .exact(),
    OpDef::new(
        "scatter",
        Other,
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, AXIS, MODE, VALIDATE],
        scatter,
    )
    .exact(),
    // y = data, then y[.., indices[.., i, ..], ..] = mode(that element, updates[.., i, ..]) along
    // `axis`, the only axis whose size may differ.
    OpDef::new(
        "scatter_along_axis",
        Other,
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, AXIS, MODE],
        along_axis,
    )
    .exact(),
    OpDef::new(
        "scatter_along_axis",
        Other,
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, AXIS, MODE, VALIDATE],
        along_axis,
    )
    .exact(),
    // y = data, then y[indices[i, ..]] = mode(that element, updates[i, ..]): each row of the last
    // axis of `indices` is an index into data.
    OpDef::new(
        "scatter_nd",
        Other,
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, MODE],
        scatter_nd,
    )
    .exact(),
    OpDef::new(
        "scatter_nd",
        Other,
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, MODE, VALIDATE],
        scatter_nd,
    )
    .exact(),
];

fn scatter(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, data.rank())?;
    check_bounds(i, &[data.shape[at]])?;
    updated(
        i,
        [&data.shape[..at], &indices.shape, &data.shape[at + 1..]].concat(),
    )
}

fn along_axis(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, data.rank())?;
    require_same_except(data, indices, at)?;
    check_bounds(i, &[data.shape[at]])?;
    updated(i, indices.shape.clone())
}

fn scatter_nd(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let (rows, depth) = index_depth(indices)?;
    if depth > data.rank() {
        return Err(TypeError::new(format_args!(
            "`indices`: expected indices into {data}, found {indices}"
        )));
    }
    check_bounds(i, &data.shape[..depth])?;
    updated(i, [rows, &data.shape[depth..]].concat())
}

/// The result type, which is that of `data`; checks that `updates` has this shape.
fn updated(i: &Infer<'_>, shape: Vec<Dim>) -> Result<Vec<Type>, TypeError> {
    let (data, updates) = (i.ty("data")?, i.ty("updates")?);
    let expected = TensorType {
        dtype: data.dtype,
        shape,
    };
    if !updates.compatible(&expected) {
        return Err(TypeError::new(format_args!(
            "`updates`: expected {expected}, found {updates}"
        )));
    }
    if i.has("mode") && !MODES.contains(&i.string("mode")?) {
        return Err(TypeError::new(format_args!(
            "`mode`: expected {}, found `{}`",
            one_of(&MODES),
            i.string("mode")?
        )));
    }
    tensor_result(data.dtype, data.shape.clone())
}
