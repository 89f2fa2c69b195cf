//! Folds a transposition of the last two axes before a `matmul` into its flag.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3, 8]> x, tensor<fp16, [2, 5, 8]> k) {
//!     tensor<fp16, [2, 8, 5]> t = transpose(x = k, perm = tensor<int32, [3]>([0, 2, 1]));
//!     tensor<fp16, [2, 3, 5]> y = matmul(x = x, y = t);
//! } -> (y);
//! ```
//!
//! becomes `matmul(x, k, transpose_y = true)`.

use thane_mil::literal::Literal;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fold_transpose",
    rules: &["ANE132"],
    what: "a transposition by the flag of the product after it",
    numbers: Numbers::Exact,
    pattern: Else(
        &OneOf(&[
            pattern!(matmul(t @ transpose())),
            pattern!(matmul(_, t @ transpose())),
        ]),
        "it is no transposition that one product alone uses",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let id = new.maker("t");
    let x = new.graph.op(id).value_arg("x").ok_or(IN_PLACE)?;
    let rank = new.graph.shape(x).ok_or("its operand is no tensor")?.len();
    let perm = ints(new.graph, id, "perm").ok_or("its order of axes is not given")?;
    if rank < 2 {
        return Err("its operand is a vector");
    }
    let mut swapped: Vec<usize> = (0..rank).collect();
    swapped.swap(rank - 1, rank - 2);
    if !perm
        .iter()
        .map(|p| wrap(*p, rank))
        .eq(swapped.into_iter().map(Some))
    {
        return Err("it exchanges other axes than the last two");
    }
    let result = new.graph.op(id).results[0];
    if new.graph.users(result).len() != 1 {
        return Err("several ops use what it gives");
    }
    let product = new.graph.op(new.root());
    let mut others = Vec::new();
    for (side, flag) in [("x", "transpose_x"), ("y", "transpose_y")] {
        if product.value_arg(side) == Some(result) {
            let flipped = new.literal(Literal::bool(!new.flag(new.root(), flag)));
            others.extend([(side, new.of(x)), (flag, flipped)]);
        }
    }
    new.instead(new.again(product, &others))
}
