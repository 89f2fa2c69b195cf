//! Default sizes, positions and axes for parameters that a description leaves out.

use thane_mil::literal::Literal;
use thane_mil::opset::Param;
use thane_mil::types::DType;

use super::argument::{Argument, OpCall};

/// What a parameter is bound to that says a size, a place or an axis.
pub fn sized(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    parts(call, param)
        .or_else(|| windows(call, param))
        .or_else(|| axes(call, param))
        .or_else(|| plain(call, param))
}

fn ints(numbers: impl IntoIterator<Item = i64>) -> Option<Argument> {
    let numbers: Vec<i32> = numbers
        .into_iter()
        .map(|n| i32::try_from(n).unwrap_or(i32::MAX))
        .collect();
    Some(Argument::Is(Literal::i32s(&numbers)))
}

fn int(n: i64) -> Option<Argument> {
    Some(Argument::Is(Literal::i32(
        i32::try_from(n).unwrap_or(i32::MAX),
    )))
}

fn long(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Parts of a tensor, and its shapes: of the last axis the first half.
fn parts(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let (n, x) = (call.notation, &call.x);
    let rank = x.len();
    let runtime = n.says(&["runtime", "dynamic", "dyn"]);
    let half = || {
        x.iter()
            .enumerate()
            .map(|(i, d)| if i + 1 == rank { (d / 2).max(1) } else { *d })
    };
    let at_last =
        |last: i64, other: i64| (0..rank).map(move |i| if i + 1 == rank { last } else { other });
    match (call.def.name, param.name) {
        ("slice_by_index" | "slice_update", "begin" | "end")
        | ("slice_by_size", "begin")
        | ("reshape", "shape")
            if runtime =>
        {
            Some(Argument::Input(DType::Int32, vec![rank]))
        }
        ("slice_by_index" | "slice_by_size" | "slice_update", "begin") => ints(at_last(0, 0)),
        ("slice_by_index" | "slice_by_size" | "slice_update", "end" | "size") => {
            ints(half().map(long))
        }
        ("slice_by_index", "stride") => ints(at_last(n.stride.unwrap_or(1), 1)),
        ("slice_update", "update") => Some(Argument::Input(call.dtype, half().collect())),
        ("reshape", "shape") => match n.shapes.get(1) {
            Some(to) => ints(to.iter().map(|d| long(*d))),
            None => ints([long(x.first().copied().unwrap_or(1)), -1]),
        },
        ("resize", "shape") => Some(Argument::Filled(DType::Int32, vec![2], 64.0)),
        ("resize", "resized_dims") => Some(Argument::Filled(DType::Uint32, Vec::new(), 2.0)),
        (_, "shape") => ints([1, 64, 32, 32]),
        ("tile", "reps") => ints(at_last(2, 1)),
        ("pad", "pad") => ints((0..2 * rank).map(|i| i64::from(i + 4 >= 2 * rank))),
        ("pad", "constant_val") => n
            .says(&["nonzero"])
            .then(|| Argument::Filled(call.dtype, Vec::new(), 1.0)),
        ("crop", "crop_height" | "crop_width") => ints([2, 2]),
        ("reverse_sequence", "lengths") => {
            Some(Argument::Filled(DType::Int32, vec![*x.first()?], 1.0))
        }
        _ => None,
    }
}

/// Windows and how they move.
fn windows(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let n = call.notation;
    let spatial = call.x.len().saturating_sub(2).max(1);
    match param.name {
        "kernel_sizes" => ints(window(call, 2).into_iter().map(long)),
        "strides" => n.stride.and_then(|s| ints(vec![s; spatial])),
        "dilations" => n.dilation.and_then(|d| ints(vec![d; spatial])),
        "groups" => int(groups(call)),
        _ => None,
    }
}

/// Axes, and their order.
fn axes(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    let (n, rank) = (call.notation, call.x.len());
    let said = n.axes.first().copied().filter(|a| *a < long(rank));
    match (call.def.name, param.name) {
        ("transpose", "perm") => {
            let mut perm: Vec<i64> = (0..long(rank)).collect();
            perm.swap(rank.checked_sub(1)?, rank.checked_sub(2)?);
            ints(perm)
        }
        ("squeeze" | "expand_dims", "axes") => ints([0]),
        // Channels, which can be joined and split; rows where there are none.
        (
            "stack" | "concat" | "split" | "sliding_windows" | "scatter" | "scatter_along_axis",
            "axis",
        ) => int(said.unwrap_or(i64::from(rank > 2))),
        (_, "axis") => said.and_then(int),
        (_, "axes") if n.axes.is_empty() => ints([-1]),
        (_, "axes") => ints(n.axes.iter().copied()),
        _ => None,
    }
}

/// Numbers that are as good as any.
fn plain(call: &OpCall<'_>, param: &Param) -> Option<Argument> {
    match param.name {
        "num_splits" | "lower" | "upper" | "block_size" | "upscale_factor" => int(2),
        "scale_factor_height" | "scale_factor_width" => int(2),
        "downscale_factor" => Some(Argument::Filled(DType::Uint32, Vec::new(), 2.0)),
        "block_shape" => ints([2, 2]),
        "paddings" | "crops" => Some(Argument::Filled(DType::Int32, vec![2, 2], 0.0)),
        "target_size_height" | "target_size_width" | "target_height" | "target_width" => int(64),
        "output_height" | "output_width" => int(64),
        "size" => int(3),
        "k" if call.def.name == "topk" => int(3),
        "max_boxes" => int(16),
        _ => None,
    }
}

/// Groups of a convolution; a depthwise one has as many as channels.
pub fn groups(call: &OpCall<'_>) -> i64 {
    let channels = call.x.get(1).copied().unwrap_or(1);
    let depthwise = call
        .notation
        .says(&["depthwise", "dw"])
        .then(|| i64::try_from(channels).unwrap_or(1));
    call.notation.groups.or(depthwise).unwrap_or(1)
}

/// The sizes of a window: one for each spatial axis.
pub fn window(call: &OpCall<'_>, usual: usize) -> Vec<usize> {
    let n_spatial = call.x.len().saturating_sub(2).max(1);
    match &call.notation.kernel[..] {
        [] => vec![usual; n_spatial],
        [k] => vec![*k; n_spatial],
        kernel => kernel.to_vec(),
    }
}
