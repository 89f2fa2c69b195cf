//! Writes products of rank 5 as products of rank 4, by merging two batch axes.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3, 2, 4, 8]> x, tensor<fp16, [2, 3, 2, 8, 5]> k) {
//!     tensor<fp16, [2, 3, 2, 4, 5]> y = matmul(x = x, y = k);
//! } -> (y);
//! ```
//!
//! becomes a `matmul` of [6, 2, 4, 8] and [6, 2, 8, 5] between reshapes.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "merge_batch_axes",
    rules: &["ANE064"],
    what: "a product of rank 5 with two batch axes as one",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (x, a) = new.operand(new.root(), "x")?;
    let (y, b) = new.operand(new.root(), "y")?;
    let out = new.result_shape()?;
    if a.len() != 5 || b.len() != 5 {
        return Err("one operand has fewer axes and is repeated over the others");
    }
    // Two neighbors that both operands have alike, or that one of them has not at all.
    let alike = |i: usize| a[i] == b[i] && a[i + 1] == b[i + 1];
    let alone = |i: usize| [&a, &b].iter().any(|s| s[i] == 1 && s[i + 1] == 1);
    let at = (0..2)
        .find(|i| alike(*i) || alone(*i))
        .ok_or("its batch axes are repeated, each for another operand")?;
    let merged = |shape: &[usize]| {
        let mut merged = shape.to_vec();
        merged[at] *= merged.remove(at + 1);
        merged
    };
    let (x, y) = (x.reshape(&merged(&a)), y.reshape(&merged(&b)));
    let z = new.again(new.graph.op(new.root()), &[("x", x), ("y", y)]);
    new.instead(z.reshape(&out))
}
