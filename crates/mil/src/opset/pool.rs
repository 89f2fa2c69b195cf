//! Pooling over one to three spatial axes. Source: coremltools `ops/defs/iOS15/pool.py`.

use super::OpKind::Pool;
use super::window::Windows;
use super::*;

const MAX: &[Param] = &[
    tensor("x", FLOAT),
    constant("kernel_sizes", INT32),
    constant("strides", INT32).optional(),
    constant("pad_type", STRING),
    constant("pad", INT32).optional(),
    constant("ceil_mode", BOOL).optional(),
];
const AVERAGE: &[Param] = &[
    MAX[0],
    MAX[1],
    MAX[2],
    MAX[3],
    MAX[4],
    constant("exclude_padding_from_average", BOOL).optional(),
    MAX[5],
];

pub(super) static OPS: &[OpDef] = &[
    // y = the mean over the window. Padding counts as zeros unless `exclude_padding_from_average`.
    OpDef::new("avg_pool", Pool, Opset::CoreMl5, AVERAGE, |i| {
        reject_same_lower(i).and_then(|()| pool(i, 3))
    }),
    // From iOS 16 on, `pad_type` can be `same_lower`, also in the pools below.
    OpDef::new("avg_pool", Pool, Opset::CoreMl6, AVERAGE, |i| pool(i, 3)),
    // y = the square root of the sum of squares over the window.
    OpDef::new("l2_pool", Pool, Opset::CoreMl5, MAX, |i| {
        reject_same_lower(i).and_then(|()| pool(i, 2))
    }),
    OpDef::new("l2_pool", Pool, Opset::CoreMl6, MAX, |i| pool(i, 2)),
    // y = the largest element of the window, without padding.
    OpDef::new("max_pool", Pool, Opset::CoreMl5, MAX, |i| {
        reject_same_lower(i).and_then(|()| pool(i, 3))
    })
    .exact(),
    OpDef::new("max_pool", Pool, Opset::CoreMl6, MAX, |i| pool(i, 3)).exact(),
];

/// Rejects the padding `same_lower`, which ios15 does not have.
fn reject_same_lower(i: &Infer<'_>) -> Result<(), TypeError> {
    if i.string("pad_type")?.eq_ignore_ascii_case("same_lower") {
        return Err(TypeError(
            "`pad_type`: `same_lower` requires opset ios16".to_owned(),
        ));
    }
    Ok(())
}

fn pool(i: &mut Infer<'_>, max_axes: usize) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 || x.rank() - 2 > max_axes {
        return Err(TypeError::new(format_args!(
            "`x`: expected rank 3 to {}, found {x}",
            max_axes + 2
        )));
    }
    let sizes = i.constant_ints("kernel_sizes")?;
    let kernel: Option<Vec<usize>> = sizes.iter().map(|n| usize::try_from(*n).ok()).collect();
    let kernel = kernel.filter(|k| k.len() == x.rank() - 2);
    let kernel = kernel.ok_or_else(|| {
        TypeError::new(format_args!(
            "`kernel_sizes`: expected one size per spatial axis of `x` {x}, found {sizes:?}"
        ))
    })?;
    // For pools, coremltools also accepts this word in capitals.
    let pad_type = i.string("pad_type")?.to_ascii_lowercase();
    let ceil = i.bool_or("ceil_mode", false)?;
    if ceil {
        check_ceil_mode(i, x.rank() - 2, &pad_type)?;
    }
    // A pool has no dilations. Its other parameters have the names of a convolution's parameters.
    let ints = |name: &str| {
        if i.has(name) {
            i.constant_ints(name).map(Some)
        } else {
            Ok(None)
        }
    };
    let windows = Windows::new(kernel, &pad_type, ints)?;
    let mut shape = x.shape[..2].to_vec();
    for (axis, size) in x.shape[2..].iter().enumerate() {
        let places = windows.places(axis, *size, ceil)?;
        shape.push(places.unwrap_or_else(|| i.fresh_symbol()));
    }
    tensor_result(x.dtype, shape)
}

/// Rejects combinations that `ceil_mode` does not support.
fn check_ceil_mode(i: &Infer<'_>, n_axes: usize, pad_type: &str) -> Result<(), TypeError> {
    let reason = match pad_type {
        _ if n_axes > 2 => "three spatial axes",
        "same" => "the padding `same`",
        _ if i.has("pad")
            && i.constant_ints("pad")?
                .chunks(2)
                .any(|p| p.len() != 2 || p[0] != p[1]) =>
        {
            "padding that differs before and after an axis"
        }
        _ => return Ok(()),
    };
    Err(TypeError::new(format_args!(
        "`ceil_mode` does not support {reason}"
    )))
}
