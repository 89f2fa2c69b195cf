//! Finds the position of the largest or smallest of up to 2,048 numbers by comparing each with it.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 8]> x) {
//!     tensor<int32, [1, 1]> y = reduce_argmax(x = x, axis = int32(1), keep_dims = bool(true));
//! } -> (y);
//! ```
//!
//! becomes n - max(where x = max(x) or x is NaN: n - i, else 1) and a `cast`, which alone leaves
//! the engine. fp16 counts to 2,048. The maximum of numbers with a NaN is NaN, so that the first
//! NaN is found, as before.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_argmax",
    rules: &["ANE005", "ANE135"],
    what: "the position of the largest number by comparison with it",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([reduce_argmax, reduce_argmin]()),
        "it is no argmax or argmin",
    ),
    write,
};

/// Integers up to here are exact in fp16.
const MOST: usize = 2048;

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let extreme = match op.def.name {
        "reduce_argmax" => "reduce_max",
        _ => "reduce_min",
    };
    let (x, shape) = new.operand(new.root(), "x")?;
    let axis = new.axis(new.root(), shape.len(), -1)?;
    let n = shape[axis];
    if n > MOST {
        return Err("fp16 counts to 2048: give the logits out and take the argmax on the host");
    }
    let out = new.result_shape()?;
    let made = new.of(op.results[0]).dtype;
    let is_best = x.binary("equal", x.reduce(extreme, &[axis]));
    let mut row = vec![1; shape.len()];
    row[axis] = n;
    let left = new.numbers(x.dtype, &row, (0..n).map(|i| (n - i) as f32));
    // Where nothing is equal to the best, the last position: none beyond it.
    let best = is_best.select(left, x.number(1.0));
    let is_number = x.binary("equal", x);
    // The first of equals has most left.
    let first = is_number.select(best, left).reduce("reduce_max", &[axis]);
    let y = n as f32 - first;
    new.instead(y.squeezed(shape.len(), &out).cast(made))
}
