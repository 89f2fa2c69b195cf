//! Writes reductions of a few numbers as ops on slices.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [1, 3, 4]> x) {
//!     tensor<fp32, [1, 4]> y = reduce_prod(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));
//! } -> (y);
//! ```
//!
//! becomes three slices of the axis, multiplied, and a `reshape`; sums, maxima and minima likewise.
//! Means and products of more than two numbers are written so in fp32 only.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "expand_reduce",
    rules: &["ANE004", "ANE126"],
    what: "a reduction of a few numbers by ops on slices",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Slices of a reduction.
const MOST: usize = 16;

fn write(new: &Rewrite<'_>) -> Answer {
    let reduction = new.graph.op(new.root()).def.name;
    let kind = match reduction {
        "reduce_prod" => "mul",
        "reduce_sum" | "reduce_mean" => "add",
        "reduce_max" => "maximum",
        "reduce_min" => "minimum",
        _ => return Err("it is no sum, product, mean or extreme"),
    };
    let (x, shape) = new.operand(new.root(), "x")?;
    let axis = new.one_axis(new.root(), shape.len(), "it is over several axes")?;
    let n = shape[axis];
    if n > MOST || n == 0 {
        return Err("it takes more than 16 numbers together");
    }
    let out = new.result_shape()?;
    let is_mean = reduction == "reduce_mean" && n > 1;
    if is_mean && x.dtype == DType::Fp16 {
        // Divided before it is summed, small numbers are lost; divided after, large ones are.
        return Err("a mean in fp16 has a sum that fp16 may not hold");
    }
    if kind == "mul" && n > 2 && x.dtype == DType::Fp16 {
        return Err("a product in fp16 has parts that fp16 may not hold");
    }
    let parts: Vec<_> = (0..n).map(|i| x.slice_axis(&shape, axis, i, 1)).collect();
    let y = parts.into_iter().reduce(|a, b| a.binary(kind, b));
    let y = y.ok_or("there is nothing to reduce")?;
    let y = if is_mean { y * (1.0 / n as f32) } else { y };
    new.instead(y.squeezed(shape.len(), &out))
}
