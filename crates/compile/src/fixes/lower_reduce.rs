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

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_reduce",
    rules: &["ANE127"],
    what: "a sum along a long axis as a product with ones",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([reduce_sum, reduce_mean]()),
        "it is no sum and no mean",
    ),
    write,
};

/// 1 over a larger number is below the least fp16 that the engine keeps, 2^-14.
const MOST_OF_MEAN: usize = 1 << 14;

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, shape) = new.operand(new.root(), "x")?;
    let axis = new.one_axis(new.root(), shape.len(), "it is over several axes")?;
    if axis + 2 != shape.len() {
        return Err("it is not along the axis before the last");
    }
    let n = shape[axis];
    let is_mean = new.graph.op(new.root()).def.name == "reduce_mean";
    if is_mean && n > MOST_OF_MEAN {
        return Err("it is a mean of more than 16384 numbers: 1 over that is 0 in fp16");
    }
    // Divided before it is summed: no sum of parts is larger than the largest of x.
    let weight = if is_mean { 1.0 / n as f32 } else { 1.0 };
    let out = new.result_shape()?;
    // As many axes as x has: matmul broadcasts the batch.
    let mut row = vec![1; shape.len()];
    row[shape.len() - 1] = n;
    let weights = new.numbers(x.dtype, &row, std::iter::repeat_n(weight, n));
    new.instead(weights.binary("matmul", x).squeezed(shape.len(), &out))
}
