//! Gathering. Source: coremltools `ops/defs/iOS17/scatter_gather.py`.

use super::{BOOL, INDEX, INT32, Infer, OpDef, Opset, Type, TypeError, axis, constant, one, tensor};
use crate::types::DType;

const VALUES: &[DType] =
    &[DType::Fp16, DType::Fp32, DType::Int32, DType::Int16, DType::Uint16, DType::Int8, DType::Uint8];

pub(super) static OPS: &[OpDef] = &[
    // y = x with the axis `axis` replaced by the axes of `indices`.
    OpDef::new(
        "gather",
        Opset::CoreMl5,
        &[
            tensor("x", VALUES),
            tensor("indices", INDEX),
            constant("axis", INT32).optional(),
            constant("batch_dims", INT32).optional(),
            constant("validate_indices", BOOL).optional(),
        ],
        gather,
    ),
];

fn gather(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, indices) = (i.ty("x")?, i.ty("indices")?);
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    let batch = usize::try_from(i.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    if batch > at || batch > indices.rank() {
        return Err(TypeError(format!("`batch_dims` {batch} is above axis {at} or the rank of `indices` {indices}")));
    }
    if !x.shape[..batch].iter().zip(&indices.shape[..batch]).all(|(a, b)| a.compatible(*b)) {
        return Err(TypeError(format!("`x` {x} and `indices` {indices} differ in the first {batch} axes")));
    }
    let shape = [&x.shape[..at], &indices.shape[batch..], &x.shape[at + 1..]].concat();
    one(x.dtype, shape)
}
