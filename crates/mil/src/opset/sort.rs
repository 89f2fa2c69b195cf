//! Order, and what is found by looking at values. Source: coremltools `ops/defs/iOS15/tensor_operation.py`.

use super::{BASIC, Dim, Infer, OpDef, Opset, Type, TypeError, one, tensor};
use crate::types::DType;

pub(super) static OPS: &[OpDef] = &[
    // y = the indices of the elements that are not 0, a row each.
    OpDef::new("non_zero", Opset::CoreMl5, &[tensor("x", BASIC)], non_zero),
];

fn non_zero(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let rank = i.ty("x")?.rank();
    let n = i.fresh();
    one(DType::Int32, vec![n, Dim::Known(rank)])
}
