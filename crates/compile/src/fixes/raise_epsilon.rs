//! Raises epsilons that fp16 or the Neural Engine rounds to 0 to the smallest number that neither
//! does.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = layer_norm(x = x, axes = tensor<int32, [1]>([1]), epsilon = fp16(0x1p-24));
//! } -> (y);
//! ```
//!
//! becomes the same with an epsilon of 2^-14; so does an `add` of less before a root.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "raise_epsilon",
    rules: &["ANE103", "ANE104"],
    what: "an epsilon that the engine does not take for 0",
    numbers: Numbers::Lossy,
    pattern: ANY_OP,
    write,
};

/// The smallest normal number of fp16, 2^-14.
pub const LEAST: f32 = 6.103_515_6e-5;

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let mut names = op.def.params.iter().map(|p| p.name);
    let small = names.find_map(|name| {
        let epsilon = Constant::of(new.graph, op, name)?;
        let is_epsilon = ["epsilon", "x", "y"].contains(&name) && epsilon.shape.is_empty();
        (is_epsilon && epsilon.any(|x| x > 0.0 && x < LEAST)).then_some((name, epsilon.dtype))
    });
    let (name, dtype) = small.ok_or("its epsilon is no constant")?;
    let epsilon = new.number(dtype, LEAST);
    new.instead(new.again(op, &[(name, epsilon)]))
}
