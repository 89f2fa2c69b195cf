//! Sums and means along the height as products with a row of ones.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 2, 400, 8]> x) {
//!     tensor<fp16, [1, 2, 1, 8]> y = reduce_mean(x = x, axes = tensor<int32, [1]>([2]), keep_dims = bool(true));
//! } -> (y);
//! ```
//!
//! becomes `matmul(w, x)` with w[0, i] = 1/256 and a product with 256/400: nothing is transposed, and but for that
//! factor nothing is rounded.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::audit::rules::query::{ints, wrap};
use crate::audit::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_reduce",
    rules: &["ANE127"],
    what: "a sum along a long axis as a product with ones",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, shape) = operand(view, id, "x")?;
    let axes = ints(view, id, "axes").ok_or("its axes are not given")?;
    let [axis] = axes[..] else { return Err("it is over several axes") };
    let axis = wrap(axis, shape.len()).ok_or("its axis is none of x")?;
    if axis + 2 != shape.len() {
        return Err("it is not along the axis before the last");
    }
    let n = shape[axis];
    let mean = match view.op(id).def.name {
        "reduce_sum" => false,
        "reduce_mean" => true,
        _ => return Err("it is no sum and no mean"),
    };
    // The power of two below n: exact in fp16, and the sum is no larger than twice the largest of x.
    let power = if mean { (1usize << n.max(1).ilog2()) as f32 } else { 1.0 };
    let out = result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    // As many axes as x has: matmul broadcasts the batch.
    let mut row = vec![1; shape.len()];
    row[shape.len() - 1] = n;
    let weights = new.numbers(dtype, &row, std::iter::repeat_n(1.0 / power, n));
    let y = new.binary("matmul", weights, New::Value(x));
    let y = if mean { new.with_number("mul", y, dtype, power / n as f32) } else { y };
    let y = if out.len() == shape.len() { y } else { new.reshape(y, &out) };
    new.instead(y)
}
