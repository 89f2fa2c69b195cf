//! Writes root mean square norms of x as `layer_norm` over x and -x.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 1, 4]> x) {
//!     tensor<fp16, [1, 64, 1, 4]> q = mul(x = x, y = x);
//!     tensor<fp16, [1, 1, 1, 4]> m = reduce_mean(x = q, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [1, 1, 1, 4]> r = rsqrt(x = m, epsilon = fp16(0x1p-14));
//!     tensor<fp16, [1, 64, 1, 4]> y = mul(x = x, y = r);
//! } -> (y);
//! ```
//!
//! becomes a `concat` of x and -x, whose mean is 0 and whose variance is the mean of squares, its
//! `layer_norm`, and the first half of that.

use super::raise_epsilon::LEAST;
use super::scale_rms_norm::{OTHER, PRODUCT, QUOTIENT, epsilon};
use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fuse_rms_norm",
    rules: &["ANE105"],
    what: "a norm by mean squares as layer_norm over x and -x",
    numbers: Numbers::Exact,
    pattern: Else(&OneOf(&[PRODUCT, QUOTIENT]), OTHER),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (sum, x) = (new.maker("sum"), new.value("x"));
    if new.kind(sum) != "reduce_mean" {
        return Err("it is no mean of squares");
    }
    let (_, shape) = new.operand(sum, "x")?;
    let axis = new.one_axis(sum, shape.len(), "it is normed along several axes")?;
    let epsilon = epsilon(new)?;
    if epsilon < LEAST {
        return Err(
            "layer_norm needs an epsilon of 2^-14 at least, and another one computes something \
             else",
        );
    }
    let both = new.concat(&[x, x * -1.0], axis);
    let (axes, epsilon) = (new.ints(&[axis]), x.number(epsilon));
    let args = [("x", both), ("axes", axes), ("epsilon", epsilon)];
    let normed = new.op("layer_norm", &args);
    let mut twice = shape.clone();
    twice[axis] *= 2;
    new.instead(normed.slice_axis(&twice, axis, 0, shape[axis]))
}
