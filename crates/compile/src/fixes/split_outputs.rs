//! Splits products with more outputs than an axis may have, and concatenates the parts.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 2, 8]> x) {
//!     tensor<fp16, [65600, 8]> w = const()[val = tensor<fp16, [65600, 8]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [1, 2, 65600]> y = linear(x = x, weight = w);
//! } -> (y);
//! ```
//!
//! becomes two `linear` with the first 32,800 rows of the weight and the rest, and a `concat`,
//! which Core ML runs off the engine: the products stay.

use super::*;
use crate::compressed::Weight;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_outputs",
    rules: &["ANE055", "ANE056"],
    what: "a product with many outputs as products with fewer, joined",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([linear, conv, matmul]()),
        "only products with constants are split by outputs",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let (id, op) = (new.root(), new.graph.op(new.root()));
    let out = new.result_shape()?;
    let last = out.len().checked_sub(1).ok_or("its result is a scalar")?;
    let (param, axis) = match op.def.name {
        "conv" if int(new.graph, id, "groups").unwrap_or(1) != 1 => {
            return Err("only products with constants are split by outputs");
        }
        "conv" => ("weight", 1),
        "matmul" => ("y", last),
        _ => ("weight", last),
    };
    new.operand(id, "x")?;
    let weight = Weight::of(new.graph, op, param)?;
    let weight_axis = match param {
        "y" => weight.shape.len().saturating_sub(2) + usize::from(!new.flag(id, "transpose_y")),
        _ => 0,
    };
    let bias = match op.arg("bias") {
        None => None,
        Some(_) => {
            Some(Constant::of(new.graph, op, "bias").ok_or("its bias is no plain constant")?)
        }
    };
    // Of a convolution channels, else what is last.
    let cap = match op.def.name {
        "conv" => new.limits.channels,
        _ => new.limits.spatial.min(new.limits.channels),
    };
    let n = *out.get(axis).ok_or("its result has too few axes")?;
    if n <= cap || weight.shape.get(weight_axis) != Some(&n) {
        return Err("it is not its outputs that are too many");
    }
    let most = n.div_ceil(n.div_ceil(cap)).next_multiple_of(32).min(cap);
    let mut parts = Vec::new();
    for begin in (0..n).step_by(most) {
        let len = most.min(n - begin);
        let weight = weight.slice(weight_axis, begin, len)?.write(new);
        let bias = bias
            .as_ref()
            .map(|b| new.literal(b.slice(0, begin, len).literal()));
        let others = [(param, weight)]
            .into_iter()
            .chain(bias.map(|b| ("bias", b)));
        parts.push(new.again(op, &others.collect::<Vec<_>>()));
    }
    new.instead(new.concat(&parts, axis))
}
