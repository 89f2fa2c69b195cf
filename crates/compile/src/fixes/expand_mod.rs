//! Writes remainders as x - floor(x / y) * y, in fp16 only where y is a constant of few digits,
//! up to 1. For another y the quotient may be rounded up to a whole number, or up to 0 from
//! below, and the remainder is then off by y.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = mod(x = x, y = fp16(0x1.8p-1));
//! } -> (y);
//! ```

use thane_mil::program::Arg;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_mod",
    rules: &["ANE003"],
    what: "a remainder by a quotient that is rounded down",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let result = *op.results.first().ok_or("it has no result")?;
    match new.graph.dtype(result) {
        Some(DType::Fp32) => {}
        Some(DType::Fp16) if is_safe_divisor(new) => {}
        Some(DType::Fp16) => {
            return Err(
                "its divisor in fp16 is no constant of few digits up to 1: compute it in fp32",
            );
        }
        _ => {
            return Err(
                "it is a remainder of integers, which are not on the engine either: compute it on \
                 the host",
            );
        }
    }
    let [x, y] = ["x", "y"].map(|name| match op.arg(name) {
        Some(Arg::Value(v)) => Some(new.of(*v)),
        Some(Arg::Literal(l)) => Some(new.literal(l.clone())),
        _ => None,
    });
    let (x, y) = x.zip(y).ok_or("an operand is missing")?;
    new.instead(x - (x / y).floor() * y)
}

/// Whether the divisor is a constant whose numbers have five digits or fewer in binary, so that
/// fp16 holds multiples of it, and are no larger than 1, so that no quotient is below what fp16
/// holds.
fn is_safe_divisor(new: &Rewrite<'_>) -> bool {
    /// Digits of an f32 that are behind those.
    const BEHIND: u32 = (1 << 19) - 1;
    let is_refused = |x: f32| x.to_bits() & BEHIND != 0 || x.abs() > 1.0;
    let divisor = Constant::of(new.graph, new.graph.op(new.root()), "y");
    divisor.is_some_and(|divisor| !divisor.any(is_refused))
}
