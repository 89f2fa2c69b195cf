//! Pools over one to three spatial axes. Source: coremltools `ops/defs/iOS15/pool.py`.

use super::window::Windows;
use super::{
    BOOL, FLOAT, INT32, Infer, OpDef, Opset, Param, STRING, Type, TypeError, constant, one, tensor,
};

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
    // y = sum over the window / its elements, padding (zeros) among them unless
    // `exclude_padding_from_average`.
    OpDef::new("avg_pool", Opset::CoreMl5, AVERAGE, |i| {
        no_same_lower(i).and_then(|()| pool(i, 3))
    }),
    // It knows the padding `same_lower`.
    OpDef::new("avg_pool", Opset::CoreMl6, AVERAGE, |i| pool(i, 3)),
    // y = the square root of the sum of squares over the window.
    OpDef::new("l2_pool", Opset::CoreMl5, MAX, |i| {
        no_same_lower(i).and_then(|()| pool(i, 2))
    }),
    OpDef::new("l2_pool", Opset::CoreMl6, MAX, |i| pool(i, 2)),
    // y = the largest element of the window; padding does not count.
    OpDef::new("max_pool", Opset::CoreMl5, MAX, |i| {
        no_same_lower(i).and_then(|()| pool(i, 3))
    }),
    OpDef::new("max_pool", Opset::CoreMl6, MAX, |i| pool(i, 3)),
];

fn no_same_lower(i: &Infer<'_>) -> Result<(), TypeError> {
    if i.string("pad_type")?.eq_ignore_ascii_case("same_lower") {
        return Err(TypeError(
            "`pad_type` is `same_lower`, which is there from opset ios16 on".to_owned(),
        ));
    }
    Ok(())
}

fn pool(i: &mut Infer<'_>, most_axes: usize) -> Result<Vec<Type>, TypeError> {
    let x = i.ty("x")?;
    if x.rank() < 3 || x.rank() - 2 > most_axes {
        return Err(TypeError(format!(
            "`x` is {x}, a rank of 3 to {} is needed",
            most_axes + 2
        )));
    }
    let sizes = i.constant_ints("kernel_sizes")?;
    let kernel: Option<Vec<usize>> = sizes.iter().map(|n| usize::try_from(*n).ok()).collect();
    let kernel = kernel.filter(|k| k.len() == x.rank() - 2);
    let kernel = kernel.ok_or_else(|| {
        TypeError(format!(
            "`kernel_sizes` is {sizes:?}, `x` is {x}: one an axis"
        ))
    })?;
    // Of pools, coremltools takes the word in capitals too.
    let pad_type = i.string("pad_type")?.to_ascii_lowercase();
    let ceil = i.bool_or("ceil_mode", false)?;
    if ceil {
        rounds_up(i, x.rank() - 2, &pad_type)?;
    }
    // A pool has no dilations, and the names of its other parameters are those of a convolution.
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
        shape.push(places.unwrap_or_else(|| i.fresh()));
    }
    one(x.dtype, shape)
}

/// Refuse what `ceil_mode` does not go with.
fn rounds_up(i: &Infer<'_>, n_axes: usize, pad_type: &str) -> Result<(), TypeError> {
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
    Err(TypeError(format!("`ceil_mode` does not go with {reason}")))
}
