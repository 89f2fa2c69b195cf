//! Finds the position of the largest or smallest of up to 2,048 numbers by comparing each with it.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 8]> x) {
//!     tensor<int32, [1, 1]> y = reduce_argmax(x = x, axis = int32(1), keep_dims = bool(true));
//! } -> (y);
//! ```
//!
//! becomes n - max(where x = max(x) or x is NaN: n - i, else 1) and a `cast`, which alone leaves
//! the engine. fp16 counts to 2,048. The maximum of numbers with a NaN is NaN, so that the first
//! NaN is found, as before.

use thane_mil::edit::New;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::rewrite::{Rewrite, one, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_argmax",
    rules: &["ANE005", "ANE135"],
    what: "the position of the largest number by comparison with it",
    numbers: Numbers::Exact,
    run,
};

/// Integers up to here are exact in fp16.
const MOST: usize = 2048;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let extreme = match op.def.name {
        "reduce_argmax" => "reduce_max",
        "reduce_argmin" => "reduce_min",
        _ => return Err("it is no argmax or argmin"),
    };
    let (x, dtype, shape) = operand(view, id, "x")?;
    let axis =
        wrap(int(view, id, "axis").unwrap_or(-1), shape.len()).ok_or("its axis is none of x")?;
    let n = shape[axis];
    if n > MOST {
        return Err("fp16 counts to 2048: give the logits out and take the argmax on the host");
    }
    let out = result_shape(view, id)?;
    let made = view.dtype(op.results[0]).unwrap_or(DType::Int32);
    let mut new = Rewrite::new(view, id, FIX.name);
    let best = new.reduce(extreme, New::Value(x), &[axis]);
    let is_best = new.binary("equal", New::Value(x), best);
    let mut row = vec![1; shape.len()];
    row[axis] = n;
    let left = new.numbers(dtype, &row, (0..n).map(|i| (n - i) as f32));
    // Where nothing is equal to the best, the last position: none beyond it.
    let none = new.number(dtype, 1.0);
    let best = new.op(
        "select",
        vec![one("cond", is_best), one("a", left), one("b", none)],
    );
    let is_number = new.binary("equal", New::Value(x), New::Value(x));
    let left = new.op(
        "select",
        vec![one("cond", is_number), one("a", best), one("b", left)],
    );
    // The first of equals has most left.
    let first = new.reduce("reduce_max", left, &[axis]);
    let n = new.number(dtype, n as f32);
    let y = new.binary("sub", n, first);
    let y = if out.len() == shape.len() {
        y
    } else {
        new.reshape(y, &out)
    };
    let y = new.cast(y, made);
    new.instead(y)
}
