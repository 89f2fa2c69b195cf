//! Writes the softmax of attention out, with a product by the inverse of the sum in the place of
//! the division that compilers take for a softmax.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4, 8]> q, tensor<fp16, [2, 5, 8]> k, tensor<fp16, [2, 5, 6]> v) {
//!     tensor<fp16, [2, 4, 5]> s = matmul(x = q, y = k, transpose_y = bool(true));
//!     tensor<fp16, [2, 4, 5]> p = softmax(x = s, axis = int32(-1));
//!     tensor<fp16, [2, 4, 6]> y = matmul(x = p, y = v);
//! } -> (y);
//! ```
//!
//! With e = exp(s - max(s)), p becomes e * inverse(sum(e)). The sum is at least 1, so the inverse
//! needs no epsilon. A softmax that is written out with a division gets the product only. Attention
//! in one op becomes its products, too.

use thane_mil::literal::Literal;

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_softmax",
    rules: &["ANE174"],
    what: "the softmax of attention written out without a division",
    numbers: Numbers::Exact,
    pattern: Else(
        &pattern!([softmax, real_div, scaled_dot_product_attention]()),
        "it is no softmax",
    ),
    write,
};

fn write(new: &Rewrite<'_>) -> Answer {
    let root = new.root();
    match new.kind(root) {
        "softmax" => {
            let (x, shape) = new.operand(root, "x")?;
            let axis = new.axis(root, shape.len(), -1)?;
            new.instead(softmax(x, axis))
        }
        "real_div" => {
            let ((powers, _), (sum, _)) = (new.operand(root, "x")?, new.operand(root, "y")?);
            new.instead(powers * sum.inverse())
        }
        _ => attention(new),
    }
}

/// Attention in one op, by products and a softmax.
fn attention(new: &Rewrite<'_>) -> Answer {
    let root = new.root();
    let (query, shape) = new.operand(root, "query")?;
    let ((key, _), (value, _)) = (new.operand(root, "key")?, new.operand(root, "value")?);
    let width = *shape.last().ok_or("its queries are a scalar")?;
    let scaled = query * (width as f32).sqrt().recip();
    let transposed = new.literal(Literal::bool(true));
    let args = [("x", scaled), ("y", key), ("transpose_y", transposed)];
    let mut scores = new.op("matmul", &args);
    if new.graph.op(root).arg("attn_mask").is_some() {
        let mask = new.operand(root, "attn_mask");
        scores = scores + mask.map_err(|_| "its mask is of truth values")?.0;
    }
    let weights = softmax(scores, shape.len() - 1);
    new.instead(new.op("matmul", &[("x", weights), ("y", value)]))
}

fn softmax(x: Value<'_>, axis: usize) -> Value<'_> {
    let powers = (x - x.reduce("reduce_max", &[axis])).exp();
    powers * powers.reduce("reduce_sum", &[axis]).inverse()
}
