//! Writes padding with a number c as padding of x - c with 0, and adds c.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 7]> y = pad(x = x, pad = tensor<int32, [4]>([0, 0, 1, 2]), mode = string("constant"), constant_val = fp16(0x1p+1));
//! } -> (y);
//! ```

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "shift_pad",
    rules: &["ANE029"],
    what: "padding with 0 of what was shifted",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Numbers above lose too much of x in fp16 when they are added to it.
const MOST: f32 = 64.0;

fn write(new: &Rewrite<'_>) -> Answer {
    let id = new.root();
    let (x, _) = new.operand(id, "x")?;
    let c =
        float(new.graph, id, "constant_val").ok_or("what it pads with is no constant number")?;
    if c.abs() > MOST {
        return Err("what it pads with is so large that adding it would cost the digits of x");
    }
    let shift = x.number(c);
    let below = x - shift;
    let others = [("x", below), ("constant_val", x.number(0.0))];
    new.instead(new.again(new.graph.op(id), &others) + shift)
}
