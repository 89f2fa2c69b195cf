//! Writes logical ops as arithmetic on 0 and 1 in fp16.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<bool, [2, 4]> a = greater(x = x, y = fp16(0x0p+0));
//!     tensor<bool, [2, 4]> b = less(x = x, y = fp16(0x1p+0));
//!     tensor<bool, [2, 4]> c = logical_and(x = a, y = b);
//!     tensor<fp16, [2, 4]> y = cast(x = c, dtype = string("fp16"));
//! } -> (y);
//! ```
//!
//! becomes a product of both as numbers; or is the larger, xor the square of the difference, not 1
//! less it.

use thane_mil::edit::New;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::rewrite::Rewrite;
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_logic",
    rules: &["ANE025"],
    what: "logic as arithmetic over 0 and 1",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let mut new = Rewrite::new(view, id, FIX.name);
    let operand = |new: &mut Rewrite<'_>, name: &str| {
        let value = op.value_arg(name).ok_or("an operand is written in place")?;
        Ok::<New, &'static str>(new.cast(New::Value(value), DType::Fp16))
    };
    let x = operand(&mut new, "x")?;
    let number = match op.def.name {
        "logical_not" => {
            let one = new.number(DType::Fp16, 1.0);
            new.binary("sub", one, x)
        }
        "logical_and" | "logical_or" | "logical_xor" => {
            let y = operand(&mut new, "y")?;
            match op.def.name {
                "logical_and" => new.binary("mul", x, y),
                "logical_or" => new.binary("maximum", x, y),
                _ => {
                    let difference = new.binary("sub", x, y);
                    new.binary("mul", difference, difference)
                }
            }
        }
        _ => return Err("it is no logical op"),
    };
    let y = new.cast(number, DType::Bool);
    new.instead(y)
}
