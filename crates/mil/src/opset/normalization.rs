//! Normalisation. Up to iOS 16 every parameter has the element type of `x`; from iOS 17 on the
//! others have one of their own.
//!
//! Source: coremltools `ops/defs/iOS15/normalization.py`, `iOS17/normalization.py`.

use std::ops::RangeInclusive;

use super::{
    Dim, FLOAT, INT32, Infer, OpDef, Opset, Param, Type, TypeError, axis, constant, distinct, one,
    same, tensor,
};
use crate::types::TensorType;

const BATCH: &[Param] = &[
    tensor("x", FLOAT),
    constant("mean", FLOAT),
    constant("variance", FLOAT),
    constant("gamma", FLOAT).optional(),
    constant("beta", FLOAT).optional(),
    constant("epsilon", FLOAT).optional(),
];
const INSTANCE: &[Param] = &[BATCH[0], BATCH[3], BATCH[4], BATCH[5]];
const L2: &[Param] = &[BATCH[0], BATCH[5]];
const LAYER: &[Param] = &[
    BATCH[0],
    constant("axes", INT32).optional(),
    BATCH[3],
    BATCH[4],
    BATCH[5],
];
const LOCAL: &[Param] = &[
    BATCH[0],
    constant("size", INT32),
    constant("alpha", FLOAT).optional(),
    constant("beta", FLOAT).optional(),
    constant("k", FLOAT).optional(),
];

// Not `epsilon`: coremltools writes its default in fp32 beside fp16.
const BATCH_FACTORS: &[&str] = &["mean", "variance", "gamma", "beta"];
const FACTORS: &[&str] = &["gamma", "beta"];
const LOCAL_FACTORS: &[&str] = &["alpha", "beta", "k"];

pub(super) static OPS: &[OpDef] = &[
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; x [n, C, ..], the others [C];
    // epsilon is 1e-5.
    OpDef::new("batch_norm", Opset::CoreMl5, BATCH, |i| {
        as_x(i, BATCH_FACTORS).and_then(|()| batch_norm(i))
    }),
    OpDef::new("batch_norm", Opset::CoreMl7, BATCH, |i| {
        alike(i, BATCH_FACTORS).and_then(|()| batch_norm(i))
    }),
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, both of each channel of each item;
    // epsilon is 1e-5.
    OpDef::new("instance_norm", Opset::CoreMl5, INSTANCE, |i| {
        as_x(i, FACTORS).and_then(|()| instance_norm(i))
    }),
    OpDef::new("instance_norm", Opset::CoreMl7, INSTANCE, |i| {
        alike(i, FACTORS).and_then(|()| instance_norm(i))
    }),
    // y = x / sqrt(sum of squares over the last three axes + epsilon); epsilon is 1e-6.
    OpDef::new("l2_norm", Opset::CoreMl5, L2, l2_norm),
    OpDef::new("l2_norm", Opset::CoreMl7, L2, l2_norm),
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta over `axes` (default all); epsilon
    // is 1e-5.
    OpDef::new("layer_norm", Opset::CoreMl5, LAYER, |i| {
        as_x(i, FACTORS).and_then(|()| layer_norm(i))
    }),
    OpDef::new("layer_norm", Opset::CoreMl7, LAYER, |i| {
        alike(i, FACTORS).and_then(|()| layer_norm(i))
    }),
    // y = x / (k + alpha / size * sum of squares over `size` channels)^beta; alpha 1e-4, beta 0.75,
    // k 1.
    OpDef::new("local_response_norm", Opset::CoreMl5, LOCAL, |i| {
        as_x(i, LOCAL_FACTORS).and_then(|()| local_norm(i))
    }),
    OpDef::new("local_response_norm", Opset::CoreMl7, LOCAL, |i| {
        alike(i, LOCAL_FACTORS).and_then(|()| local_norm(i))
    }),
];

/// Refuse factors that are not of the element type of `x`.
fn as_x(i: &Infer<'_>, factors: &[&str]) -> Result<(), TypeError> {
    factors.iter().try_for_each(|name| i.alike(&["x", name]))
}

/// Refuse factors of different element types.
fn alike(i: &Infer<'_>, factors: &[&str]) -> Result<(), TypeError> {
    let bound: Vec<&str> = factors.iter().copied().filter(|name| i.has(name)).collect();
    if bound.is_empty() {
        Ok(())
    } else {
        i.alike(&bound)
    }
}

fn batch_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let channels = channels(i, 3..=5)?;
    ["mean", "variance", "gamma", "beta"]
        .into_iter()
        .try_for_each(|name| per_channel(i, name, channels))?;
    same(i)
}

fn instance_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let channels = channels(i, 3..=4)?;
    ["gamma", "beta"]
        .into_iter()
        .try_for_each(|name| per_channel(i, name, channels))?;
    same(i)
}

fn l2_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    channels(i, 3..=5)?;
    same(i)
}

fn local_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    channels(i, 3..=4)?;
    let size = i.int_or("size", 0)?;
    if size < 1 {
        return Err(TypeError(format!(
            "`size` is {size}, at least one channel is needed"
        )));
    }
    same(i)
}

/// The channels of `x`, whose rank must be one of these.
fn channels(i: &Infer<'_>, ranks: RangeInclusive<usize>) -> Result<Dim, TypeError> {
    let x = i.ty("x")?;
    if ranks.contains(&x.rank()) {
        return Ok(x.shape[1]);
    }
    Err(TypeError(format!(
        "`x` is {x}, of rank {} to {} is needed",
        ranks.start(),
        ranks.end()
    )))
}

fn per_channel(i: &Infer<'_>, name: &str, channels: Dim) -> Result<(), TypeError> {
    if i.has(name) && !matches!(i.ty(name)?.shape.as_slice(), [n] if n.compatible(channels)) {
        return Err(TypeError(format!(
            "`{name}` is {}, the {channels} channels need one each",
            i.ty(name)?
        )));
    }
    Ok(())
}

fn layer_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    let mut axes: Vec<usize> = (0..x.rank()).collect();
    if i.has("axes") {
        axes = i
            .constant_ints("axes")?
            .into_iter()
            .map(|a| axis(a, x.rank()))
            .collect::<Result<Vec<_>, _>>()?;
        axes.sort_unstable();
        distinct(&axes)?;
    }
    let normed = TensorType {
        dtype: x.dtype,
        shape: axes.iter().map(|a| x.shape[*a]).collect(),
    };
    for name in ["gamma", "beta"].into_iter().filter(|name| i.has(name)) {
        let shape = &i.ty(name)?.shape;
        if shape.len() != axes.len()
            || !shape
                .iter()
                .zip(&normed.shape)
                .all(|(a, b)| a.compatible(*b))
        {
            return Err(TypeError(format!(
                "`{name}` is {}, the normalised axes are {normed}",
                i.ty(name)?
            )));
        }
    }
    one(x.dtype, x.shape.clone())
}
