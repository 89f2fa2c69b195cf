//! Ops that join, split, repeat and pad tensors.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_operation.py`.

use super::OpKind::Fill;
use super::*;
use crate::types::TensorType;

const VALUES: Param = Param {
    name: "values",
    accepts: Accepts::Tensors,
    required: true,
    constant: false,
};

pub(super) static OPS: &[OpDef] = &[
    // y = the values concatenated along `axis`; with `interleave`, their elements alternate.
    // Scalars make a vector.
    OpDef::new(
        "concat",
        OpKind::Copy,
        Opset::CoreMl5,
        &[
            VALUES,
            constant("axis", INT32),
            constant("interleave", BOOL).optional(),
        ],
        concat,
    ),
    // y = the values stacked along a new axis at `axis`.
    OpDef::new(
        "stack",
        OpKind::Copy,
        Opset::CoreMl5,
        &[VALUES, constant("axis", INT32)],
        stack,
    ),
    // x split along `axis` into `num_splits` equal parts or into parts of `split_sizes`.
    OpDef::new(
        "split",
        OpKind::Copy,
        Opset::CoreMl5,
        &[
            tensor("x", BASIC),
            constant("num_splits", INT32).optional(),
            constant("split_sizes", INT32).optional(),
            constant("axis", INT32),
        ],
        split,
    ),
    // y = x repeated `reps` times along each axis.
    OpDef::new(
        "tile",
        OpKind::Copy,
        Opset::CoreMl5,
        &[tensor("x", BASIC), tensor("reps", INT32)],
        tile,
    ),
    // y = x with `pad` elements before and after each of the last axes: `constant_val` (default 0),
    // reflected elements or the edge element, by `mode`.
    OpDef::new(
        "pad",
        Fill,
        Opset::CoreMl5,
        &[
            tensor("x", FLOAT),
            tensor("pad", INT32),
            constant("mode", STRING).optional(),
            constant("constant_val", FLOAT).optional(),
        ],
        pad,
    )
    .exact(),
];

fn concat(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let values = i.tuple("values")?;
    let first = values[0];
    let at = axis(i.int_or("axis", 0)?, first.rank().max(1))?;
    let interleave = i.bool_or("interleave", false)?;
    let mut total = Dim::Known(0);
    for v in &values {
        let joins = |j: usize, a: Dim, b: Dim| (j == at && !interleave) || a.compatible(b);
        let agrees = v.dtype == first.dtype
            && v.rank() == first.rank()
            && v.shape
                .iter()
                .zip(&first.shape)
                .enumerate()
                .all(|(j, (a, b))| joins(j, *a, *b));
        if !agrees {
            return Err(TypeError::new(format_args!(
                "`values`: cannot concatenate {first} and {v} along axis {at}"
            )));
        }
        total = match (total, v.shape.get(at).copied().unwrap_or(Dim::Known(1))) {
            (Dim::Known(a), Dim::Known(b)) => Dim::Known(a.saturating_add(b)),
            _ => i.fresh_symbol(),
        };
    }
    let mut shape = first.shape.clone();
    shape.truncate(at);
    shape.push(total);
    shape.extend(first.shape.iter().skip(at + 1));
    tensor_result(first.dtype, shape)
}

fn stack(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let values = i.tuple("values")?;
    let first = values
        .iter()
        .find(|v| v.known_shape().is_some())
        .unwrap_or(&values[0]);
    if let Some(v) = values.iter().find(|v| !v.compatible(first)) {
        return Err(TypeError::new(format_args!(
            "`values`: cannot stack {first} and {v}"
        )));
    }
    let mut shape = first.shape.clone();
    shape.insert(
        axis(i.int_or("axis", 0)?, first.rank() + 1)?,
        Dim::Known(values.len()),
    );
    tensor_result(first.dtype, shape)
}

fn split(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let at = axis(i.int_or("axis", 0)?, x.rank())?;
    let sizes = split_sizes(i, x, at)?;
    Ok(sizes
        .into_iter()
        .map(|n| {
            let mut part = x.clone();
            part.shape[at] = n;
            Type::Tensor(part)
        })
        .collect())
}

fn split_sizes(i: &mut Infer<'_>, x: &TensorType, at: usize) -> Result<Vec<Dim>, TypeError> {
    let misfit = || {
        TypeError::new(format_args!(
            "`num_splits` or `split_sizes` does not divide axis {at} of {x}"
        ))
    };
    let n = if i.has("num_splits") {
        Some(i.int_or("num_splits", 0)?)
    } else {
        None
    };
    if i.has("split_sizes") {
        let sizes: Option<Vec<usize>> = i
            .constant_ints("split_sizes")?
            .into_iter()
            .map(|n| usize::try_from(n).ok())
            .collect();
        let sizes = sizes
            .filter(|sizes| n.is_none_or(|n| n == sizes.len() as i64))
            .ok_or_else(misfit)?;
        let total = sizes
            .iter()
            .try_fold(0usize, |t, n| t.checked_add(*n))
            .ok_or_else(misfit)?;
        let fits = x.shape[at].compatible(Dim::Known(total));
        return if fits {
            Ok(sizes.into_iter().map(Dim::Known).collect())
        } else {
            Err(misfit())
        };
    }
    let n = n
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0 && *n <= 1 << 16)
        .ok_or_else(misfit)?;
    match x.shape[at] {
        Dim::Known(size) if size % n == 0 => Ok(vec![Dim::Known(size / n); n]),
        Dim::Known(_) => Err(misfit()),
        // Equal parts of a size that is known only at run time.
        Dim::Symbol(_) => Ok(vec![i.fresh_symbol(); n]),
    }
}

fn tile(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let Some(reps) = i.ints("reps") else {
        let shape = x.shape.iter().map(|_| i.fresh_symbol()).collect();
        return tensor_result(x.dtype, shape);
    };
    if reps.len() != x.rank() || reps.iter().any(|r| *r < 1) {
        return Err(TypeError::new(format_args!(
            "`reps`: expected a positive number per axis of {x}, found {reps:?}"
        )));
    }
    let mut shape = Vec::with_capacity(reps.len());
    for (dim, rep) in x.shape.iter().zip(reps) {
        shape.push(match (dim, rep) {
            (d, 1) => *d,
            (Dim::Known(n), r) => Dim::Known(n.saturating_mul(r as usize)),
            (Dim::Symbol(_), _) => i.fresh_symbol(),
        });
    }
    tensor_result(x.dtype, shape)
}

/// Values of `mode`: the content of the padding.
const PAD_MODES: [&str; 3] = ["constant", "reflect", "replicate"];

fn pad(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, pad) = (i.ty("x")?, i.ty("pad")?);
    let mode = if i.has("mode") {
        i.string("mode")?
    } else {
        "constant"
    };
    if !PAD_MODES.contains(&mode) {
        return Err(TypeError::new(format_args!(
            "`mode`: expected {}, found `{mode}`",
            one_of(&PAD_MODES)
        )));
    }
    // coremltools writes its default in fp32 beside an fp16 `x`.
    if i.has("constant_val") && !x.dtype.is_float() && i.ty("constant_val")?.dtype != x.dtype {
        return Err(TypeError::new(format_args!(
            "`constant_val`: expected the element type of `x` {x}, found {}",
            i.ty("constant_val")?
        )));
    }
    let Some(amounts) = i.ints("pad") else {
        if pad.shape != [Dim::Known(2 * x.rank())] {
            return Err(TypeError::new(format_args!(
                "`pad`: expected a constant or {} entries, found {pad}",
                2 * x.rank()
            )));
        }
        let shape = x.shape.iter().map(|_| i.fresh_symbol()).collect();
        return tensor_result(x.dtype, shape);
    };
    let n = amounts.len() / 2;
    if pad.rank() != 1 || amounts.len() % 2 != 0 || n > x.rank() || amounts.iter().any(|a| *a < 0) {
        return Err(TypeError::new(format_args!(
            "`pad`: expected pairs of 0 or more for the last axes of {x}, found {amounts:?}"
        )));
    }
    let mut shape = x.shape.clone();
    let first = x.rank() - n;
    for (dim, ends) in shape[first..].iter_mut().zip(amounts.chunks_exact(2)) {
        let inside = |n: usize| ends.iter().all(|e| (*e as usize) < n.max(1));
        *dim = match *dim {
            Dim::Known(n) if mode == "reflect" && !inside(n) => {
                return Err(TypeError::new(format_args!(
                    "`pad`: cannot reflect an axis of size {n} by {ends:?}"
                )));
            }
            Dim::Known(n) => Dim::Known(
                n.saturating_add(ends[0] as usize)
                    .saturating_add(ends[1] as usize),
            ),
            symbol if ends == [0, 0] => symbol,
            Dim::Symbol(_) => i.fresh_symbol(),
        };
    }
    tensor_result(x.dtype, shape)
}
