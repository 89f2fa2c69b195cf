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

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_cumsum",
    rules: &["ANE007"],
    what: "a cumulative sum as a product with a triangle of ones",
    numbers: Numbers::Exact,
    run,
};

/// A triangle of more takes more than 8 MB in fp16.
const LONGEST: usize = 2048;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, shape) = operand(view, id, "x")?;
    let axis =
        wrap(int(view, id, "axis").unwrap_or(0), shape.len()).ok_or("its axis is none of x")?;
    let n = shape[axis];
    if n > LONGEST || shape.len() < 2 {
        return Err("its axis is longer than 2048, or x is a vector");
    }
    let (exclusive, reverse) = (
        int(view, id, "exclusive") == Some(1),
        int(view, id, "reverse") == Some(1),
    );
    let counts = |i: usize, j: usize| {
        let (i, j) = if reverse { (j, i) } else { (i, j) };
        if exclusive { i < j } else { i <= j }
    };
    let ones = (0..n).flat_map(|i| (0..n).map(move |j| f32::from(u8::from(counts(i, j)))));
    let mut new = Rewrite::new(view, id, FIX.name);
    let triangle = new.numbers(dtype, &[n, n], ones);
    let last = shape.len() - 1;
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    perm.swap(axis, last);
    let x = if axis == last {
        New::Value(x)
    } else {
        new.transpose(New::Value(x), &perm)
    };
    let sums = new.binary("matmul", x, triangle);
    let y = if axis == last {
        sums
    } else {
        new.transpose(sums, &perm)
    };
    new.instead(y)
}
