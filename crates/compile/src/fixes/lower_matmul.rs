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

use thane_mil::literal::Literal;
use thane_mil::program::Arg;

use super::*;
use crate::compressed::Weight;

/// The fix.
pub const FIX: Fix = Fix {
    name: "lower_matmul",
    rules: &["ANE123", "ANE078"],
    what: "a product with a constant as a 1x1 convolution",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([linear, matmul]()),
        "only linear and matmul become convolutions",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (id, op) = (new.root(), new.graph.op(new.root()));
    let weight = match op.def.name {
        "linear" => Weight::of(new.graph, op, "weight")?,
        _ => matrix(new)?,
    };
    let (x, shape) = new.operand(id, "x")?;
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
    let out = new.result_shape()?;
    let x = x.reshape(&[batch, rows, 1, k]).transpose(&[0, 3, 2, 1]);
    let weight = weight.matrix(2)?.write(new);
    // A bias that is written in place becomes a constant of its own.
    let bias = op.arg("bias").and_then(|bias| match bias {
        Arg::Literal(literal) => Some(new.literal(literal.clone())),
        Arg::Value(v) => Some(new.of(*v)),
        Arg::Values(_) => None,
    });
    let (strides, pad) = (new.ints(&[1, 1]), new.ints(&[0, 0, 0, 0]));
    let (pad_type, groups) = (new.literal(Literal::string("valid")), new.int(1));
    let mut args = vec![
        ("x", x),
        ("weight", weight),
        ("strides", strides),
        ("pad_type", pad_type),
        ("pad", pad),
        ("dilations", strides),
        ("groups", groups),
    ];
    args.extend(bias.map(|bias| ("bias", bias)));
    let y = new.op("conv", &args).transpose(&[0, 3, 2, 1]);
    new.instead(y.reshape(&out))
}

/// The constant of a `matmul`, with output channels first.
fn matrix(new: &Rewrite<'_>) -> Result<Weight, &'static str> {
    if new.flag(new.root(), "transpose_x") {
        return Err("its operand is transposed first");
    }
    // A weight of higher rank than the operand gives the result axes that the operand lacks; the
    // last reshape has them.
    let weight = Weight::of(new.graph, new.graph.op(new.root()), "y")?.matrix(0)?;
    if new.flag(new.root(), "transpose_y") {
        Ok(weight)
    } else {
        weight.transposed()
    }
}
