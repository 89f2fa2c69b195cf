//! Random numbers. Source: coremltools `ops/defs/iOS15/random.py`.
//!
//! `seed` says that the numbers are the same at each call; -1, the default, that they need not be.

use super::{
    Dim, FLOAT, INT32, Infer, OpDef, Opset, STRING, Type, TypeError, constant, one, tensor,
};
use crate::types::DType;

pub(super) static OPS: &[OpDef] = &[
    // y[..] = 1 with probability `prob` (default 0.5), else 0.
    OpDef::new(
        "random_bernoulli",
        Opset::CoreMl5,
        &[
            tensor("shape", INT32),
            constant("prob", FLOAT).optional(),
            constant("seed", INT32).optional(),
        ],
        |i| distribution(i, &["prob"]),
    ),
    // y[.., k] = an index of the last axis of x, drawn by x as `mode` says: logits (the default) or
    // probs.
    OpDef::new(
        "random_categorical",
        Opset::CoreMl5,
        &[
            tensor("x", FLOAT),
            constant("mode", STRING).optional(),
            constant("size", INT32).optional(),
            constant("seed", INT32).optional(),
        ],
        categorical,
    ),
    // y[..] of the normal distribution of `mean` (default 0) and `stddev` (default 1).
    OpDef::new(
        "random_normal",
        Opset::CoreMl5,
        &[
            tensor("shape", INT32),
            constant("mean", FLOAT).optional(),
            constant("stddev", FLOAT).optional(),
            constant("seed", INT32).optional(),
        ],
        |i| distribution(i, &["mean", "stddev"]),
    ),
    // y[..] evenly from `low` (default 0), included, to `high` (default 1), not included.
    OpDef::new(
        "random_uniform",
        Opset::CoreMl5,
        &[
            tensor("shape", INT32),
            constant("low", FLOAT).optional(),
            constant("high", FLOAT).optional(),
            constant("seed", INT32).optional(),
        ],
        |i| distribution(i, &["low", "high"]),
    ),
];

/// The result has the shape that `shape` says and the element type of the parameters, which are
/// fp32 where left out.
fn distribution(i: &mut Infer<'_>, params: &[&str]) -> Result<Vec<Type>, TypeError> {
    let dtypes = params.iter().map(|name| {
        if i.has(name) {
            i.ty(name).map(|t| t.dtype)
        } else {
            Ok(DType::Fp32)
        }
    });
    let dtypes = dtypes.collect::<Result<Vec<_>, _>>()?;
    if dtypes.iter().any(|d| *d != dtypes[0]) {
        let names = params.join("` and `");
        return Err(TypeError(format!(
            "`{names}` must have one element type, fp32 where one is left out"
        )));
    }
    for name in params.iter().chain(&["seed"]).filter(|name| i.has(name)) {
        if i.ty(name)?.rank() != 0 {
            return Err(TypeError(format!(
                "`{name}` is {}: a scalar is needed",
                i.ty(name)?
            )));
        }
    }
    let shape = match (i.ints("shape"), i.ty("shape")?.shape.as_slice()) {
        (Some(sizes), [_]) => sizes.into_iter().map(size).collect::<Result<Vec<_>, _>>()?,
        // As many symbols as the rank may be.
        (None, [Dim::Known(rank @ 0..=5)]) => (0..*rank).map(|_| i.fresh()).collect(),
        _ => {
            let ty = i.ty("shape")?;
            return Err(TypeError(format!(
                "`shape` is {ty}: a vector of a known length up to 5 is needed"
            )));
        }
    };
    one(dtypes[0], shape)
}

fn size(n: i64) -> Result<Dim, TypeError> {
    let n = usize::try_from(n).ok().filter(|n| *n > 0);
    n.map(Dim::Known)
        .ok_or_else(|| TypeError("`shape` has a size that is not above 0".to_owned()))
}

fn categorical(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if i.has("mode") && !["logits", "probs"].contains(&i.string("mode")?) {
        return Err(TypeError(format!(
            "`mode` is `{}`, it can be logits or probs",
            i.string("mode")?
        )));
    }
    let mut shape = x.shape.clone();
    match shape.last_mut() {
        Some(last) => *last = size(i.int_or("size", 1)?)?,
        None => {
            return Err(TypeError(
                "`x` is a scalar: it needs an axis of classes".to_owned(),
            ));
        }
    }
    one(x.dtype, shape)
}
