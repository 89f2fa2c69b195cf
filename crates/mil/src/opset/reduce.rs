//! Reductions along axes. Source: coremltools `ops/defs/iOS15/reduction.py`, `iOS17/reduction.py`.

use super::OpKind::Reduction;
use super::*;
use crate::types::DType;

const PARAMS: &[Param] = &[
    tensor("x", NUMBER),
    constant("axes", INT32).optional(),
    constant("keep_dims", BOOL).optional(),
];
const ARG: &[Param] = &[
    tensor("x", NUMBER),
    constant("axis", INT32).optional(),
    constant("keep_dims", BOOL).optional(),
];
const TYPED_ARG: &[Param] = &[
    tensor("x", NUMBER),
    constant("axis", INT32).optional(),
    constant("keep_dims", BOOL).optional(),
    constant("output_dtype", STRING).optional(),
];

pub(super) static OPS: &[OpDef] = &[
    // y = the position of the first largest element along `axis` (default -1), as `output_dtype`
    // (default int32).
    OpDef::new("reduce_argmax", Reduction, Opset::CoreMl5, ARG, arg_reduce),
    OpDef::new(
        "reduce_argmax",
        Reduction,
        Opset::CoreMl7,
        TYPED_ARG,
        arg_reduce,
    ),
    // y = the position of the first smallest element.
    OpDef::new("reduce_argmin", Reduction, Opset::CoreMl5, ARG, arg_reduce),
    OpDef::new(
        "reduce_argmin",
        Reduction,
        Opset::CoreMl7,
        TYPED_ARG,
        arg_reduce,
    ),
    // y = sum of abs(x) over `axes` (default: all), also in the ops below.
    OpDef::new("reduce_l1_norm", Reduction, Opset::CoreMl5, PARAMS, reduce),
    // y = sqrt(sum of x^2).
    OpDef::new("reduce_l2_norm", Reduction, Opset::CoreMl5, PARAMS, reduce),
    // y = ln(sum of x).
    OpDef::new("reduce_log_sum", Reduction, Opset::CoreMl5, PARAMS, reduce),
    // y = ln(sum of exp(x)).
    OpDef::new(
        "reduce_log_sum_exp",
        Reduction,
        Opset::CoreMl5,
        PARAMS,
        reduce,
    ),
    // y = the largest element, the mean, the smallest element, the product, the sum.
    OpDef::new("reduce_max", Reduction, Opset::CoreMl5, PARAMS, reduce).exact(),
    OpDef::new("reduce_mean", Reduction, Opset::CoreMl5, PARAMS, reduce),
    OpDef::new("reduce_min", Reduction, Opset::CoreMl5, PARAMS, reduce).exact(),
    OpDef::new("reduce_prod", Reduction, Opset::CoreMl5, PARAMS, reduce),
    OpDef::new("reduce_sum", Reduction, Opset::CoreMl5, PARAMS, reduce),
    // y = sum of x^2.
    OpDef::new(
        "reduce_sum_square",
        Reduction,
        Opset::CoreMl5,
        PARAMS,
        reduce,
    ),
];

fn reduce(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let axes = if i.has("axes") {
        let mut axes = i
            .constant_ints("axes")?
            .into_iter()
            .map(|a| axis(a, x.rank()))
            .collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        require_distinct(&axes)?;
        axes
    } else {
        (0..x.rank()).collect()
    };
    let shape = reduced_shape(&x.shape, &axes, i.bool_or("keep_dims", false)?);
    tensor_result(x.dtype, shape)
}

fn arg_reduce(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let at = axis(i.int_or("axis", -1)?, x.rank())?;
    let shape = reduced_shape(&x.shape, &[at], i.bool_or("keep_dims", false)?);
    let dtype = i.choice("output_dtype", &["int32", "uint16"], "int32")?;
    tensor_result(
        if dtype == "int32" {
            DType::Int32
        } else {
            DType::Uint16
        },
        shape,
    )
}

fn reduced_shape(shape: &[Dim], axes: &[usize], keep_dims: bool) -> Vec<Dim> {
    let dims = shape.iter().enumerate();
    if keep_dims {
        return dims
            .map(|(i, d)| if axes.contains(&i) { Dim::Known(1) } else { *d })
            .collect();
    }
    dims.filter(|(i, _)| !axes.contains(i))
        .map(|(_, d)| *d)
        .collect()
}
