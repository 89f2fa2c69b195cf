//! Writes a tensor plus itself as a product with 2, and a tensor times itself as a power.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = add(x = x, y = x);
//! } -> (y);
//! ```
//!
//! becomes `mul(x, 2)`, which fuses into the op before it.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "double",
    rules: &["ANE141"],
    what: "a sum of a tensor with itself as a product with 2",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    if view.op(id).def.name != "add" {
        return Err("it is no sum");
    }
    let (x, dtype, _) = operand(view, id, "x")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let y = new.with_number("mul", New::Value(x), dtype, 2.0);
    new.instead(y)
}
