//! Writes a tensor plus itself as a product with 2, and a tensor times itself as a power.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = add(x = x, y = x);
//! } -> (y);
//! ```
//!
//! becomes `mul(x, 2)`, which fuses into the op before it.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "double",
    rules: &["ANE141"],
    what: "a sum of a tensor with itself as a product with 2",
    numbers: Numbers::Exact,
    pattern: Else(&pattern!(add(x, x)), "it is no sum"),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, _) = new.operand(new.root(), "x")?;
    new.instead(x * 2.0)
}
