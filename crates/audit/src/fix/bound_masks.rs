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

use thane_mil::program::{Arg, OpId};

use super::rewrite::Rewrite;
use super::weights::Constant;
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "bound_masks",
    rules: &["ANE102"],
    what: "a mask of numbers that fp16 holds",
    numbers: Numbers::Lossy,
    run,
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

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut others = Vec::new();
    for (param, arg) in op.def.params.iter().zip(&op.args) {
        let literal = match arg {
            Some(Arg::Literal(literal)) => Some(literal),
            Some(Arg::Value(v)) => view.f.constant(*v),
            _ => None,
        };
        let Some(constant) = literal.and_then(Constant::from_literal) else {
            continue;
        };
        if constant.any(|x| x.abs() > FP16_MAX) {
            let dtype = constant.dtype;
            others.push((
                param.name,
                new.literal(constant.map(dtype, bounded).literal()),
            ));
        }
    }
    if others.is_empty() {
        return Err("what is beyond fp16 is not a constant of it");
    }
    let y = new.again(op, &others);
    new.instead(y)
}
