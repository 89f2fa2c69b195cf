//! Raises epsilons that fp16 or the Neural Engine rounds to 0 to the smallest number that neither
//! does.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<fp16, [2, 4]> y = layer_norm(x = x, axes = tensor<int32, [1]>([1]), epsilon = fp16(0x1p-24));
//! } -> (y);
//! ```
//!
//! becomes the same with an epsilon of 2^-14; so does an `add` of less before a root.

use thane_mil::edit::New;
use thane_mil::program::{Arg, Op, OpId};
use thane_mil::types::DType;

use super::rewrite::Rewrite;
use super::weights::Constant;
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "raise_epsilon",
    rules: &["ANE103", "ANE104"],
    what: "an epsilon that the engine does not take for 0",
    numbers: Numbers::Lossy,
    run,
};

/// The smallest normal number of fp16, 2^-14.
pub const LEAST: f32 = 6.103_515_6e-5;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let (param, dtype) = small(view, op).ok_or("its epsilon is no constant")?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let epsilon: New = new.number(dtype, LEAST);
    let y = new.again(op, &[(param, epsilon)]);
    new.instead(y)
}

/// The parameter that is an epsilon, and its element type.
fn small(view: &View<'_>, op: &Op) -> Option<(&'static str, DType)> {
    let names = op
        .def
        .params
        .iter()
        .map(|p| p.name)
        .filter(|p| ["epsilon", "x", "y"].contains(p));
    names
        .filter_map(|name| match op.arg(name)? {
            Arg::Literal(literal) => Some((name, Constant::from_literal(literal)?)),
            Arg::Value(v) => Some((name, Constant::from_literal(view.f.constant(*v)?)?)),
            Arg::Values(_) => None,
        })
        .find(|(_, c)| c.shape.is_empty() && c.any(|x| x > 0.0 && x < LEAST))
        .map(|(name, c)| (name, c.dtype))
}
