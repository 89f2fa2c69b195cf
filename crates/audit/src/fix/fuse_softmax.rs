//! Writes exp(x) / sum(exp(x)) as `softmax`, which subtracts the maximum first.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> e = exp(x = x);
//!     tensor<fp16, [2, 1]> s = reduce_sum(x = e, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [2, 4]> y = real_div(x = e, y = s);
//! } -> (y);
//! ```

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, one, operand};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, ints, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fuse_softmax",
    rules: &["ANE112"],
    what: "a softmax by hand as softmax",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, _, shape) = operand(view, id, "x")?;
    let powers = view.op(id).results[0];
    let find = |kind: &str| {
        view.users(powers)
            .iter()
            .copied()
            .find(|u| view.op(*u).def.name == kind)
    };
    let (sum, quotient) = find("reduce_sum")
        .zip(find("real_div"))
        .ok_or("no sum and quotient follow it")?;
    let total = view.op(sum).results[0];
    let op = view.op(quotient);
    if (op.value_arg("x"), op.value_arg("y")) != (Some(powers), Some(total)) {
        return Err("the quotient is another");
    }
    let axes = ints(view, sum, "axes").ok_or("the axes of its sum are not given")?;
    let [axis] = axes[..] else {
        return Err("its sum is over several axes");
    };
    let axis = wrap(axis, shape.len()).ok_or("its axis is none of x")?;
    if int(view, sum, "keep_dims") != Some(1) {
        return Err("its sum drops the axis");
    }
    let mut new = Rewrite::new(view, quotient, FIX.name);
    let axis = new.int(axis as i32);
    let y = new.op("softmax", vec![one("x", New::Value(x)), one("axis", axis)]);
    new.instead_of(quotient, y)
}
