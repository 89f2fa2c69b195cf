//! Writes reductions of a few numbers as ops on slices.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [1, 3, 4]> x) {
//!     tensor<fp32, [1, 4]> y = reduce_prod(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));
//! } -> (y);
//! ```
//!
//! becomes three slices of the axis, multiplied, and a `reshape`; sums, maxima and minima likewise.
//! Means and products of more than two numbers are written so in fp32 only.

use thane_mil::edit::New;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{ints, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_reduce",
    rules: &["ANE004", "ANE126"],
    what: "a reduction of a few numbers by ops on slices",
    numbers: Numbers::Exact,
    run,
};

/// Slices of a reduction.
const MOST: usize = 16;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let kind = match view.op(id).def.name {
        "reduce_prod" => "mul",
        "reduce_sum" | "reduce_mean" => "add",
        "reduce_max" => "maximum",
        "reduce_min" => "minimum",
        _ => return Err("it is no sum, product, mean or extreme"),
    };
    let (x, dtype, shape) = operand(view, id, "x")?;
    let axes = ints(view, id, "axes").ok_or("its axes are not given")?;
    let [axis] = axes[..] else {
        return Err("it is over several axes");
    };
    let axis = wrap(axis, shape.len()).ok_or("its axis is none of x")?;
    let n = shape[axis];
    if n > MOST || n == 0 {
        return Err("it takes more than 16 numbers together");
    }
    let out = result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let is_mean = view.op(id).def.name == "reduce_mean" && n > 1;
    if is_mean && dtype == DType::Fp16 {
        // Divided before it is summed, small numbers are lost; divided after, large ones are.
        return Err("a mean in fp16 has a sum that fp16 may not hold");
    }
    if kind == "mul" && n > 2 && dtype == DType::Fp16 {
        return Err("a product in fp16 has parts that fp16 may not hold");
    }
    let parts: Vec<New> = (0..n)
        .map(|i| new.slice_axis(New::Value(x), &shape, axis, i, 1))
        .collect();
    let y = parts
        .into_iter()
        .reduce(|a, b| new.binary(kind, a, b))
        .ok_or("there is nothing to reduce")?;
    let y = if is_mean {
        new.with_number("mul", y, dtype, 1.0 / n as f32)
    } else {
        y
    };
    let y = if out.len() == shape.len() {
        y
    } else {
        new.reshape(y, &out)
    };
    new.instead(y)
}
