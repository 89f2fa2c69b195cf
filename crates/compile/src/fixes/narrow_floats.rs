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
use thane_mil::program::Arg;

use super::raise_epsilon::LEAST;
use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "narrow_floats",
    rules: &["ANE048"],
    what: "fp32 arithmetic in fp16",
    numbers: Numbers::Lossy,
    pattern: ANY_OP,
    write,
};

const FP16_MAX: f32 = 65_504.0;

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    if op.def.name == "constexpr_cast" {
        return Err("what uses it is narrowed, and takes what it widens");
    }
    if !op.blocks.is_empty() || op.def.is_constexpr() {
        return Err("it is control flow or a compressed constant");
    }
    let mut args = Vec::new();
    for (param, arg) in op.def.params.iter().zip(&op.args) {
        let Some(arg) = arg else { continue };
        args.push((param.name, narrowed(new, param.name, arg)?));
    }
    let y = new.define(op.def, args, DType::Fp16);
    for (k, old) in op.results.iter().enumerate() {
        let y = y.result(k);
        let is_wide = new.graph.dtype(*old) == Some(DType::Fp32);
        new.replace(*old, if is_wide { y.cast(DType::Fp32) } else { y });
    }
    new.remove(new.root());
    Ok(new.finish())
}

fn narrowed(new: &Rewrite<'_>, param: &str, arg: &Arg) -> Result<NewArg, &'static str> {
    let cast = |v: ValueId| match new.graph.dtype(v) {
        Some(DType::Fp32) => new.of(v).cast(DType::Fp16).new,
        _ => New::Value(v),
    };
    Ok(match arg {
        Arg::Literal(literal) => match half(literal, param)? {
            Some(half) => NewArg::One(new.literal(half).new),
            None => NewArg::Same(arg.clone()),
        },
        Arg::Value(v) if new.graph.dtype(*v) != Some(DType::Fp32) => NewArg::One(New::Value(*v)),
        Arg::Value(v) => NewArg::One(match (widened(new.graph, *v), new.graph.f.constant(*v)) {
            (Some(stored), _) => new.literal(stored.clone()).new,
            (None, Some(wide)) => {
                let half = half(wide, param)?.ok_or("a constant of it cannot be narrowed")?;
                new.literal(half).new
            }
            (None, None) if new.graph.is_constant(*v) => {
                return Err("its weight is compressed, with scales in fp32");
            }
            (None, None) => cast(*v),
        }),
        Arg::Values(vs) => NewArg::Many(vs.iter().copied().map(cast).collect()),
    })
}

/// The fp16 constant that a value is made of, where it is only widened.
fn widened<'a>(graph: &Graph<'a>, value: ValueId) -> Option<&'a Literal> {
    let op = graph.f.definer(value)?;
    let source =
        (op.def.name == "constexpr_cast").then(|| graph.f.literal_arg(op, "source_val"))?;
    source.filter(|l| l.ty().tensor().is_some_and(|t| t.dtype == DType::Fp16))
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
