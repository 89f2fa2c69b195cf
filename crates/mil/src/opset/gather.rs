//! Gather ops.
//!
//! Source: coremltools `ops/defs/iOS15/scatter_gather.py`, `iOS16/scatter_gather.py`,
//! `iOS17/scatter_gather.py`.

use super::OpKind::Rearrange;
use super::*;
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
    // y[.., i.., ..] = x[.., indices[i..], ..] along `axis`: the axes of `indices` replace this
    // axis.
    OpDef::new(
        "gather",
        Rearrange,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32), AXIS],
        gather,
    ),
    OpDef::new(
        "gather",
        Rearrange,
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
        Rearrange,
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
    // y[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`, the only axis whose size may
    // differ.
    OpDef::new(
        "gather_along_axis",
        Rearrange,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32), AXIS],
        along_axis,
    ),
    OpDef::new(
        "gather_along_axis",
        Rearrange,
        Opset::CoreMl6,
        &[tensor("x", NUMBER), tensor("indices", INDEX_6), AXIS],
        along_axis,
    ),
    OpDef::new(
        "gather_along_axis",
        Rearrange,
        Opset::CoreMl7,
        &[
            tensor("x", VALUES),
            tensor("indices", INDEX),
            AXIS,
            VALIDATE,
        ],
        along_axis,
    ),
    // y[i, ..] = x[indices[i, ..]]: each row of the last axis of `indices` is an index into x.
    OpDef::new(
        "gather_nd",
        Rearrange,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), tensor("indices", INT32)],
        gather_nd,
    ),
    OpDef::new(
        "gather_nd",
        Rearrange,
        Opset::CoreMl6,
        &[tensor("x", NUMBER), tensor("indices", INDEX_6), BATCH_DIMS],
        gather_nd,
    ),
    OpDef::new(
        "gather_nd",
        Rearrange,
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
        return Err(TypeError::new(format_args!(
            "`batch_dims`: expected at most axis {at} and the rank of `indices` {indices}, found \
             {batch}"
        )));
    }
    check_batch(x, indices, batch)?;
    check_bounds(i, &[x.shape[at]])?;
    let shape = [&x.shape[..at], &indices.shape[batch..], &x.shape[at + 1..]].concat();
    tensor_result(x.dtype, shape)
}

fn along_axis(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    require_same_except(x, indices, at)?;
    check_bounds(i, &[x.shape[at]])?;
    tensor_result(x.dtype, indices.shape.clone())
}

fn gather_nd(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let batch = usize::try_from(i.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    let (rows, depth) = index_depth(indices)?;
    if batch > rows.len() || batch > x.rank() || depth > x.rank() - batch {
        return Err(TypeError::new(format_args!(
            "`indices`: expected indices into {x} with {batch} batch axes, found {indices}"
        )));
    }
    check_batch(x, indices, batch)?;
    check_bounds(i, &x.shape[batch..batch + depth])?;
    tensor_result(x.dtype, [rows, &x.shape[batch + depth..]].concat())
}

/// The leading axes of `indices`, and the number of axes that each of its indices addresses.
pub(super) fn index_depth(indices: &TensorType) -> Result<(&[Dim], usize), TypeError> {
    match indices.shape.split_last() {
        Some((Dim::Known(depth), rows)) => Ok((rows, *depth)),
        _ => Err(TypeError::new(format_args!(
            "`indices`: expected a last axis of known size, found {indices}"
        ))),
    }
}

/// Requires equal shapes except along axis `at`.
pub(super) fn require_same_except(
    x: &TensorType,
    indices: &TensorType,
    at: usize,
) -> Result<(), TypeError> {
    let mut dims = x.shape.iter().zip(&indices.shape).enumerate();
    if x.rank() == indices.rank() && dims.all(|(a, (n, m))| a == at || n.compatible(*m)) {
        return Ok(());
    }
    Err(TypeError::new(format_args!(
        "`indices`: expected the shape of {x} except along axis {at}, found {indices}"
    )))
}

/// Requires the first `batch` dimensions to be equal.
fn check_batch(x: &TensorType, indices: &TensorType, batch: usize) -> Result<(), TypeError> {
    if x.shape[..batch]
        .iter()
        .zip(&indices.shape[..batch])
        .all(|(a, b)| a.compatible(*b))
    {
        return Ok(());
    }
    Err(TypeError::new(format_args!(
        "`indices`: expected the first {batch} dimensions of `x` {x}, found {indices}"
    )))
}

/// If the op validates indices, requires known indices to be within `sizes`, which the indices
/// address in turn.
pub(super) fn check_bounds(i: &Infer<'_>, sizes: &[Dim]) -> Result<(), TypeError> {
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
        Some((v, size)) => Err(TypeError::new(format_args!(
            "`indices`: index {v} is out of bounds for an axis of size {size}"
        ))),
        None => Ok(()),
    }
}
