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

use thane_mil::edit::New;
use thane_mil::literal::Literal;
use thane_mil::program::OpId;

use super::rewrite::Rewrite;
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, ints};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fold_transpose",
    rules: &["ANE132"],
    what: "a transposition by the flag of the product after it",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let x = op.value_arg("x").ok_or("its operand is written in place")?;
    let rank = view.shape(x).ok_or("its operand is no tensor")?.len() as i64;
    let perm = ints(view, id, "perm").ok_or("its order of axes is not given")?;
    let wrapped: Vec<i64> = perm
        .iter()
        .map(|p| if *p < 0 { p + rank } else { *p })
        .collect();
    let mut swapped: Vec<i64> = (0..rank).collect();
    if rank < 2 {
        return Err("its operand is a vector");
    }
    swapped.swap(rank as usize - 1, rank as usize - 2);
    if wrapped != swapped {
        return Err("it exchanges other axes than the last two");
    }
    let result = op.results[0];
    let [user] = view.users(result)[..] else {
        return Err("several ops use what it gives");
    };
    if view.op(user).def.name != "matmul" {
        return Err("no product follows it");
    }
    let sides: Vec<(&'static str, &'static str)> = [("x", "transpose_x"), ("y", "transpose_y")]
        .into_iter()
        .filter(|(side, _)| view.op(user).value_arg(side) == Some(result))
        .collect();
    let mut new = Rewrite::new(view, user, FIX.name);
    let mut others = Vec::new();
    for (side, flag) in sides {
        let flipped = new.literal(Literal::bool(int(view, user, flag) != Some(1)));
        others.extend([(side, New::Value(x)), (flag, flipped)]);
    }
    let y = product(&mut new, view, user, &others);
    new.instead_of(user, y)
}

/// The product with other arguments, those that it left out among them.
fn product(
    new: &mut Rewrite<'_>,
    view: &View<'_>,
    user: OpId,
    others: &[(&'static str, New)],
) -> New {
    let op = view.op(user);
    let kept = op
        .def
        .params
        .iter()
        .filter(|p| !others.iter().any(|(name, _)| *name == p.name));
    let mut args: Vec<_> = kept
        .filter_map(|p| Some((p.name, super::rewrite::same_arg(op, p.name)?)))
        .collect();
    args.extend(
        others
            .iter()
            .map(|(name, value)| super::rewrite::one(name, *value)),
    );
    new.defined(op.def, args)
}
