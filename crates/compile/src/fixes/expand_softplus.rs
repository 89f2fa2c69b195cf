//! Writes softplus as relu(x) + log(1 + exp(-|x|)), whose exponential never overflows.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = softplus(x = x);
//! } -> (y);
//! ```

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_softplus",
    rules: &["ANE108", "ANE170"],
    what: "softplus in a form that does not overflow",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, _) = new.operand(new.root(), "x")?;
    let log = ((x.abs() * -1.0).exp() + 1.0).log();
    new.instead(x.relu() + log)
}
