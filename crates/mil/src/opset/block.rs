//! Moves blocks of pixels between the spatial axes of an image and its channels or batch.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_transformation.py`, `iOS16/tensor_transformation.py`.

use super::OpKind::Rearrange;
use super::*;
use crate::types::{DType, TensorType};

const X: Param = tensor("x", FLOAT);
const BLOCK_SIZE: Param = constant("block_size", INT32);
const BLOCK_SHAPE: Param = constant("block_shape", INT32);

pub(super) static OPS: &[OpDef] = &[
    // y[n, c, h * b + i, w * b + j] = x[n, (i * b + j) * C + c, h, w], where C is the number of
    // channels of y.
    OpDef::new(
        "depth_to_space",
        Rearrange,
        Opset::CoreMl5,
        &[X, BLOCK_SIZE],
        |i| depth_to_space(i, "block_size"),
    ),
    // y[n, (i * b + j) * C + c, h, w] = x[n, c, h * b + i, w * b + j], where C is the number of
    // channels of x.
    OpDef::new(
        "space_to_depth",
        Rearrange,
        Opset::CoreMl5,
        &[X, BLOCK_SIZE],
        |i| space_to_depth(i, "block_size"),
    ),
    // y[n, c, h * f + i, w * f + j] = x[n, c * f * f + i * f + j, h, w].
    OpDef::new(
        "pixel_shuffle",
        Rearrange,
        Opset::CoreMl5,
        &[X, constant("upscale_factor", INT32)],
        |i| depth_to_space(i, "upscale_factor"),
    ),
    // y[n, c * f * f + i * f + j, h, w] = x[n, c, h * f + i, w * f + j].
    OpDef::new(
        "pixel_unshuffle",
        Rearrange,
        Opset::CoreMl6,
        &[X, constant("downscale_factor", &[DType::Uint32])],
        |i| space_to_depth(i, "downscale_factor"),
    ),
    // y[(i * b1 + j) * N + n, c, h, w] = x[n, c, h * b0 + i, w * b1 + j] after padding x with
    // zeros, where N is the number of images in x.
    OpDef::new(
        "space_to_batch",
        Rearrange,
        Opset::CoreMl5,
        &[X, BLOCK_SHAPE, constant("paddings", INT32)],
        space_to_batch,
    ),
    // y[n, c, h * b0 + i, w * b1 + j] = x[(i * b1 + j) * N + n, c, h, w], then y is cropped; N is
    // the number of images in y.
    OpDef::new(
        "batch_to_space",
        Rearrange,
        Opset::CoreMl5,
        &[X, BLOCK_SHAPE, constant("crops", INT32)],
        batch_to_space,
    ),
];

/// `x` and its four dimensions.
fn images<'a>(i: &Infer<'a>) -> Result<(&'a TensorType, [Dim; 4]), TypeError> {
    let x = i.ty("x")?;
    let misfit = || TypeError::new(format_args!("`x`: expected rank 4, found {x}"));
    Ok((x, x.shape.as_slice().try_into().map_err(|_| misfit())?))
}

/// A positive constant integer whose square fits in usize.
fn factor(i: &Infer<'_>, name: &str) -> Result<usize, TypeError> {
    let n = i.int_or(name, 0)?;
    // The square is a factor of a number of channels.
    let fits = usize::try_from(n)
        .ok()
        .filter(|n| *n > 0 && n.checked_mul(*n).is_some());
    fits.ok_or_else(|| {
        TypeError::new(format_args!(
            "`{name}`: expected a positive number, found {n}"
        ))
    })
}

/// The dimension times `n`.
fn multiplied(i: &mut Infer<'_>, dim: Dim, n: usize) -> Dim {
    match dim {
        Dim::Known(size) => Dim::Known(size.saturating_mul(n)),
        symbol if n == 1 => symbol,
        Dim::Symbol(_) => i.fresh_symbol(),
    }
}

/// The dimension divided by `n`, which must divide it.
fn divided(i: &mut Infer<'_>, dim: Dim, n: usize) -> Result<Dim, TypeError> {
    match dim {
        Dim::Known(size) if size % n == 0 => Ok(Dim::Known(size / n)),
        Dim::Known(size) => Err(TypeError::new(format_args!(
            "expected a multiple of {n}, found size {size}"
        ))),
        symbol if n == 1 => Ok(symbol),
        Dim::Symbol(_) => Ok(i.fresh_symbol()),
    }
}

/// Channels shrink by the square of the factor; height and width grow by the factor.
fn depth_to_space(i: &mut Infer<'_>, name: &str) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = images(i)?;
    let f = factor(i, name)?;
    let shape = vec![
        n,
        divided(i, c, f * f)?,
        multiplied(i, h, f),
        multiplied(i, w, f),
    ];
    tensor_result(x.dtype, shape)
}

/// Channels grow by the square of the factor; height and width shrink by the factor.
fn space_to_depth(i: &mut Infer<'_>, name: &str) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = images(i)?;
    let f = factor(i, name)?;
    let shape = vec![
        n,
        multiplied(i, c, f * f),
        divided(i, h, f)?,
        divided(i, w, f)?,
    ];
    tensor_result(x.dtype, shape)
}

/// The two sizes of a block, and the padding or cropping before and after the height and the width.
fn block_params(i: &Infer<'_>, borders: &str) -> Result<([usize; 2], [usize; 4]), TypeError> {
    let misfit = || {
        TypeError::new(format_args!(
            "expected `block_shape` of shape [2] and `{borders}` of shape [2, 2] without negatives"
        ))
    };
    let sizes = |name: &str| -> Result<Vec<usize>, TypeError> {
        i.constant_ints(name)?
            .into_iter()
            .map(|v| u32::try_from(v).map(|v| v as usize).map_err(|_| misfit()))
            .collect()
    };
    let is_square = i.ty(borders)?.shape == [Dim::Known(2), Dim::Known(2)];
    let block_params: [usize; 2] = sizes("block_shape")?.try_into().map_err(|_| misfit())?;
    let borders: [usize; 4] = sizes(borders)?.try_into().map_err(|_| misfit())?;
    if block_params.contains(&0) || !is_square {
        Err(misfit())
    } else {
        Ok((block_params, borders))
    }
}

fn space_to_batch(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = images(i)?;
    let (block_params, borders) = block_params(i, "paddings")?;
    let mut shape = vec![
        multiplied(i, n, block_params[0].saturating_mul(block_params[1])),
        c,
    ];
    for (a, dim) in [h, w].into_iter().enumerate() {
        let padded = match dim {
            Dim::Known(size) => {
                Dim::Known(size.saturating_add(borders[2 * a] + borders[2 * a + 1]))
            }
            Dim::Symbol(_) if borders[2 * a..2 * a + 2] != [0, 0] => i.fresh_symbol(),
            symbol => symbol,
        };
        shape.push(divided(i, padded, block_params[a])?);
    }
    tensor_result(x.dtype, shape)
}

fn batch_to_space(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = images(i)?;
    let (block_params, borders) = block_params(i, "crops")?;
    let mut shape = vec![
        divided(i, n, block_params[0].saturating_mul(block_params[1]))?,
        c,
    ];
    for (a, dim) in [h, w].into_iter().enumerate() {
        let border = borders[2 * a] + borders[2 * a + 1];
        shape.push(match multiplied(i, dim, block_params[a]) {
            Dim::Known(size) => match size.checked_sub(border) {
                Some(size) => Dim::Known(size),
                None => {
                    return Err(TypeError::new(format_args!(
                        "cannot crop a size of {size} by {border}"
                    )));
                }
            },
            Dim::Symbol(_) if border != 0 => i.fresh_symbol(),
            symbol => symbol,
        });
    }
    tensor_result(x.dtype, shape)
}
