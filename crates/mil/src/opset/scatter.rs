//! Scattering. Source: coremltools `ops/defs/iOS15/scatter_gather.py`, `iOS17/scatter_gather.py`.

use super::gather::{in_bounds, places, same_but};
use super::{
    BOOL, Dim, INT32, Infer, NUMBER, OpDef, Opset, Param, STRING, Type, TypeError, axis, constant,
    one, tensor,
};
use crate::types::TensorType;

const DATA: Param = tensor("data", NUMBER);
const INDICES: Param = tensor("indices", INT32);
const UPDATES: Param = tensor("updates", NUMBER);
const AXIS: Param = constant("axis", INT32).optional();
const MODE: Param = constant("mode", STRING).optional();
const VALIDATE: Param = constant("validate_indices", BOOL).optional();

/// What an update does to an element; the first is the default.
const MODES: [&str; 7] = ["add", "update", "sub", "mul", "div", "max", "min"];

pub(super) static OPS: &[OpDef] = &[
    // y = data, and y[.., indices[i], ..] = mode(it, updates[.., i, ..]) along `axis`, i after i.
    OpDef::new(
        "scatter",
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, AXIS, MODE],
        scatter,
    ),
    OpDef::new(
        "scatter",
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, AXIS, MODE, VALIDATE],
        scatter,
    ),
    // y = data, and y[.., indices[.., i, ..], ..] = mode(it, updates[.., i, ..]), where only `axis`
    // may differ in size.
    OpDef::new(
        "scatter_along_axis",
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, AXIS, MODE],
        along_axis,
    ),
    OpDef::new(
        "scatter_along_axis",
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, AXIS, MODE, VALIDATE],
        along_axis,
    ),
    // y = data, and y[indices[i, ..]] = mode(it, updates[i, ..]): the last axis of `indices` is a
    // place in data.
    OpDef::new(
        "scatter_nd",
        Opset::CoreMl5,
        &[DATA, INDICES, UPDATES, MODE],
        scatter_nd,
    ),
    OpDef::new(
        "scatter_nd",
        Opset::CoreMl7,
        &[DATA, INDICES, UPDATES, MODE, VALIDATE],
        scatter_nd,
    ),
];

fn scatter(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, data.rank())?;
    in_bounds(i, &[data.shape[at]])?;
    updated(
        i,
        [&data.shape[..at], &indices.shape, &data.shape[at + 1..]].concat(),
    )
}

fn along_axis(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, data.rank())?;
    same_but(data, indices, at)?;
    in_bounds(i, &[data.shape[at]])?;
    updated(i, indices.shape.clone())
}

fn scatter_nd(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (data, indices) = (i.ty("data")?, i.ty("indices")?);
    let (rows, depth) = places(indices)?;
    if depth > data.rank() {
        return Err(TypeError(format!(
            "`indices` {indices} is no list of places in {data}"
        )));
    }
    in_bounds(i, &data.shape[..depth])?;
    updated(i, [rows, &data.shape[depth..]].concat())
}

/// The type of `data`, where `updates` has this shape.
fn updated(i: &Infer<'_>, shape: Vec<Dim>) -> Result<Vec<Type>, TypeError> {
    let (data, updates) = (i.ty("data")?, i.ty("updates")?);
    let due = TensorType {
        dtype: data.dtype,
        shape,
    };
    if !updates.compatible(&due) {
        return Err(TypeError(format!("`updates` is {updates}, {due} is due")));
    }
    if i.has("mode") && !MODES.contains(&i.string("mode")?) {
        return Err(TypeError(format!(
            "`mode` is `{}`, not one of {}",
            i.string("mode")?,
            MODES.join(", ")
        )));
    }
    one(data.dtype, data.shape.clone())
}
