//! Gathering. Source: coremltools `ops/defs/iOS15/scatter_gather.py`, `iOS16/scatter_gather.py`,
//! `iOS17/scatter_gather.py`.

use super::{
    BOOL, Dim, INDEX, INT32, Infer, NUMBER, OpDef, Opset, Param, Type, TypeError, axis, constant,
    one, tensor,
};
use crate::types::{DType, TensorType};

const VALUES: &[DType] = &[
    DType::Fp16,
    DType::Fp32,
    DType::Int32,
    DType::Int16,
    DType::Uint16,
    DType::Int8,
    DType::Uint8,
];
const INDEX_6: &[DType] = &[DType::Int32, DType::Uint16, DType::Int16];
const AXIS: Param = constant("axis", INT32).optional();
const BATCH_DIMS: Param = constant("batch_dims", INT32).optional();
const VALIDATE: Param = constant("validate_indices", BOOL).optional();

pub(super) static OPS: &[OpDef] = &[
    // y = x with the axis `axis` replaced by the axes of `indices`.
    OpDef::new(
        "gather",
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32), AXIS],
        gather,
    ),
    OpDef::new(
        "gather",
        Opset::CoreMl6,
        &[
            tensor("x", NUMBER),
            tensor("indices", INDEX_6),
            AXIS,
            BATCH_DIMS,
        ],
        gather,
    ),
    OpDef::new(
        "gather",
        Opset::CoreMl7,
        &[
            tensor("x", VALUES),
            tensor("indices", INDEX),
            AXIS,
            BATCH_DIMS,
            VALIDATE,
        ],
        gather,
    ),
    // y[.., i, ..] = x[.., indices[.., i, ..], ..], where only `axis` may differ in size.
    OpDef::new(
        "gather_along_axis",
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32), AXIS],
        along_axis,
    ),
    OpDef::new(
        "gather_along_axis",
        Opset::CoreMl6,
        &[tensor("x", NUMBER), tensor("indices", INDEX_6), AXIS],
        along_axis,
    ),
    OpDef::new(
        "gather_along_axis",
        Opset::CoreMl7,
        &[
            tensor("x", VALUES),
            tensor("indices", INDEX),
            AXIS,
            VALIDATE,
        ],
        along_axis,
    ),
    // y[i, ..] = x[indices[i, ..]]: the last axis of `indices` is a place in x.
    OpDef::new(
        "gather_nd",
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32)],
        gather_nd,
    ),
    OpDef::new(
        "gather_nd",
        Opset::CoreMl6,
        &[tensor("x", NUMBER), tensor("indices", INDEX_6), BATCH_DIMS],
        gather_nd,
    ),
    OpDef::new(
        "gather_nd",
        Opset::CoreMl7,
        &[
            tensor("x", VALUES),
            tensor("indices", INDEX),
            BATCH_DIMS,
            VALIDATE,
        ],
        gather_nd,
    ),
];

fn gather(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    let batch = usize::try_from(i.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    if batch > at || batch > indices.rank() {
        return Err(TypeError(format!(
            "`batch_dims` {batch} is above axis {at} or the rank of `indices` {indices}"
        )));
    }
    same_batch(x, indices, batch)?;
    in_bounds(i, &[x.shape[at]])?;
    let shape = [&x.shape[..at], &indices.shape[batch..], &x.shape[at + 1..]].concat();
    one(x.dtype, shape)
}

fn along_axis(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    same_but(x, indices, at)?;
    in_bounds(i, &[x.shape[at]])?;
    one(x.dtype, indices.shape.clone())
}

fn gather_nd(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let batch = usize::try_from(i.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    let (rows, depth) = places(indices)?;
    if batch > rows.len() || batch > x.rank() || depth > x.rank() - batch {
        return Err(TypeError(format!(
            "`indices` {indices} with {batch} batch axes is no list of places in {x}"
        )));
    }
    same_batch(x, indices, batch)?;
    in_bounds(i, &x.shape[batch..batch + depth])?;
    one(x.dtype, [rows, &x.shape[batch + depth..]].concat())
}

/// The axes of a list of places, and how many axes a place names.
pub(super) fn places(indices: &TensorType) -> Result<(&[Dim], usize), TypeError> {
    match indices.shape.split_last() {
        Some((Dim::Known(depth), rows)) => Ok((rows, *depth)),
        _ => Err(TypeError(format!(
            "the last axis of `indices` {indices} must be known: it counts the axes of a place"
        ))),
    }
}

/// Refuse tensors that differ in another axis than `at`.
pub(super) fn same_but(x: &TensorType, indices: &TensorType, at: usize) -> Result<(), TypeError> {
    let mut dims = x.shape.iter().zip(&indices.shape).enumerate();
    if x.rank() == indices.rank() && dims.all(|(a, (n, m))| a == at || n.compatible(*m)) {
        return Ok(());
    }
    Err(TypeError(format!(
        "{x} and `indices` {indices} differ in another axis than {at}"
    )))
}

fn same_batch(x: &TensorType, indices: &TensorType, batch: usize) -> Result<(), TypeError> {
    if x.shape[..batch]
        .iter()
        .zip(&indices.shape[..batch])
        .all(|(a, b)| a.compatible(*b))
    {
        return Ok(());
    }
    Err(TypeError(format!(
        "`x` {x} and `indices` {indices} differ in the first {batch} axes"
    )))
}

/// Refuse known indices outside of the sizes that they count in turn, where the op is to validate
/// them.
pub(super) fn in_bounds(i: &Infer<'_>, sizes: &[Dim]) -> Result<(), TypeError> {
    if !i.bool_or("validate_indices", false)? || sizes.is_empty() {
        return Ok(());
    }
    let indices = i.ints("indices").unwrap_or_default();
    let outside = |v: i64, size: Dim| v < 0 || size.known().is_some_and(|n| v >= n as i64);
    match indices
        .iter()
        .zip(sizes.iter().cycle())
        .find(|(v, size)| outside(**v, **size))
    {
        Some((v, size)) => Err(TypeError(format!(
            "index {v} is outside of an axis of {size}"
        ))),
        None => Ok(()),
    }
}
