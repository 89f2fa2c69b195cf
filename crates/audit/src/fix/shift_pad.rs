//! Writes padding with a number c as padding of x - c with 0, and adds c.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 7]> y = pad(x = x, pad = tensor<int32, [4]>([0, 0, 1, 2]), mode = string("constant"), constant_val = fp16(0x1p+1));
//! } -> (y);
//! ```

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::rules::query::float;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "shift_pad",
    rules: &["ANE029"],
    what: "padding with 0 of what was shifted",
    numbers: Numbers::Exact,
    run,
};

/// Numbers above lose too much of x in fp16 when they are added to it.
const MOST: f32 = 64.0;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, _) = operand(view, id, "x")?;
    let c = float(view, id, "constant_val").ok_or("what it pads with is no constant number")?;
    if c.abs() > MOST {
        return Err("what it pads with is so large that adding it would cost the digits of x");
    }
    let mut new = Rewrite::new(view, id, FIX.name);
    let shift = new.number(dtype, c);
    let below = new.binary("sub", New::Value(x), shift);
    let none = new.number(dtype, 0.0);
    let padded = new.again(view.op(id), &[("x", below), ("constant_val", none)]);
    let y = new.binary("add", padded, shift);
    new.instead(y)
}
