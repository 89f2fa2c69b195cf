//! Tensors of stated content: fills, ranges, one-hot rows, bands.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`, `iOS16/tensor_operation.py`.

use super::{
    BASIC, Dim, INT32, Infer, NUMBER, OpDef, Opset, Type, TypeError, axis, constant, one, same,
    tensor,
};
use crate::types::DType;

pub(super) static OPS: &[OpDef] = &[
    // y[..] = x[.., m, n], where m - n <= `lower` and n - m <= `upper` (below 0: any); 0 elsewhere.
    OpDef::new(
        "band_part",
        Opset::CoreMl5,
        &[
            tensor("x", BASIC),
            constant("lower", INT32).optional(),
            constant("upper", INT32).optional(),
        ],
        band_part,
    ),
    // y = `value` (default fp32 0) throughout.
    OpDef::new(
        "fill",
        Opset::CoreMl5,
        &[tensor("shape", INT32), constant("value", BASIC).optional()],
        fill,
    ),
    OpDef::new(
        "fill_like",
        Opset::CoreMl6,
        &[
            tensor("ref_tensor", BASIC),
            constant("value", BASIC).optional(),
        ],
        fill_like,
    ),
    // y[.., k, ..] = indices[..] == k ? on_value : off_value, with k along a new `axis` (default:
    // the last).
    OpDef::new(
        "one_hot",
        Opset::CoreMl5,
        &[
            tensor("indices", INT32),
            tensor("one_hot_vector_size", INT32),
            constant("axis", INT32).optional(),
            constant("on_value", BASIC).optional(),
            constant("off_value", BASIC).optional(),
        ],
        one_hot,
    ),
    // y = [start, start + step, ..] below `end`.
    OpDef::new(
        "range_1d",
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
        x if x.rank() < 2 => Err(TypeError(format!(
            "`x` is {x}, two axes at least are needed"
        ))),
        _ => same(i),
    }
}

/// The element type of a scalar that may be left out.
fn scalar_dtype(i: &Infer<'_>, name: &str, default: DType) -> Result<DType, TypeError> {
    if !i.has(name) {
        return Ok(default);
    }
    match i.ty(name)? {
        t if t.rank() == 0 => Ok(t.dtype),
        t => Err(TypeError(format!("`{name}` is {t}, a scalar is needed"))),
    }
}

fn fill(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let dtype = scalar_dtype(i, "value", DType::Fp32)?;
    let wanted = i.ints("shape");
    let shape = match (wanted, i.ty("shape")?.shape.as_slice()) {
        (Some(sizes), [_]) => {
            let dims = sizes.iter().map(|n| usize::try_from(*n).map(Dim::Known));
            dims.collect::<Result<_, _>>()
                .map_err(|_| TypeError(format!("`shape` {sizes:?} has a negative size")))?
        }
        (None, [Dim::Known(rank)]) => (0..(*rank).min(64)).map(|_| i.fresh()).collect(),
        _ => {
            return Err(TypeError(
                "`shape` must be a vector of known length".to_owned(),
            ));
        }
    };
    one(dtype, shape)
}

fn fill_like(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let shape = i.ty("ref_tensor")?.shape.clone();
    one(scalar_dtype(i, "value", DType::Fp32)?, shape)
}

fn one_hot(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let indices = i.ty("indices")?;
    let (on, off) = (
        scalar_dtype(i, "on_value", DType::Int32)?,
        scalar_dtype(i, "off_value", DType::Int32)?,
    );
    if on != off {
        return Err(TypeError(format!(
            "`on_value` is {on} and `off_value` is {off}: the types must be equal"
        )));
    }
    scalar_dtype(i, "one_hot_vector_size", DType::Int32)?;
    let n = match i.ints("one_hot_vector_size").as_deref() {
        Some([n]) => match usize::try_from(*n) {
            Ok(n) => Dim::Known(n),
            Err(_) => return Err(TypeError(format!("`one_hot_vector_size` is {n}, below 0"))),
        },
        _ => i.fresh(),
    };
    let mut shape = indices.shape.clone();
    shape.insert(axis(i.int_or("axis", -1)?, indices.rank() + 1)?, n);
    one(on, shape)
}

fn range(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (end, start, step) = (i.ty("end")?, i.ty("start")?, i.ty("step")?);
    if [start, step].iter().any(|t| t.dtype != end.dtype)
        || [end, start, step].iter().any(|t| t.rank() != 0)
    {
        return Err(TypeError(format!(
            "`end` {end}, `start` {start}, `step` {step}: scalars of one type are needed"
        )));
    }
    let at = |name| i.ints(name).and_then(|v| v.first().copied());
    let len = if end.dtype.is_float() {
        match (i.float("end"), i.float("start"), i.float("step")) {
            (Some(e), Some(s), Some(d)) => Dim::Known(float_count(s, e, d)?),
            _ => i.fresh(),
        }
    } else {
        match (at("end"), at("start"), at("step")) {
            (_, _, Some(0)) => return Err(TypeError("`step` is 0".to_owned())),
            (Some(e), Some(s), Some(d)) => {
                let n = (i128::from(e) - i128::from(s) + i128::from(d) - i128::from(d.signum()))
                    / i128::from(d);
                Dim::Known(usize::try_from(n).unwrap_or(0))
            }
            _ => i.fresh(),
        }
    };
    one(end.dtype, vec![len])
}

/// How many numbers a range of floats has, as numpy counts them.
fn float_count(start: f32, end: f32, step: f32) -> Result<usize, TypeError> {
    let n = ((end - start) / step).ceil();
    // Above 2^53 two neighbours are one number; NaN is a range from or to what is no number.
    if step == 0.0 || n.is_nan() || n > 9_007_199_254_740_992.0 {
        return Err(TypeError(format!(
            "a range from {start} to {end} by {step} has no length"
        )));
    }
    Ok(n.max(0.0) as usize)
}
