//! Writes root mean square norms of x as `layer_norm` over x and -x.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 1, 4]> x) {
//!     tensor<fp16, [1, 64, 1, 4]> q = mul(x = x, y = x);
//!     tensor<fp16, [1, 1, 1, 4]> m = reduce_mean(x = q, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [1, 1, 1, 4]> r = rsqrt(x = m, epsilon = fp16(0x1p-14));
//!     tensor<fp16, [1, 64, 1, 4]> y = mul(x = x, y = r);
//! } -> (y);
//! ```
//!
//! becomes a `concat` of x and -x, whose mean is 0 and whose variance is the mean of squares, its
//! `layer_norm`, and the first half of that.

use thane_mil::edit::New;
use thane_mil::program::OpId;

use super::raise_epsilon::LEAST;
use super::rewrite::{Rewrite, one};
use super::scale_rms_norm::Norm;
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fuse_rms_norm",
    rules: &["ANE105"],
    what: "a norm by mean squares as layer_norm over x and -x",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    if view.op(id).def.name != "reduce_mean" {
        return Err("it is no mean of squares");
    }
    let norm = Norm::of(view, id)?;
    let [axis] = norm.axes[..] else {
        return Err("it is normed along several axes");
    };
    let tail = norm.tail()?;
    let shape = view.known_shape(norm.x).ok_or("its shape is not fixed")?;
    let epsilon = norm.epsilon(&tail);
    if epsilon < LEAST {
        return Err(
            "layer_norm needs an epsilon of 2^-14 at least, and another one computes something \
             else",
        );
    }
    let mut new = Rewrite::new(view, tail.last, FIX.name);
    let x = New::Value(norm.x);
    let minus = new.with_number("mul", x, norm.dtype, -1.0);
    let both = new.concat(vec![x, minus], axis);
    let axes = new.ints(&[axis]);
    let epsilon = new.number(norm.dtype, epsilon);
    let normed = new.op(
        "layer_norm",
        vec![one("x", both), one("axes", axes), one("epsilon", epsilon)],
    );
    let mut twice = shape.clone();
    twice[axis] *= 2;
    let y = new.slice_axis(normed, &twice, axis, 0, shape[axis]);
    new.instead_of(tail.last, y)
}
