//! Writes products with constant matrices as 1x1 convolutions over (batch, channels, 1, positions).
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 3, 8]> x) {
//!     tensor<fp16, [5, 8]> w = const()[val = tensor<fp16, [5, 8]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [2, 3, 5]> y = matmul(x = x, y = w, transpose_y = bool(true));
//! } -> (y);
//! ```
//!
//! becomes a `reshape` to [2, 3, 1, 8], a `transpose` by [0, 3, 2, 1], a `conv` with the same bytes
//! as [5, 8, 1, 1], and the way back. What is rearranged twice between two products, elementwise
//! ops in between, is not (`cancel_layouts`).

use thane_mil::edit::{New, NewArg};
use thane_mil::program::OpId;

use super::compressed::Weight;
use super::rewrite::{Rewrite, operand, result_shape, same_arg};
use super::{Answer, Fix, Numbers};
use crate::rules::query::int;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_matmul",
    rules: &["ANE123", "ANE078"],
    what: "a product with a constant as a 1x1 convolution",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let (weight, bias) = match op.def.name {
        "linear" => (Weight::of(view, op, "weight")?, same_arg(op, "bias")),
        "matmul" => (matrix(view, id)?, None),
        _ => return Err("only linear and matmul become convolutions"),
    };
    let (x, _, shape) = operand(view, id, "x")?;
    let [_, k] = weight.shape[..] else {
        return Err("its weight is no matrix");
    };
    if shape.len() < 2 {
        return Err("its operand is a vector");
    }
    let (batch, rows) = match shape[..] {
        [batch, rows, _] => (batch, rows),
        _ => (1, shape[..shape.len() - 1].iter().product()),
    };
    let out = result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let x = new.reshape(New::Value(x), &[batch, rows, 1, k]);
    let x = new.transpose(x, &[0, 3, 2, 1]);
    let weight = weight.matrix(2)?.write(&mut new);
    let bias = bias.map(|b| in_const(&mut new, b));
    let y = new.pointwise(x, weight, bias);
    let y = new.transpose(y, &[0, 3, 2, 1]);
    let y = new.reshape(y, &out);
    new.instead(y)
}

/// A bias that is written in place, as a constant of its own.
fn in_const(new: &mut Rewrite<'_>, bias: NewArg) -> NewArg {
    match bias {
        NewArg::Same(thane_mil::program::Arg::Literal(literal)) => {
            NewArg::One(new.literal(literal))
        }
        other => other,
    }
}

/// The constant of a `matmul`, with output channels first.
fn matrix(view: &View<'_>, id: OpId) -> Result<Weight, &'static str> {
    if int(view, id, "transpose_x") == Some(1) {
        return Err("its operand is transposed first");
    }
    // A weight of higher rank than the operand gives the result axes that the operand lacks; the
    // last reshape has them.
    let weight = Weight::of(view, view.op(id), "y")?.matrix(0)?;
    if int(view, id, "transpose_y") == Some(1) {
        Ok(weight)
    } else {
        weight.transposed()
    }
}
