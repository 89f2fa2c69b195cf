//! Writes the logarithm of a softmax as x - max - log(sum(exp(x - max))), which takes no logarithm
//! of 0.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> p = softmax(x = x, axis = int32(-1));
//!     tensor<fp16, [2, 4]> y = log(x = p);
//! } -> (y);
//! ```

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_log_softmax",
    rules: &["ANE111"],
    what: "the logarithm of a softmax without its quotient",
    numbers: Numbers::Exact,
    pattern: pattern!(log((Else(
        &pattern!(p @ softmax()),
        "it is not of a softmax"
    )))),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let softmax = new.maker("p");
    let (x, shape) = new.operand(softmax, "x")?;
    let axis = new.axis(softmax, shape.len(), -1)?;
    let x = x - x.reduce("reduce_max", &[axis]);
    let sum = x.exp().reduce("reduce_sum", &[axis]);
    new.instead(x - sum.log())
}
