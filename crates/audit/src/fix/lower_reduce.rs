//! Writes sums and means along the height as products with a row of ones.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 2, 400, 8]> x) {
//!     tensor<fp16, [1, 2, 1, 8]> y = reduce_mean(x = x, axes = tensor<int32, [1]>([2]), keep_dims = bool(true));
//! } -> (y);
//! ```
//!
//! becomes `matmul(w, x)` with w[0, i] = 1/400: nothing is transposed, and no sum of parts is
//! larger than the largest of x.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{ints, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_reduce",
    rules: &["ANE127"],
    what: "a sum along a long axis as a product with ones",
    numbers: Numbers::Exact,
    run,
};

/// 1 over a larger number is below the least fp16 that the engine keeps, 2^-14.
const MOST_OF_MEAN: usize = 1 << 14;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, shape) = operand(view, id, "x")?;
    let axes = ints(view, id, "axes").ok_or("its axes are not given")?;
    let [axis] = axes[..] else {
        return Err("it is over several axes");
    };
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
    if mean && n > MOST_OF_MEAN {
        return Err("it is a mean of more than 16384 numbers: 1 over that is 0 in fp16");
    }
    // Divided before it is summed: no sum of parts is larger than the largest of x.
    let weight = if mean { 1.0 / n as f32 } else { 1.0 };
    let out = result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    // As many axes as x has: matmul broadcasts the batch.
    let mut row = vec![1; shape.len()];
    row[shape.len() - 1] = n;
    let weights = new.numbers(dtype, &row, std::iter::repeat_n(weight, n));
    let y = new.binary("matmul", weights, New::Value(x));
    let y = if out.len() == shape.len() {
        y
    } else {
        new.reshape(y, &out)
    };
    new.instead(y)
}
