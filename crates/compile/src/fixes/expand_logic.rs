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

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_logic",
    rules: &["ANE025"],
    what: "logic as arithmetic over 0 and 1",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([logical_not, logical_and, logical_or, logical_xor]()),
        "it is no logical op",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let number = |name: &str| {
        let value = op.value_arg(name).ok_or("an operand is written in place")?;
        Ok::<_, &'static str>(new.of(value).cast(DType::Fp16))
    };
    let x = number("x")?;
    let number = match op.def.name {
        "logical_not" => 1.0 - x,
        "logical_and" => x * number("y")?,
        "logical_or" => x.binary("maximum", number("y")?),
        _ => {
            let difference = x - number("y")?;
            difference * difference
        }
    };
    new.instead(number.cast(DType::Bool))
}
