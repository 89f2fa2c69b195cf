//! Tensors with computed content: fills, ranges, one-hot rows, bands.

use super::OpKind::{Fill, Other};
use super::*;
use crate::types::DType;

pub(super) static OPS: &[OpDef] = &[
    // y[.., m, n] = x[.., m, n] where m - n <= `lower` and n - m <= `upper` (a negative bound is no
    // bound), else 0.
    OpDef::new(
        "band_part",
        Other,
        Opset::CoreMl5,
        &[
            tensor("x", BASIC),
            constant("lower", INT32).optional(),
            constant("upper", INT32).optional(),
        ],
        band_part,
    )
    .exact(),
    // y[..] = `value` (default: fp32 0), of shape `shape`.
    OpDef::new(
        "fill",
        Fill,
        Opset::CoreMl5,
        &[tensor("shape", INT32), constant("value", BASIC).optional()],
        fill,
    )
    .exact(),
    OpDef::new(
        // y[..] = `value` (default: fp32 0), of the shape of `ref_tensor`.
        "fill_like",
        Fill,
        Opset::CoreMl6,
        &[
            tensor("ref_tensor", BASIC),
            constant("value", BASIC).optional(),
        ],
        fill_like,
    )
    .exact(),
    // y[.., k, ..] = indices[..] == k ? on_value : off_value, with k along a new axis at `axis`
    // (default: the last).
    OpDef::new(
        "one_hot",
        Other,
        Opset::CoreMl5,
        &[
            tensor("indices", INT32),
            tensor("one_hot_vector_size", INT32),
            constant("axis", INT32).optional(),
            constant("on_value", BASIC).optional(),
            constant("off_value", BASIC).optional(),
        ],
        one_hot,
    )
    .exact(),
    // y = [start, start + step, ..] below `end`.
    OpDef::new(
        "range_1d",
        Other,
        Opset::CoreMl5,
        &[
            tensor("end", NUMBER),
            tensor("start", NUMBER),
            tensor("step", NUMBER),
        ],
        range,
    ),
];

fn band_part(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.int_or("lower", -1)?;
    i.int_or("upper", -1)?;
    match i.ty("x")? {
        x if x.rank() < 2 => Err(TypeError::new(format_args!(
            "`x`: expected rank 2 or more, found {x}"
        ))),
        _ => type_of_x(i),
    }
}

/// The element type of an optional scalar, or `default` if it is not bound.
fn scalar_dtype(i: &Infer<'_>, name: &str, default: DType) -> Result<DType, TypeError> {
    if !i.has(name) {
        return Ok(default);
    }
    match i.ty(name)? {
        t if t.rank() == 0 => Ok(t.dtype),
        t => Err(TypeError::new(format_args!(
            "`{name}`: expected a scalar, found {t}"
        ))),
    }
}

fn fill(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let dtype = scalar_dtype(i, "value", DType::Fp32)?;
    let wanted = i.ints("shape");
    let shape = match (wanted, i.ty("shape")?.shape.as_slice()) {
        (Some(sizes), [_]) => {
            let dims = sizes.iter().map(|n| usize::try_from(*n).map(Dim::Known));
            dims.collect::<Result<_, _>>().map_err(|_| {
                TypeError::new(format_args!(
                    "`shape`: expected sizes of 0 or more, found {sizes:?}"
                ))
            })?
        }
        (None, [Dim::Known(rank)]) => (0..(*rank).min(64)).map(|_| i.fresh_symbol()).collect(),
        _ => {
            return Err(TypeError(
                "`shape`: expected a vector of known length".to_owned(),
            ));
        }
    };
    tensor_result(dtype, shape)
}

fn fill_like(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let shape = i.ty("ref_tensor")?.shape.clone();
    tensor_result(scalar_dtype(i, "value", DType::Fp32)?, shape)
}

fn one_hot(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let indices = i.ty("indices")?;
    let (on, off) = (
        scalar_dtype(i, "on_value", DType::Int32)?,
        scalar_dtype(i, "off_value", DType::Int32)?,
    );
    if on != off {
        return Err(TypeError::new(format_args!(
            "`off_value`: expected the element type of `on_value` ({on}), found {off}"
        )));
    }
    scalar_dtype(i, "one_hot_vector_size", DType::Int32)?;
    let n = match i.ints("one_hot_vector_size").as_deref() {
        Some([n]) => match usize::try_from(*n) {
            Ok(n) => Dim::Known(n),
            Err(_) => {
                return Err(TypeError::new(format_args!(
                    "`one_hot_vector_size`: expected 0 or more, found {n}"
                )));
            }
        },
        _ => i.fresh_symbol(),
    };
    let mut shape = indices.shape.clone();
    shape.insert(axis(i.int_or("axis", -1)?, indices.rank() + 1)?, n);
    tensor_result(on, shape)
}

fn range(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (end, start, step) = (i.ty("end")?, i.ty("start")?, i.ty("step")?);
    if [start, step].iter().any(|t| t.dtype != end.dtype)
        || [end, start, step].iter().any(|t| t.rank() != 0)
    {
        return Err(TypeError::new(format_args!(
            "expected scalars of one type, found `end` {end}, `start` {start} and `step` {step}"
        )));
    }
    let at = |name| i.ints(name).and_then(|v| v.first().copied());
    let len = if end.dtype.is_float() {
        match (i.float("end"), i.float("start"), i.float("step")) {
            (Some(e), Some(s), Some(d)) => Dim::Known(float_count(s, e, d)?),
            _ => i.fresh_symbol(),
        }
    } else {
        match (at("end"), at("start"), at("step")) {
            (_, _, Some(0)) => {
                return Err(TypeError(
                    "`step`: expected a nonzero number, found 0".to_owned(),
                ));
            }
            (Some(e), Some(s), Some(d)) => {
                let n = (i128::from(e) - i128::from(s) + i128::from(d) - i128::from(d.signum()))
                    / i128::from(d);
                Dim::Known(usize::try_from(n).unwrap_or(0))
            }
            _ => i.fresh_symbol(),
        }
    };
    tensor_result(end.dtype, vec![len])
}

/// Number of elements of a range of floats, counted like numpy's `arange`.
fn float_count(start: f32, end: f32, step: f32) -> Result<usize, TypeError> {
    let n = ((end - start) / step).ceil();
    // Above 2^53 neighboring integers are the same f64. NaN arises from an infinite or NaN bound.
    if step == 0.0 || n.is_nan() || n > 9_007_199_254_740_992.0 {
        return Err(TypeError::new(format_args!(
            "cannot count the elements from {start} to {end} in steps of {step}"
        )));
    }
    Ok(n.max(0.0) as usize)
}
