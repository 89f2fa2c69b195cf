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

use thane_mil::edit::New;
use thane_mil::program::{Op, OpId};

use super::compressed::Weight;
use super::rewrite::{NamedArg, Rewrite, one, operand, same_arg};
use super::{Answer, Fix, Numbers};
use crate::rules::query::int;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_contraction",
    rules: &["ANE060", "ANE061", "ANE041", "ANE115", "ANE107"],
    what: "a product over many numbers as a sum of products over parts of them",
    numbers: Numbers::Exact,
    run,
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

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    match op.def.name {
        "conv" | "linear" => split(view, id),
        "matmul" => matmul(view, id),
        _ => Err("only conv, linear and matmul are split"),
    }
}

/// A product with a constant, whose inputs lie on its second axis: `x` and the weight are cut.
fn split(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let conv = op.def.name == "conv";
    if conv && int(view, id, "groups").is_some_and(|g| g != 1) {
        return Err("its channels are in groups");
    }
    let weight = Weight::of(view, op, "weight")?;
    let (x, _, shape) = operand(view, id, "x")?;
    let axis = if conv {
        1
    } else {
        shape
            .len()
            .checked_sub(1)
            .ok_or("its operand is a scalar")?
    };
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut sums = Vec::new();
    for (n, (begin, len)) in parts(shape[axis])?.into_iter().enumerate() {
        let x = new.slice_axis(New::Value(x), &shape, axis, begin, len);
        let part = weight.slice(1, begin, len)?.write(&mut new);
        sums.push(product(&mut new, op, x, part, n == 0));
    }
    let sum = new.sum(sums);
    new.instead(sum)
}

/// The op over a part; only the first has the bias.
fn product(new: &mut Rewrite<'_>, op: &Op, x: New, weight: New, first: bool) -> New {
    let kept = op
        .def
        .params
        .iter()
        .map(|p| p.name)
        .filter(|p| !["x", "weight"].contains(p) && (first || *p != "bias"));
    let mut args: Vec<NamedArg> = kept.filter_map(|p| Some((p, same_arg(op, p)?))).collect();
    args.extend([one("x", x), one("weight", weight)]);
    new.defined(op.def, args)
}

fn matmul(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let (transposed_x, transposed_y) =
        (flag(view, id, "transpose_x"), flag(view, id, "transpose_y"));
    let (x, _, shape) = operand(view, id, "x")?;
    let x_axis = shape
        .len()
        .checked_sub(1 + usize::from(transposed_x))
        .ok_or("its operand is a vector")?;
    let is_constant = op.value_arg("y").is_none_or(|y| view.is_constant(y));
    let constant = if is_constant {
        Some(Weight::of(view, op, "y")?)
    } else {
        None
    };
    let y_shape = match &constant {
        Some(c) => c.shape.clone(),
        None => operand(view, id, "y")?.2,
    };
    let y_axis = y_shape
        .len()
        .checked_sub(2 - usize::from(transposed_y))
        .ok_or("its operand is a vector")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut sums = Vec::new();
    for (begin, len) in parts(shape[x_axis])? {
        let x = new.slice_axis(New::Value(x), &shape, x_axis, begin, len);
        let y = match &constant {
            Some(c) => c.slice(y_axis, begin, len)?.write(&mut new),
            None => {
                let y = op.value_arg("y").ok_or("its operand is written in place")?;
                new.slice_axis(New::Value(y), &y_shape, y_axis, begin, len)
            }
        };
        sums.push(new.again(op, &[("x", x), ("y", y)]));
    }
    let sum = new.sum(sums);
    new.instead(sum)
}

fn flag(view: &View<'_>, id: OpId, name: &str) -> bool {
    int(view, id, name) == Some(1)
}
