//! Writes products over many numbers as sums of products over fewer.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 8192, 1, 4]> x) {
//!     tensor<fp16, [6, 8192, 1, 1]> w = const()[val = tensor<fp16, [6, 8192, 1, 1]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [1, 6, 1, 4]> y = conv(x = x, weight = w);
//! } -> (y);
//! ```
//!
//! becomes two slices of 4,096 channels, two convolutions with the two halves of the weight, and an
//! `add`. Parts of a weight are read where the whole is: nothing is copied. A compressed weight is
//! cut between its blocks.

use super::*;
use crate::compressed::Weight;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_contraction",
    rules: &["ANE060", "ANE061", "ANE041", "ANE115", "ANE107"],
    what: "a product over many numbers as a sum of products over parts of them",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([conv, linear, matmul]()),
        "only conv, linear and matmul are split",
    ),
    write,
};

/// Numbers of a part. Weights of up to 4,096 inputs are read once for each tile; sums of more than
/// 8 parts begin to cost accuracy (the rule ANE115 and its source).
const PART: usize = 4096;
const MAX_PARTS: usize = 8;
/// What engines of every generation sum over.
const LONGEST: usize = 16_384;

/// Begin and length of each part of an axis.
fn parts(k: usize) -> Result<Vec<(usize, usize)>, &'static str> {
    let n = k.div_ceil(PART).min(MAX_PARTS).max(k.div_ceil(LONGEST));
    if n < 2 {
        return Err("it sums over too few numbers to be split");
    }
    // Multiples of 32, so that parts fill rows of 64 bytes.
    let len = k.div_ceil(n).next_multiple_of(32);
    Ok((0..k)
        .step_by(len)
        .map(|at| (at, len.min(k - at)))
        .collect())
}

fn write(new: &Rewrite<'_>) -> Answer {
    let (id, op) = (new.root(), new.graph.op(new.root()));
    let kind = op.def.name;
    if kind == "conv" && int(new.graph, id, "groups").is_some_and(|g| g != 1) {
        return Err("its channels are in groups");
    }
    let other = if kind == "matmul" { "y" } else { "weight" };
    let is_stated = op.value_arg(other).is_none_or(|v| new.graph.is_constant(v));
    let constant = if kind != "matmul" || is_stated {
        Some(Weight::of(new.graph, op, other)?)
    } else {
        None
    };
    let (x, shape) = new.operand(id, "x")?;
    let from_end = 1 + usize::from(new.flag(id, "transpose_x"));
    let x_axis = match kind {
        "conv" => Some(1),
        _ => shape.len().checked_sub(from_end),
    };
    let x_axis = x_axis.ok_or("its operand is a scalar or a vector")?;
    let other_shape = match &constant {
        Some(c) => c.shape.clone(),
        None => new.operand(id, "y")?.1,
    };
    let from_end = 2 - usize::from(new.flag(id, "transpose_y"));
    let other_axis = match kind {
        "matmul" => other_shape.len().checked_sub(from_end),
        _ => Some(1),
    };
    let other_axis = other_axis.ok_or("its operand is a vector")?;
    let mut sums = Vec::new();
    for (begin, len) in parts(shape[x_axis])? {
        let x = x.slice_axis(&shape, x_axis, begin, len);
        let y = match &constant {
            Some(c) => c.slice(other_axis, begin, len)?.write(new),
            None => {
                let (y, _) = new.operand(id, "y")?;
                y.slice_axis(&other_shape, other_axis, begin, len)
            }
        };
        // Only the first has the bias.
        let left_out = if begin == 0 { "" } else { "bias" };
        sums.push(new.again_without(op, &[("x", x), (other, y)], left_out));
    }
    new.instead(sums.into_iter().sum())
}
