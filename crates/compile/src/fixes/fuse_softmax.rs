//! Writes exp(x) / sum(exp(x)) as `softmax`, which subtracts the maximum first.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> e = exp(x = x);
//!     tensor<fp16, [2, 1]> s = reduce_sum(x = e, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [2, 4]> y = real_div(x = e, y = s);
//! } -> (y);
//! ```

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fuse_softmax",
    rules: &["ANE112"],
    what: "a softmax by hand as softmax",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!(real_div(powers @ exp(), sum @ reduce_sum(powers))),
        "no sum and quotient follow it",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, shape) = new.operand(new.maker("powers"), "x")?;
    let sum = new.maker("sum");
    let axis = new.one_axis(sum, shape.len(), "its sum is over several axes")?;
    if !new.flag(sum, "keep_dims") {
        return Err("its sum drops the axis");
    }
    let axis = new.int(axis as i32);
    new.instead(new.op("softmax", &[("x", x), ("axis", axis)]))
}
