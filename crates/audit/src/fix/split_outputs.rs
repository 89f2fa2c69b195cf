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

use thane_mil::edit::{New, NewArg};
use thane_mil::program::{Op, OpId};

use super::compressed::Weight;
use super::rewrite::{NamedArg, Rewrite, one, operand, result_shape, same_arg};
use super::weights::Constant;
use super::{Answer, Fix, Numbers};
use crate::rules::query::int;
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_outputs",
    rules: &["ANE055", "ANE056"],
    what: "a product with many outputs as products with fewer, joined",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    let out = result_shape(view, id)?;
    let (param, weight_axis, axis) = match op.def.name {
        "linear" => ("weight", 0, out.len().checked_sub(1)),
        "conv" if int(view, id, "groups").unwrap_or(1) == 1 => ("weight", 0, Some(1)),
        "matmul" => (
            "y",
            usize::from(int(view, id, "transpose_y") != Some(1)),
            out.len().checked_sub(1),
        ),
        _ => return Err("only products with constants are split by outputs"),
    };
    let axis = axis.ok_or("its result is a scalar")?;
    let (x, _, _) = operand(view, id, "x")?;
    let weight = Weight::of(view, op, param)?;
    let weight_axis = if param == "y" {
        weight.shape.len().saturating_sub(2) + weight_axis
    } else {
        weight_axis
    };
    let bias = match op.arg("bias") {
        None => None,
        Some(_) => Some(Constant::of(view, op, "bias").ok_or("its bias is no plain constant")?),
    };
    let cap = cap(view, op);
    let n = *out.get(axis).ok_or("its result has too few axes")?;
    if n <= cap || weight.shape.get(weight_axis) != Some(&n) {
        return Err("it is not its outputs that are too many");
    }
    let len = n.div_ceil(n.div_ceil(cap)).next_multiple_of(32).min(cap);
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut parts = Vec::new();
    for begin in (0..n).step_by(len) {
        let part = Part {
            begin,
            len: len.min(n - begin),
        };
        let weight = weight
            .slice(weight_axis, part.begin, part.len)?
            .write(&mut new);
        parts.push(part.product(&mut new, op, New::Value(x), (param, weight), bias.as_ref()));
    }
    let y = new.concat(parts, axis);
    new.instead(y)
}

/// Most outputs of a product on this chip: of a convolution channels, else what is last.
fn cap(view: &View<'_>, op: &Op) -> usize {
    let caps = &view.target.chip.family.caps;
    if op.def.name == "conv" {
        caps.channels
    } else {
        caps.spatial.min(caps.channels)
    }
}

struct Part {
    begin: usize,
    len: usize,
}

impl Part {
    fn product(
        &self,
        new: &mut Rewrite<'_>,
        op: &Op,
        x: New,
        (param, weight): (&'static str, New),
        bias: Option<&Constant>,
    ) -> New {
        let kept = op
            .def
            .params
            .iter()
            .map(|p| p.name)
            .filter(|p| !["x", "bias", param].contains(p));
        let mut args: Vec<NamedArg> = kept.filter_map(|p| Some((p, same_arg(op, p)?))).collect();
        args.extend([one("x", x), one(param, weight)]);
        if let Some(bias) = bias {
            let bias = new.literal(bias.slice(0, self.begin, self.len).literal());
            args.push(("bias", NewArg::One(bias)));
        }
        new.defined(op.def, args)
    }
}
