//! Sorting, cumulative sums and searches.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`, `iOS16/tensor_operation.py`,
//! `iOS17/tensor_operation.py`.

use super::OpKind::{Other, Sort};
use super::*;
use crate::types::{DType, TensorType};

const WIDE: &[DType] = &[
    DType::Fp16,
    DType::Fp32,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Uint8,
    DType::Uint16,
];
const COUNT: &[DType] = &[DType::Int8, DType::Int16, DType::Int32];
const AXIS: Param = constant("axis", INT32).optional();
const ASCENDING: Param = constant("ascending", BOOL).optional();
const K: Param = constant("k", INT32).optional();
const SORT: Param = constant("sort", BOOL).optional();
const RETURN_INDICES: Param = constant("return_indices", BOOL).optional();

pub(super) static OPS: &[OpDef] = &[
    // y = the indices that sort x along `axis` (default -1), in descending order unless
    // `ascending`.
    OpDef::new(
        "argsort",
        Sort,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), AXIS, ASCENDING],
        argsort,
    ),
    // y[.., i, ..] = the sum of x[.., ..=i, ..] along `axis` (default 0), without x[.., i, ..] if
    // `exclusive`, and from the other end if `reverse`.
    OpDef::new(
        "cumsum",
        Other,
        Opset::CoreMl5,
        &[
            tensor("x", NUMBER),
            AXIS,
            constant("exclusive", BOOL).optional(),
            constant("reverse", BOOL).optional(),
        ],
        cumsum,
    ),
    // y = the indices of the nonzero elements, one row per element.
    OpDef::new(
        "non_zero",
        Other,
        Opset::CoreMl5,
        &[tensor("x", BASIC)],
        non_zero,
    ),
    // The `k` (default 1; since iOS 17, -1 means all) largest elements along `axis` (default -1),
    // or smallest if `ascending`, and their indices.
    OpDef::new(
        "topk",
        Sort,
        Opset::CoreMl5,
        &[tensor("x", NUMBER), K, AXIS, ASCENDING],
        topk,
    )
    .exact(),
    OpDef::new(
        "topk",
        Sort,
        Opset::CoreMl6,
        &[
            tensor("x", NUMBER),
            K,
            AXIS,
            ASCENDING,
            SORT,
            RETURN_INDICES,
        ],
        topk,
    )
    .exact(),
    OpDef::new(
        "topk",
        Sort,
        Opset::CoreMl7,
        &[
            tensor("x", WIDE),
            constant("k", COUNT).optional(),
            AXIS,
            ASCENDING,
            SORT,
            RETURN_INDICES,
            constant("output_indices_dtype", STRING).optional(),
        ],
        topk,
    )
    .exact(),
];

fn argsort(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    axis(i.int_or("axis", -1)?, x.rank())?;
    tensor_result(DType::Int32, x.shape.clone())
}

fn cumsum(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, at) = (i.ty("x")?, i.int_or("axis", 0)?);
    axis(at, x.rank())?;
    // coremltools rejects these axes.
    if at < -1 {
        return Err(TypeError::new(format_args!(
            "`axis`: expected -1 or more, found {at}"
        )));
    }
    type_of_x(i)
}

fn non_zero(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let rank = i.ty("x")?.rank();
    let n = i.fresh_symbol();
    tensor_result(DType::Int32, vec![n, Dim::Known(rank)])
}

fn topk(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let at = axis(i.int_or("axis", -1)?, x.rank())?;
    let k = i.int_or("k", 1)?;
    let mut shape = x.shape.clone();
    // For k = -1, coremltools infers a size of -1; its documentation says all elements.
    if k != -1 || i.def.since < Opset::CoreMl7 {
        let n = usize::try_from(k)
            .ok()
            .filter(|k| *k > 0 && x.shape[at].known().is_none_or(|n| *k <= n));
        shape[at] = Dim::Known(n.ok_or_else(|| {
            TypeError::new(format_args!(
                "`k`: expected 1 to the size of axis {at} of {x}, found {k}"
            ))
        })?);
    }
    let values = Type::Tensor(TensorType {
        dtype: x.dtype,
        shape: shape.clone(),
    });
    let typed = i.has("output_indices_dtype");
    if !i.bool_or("return_indices", true)? {
        let unasked =
            || TypeError("`output_indices_dtype`: expected `return_indices` to be true".to_owned());
        return if typed {
            Err(unasked())
        } else {
            Ok(vec![values])
        };
    }
    let dtype = match if typed {
        i.string("output_indices_dtype")?
    } else {
        "int32"
    } {
        "int32" => DType::Int32,
        "uint16" => DType::Uint16,
        other => {
            return Err(TypeError::new(format_args!(
                "`output_indices_dtype`: expected int32 or uint16, found `{other}`"
            )));
        }
    };
    Ok(vec![values, Type::Tensor(TensorType { dtype, shape })])
}
