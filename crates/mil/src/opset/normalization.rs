//! Normalization. Up to iOS 16, every parameter has the element type of `x`; from iOS 17 on, the
//! other parameters share a type of their own.
//!
//! Source: coremltools `ops/defs/iOS15/normalization.py`, `iOS17/normalization.py`.

use std::ops::RangeInclusive;

use super::OpKind::{Channelwise, Normalization};
use super::*;
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

// `epsilon` is exempt: coremltools writes its default in fp32 beside an fp16 `x`.
const BATCH_FACTORS: &[&str] = &["mean", "variance", "gamma", "beta"];
const FACTORS: &[&str] = &["gamma", "beta"];
const LOCAL_FACTORS: &[&str] = &["alpha", "beta", "k"];

pub(super) static OPS: &[OpDef] = &[
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; x [n, C, ..], the other parameters
    // [C]. epsilon defaults to 1e-5.
    OpDef::new("batch_norm", Channelwise, Opset::CoreMl5, BATCH, |i| {
        require_dtype_of_x(i, BATCH_FACTORS).and_then(|()| batch_norm(i))
    }),
    OpDef::new("batch_norm", Channelwise, Opset::CoreMl7, BATCH, |i| {
        require_common_dtype(i, BATCH_FACTORS).and_then(|()| batch_norm(i))
    }),
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the mean and variance of each
    // channel of each batch item. epsilon defaults to 1e-5.
    OpDef::new(
        "instance_norm",
        Normalization,
        Opset::CoreMl5,
        INSTANCE,
        |i| require_dtype_of_x(i, FACTORS).and_then(|()| instance_norm(i)),
    ),
    OpDef::new(
        "instance_norm",
        Normalization,
        Opset::CoreMl7,
        INSTANCE,
        |i| require_common_dtype(i, FACTORS).and_then(|()| instance_norm(i)),
    ),
    // y = x / sqrt(sum of squares over the last three axes + epsilon). epsilon defaults to 1e-6.
    OpDef::new("l2_norm", Normalization, Opset::CoreMl5, L2, l2_norm),
    OpDef::new("l2_norm", Normalization, Opset::CoreMl7, L2, l2_norm),
    // y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the mean and variance over
    // `axes` (default: all). epsilon defaults to 1e-5.
    OpDef::new("layer_norm", Normalization, Opset::CoreMl5, LAYER, |i| {
        require_dtype_of_x(i, FACTORS).and_then(|()| layer_norm(i))
    }),
    OpDef::new("layer_norm", Normalization, Opset::CoreMl7, LAYER, |i| {
        require_common_dtype(i, FACTORS).and_then(|()| layer_norm(i))
    }),
    // y = x / (k + alpha / size * sum of squares over `size` channels)^beta. Defaults: alpha 1e-4,
    // beta 0.75, k 1.
    OpDef::new(
        "local_response_norm",
        Normalization,
        Opset::CoreMl5,
        LOCAL,
        |i| require_dtype_of_x(i, LOCAL_FACTORS).and_then(|()| local_norm(i)),
    ),
    OpDef::new(
        "local_response_norm",
        Normalization,
        Opset::CoreMl7,
        LOCAL,
        |i| require_common_dtype(i, LOCAL_FACTORS).and_then(|()| local_norm(i)),
    ),
];

/// Requires the factors to have the element type of `x`.
fn require_dtype_of_x(i: &Infer<'_>, factors: &[&str]) -> Result<(), TypeError> {
    factors
        .iter()
        .try_for_each(|name| i.require_same_dtype(&["x", name]))
}

/// Requires all bound factors to have one element type.
fn require_common_dtype(i: &Infer<'_>, factors: &[&str]) -> Result<(), TypeError> {
    let bound: Vec<&str> = factors.iter().copied().filter(|name| i.has(name)).collect();
    if bound.is_empty() {
        Ok(())
    } else {
        i.require_same_dtype(&bound)
    }
}

fn batch_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let channels = channels(i, 3..=5)?;
    ["mean", "variance", "gamma", "beta"]
        .into_iter()
        .try_for_each(|name| per_channel(i, name, channels))?;
    type_of_x(i)
}

fn instance_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let channels = channels(i, 3..=4)?;
    ["gamma", "beta"]
        .into_iter()
        .try_for_each(|name| per_channel(i, name, channels))?;
    type_of_x(i)
}

fn l2_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    channels(i, 3..=5)?;
    type_of_x(i)
}

fn local_norm(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    channels(i, 3..=4)?;
    let size = i.int_or("size", 0)?;
    if size < 1 {
        return Err(TypeError::new(format_args!(
            "`size`: expected 1 or more channels, found {size}"
        )));
    }
    type_of_x(i)
}

/// The channels of `x` (axis 1); checks the rank of `x`.
fn channels(i: &Infer<'_>, ranks: RangeInclusive<usize>) -> Result<Dim, TypeError> {
    let x = i.ty("x")?;
    if ranks.contains(&x.rank()) {
        return Ok(x.shape[1]);
    }
    Err(TypeError::new(format_args!(
        "`x`: expected rank {} to {}, found {x}",
        ranks.start(),
        ranks.end()
    )))
}

/// Requires a bound parameter to have one number per channel.
fn per_channel(i: &Infer<'_>, name: &str, channels: Dim) -> Result<(), TypeError> {
    if i.has(name) && !matches!(i.ty(name)?.shape.as_slice(), [n] if n.compatible(channels)) {
        return Err(TypeError::new(format_args!(
            "`{name}`: expected one number for each of {channels} channels, found {}",
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
        require_distinct(&axes)?;
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
            return Err(TypeError::new(format_args!(
                "`{name}`: expected the normalized axes {normed}, found {}",
                i.ty(name)?
            )));
        }
    }
    tensor_result(x.dtype, x.shape.clone())
}
