//! Writes the logarithm of a softmax as x - max - log(sum(exp(x - max))), which takes no logarithm
//! of 0.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> p = softmax(x = x, axis = int32(-1));
//!     tensor<fp16, [2, 4]> y = log(x = p);
//! } -> (y);
//! ```

use thane_mil::edit::New;
use thane_mil::program::{Definition, OpId};

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_log_softmax",
    rules: &["ANE111"],
    what: "the logarithm of a softmax without its quotient",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let p = view
        .op(id)
        .value_arg("x")
        .ok_or("its operand is written in place")?;
    let Definition::Result(softmax, _) = view.f.value(p).definition else {
        return Err("it is not of a softmax");
    };
    if view.op(softmax).def.name != "softmax" {
        return Err("it is not of a softmax");
    }
    let (x, _, shape) = operand(view, softmax, "x")?;
    let axis = wrap(int(view, softmax, "axis").unwrap_or(-1), shape.len())
        .ok_or("its axis is none of x")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let most = new.reduce("reduce_max", New::Value(x), &[axis]);
    let x = new.binary("sub", New::Value(x), most);
    let powers = new.unary("exp", x);
    let sum = new.reduce("reduce_sum", powers, &[axis]);
    let log = new.unary("log", sum);
    let y = new.binary("sub", x, log);
    new.instead(y)
}
