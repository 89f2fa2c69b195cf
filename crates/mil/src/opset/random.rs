//! Random numbers. A `seed` other than -1 (the default) makes each call return the same numbers.
//!
//! Source: coremltools `ops/defs/iOS15/random.py`.

use super::OpKind::Random;
use super::*;
use crate::types::DType;

pub(super) static OPS: &[OpDef] = &[
    // y[..] = 1 with probability `prob` (default 0.5), else 0.
    OpDef::new(
        "random_bernoulli",
        Random,
        Opset::CoreMl5,
        &[
            tensor("shape", INT32),
            constant("prob", FLOAT).optional(),
            constant("seed", INT32).optional(),
        ],
        |i| distribution(i, &["prob"]),
    ),
    // y[.., k] = an index along the last axis of x, drawn with the weights in x: logits (the
    // default) or probabilities, by `mode`.
    OpDef::new(
        "random_categorical",
        Random,
        Opset::CoreMl5,
        &[
            tensor("x", FLOAT),
            constant("mode", STRING).optional(),
            constant("size", INT32).optional(),
            constant("seed", INT32).optional(),
        ],
        categorical,
    ),
    // y[..] = a sample of the normal distribution with `mean` (default 0) and `stddev` (default 1).
    OpDef::new(
        "random_normal",
        Random,
        Opset::CoreMl5,
        &[
            tensor("shape", INT32),
            constant("mean", FLOAT).optional(),
            constant("stddev", FLOAT).optional(),
            constant("seed", INT32).optional(),
        ],
        |i| distribution(i, &["mean", "stddev"]),
    ),
    // y[..] = a sample of the uniform distribution over [`low`, `high`) (default [0, 1)).
    OpDef::new(
        "random_uniform",
        Random,
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

/// The result has the shape in `shape` and the element type of `params`, which is fp32 for unbound
/// ones.
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
        return Err(TypeError::new(format_args!(
            "expected `{names}` of one element type (fp32 if not bound)"
        )));
    }
    for name in params.iter().chain(&["seed"]).filter(|name| i.has(name)) {
        if i.ty(name)?.rank() != 0 {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected a scalar, found {}",
                i.ty(name)?
            )));
        }
    }
    let shape = match (i.ints("shape"), i.ty("shape")?.shape.as_slice()) {
        (Some(sizes), [_]) => sizes.into_iter().map(size).collect::<Result<Vec<_>, _>>()?,
        // The number of symbols is limited by the maximum rank.
        (None, [Dim::Known(rank @ 0..=5)]) => (0..*rank).map(|_| i.fresh_symbol()).collect(),
        _ => {
            let ty = i.ty("shape")?;
            return Err(TypeError::new(format_args!(
                "`shape`: expected a vector of known length 5 or less, found {ty}"
            )));
        }
    };
    tensor_result(dtypes[0], shape)
}

fn size(value: i64) -> Result<Dim, TypeError> {
    let n = usize::try_from(value).ok().filter(|n| *n > 0);
    n.map(Dim::Known).ok_or_else(|| {
        TypeError::new(format_args!(
            "`shape`: expected positive sizes, found {value}"
        ))
    })
}

fn categorical(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if i.has("mode") && !["logits", "probs"].contains(&i.string("mode")?) {
        return Err(TypeError::new(format_args!(
            "`mode`: expected `logits` or `probs`, found `{}`",
            i.string("mode")?
        )));
    }
    let mut shape = x.shape.clone();
    match shape.last_mut() {
        Some(last) => *last = size(i.int_or("size", 1)?)?,
        None => {
            return Err(TypeError(
                "`x`: expected an axis of classes, found a scalar".to_owned(),
            ));
        }
    }
    tensor_result(x.dtype, shape)
}
