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

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_function",
    rules: &["ANE001"],
    what: "a function without a table by functions with one",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([tan, sinh, cosh, atanh, asin, acos]()),
        "it is not written with other functions",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, _) = new.operand(new.root(), "x")?;
    new.instead(match new.graph.op(new.root()).def.name {
        "tan" => x.sin() / x.cos(),
        "sinh" => sinh(x),
        "cosh" => cosh(x),
        "atanh" => {
            let one = x.number(1.0);
            let (above, below) = (one + x, one - x);
            (above.log() - below.log()) * 0.5
        }
        "asin" => arc_sine(x),
        _ => x.number(FRAC_PI_2) - arc_sine(x),
    })
}

/// e^(x/2) and e^(-x/2): e^x is infinite in fp16 where half of it is not.
fn half_powers(x: Value<'_>) -> (Value<'_>, Value<'_>) {
    let (up, down) = (x * 0.5, x * -0.5);
    (up.exp(), down.exp())
}

/// (a - b) / 2 (a + b) of a = e^(x/2) and b = e^(-x/2).
fn sinh(x: Value<'_>) -> Value<'_> {
    let (up, down) = half_powers(x);
    (up - down) * 0.5 * (up + down)
}

/// a / 2 a + b / 2 b of a = e^(x/2) and b = e^(-x/2).
fn cosh(x: Value<'_>) -> Value<'_> {
    let (up, down) = half_powers(x);
    up * 0.5 * up + down * 0.5 * down
}

/// atan(x / sqrt((1 - x) (1 + x))); at 1 the quotient is infinite and its atan a quarter turn.
fn arc_sine(x: Value<'_>) -> Value<'_> {
    let one = x.number(1.0);
    (x / ((one + x) * (one - x)).sqrt()).atan()
}
