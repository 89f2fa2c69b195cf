//! Writes softplus as relu(x) + log(1 + exp(-|x|)), whose exponential never overflows.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = softplus(x = x);
//! } -> (y);
//! ```

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_softplus",
    rules: &["ANE108", "ANE170"],
    what: "softplus in a form that does not overflow",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, _) = operand(view, id, "x")?;
    let x = New::Value(x);
    let mut new = Rewrite::new(view, id, FIX.name);
    let magnitude = new.unary("abs", x);
    let minus = new.with_number("mul", magnitude, dtype, -1.0);
    let small = new.unary("exp", minus);
    let sum = new.with_number("add", small, dtype, 1.0);
    let log = new.unary("log", sum);
    let positive = new.unary("relu", x);
    let y = new.binary("add", positive, log);
    new.instead(y)
}
