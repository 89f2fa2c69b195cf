//! Writes repetitions as concatenations of one tensor with itself.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3]> x) {
//!     tensor<fp16, [4, 9]> y = tile(x = x, reps = tensor<int32, [2]>([2, 3]));
//! } -> (y);
//! ```
//!
//! becomes a `concat` of two along the first axis and one of three along the second.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_tile",
    rules: &["ANE137"],
    what: "repetitions as joins",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Parts of one join.
const MOST: usize = 64;

fn write(new: &Rewrite<'_>) -> Answer {
    let id = new.root();
    let x = new.graph.op(id).value_arg("x").ok_or(IN_PLACE)?;
    let reps = ints(new.graph, id, "reps").ok_or("only the call knows how often it repeats")?;
    let reps: Option<Vec<usize>> = reps.into_iter().map(|r| usize::try_from(r).ok()).collect();
    let reps = reps
        .filter(|r| r.iter().all(|n| (1..=MOST).contains(n)))
        .ok_or("it repeats more than 64 times")?;
    if reps.iter().all(|n| *n == 1) {
        return Err("it repeats nothing");
    }
    let reps = reps.into_iter().enumerate().filter(|(_, n)| *n > 1);
    new.instead(reps.fold(new.of(x), |y, (axis, n)| new.concat(&vec![y; n], axis)))
}
