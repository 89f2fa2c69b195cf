//! Writes products of rank 5 as products of rank 4, by merging two batch axes.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3, 2, 4, 8]> x, tensor<fp16, [2, 3, 2, 8, 5]> k) {
//!     tensor<fp16, [2, 3, 2, 4, 5]> y = matmul(x = x, y = k);
//! } -> (y);
//! ```
//!
//! becomes a `matmul` of [6, 2, 4, 8] and [6, 2, 8, 5] between reshapes.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::rewrite::{Rewrite, operand, result_shape};
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "merge_batch_axes",
    rules: &["ANE064"],
    what: "a product of rank 5 with two batch axes as one",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let (x, _, a) = operand(view, id, "x")?;
    let (y, _, b) = operand(view, id, "y")?;
    let out = result_shape(view, id)?;
    if a.len() != 5 || b.len() != 5 {
        return Err("one operand has fewer axes and is repeated over the others");
    }
    // Two neighbors that both operands have alike, or that one of them has not at all.
    let alike = |i: usize| a[i] == b[i] && a[i + 1] == b[i + 1];
    let alone = |i: usize| {
        [(&a, &b), (&b, &a)]
            .iter()
            .any(|(s, _)| s[i] == 1 && s[i + 1] == 1)
    };
    let at = (0..2)
        .find(|i| alike(*i) || alone(*i))
        .ok_or("its batch axes are repeated, each for another operand")?;
    let merged = |shape: &[usize]| {
        let mut merged = shape.to_vec();
        merged[at] *= merged.remove(at + 1);
        merged
    };
    let mut new = Rewrite::new(view, id, FIX.name);
    let (x, y) = (
        new.reshape(New::Value(x), &merged(&a)),
        new.reshape(New::Value(y), &merged(&b)),
    );
    let z = new.again(view.op(id), &[("x", x), ("y", y)]);
    let z = new.reshape(z, &out);
    new.instead(z)
}
