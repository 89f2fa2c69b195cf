//! Fills masks of minus infinity, and of numbers beyond fp16, with -1e4 or 1e4.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 2]> x) {
//!     tensor<fp16, [2, 2]> m = const()[val = tensor<fp16, [2, 2]>(BLOBFILE(path = string("causal"), offset = uint64(0)))];
//!     tensor<fp16, [2, 2]> a = add(x = x, y = m);
//!     tensor<fp16, [2, 2]> y = softmax(x = a);
//! } -> (y);
//! ```
//!
//! becomes the same with -1e4 in the place of minus infinity: a softmax gives 0 there all the same.

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "bound_masks",
    rules: &["ANE102"],
    what: "a mask of numbers that fp16 holds",
    numbers: Numbers::Lossy,
    pattern: ANY_OP,
    write,
};

/// What fp16 holds, and what stands for more: far below any score, far from overflow when a score
/// is added.
const FP16_MAX: f32 = 65_504.0;
const FILL: f32 = 1e4;

fn bounded(x: f32) -> f32 {
    if x.abs() > FP16_MAX {
        FILL.copysign(x)
    } else {
        x
    }
}

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let mut others = Vec::new();
    for param in op.def.params {
        let constant = Constant::of(new.graph, op, param.name);
        if let Some(mask) = constant.filter(|c| c.any(|x| x.abs() > FP16_MAX)) {
            let dtype = mask.dtype;
            others.push((param.name, new.literal(mask.map(dtype, bounded).literal())));
        }
    }
    if others.is_empty() {
        return Err("what is beyond fp16 is not a constant of it");
    }
    new.instead(new.again(op, &others))
}
