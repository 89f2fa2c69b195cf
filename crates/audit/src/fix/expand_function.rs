//! Writes functions that the Neural Engine has no table for with functions that it has.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = tan(x = x);
//! } -> (y);
//! ```
//!
//! becomes sin(x) / cos(x); sinh and cosh become exponentials of x / 2, whose squares are no larger
//! than the result, atanh logarithms, asin and acos atan(x / sqrt(1 - x^2)).

use std::f32::consts::FRAC_PI_2;

use thane_mil::edit::New;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::rewrite::{Rewrite, operand};
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_function",
    rules: &["ANE001"],
    what: "a function without a table by functions with one",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, dtype, _) = operand(view, id, "x")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let x = New::Value(x);
    let y = match view.op(id).def.name {
        "tan" => {
            let (sin, cos) = (new.unary("sin", x), new.unary("cos", x));
            new.binary("real_div", sin, cos)
        }
        "sinh" => sinh(&mut new, x, dtype),
        "cosh" => cosh(&mut new, x, dtype),
        "atanh" => {
            let one = new.number(dtype, 1.0);
            let (above, below) = (new.binary("add", one, x), new.binary("sub", one, x));
            let (above, below) = (new.unary("log", above), new.unary("log", below));
            let y = new.binary("sub", above, below);
            new.with_number("mul", y, dtype, 0.5)
        }
        "asin" => arc_sine(&mut new, x, dtype),
        "acos" => {
            let (quarter, y) = (new.number(dtype, FRAC_PI_2), arc_sine(&mut new, x, dtype));
            new.binary("sub", quarter, y)
        }
        _ => return Err("it is not written with other functions"),
    };
    new.instead(y)
}

/// e^(x/2) and e^(-x/2): e^x is infinite in fp16 where half of it is not.
fn half_powers(new: &mut Rewrite<'_>, x: New, dtype: DType) -> (New, New) {
    let (up, down) = (
        new.with_number("mul", x, dtype, 0.5),
        new.with_number("mul", x, dtype, -0.5),
    );
    (new.unary("exp", up), new.unary("exp", down))
}

/// (a - b) / 2 (a + b) of a = e^(x/2) and b = e^(-x/2).
fn sinh(new: &mut Rewrite<'_>, x: New, dtype: DType) -> New {
    let (up, down) = half_powers(new, x, dtype);
    let difference = new.binary("sub", up, down);
    let half = new.with_number("mul", difference, dtype, 0.5);
    let sum = new.binary("add", up, down);
    new.binary("mul", half, sum)
}

/// a / 2 a + b / 2 b of a = e^(x/2) and b = e^(-x/2).
fn cosh(new: &mut Rewrite<'_>, x: New, dtype: DType) -> New {
    let (up, down) = half_powers(new, x, dtype);
    let squares = [up, down].map(|power| {
        let half = new.with_number("mul", power, dtype, 0.5);
        new.binary("mul", half, power)
    });
    new.sum(squares.to_vec())
}

/// atan(x / sqrt((1 - x) (1 + x))); at 1 the quotient is infinite and its atan a quarter turn.
fn arc_sine(new: &mut Rewrite<'_>, x: New, dtype: DType) -> New {
    let one = new.number(dtype, 1.0);
    let (above, below) = (new.binary("add", one, x), new.binary("sub", one, x));
    let square = new.binary("mul", above, below);
    let root = new.unary("sqrt", square);
    let tangent = new.binary("real_div", x, root);
    new.unary("atan", tangent)
}
