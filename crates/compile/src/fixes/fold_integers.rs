//! Folds integers that follow from shapes and constants into constants.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<int32, [2]> s = shape(x = x);
//!     tensor<int32, [2]> d = mul(x = s, y = tensor<int32, [2]>([2, 1]));
//!     tensor<fp16, [4, 2]> y = reshape(x = x, shape = tensor<int32, [2]>([4, 2]));
//!     tensor<int32, [2]> z = add(x = d, y = int32(1));
//! } -> (y, z);
//! ```
//!
//! becomes the same with s = [2, 4], d = [4, 4] and z = [5, 5] stated: nothing is computed in a
//! call.

use thane_mil::data::Data;
use thane_mil::program::Op as MilOp;

use super::*;
use crate::ints::{Facts, Ints, evaluate};

/// The fix.
pub const FIX: Fix = Fix {
    name: "fold_integers",
    rules: &["ANE019", "ANE027", "ANE008", "ANE046", "ANE047"],
    what: "integers that follow from shapes and constants as constants",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Integers of a constant; more are no shapes or indices.
const MOST: usize = 4096;
/// Ops that are followed back.
const DEEPEST: usize = 16;

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let [result] = op.results[..] else {
        return Err("it has several results");
    };
    if new.graph.dtype(result) != Some(DType::Int32) {
        return Err("it does not make int32");
    }
    let found = of_op(new.graph, op, 0)
        .ok_or("a call decides its numbers: compute them on the host and pass them in")?;
    if new
        .graph
        .known_shape(result)
        .is_none_or(|s| s != found.shape)
    {
        return Err("its declared shape is not the one that follows");
    }
    let ints: Option<Vec<i32>> = found.ints.iter().map(|i| i32::try_from(*i).ok()).collect();
    let ints = ints.ok_or("its numbers are beyond int32")?;
    let data = Data::owned(ints.iter().flat_map(|i| i.to_le_bytes()).collect());
    new.instead(new.tensor(DType::Int32, &found.shape, data))
}

/// The integers that an op makes.
fn of_op(graph: &Graph<'_>, op: &MilOp, depth: usize) -> Option<Ints> {
    // A cast from another type may round or wrap.
    let is_cast = op.def.name == "cast";
    let is_plain = !is_cast || graph.dtype(op.value_arg("x")?) == Some(DType::Int32);
    let facts = Facts {
        value: &|v| of_op(graph, graph.f.definer(v)?, depth + 1),
        shape: &|v| graph.known_shape(v),
        most: MOST,
    };
    (is_plain && depth <= DEEPEST).then(|| evaluate(op, &facts))?
}
