//! Computes fp32 ops in fp16, with casts at the border.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [2, 3]> x) {
//!     tensor<fp32, [2, 3]> a = exp(x = x);
//!     tensor<fp32, [2, 3]> y = mul(x = a, y = fp32(0x1p-1));
//! } -> (y);
//! ```
//!
//! becomes a `cast` of x to fp16, both ops in fp16, and a `cast` of y back; casts between the two
//! cancel. A constant that fp16 cannot hold is a reason not to; an epsilon that it cannot is the
//! least that the engine does not flush to 0.

use thane_mil::edit::{New, NewArg};
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, OpId, ValueId};
use thane_mil::types::DType;

use super::raise_epsilon::LEAST;
use super::rewrite::{NamedArg, Rewrite, result};
use super::weights::Constant;
use super::{Answer, Fix, Numbers};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "narrow_floats",
    rules: &["ANE048"],
    what: "fp32 arithmetic in fp16",
    numbers: Numbers::Lossy,
    run,
};

const FP16_MAX: f32 = 65_504.0;

fn run(view: &View<'_>, id: OpId) -> Answer {
    let op = view.op(id);
    if op.def.name == "constexpr_cast" {
        return Err("what uses it is narrowed, and takes what it widens");
    }
    if !op.blocks.is_empty() || op.def.is_constexpr() {
        return Err("it is control flow or a compressed constant");
    }
    let mut new = Rewrite::new(view, id, FIX.name);
    let mut args: Vec<NamedArg> = Vec::new();
    for (param, arg) in op.def.params.iter().zip(&op.args) {
        let Some(arg) = arg else { continue };
        args.push((param.name, narrowed(view, &mut new, param.name, arg)?));
    }
    let y = new.defined(op.def, args);
    for (k, old) in op.results.iter().enumerate() {
        let y = result(y, k);
        let is_wide = view.dtype(*old) == Some(DType::Fp32);
        let y = if is_wide { new.cast(y, DType::Fp32) } else { y };
        new.replace(*old, y);
    }
    new.remove(id);
    Ok(new.finish())
}

fn narrowed(
    view: &View<'_>,
    new: &mut Rewrite<'_>,
    param: &str,
    arg: &Arg,
) -> Result<NewArg, &'static str> {
    Ok(match arg {
        Arg::Literal(literal) => match half(literal, param)? {
            Some(half) => NewArg::One(new.literal(half)),
            None => NewArg::Same(arg.clone()),
        },
        Arg::Value(v) if view.dtype(*v) != Some(DType::Fp32) => NewArg::One(New::Value(*v)),
        Arg::Value(v) if widened(view, *v).is_some() => {
            let stored = widened(view, *v)
                .cloned()
                .ok_or("its weight is no constant")?;
            NewArg::One(new.literal(stored))
        }
        Arg::Value(v) => match view.f.constant(*v) {
            Some(literal) => match half(literal, param)? {
                Some(half) => NewArg::One(new.literal(half)),
                None => return Err("a constant of it cannot be narrowed"),
            },
            None if view.is_constant(*v) => {
                return Err("its weight is compressed, with scales in fp32");
            }
            None => NewArg::One(new.cast(New::Value(*v), DType::Fp16)),
        },
        Arg::Values(vs) => {
            let cast = |v: &ValueId| match view.dtype(*v) {
                Some(DType::Fp32) => new.cast(New::Value(*v), DType::Fp16),
                _ => New::Value(*v),
            };
            NewArg::Many(vs.iter().map(cast).collect())
        }
    })
}

/// The fp16 constant that a value is made of, where it is only widened.
fn widened<'a>(view: &View<'a>, value: ValueId) -> Option<&'a Literal> {
    let op = view
        .f
        .definer(value)
        .filter(|op| op.def.name == "constexpr_cast")?;
    view.f
        .literal_arg(op, "source_val")
        .filter(|l| l.ty().tensor().is_some_and(|t| t.dtype == DType::Fp16))
}

/// A constant of fp32 in fp16; nothing where it is of another type.
fn half(literal: &Literal, param: &str) -> Result<Option<Literal>, &'static str> {
    let Some(wide) = Constant::from_literal(literal).filter(|c| c.dtype == DType::Fp32) else {
        return Ok(None);
    };
    if wide.any(|x| x.is_finite() && x.abs() > FP16_MAX) {
        return Err("it has a constant that fp16 cannot hold");
    }
    let narrow = match param {
        "epsilon" => wide.map(DType::Fp16, |x| if x > 0.0 { x.max(LEAST) } else { x }),
        _ => wide.map(DType::Fp16, |x| x),
    };
    Ok(Some(narrow.literal()))
}
