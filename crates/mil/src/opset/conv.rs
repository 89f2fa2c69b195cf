//! Convolutions over one to three spatial axes.
//!
//! Source: coremltools `ops/defs/iOS15/conv.py`, `iOS17/conv.py`.

use super::OpKind::Product;
use super::window::Windows;
use super::*;
use crate::types::{DType, TensorType};

const UINT8: &[DType] = &[DType::Uint8];
const X: Param = tensor("x", FLOAT);
const STRIDES: Param = constant("strides", INT32).optional();
const PAD_TYPE: Param = constant("pad_type", STRING).optional();
const PAD: Param = constant("pad", INT32).optional();
const DILATIONS: Param = constant("dilations", INT32).optional();
const GROUPS: Param = constant("groups", INT32).optional();
const CONV: &[Param] = &[
    X,
    tensor("weight", FLOAT),
    constant("bias", FLOAT).optional(),
    STRIDES,
    PAD_TYPE,
    PAD,
    DILATIONS,
    GROUPS,
];
const BIAS: Param = tensor("bias", FLOAT).optional();
const CONV_7: &[Param] = &[X, CONV[1], BIAS, STRIDES, PAD_TYPE, PAD, DILATIONS, GROUPS];
const QUANTIZED: &[Param] = &[
    X,
    tensor("weight", UINT8),
    constant("bias", UINT8).optional(),
    constant("quantization_type", STRING),
    constant("nbits", INT32).optional(),
    constant("quant_scale", FLOAT),
    constant("quant_bias", FLOAT),
    STRIDES,
    PAD_TYPE,
    PAD,
    DILATIONS,
    GROUPS,
];
const OUTPUT_SHAPE: Param = constant("output_shape", INT32).optional();
const TRANSPOSE: &[Param] = &[
    X,
    constant("weight", FLOAT),
    CONV[2],
    PAD,
    OUTPUT_SHAPE,
    PAD_TYPE,
    STRIDES,
    DILATIONS,
    GROUPS,
];
const TRANSPOSE_7: &[Param] = &[
    X,
    CONV[1],
    BIAS,
    PAD,
    OUTPUT_SHAPE,
    PAD_TYPE,
    STRIDES,
    DILATIONS,
    GROUPS,
];

pub(super) static OPS: &[OpDef] = &[
    // y[n, o, p] = bias[o] + sum over i and k of x[n, i, p * stride + k * dilation - pad] *
    // weight[o, i, k], where i runs over the input channels of o's group and pad is the padding
    // before the axis. x [n, C_in, ..], weight [C_out, C_in / groups, ..], bias [C_out].
    OpDef::new("conv", Product, Opset::CoreMl5, CONV, |i| {
        reject_same_lower(i).and_then(|()| conv_like_x(i))
    }),
    OpDef::new("conv", Product, Opset::CoreMl6, CONV, conv_like_x),
    // From iOS 17 on, weight and bias may have another element type than x, and the bias can be
    // computed at run time.
    OpDef::new("conv", Product, Opset::CoreMl7, CONV_7, |i| {
        i.require_same_dtype(&["weight", "bias"])
            .and_then(|()| conv(i))
    }),
    // Like `conv` with the weight quant_scale * weight + quant_bias. quant_scale and quant_bias
    // hold one number, or one per output channel.
    OpDef::new("conv_quantized", Product, Opset::CoreMl5, QUANTIZED, |i| {
        reject_same_lower(i).and_then(|()| quantized(i))
    }),
    OpDef::new(
        "conv_quantized",
        Product,
        Opset::CoreMl6,
        QUANTIZED,
        quantized,
    ),
    // y[n, o, i * stride + k * dilation - pad] = bias[o] + sum over c, i and k of x[n, c, i] *
    // weight[c, o, k], where c runs over the input channels of o's group and pad is the padding
    // before the axis. weight [C_in, C_out / groups, ..].
    OpDef::new("conv_transpose", Product, Opset::CoreMl5, TRANSPOSE, |i| {
        i.require_same_dtype(&["x", "weight", "bias"])
            .and_then(|()| transposed(i))
    }),
    OpDef::new(
        "conv_transpose",
        Product,
        Opset::CoreMl7,
        TRANSPOSE_7,
        |i| {
            i.require_same_dtype(&["weight", "bias"])
                .and_then(|()| transposed(i))
        },
    ),
];

fn pad_type<'a>(i: &Infer<'a>) -> Result<&'a str, TypeError> {
    if i.has("pad_type") {
        i.string("pad_type")
    } else {
        Ok("valid")
    }
}

/// Rejects the padding `same_lower`, which ios15 does not have.
fn reject_same_lower(i: &Infer<'_>) -> Result<(), TypeError> {
    if pad_type(i)? == "same_lower" {
        return Err(TypeError(
            "`pad_type`: `same_lower` requires opset ios16".to_owned(),
        ));
    }
    Ok(())
}

/// `x`, `weight` and the number of groups; ranks are checked.
fn operands<'a>(i: &Infer<'a>) -> Result<(&'a TensorType, &'a TensorType, usize), TypeError> {
    let (x, weight) = (i.ty("x")?, i.ty("weight")?);
    if !(3..=5).contains(&x.rank()) || weight.rank() != x.rank() {
        return Err(TypeError::new(format_args!(
            "expected `x` and `weight` of one rank from 3 to 5, found {x} and {weight}"
        )));
    }
    match usize::try_from(i.int_or("groups", 1)?) {
        Ok(groups) if groups > 0 => Ok((x, weight, groups)),
        _ => Err(TypeError("`groups`: expected 1 or more".to_owned())),
    }
}

fn uneven_groups(name: &str, ty: &TensorType, groups: usize) -> TypeError {
    TypeError::new(format_args!(
        "`{name}`: expected channels that divide into {groups} groups, found {ty}"
    ))
}

/// Requires one number of bias per output channel.
fn check_bias(i: &Infer<'_>, channels: Dim) -> Result<(), TypeError> {
    if i.has("bias") && !matches!(i.ty("bias")?.shape.as_slice(), [n] if n.compatible(channels)) {
        return Err(TypeError::new(format_args!(
            "`bias`: expected one number for each of {channels} output channels, found {}",
            i.ty("bias")?
        )));
    }
    Ok(())
}

/// The window of the weight's kernel, if its sizes are known.
fn windows(i: &Infer<'_>, weight: &TensorType) -> Result<Option<Windows>, TypeError> {
    let kernel: Option<Vec<usize>> = weight.shape[2..].iter().map(|d| d.known()).collect();
    let ints = |name: &str| {
        if i.has(name) {
            i.constant_ints(name).map(Some)
        } else {
            Ok(None)
        }
    };
    kernel
        .map(|kernel| Windows::new(kernel, pad_type(i)?, ints))
        .transpose()
}

fn conv_like_x(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "weight", "bias"])?;
    conv(i)
}

fn conv(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, weight, groups) = operands(i)?;
    if weight.shape[0].known().is_some_and(|n| n % groups != 0) {
        return Err(uneven_groups("weight", weight, groups));
    }
    if let Dim::Known(n) = x.shape[1] {
        if n % groups != 0 {
            return Err(uneven_groups("x", x, groups));
        }
        if !weight.shape[1].compatible(Dim::Known(n / groups)) {
            let expected = n / groups;
            return Err(TypeError::new(format_args!(
                "`weight`: expected {expected} input channels (axis 1) for `x` {x}, found {weight}"
            )));
        }
    }
    check_bias(i, weight.shape[0])?;
    let mut shape = vec![x.shape[0], weight.shape[0]];
    let windows = windows(i, weight)?;
    for (axis, size) in x.shape[2..].iter().enumerate() {
        let places = windows
            .as_ref()
            .map_or(Ok(None), |w| w.places(axis, *size, false))?;
        shape.push(places.unwrap_or_else(|| i.fresh_symbol()));
    }
    tensor_result(x.dtype, shape)
}

fn quantized(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.require_same_dtype(&["x", "quant_scale", "quant_bias"])?;
    i.choice("quantization_type", &["linear", "lut"], "linear")?;
    let n_bits = i.int_or("nbits", 8)?;
    if !(1..=8).contains(&n_bits) {
        return Err(TypeError::new(format_args!(
            "`nbits`: expected 1 to 8, found {n_bits}"
        )));
    }
    let result = conv(i)?;
    let channels = i.ty("weight")?.shape[0];
    for name in ["quant_scale", "quant_bias"] {
        let n = i.ty(name)?.n_elements();
        if n != Some(1) && n.is_some_and(|n| !channels.compatible(Dim::Known(n))) {
            return Err(TypeError::new(format_args!(
                "`{name}`: expected 1 or {channels} numbers, found {}",
                i.ty(name)?
            )));
        }
    }
    Ok(result)
}

fn transposed(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    i.choice("pad_type", &["valid", "same", "custom"], "valid")?;
    let (x, weight, groups) = operands(i)?;
    if !x.shape[1].compatible(weight.shape[0]) {
        return Err(TypeError::new(format_args!(
            "expected equal input channels, found `x` {x} and `weight` {weight}"
        )));
    }
    if weight.shape[0].known().is_some_and(|n| n % groups != 0) {
        return Err(uneven_groups("weight", weight, groups));
    }
    let channels = match weight.shape[1] {
        Dim::Known(n) => n
            .checked_mul(groups)
            .map(Dim::Known)
            .ok_or_else(|| uneven_groups("weight", weight, groups))?,
        Dim::Symbol(_) => i.fresh_symbol(),
    };
    check_bias(i, channels)?;
    let windows = windows(i, weight)?;
    let mut shape = vec![x.shape[0], channels];
    if i.has("output_shape") {
        let wanted = output_shape(i, x, &shape)?;
        for (axis, n) in wanted[2..].iter().enumerate() {
            if let (Some(windows), Dim::Known(size)) = (&windows, x.shape[axis + 2]) {
                windows.spread(axis, size, Some(*n))?;
            }
        }
        return tensor_result(x.dtype, wanted.into_iter().map(Dim::Known).collect());
    }
    for (axis, size) in x.shape[2..].iter().enumerate() {
        shape.push(match (&windows, size) {
            (Some(windows), Dim::Known(size)) => Dim::Known(windows.spread(axis, *size, None)?.1),
            _ => i.fresh_symbol(),
        });
    }
    tensor_result(x.dtype, shape)
}

/// The constant `output_shape`, which must have the rank of x and begin with `start`.
fn output_shape(i: &Infer<'_>, x: &TensorType, start: &[Dim]) -> Result<Vec<usize>, TypeError> {
    let wanted = i.constant_ints("output_shape")?;
    let sizes: Option<Vec<usize>> = wanted.iter().map(|n| usize::try_from(*n).ok()).collect();
    match sizes {
        Some(sizes)
            if sizes.len() == x.rank()
                && sizes
                    .iter()
                    .zip(start)
                    .all(|(n, d)| d.compatible(Dim::Known(*n))) =>
        {
            Ok(sizes)
        }
        _ => {
            let first = show_shape(start);
            Err(TypeError::new(format_args!(
                "`output_shape`: expected {} sizes starting with {first}, found {wanted:?}",
                x.rank()
            )))
        }
    }
}
