//! Writes cumulative sums as products with a triangular matrix of ones.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = cumsum(x = x, axis = int32(1), exclusive = bool(false), reverse = bool(false));
//! } -> (y);
//! ```
//!
//! becomes `matmul(x, t)` with t[i, j] = 1 where i <= j; another axis than the last is exchanged
//! with it before and after.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_cumsum",
    rules: &["ANE007"],
    what: "a cumulative sum as a product with a triangle of ones",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// A triangle of more takes more than 8 MB in fp16.
const LONGEST: usize = 2048;

fn write(new: &Rewrite<'_>) -> Answer {
    let id = new.root();
    let (x, shape) = new.operand(id, "x")?;
    let axis = new.axis(id, shape.len(), 0)?;
    let n = shape[axis];
    if n > LONGEST || shape.len() < 2 {
        return Err("its axis is longer than 2048, or x is a vector");
    }
    let (exclusive, reverse) = (new.flag(id, "exclusive"), new.flag(id, "reverse"));
    let counts = |i: usize, j: usize| {
        let (i, j) = if reverse { (j, i) } else { (i, j) };
        if exclusive { i < j } else { i <= j }
    };
    let ones = (0..n).flat_map(|i| (0..n).map(move |j| f32::from(u8::from(counts(i, j)))));
    let triangle = new.numbers(x.dtype, &[n, n], ones);
    let last = shape.len() - 1;
    if axis == last {
        return new.instead(x.binary("matmul", triangle));
    }
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(axis, last);
    let sums = x.transpose(&perm).binary("matmul", triangle);
    new.instead(sums.transpose(&perm))
}
