//! Writes repetitions as concatenations of one tensor with itself.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3]> x) {
//!     tensor<fp16, [4, 9]> y = tile(x = x, reps = tensor<int32, [2]>([2, 3]));
//! } -> (y);
//! ```
//!
//! becomes a `concat` of two along the first axis and one of three along the second.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::Rewrite;
use super::{Answer, Fix, Numbers};
use crate::rules::query::ints;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_tile",
    rules: &["ANE137"],
    what: "repetitions as joins",
    numbers: Numbers::Exact,
    run,
};

/// Parts of one join.
const MOST: usize = 64;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let x = op.value_arg("x").ok_or("its operand is written in place")?;
    let reps = ints(view, id, "reps").ok_or("only the call knows how often it repeats")?;
    let reps: Option<Vec<usize>> = reps.into_iter().map(|r| usize::try_from(r).ok()).collect();
    let reps = reps
        .filter(|r| r.iter().all(|n| (1..=MOST).contains(n)))
        .ok_or("it repeats more than 64 times")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut y = New::Value(x);
    for (axis, n) in reps.into_iter().enumerate().filter(|(_, n)| *n > 1) {
        y = new.concat(vec![y; n], axis);
    }
    if y == New::Value(x) {
        return Err("it repeats nothing");
    }
    new.instead(y)
}
