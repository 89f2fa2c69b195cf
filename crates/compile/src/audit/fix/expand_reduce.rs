//! Reductions of a few numbers as ops on slices.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 3, 4]> x) {
//!     tensor<fp16, [1, 4]> y = reduce_prod(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));
//! } -> (y);
//! ```
//!
//! becomes three slices of the axis, multiplied, and a `reshape`; sums, means, maxima and minima likewise.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::audit::rules::query::{ints, wrap};
use crate::audit::view::View;

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
    let [axis] = axes[..] else { return Err("it is over several axes") };
    let axis = wrap(axis, shape.len()).ok_or("its axis is none of x")?;
    let n = shape[axis];
    if n > MOST || n == 0 {
        return Err("it takes more than 16 numbers together");
    }
    let out = result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    // A mean is no larger than the largest of x, and the sum may be: a power of two no less than n goes first.
    let power = n.next_power_of_two() as f32;
    let is_mean = view.op(id).def.name == "reduce_mean" && n > 1;
    let x = New::Value(x);
    let x = if is_mean { new.with_number("mul", x, dtype, 1.0 / power) } else { x };
    let parts: Vec<New> = (0..n).map(|i| new.slice_axis(x, &shape, axis, i, 1)).collect();
    let y = parts.into_iter().reduce(|a, b| new.binary(kind, a, b)).ok_or("there is nothing to reduce")?;
    let y = if is_mean && !n.is_power_of_two() { new.with_number("mul", y, dtype, power / n as f32) } else { y };
    let y = if out.len() == shape.len() { y } else { new.reshape(y, &out) };
    new.instead(y)
}
