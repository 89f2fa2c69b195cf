//! Blocks of an image, moved between its height and width and its channels or batch.
//!
//! Source: coremltools `ops/defs/iOS15/tensor_transformation.py`, `iOS16/tensor_transformation.py`.

use super::{
    Dim, FLOAT, INT32, Infer, OpDef, Opset, Param, Type, TypeError, constant, one, tensor,
};
use crate::types::{DType, TensorType};

const X: Param = tensor("x", FLOAT);
const BLOCK_SIZE: Param = constant("block_size", INT32);
const BLOCK_SHAPE: Param = constant("block_shape", INT32);

pub(super) static OPS: &[OpDef] = &[
    // y[n, c, h * b + i, w * b + j] = x[n, (i * b + j) * C + c, h, w], of C channels of y.
    OpDef::new("depth_to_space", Opset::CoreMl5, &[X, BLOCK_SIZE], |i| {
        shrunk_depth(i, "block_size")
    }),
    // y[n, (i * b + j) * C + c, h, w] = x[n, c, h * b + i, w * b + j], of C channels of x.
    OpDef::new("space_to_depth", Opset::CoreMl5, &[X, BLOCK_SIZE], |i| {
        grown_depth(i, "block_size")
    }),
    // y[n, c, h * f + i, w * f + j] = x[n, c * f * f + i * f + j, h, w].
    OpDef::new(
        "pixel_shuffle",
        Opset::CoreMl5,
        &[X, constant("upscale_factor", INT32)],
        |i| shrunk_depth(i, "upscale_factor"),
    ),
    // y[n, c * f * f + i * f + j, h, w] = x[n, c, h * f + i, w * f + j].
    OpDef::new(
        "pixel_unshuffle",
        Opset::CoreMl6,
        &[X, constant("downscale_factor", &[DType::Uint32])],
        |i| grown_depth(i, "downscale_factor"),
    ),
    // y[(i * b1 + j) * N + n, c, h, w] = x[n, c, h * b0 + i, w * b1 + j] of N images of x, with
    // zeros around them.
    OpDef::new(
        "space_to_batch",
        Opset::CoreMl5,
        &[X, BLOCK_SHAPE, constant("paddings", INT32)],
        space_to_batch,
    ),
    // y[n, c, h * b0 + i, w * b1 + j] = x[(i * b1 + j) * N + n, c, h, w] of N images of y, less
    // their borders.
    OpDef::new(
        "batch_to_space",
        Opset::CoreMl5,
        &[X, BLOCK_SHAPE, constant("crops", INT32)],
        batch_to_space,
    ),
];

fn image<'a>(i: &Infer<'a>) -> Result<(&'a TensorType, [Dim; 4]), TypeError> {
    let x = i.ty("x")?;
    let misfit = || TypeError(format!("`x` is {x}, four axes are needed"));
    Ok((x, x.shape.as_slice().try_into().map_err(|_| misfit())?))
}

/// A number above 0.
fn factor(i: &Infer<'_>, name: &str) -> Result<usize, TypeError> {
    let n = i.int_or(name, 0)?;
    // Its square is a number of channels.
    let fits = usize::try_from(n)
        .ok()
        .filter(|n| *n > 0 && n.checked_mul(*n).is_some());
    fits.ok_or_else(|| TypeError(format!("`{name}` is {n}, a number above 0 is needed")))
}

fn times(i: &mut Infer<'_>, dim: Dim, n: usize) -> Dim {
    match dim {
        Dim::Known(size) => Dim::Known(size.saturating_mul(n)),
        symbol if n == 1 => symbol,
        Dim::Symbol(_) => i.fresh(),
    }
}

fn over(i: &mut Infer<'_>, dim: Dim, n: usize) -> Result<Dim, TypeError> {
    match dim {
        Dim::Known(size) if size % n == 0 => Ok(Dim::Known(size / n)),
        Dim::Known(size) => Err(TypeError(format!("a size of {size} is no multiple of {n}"))),
        symbol if n == 1 => Ok(symbol),
        Dim::Symbol(_) => Ok(i.fresh()),
    }
}

fn shrunk_depth(i: &mut Infer<'_>, name: &str) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = image(i)?;
    let f = factor(i, name)?;
    let shape = vec![n, over(i, c, f * f)?, times(i, h, f), times(i, w, f)];
    one(x.dtype, shape)
}

fn grown_depth(i: &mut Infer<'_>, name: &str) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = image(i)?;
    let f = factor(i, name)?;
    let shape = vec![n, times(i, c, f * f), over(i, h, f)?, over(i, w, f)?];
    one(x.dtype, shape)
}

/// The two sizes of a block, and what is before and after the height and the width.
fn block(i: &Infer<'_>, borders: &str) -> Result<([usize; 2], [usize; 4]), TypeError> {
    let misfit = || {
        TypeError(format!(
            "`block_shape` and `{borders}` must be two and two by two numbers from 0 on"
        ))
    };
    let sizes = |name: &str| -> Result<Vec<usize>, TypeError> {
        i.constant_ints(name)?
            .into_iter()
            .map(|v| u32::try_from(v).map(|v| v as usize).map_err(|_| misfit()))
            .collect()
    };
    let is_square = i.ty(borders)?.shape == [Dim::Known(2), Dim::Known(2)];
    let block: [usize; 2] = sizes("block_shape")?.try_into().map_err(|_| misfit())?;
    let borders: [usize; 4] = sizes(borders)?.try_into().map_err(|_| misfit())?;
    if block.contains(&0) || !is_square {
        Err(misfit())
    } else {
        Ok((block, borders))
    }
}

fn space_to_batch(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = image(i)?;
    let (block, borders) = block(i, "paddings")?;
    let mut shape = vec![times(i, n, block[0].saturating_mul(block[1])), c];
    for (a, dim) in [h, w].into_iter().enumerate() {
        let padded = match dim {
            Dim::Known(size) => {
                Dim::Known(size.saturating_add(borders[2 * a] + borders[2 * a + 1]))
            }
            Dim::Symbol(_) if borders[2 * a..2 * a + 2] != [0, 0] => i.fresh(),
            symbol => symbol,
        };
        shape.push(over(i, padded, block[a])?);
    }
    one(x.dtype, shape)
}

fn batch_to_space(i: &mut Infer<'_>) -> Result<Vec<Type>, TypeError> {
    let (x, [n, c, h, w]) = image(i)?;
    let (block, borders) = block(i, "crops")?;
    let mut shape = vec![over(i, n, block[0].saturating_mul(block[1]))?, c];
    for (a, dim) in [h, w].into_iter().enumerate() {
        let border = borders[2 * a] + borders[2 * a + 1];
        shape.push(match times(i, dim, block[a]) {
            Dim::Known(size) => match size.checked_sub(border) {
                Some(size) => Dim::Known(size),
                None => {
                    return Err(TypeError(format!(
                        "a size of {size} cannot be cropped by {border}"
                    )));
                }
            },
            Dim::Symbol(_) if border != 0 => i.fresh(),
            symbol => symbol,
        });
    }
    one(x.dtype, shape)
}
