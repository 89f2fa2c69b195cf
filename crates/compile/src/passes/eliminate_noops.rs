//! Removes ops that give back what they are given, bit for bit.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [2, 3]> x) {
//!     tensor<fp32, [2, 3]> a = identity(x = x);
//!     tensor<int32, [2]> perm = const()[val = tensor<int32, [2]>([0, 1])];
//!     tensor<fp32, [2, 3]> b = transpose(x = a, perm = perm);
//!     tensor<int32, [2]> shape = const()[val = tensor<int32, [2]>([2, 3])];
//!     tensor<fp32, [2, 3]> c = reshape(x = b, shape = shape);
//!     fp32 one = const()[val = fp32(0x1p+0)];
//!     tensor<fp32, [2, 3]> d = mul(x = one, y = c);
//!     tensor<fp32, [2, 3]> y = exp(x = d);
//! } -> (y);
//! ```
//!
//! becomes, with the constants left to `eliminate_dead_code`,
//!
//! ```text
//! func f<ios18>(tensor<fp32, [2, 3]> x) {
//!     tensor<int32, [2]> perm = const()[val = tensor<int32, [2]>([0, 1])];
//!     tensor<int32, [2]> shape = const()[val = tensor<int32, [2]>([2, 3])];
//!     fp32 one = const()[val = fp32(0x1p+0)];
//!     tensor<fp32, [2, 3]> y = exp(x = x);
//! } -> (y);
//! ```
//!
//! Also `cast` to the type that it has, `add` of -0.0 (or integer 0), `sub` of +0.0, and `real_div`
//! by 1.0. An `identity` that is an output stays where other ops read what it copies, because
//! programs that are called without Core ML need the copy. Adding +0.0 is not a no-op, because +0.0
//! turns -0.0 into +0.0; neither is subtracting -0.0. A shape with a symbol is left alone, because
//! the pass cannot prove it equal.

use thane_mil::literal::Literal;
use thane_mil::program::{Function, Op, ValueId};
use thane_mil::types::{Dim, TensorType};

use crate::graph::Aliases;
use crate::pass::{Outcome, Pass, Site};

/// The pass.
pub const PASS: Pass = Pass {
    name: "eliminate_noops",
    run,
};

/// What a rule finds.
enum Found {
    /// The op gives back this value.
    Same(ValueId),
    /// It nearly does.
    Not(&'static str),
}

type Rule = fn(&Function, &Op) -> Option<Found>;

static RULES: &[(&str, Rule)] = &[
    ("identity", identity),
    ("cast", cast),
    ("reshape", reshape),
    ("transpose", transpose),
    ("add", add),
    ("sub", sub),
    ("mul", mul),
    ("real_div", real_div),
];

/// ANE153 of the audit.
const COPY: &str = "it gives a copy of what other ops read, which is needed without Core ML";
const SIGNED_ZERO: &str = "a zero of this sign changes the sign of a zero that it is added to";

fn run(f: &Function) -> Vec<Site> {
    let mut aliases = Aliases::new(f);
    let mut sites = Vec::new();
    for &id in &f.body().ops {
        let op = f.op(id);
        let Some((_, rule)) = RULES.iter().find(|(name, _)| *name == op.def.name) else {
            continue;
        };
        let outcome = match rule(f, op) {
            None => continue,
            Some(Found::Not(reason)) => Outcome::Refused(reason),
            Some(Found::Same(value))
                if op.def.name == "identity" && aliases.is_shared_output(op, value) =>
            {
                Outcome::Refused(COPY)
            }
            Some(Found::Same(value)) => aliases.replace(id, op, &[value]),
        };
        sites.push(Site { op: id, outcome });
    }
    sites
}

fn tensor(f: &Function, value: ValueId) -> Option<&TensorType> {
    f.value(value).ty.tensor()
}

fn result<'a>(f: &'a Function, op: &Op) -> Option<&'a TensorType> {
    tensor(f, *op.results.first()?)
}

fn identity(_: &Function, op: &Op) -> Option<Found> {
    op.value_arg("x").map(Found::Same)
}

fn cast(f: &Function, op: &Op) -> Option<Found> {
    let x = op.value_arg("x")?;
    (tensor(f, x)?.dtype == result(f, op)?.dtype).then_some(Found::Same(x))
}

fn reshape(f: &Function, op: &Op) -> Option<Found> {
    let x = op.value_arg("x")?;
    let (before, after) = (tensor(f, x)?.known_shape()?, result(f, op)?.known_shape()?);
    (before == after).then_some(Found::Same(x))
}

fn transpose(f: &Function, op: &Op) -> Option<Found> {
    let x = op.value_arg("x")?;
    let rank = tensor(f, x)?.rank() as i64;
    let perm = f.literal_arg(op, "perm")?.to_ints()?;
    let axes = perm.into_iter().map(|p| if p < 0 { p + rank } else { p });
    axes.eq(0..rank).then_some(Found::Same(x))
}

fn add(f: &Function, op: &Op) -> Option<Found> {
    let (x, zero) = [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(x, c)| neutral(f, op, x, c, 0.0))?;
    Some(match zero {
        Number::Int => Found::Same(x),
        Number::Float(zero) if zero.is_sign_negative() => Found::Same(x),
        Number::Float(_) => Found::Not(SIGNED_ZERO),
    })
}

fn sub(f: &Function, op: &Op) -> Option<Found> {
    let (x, zero) = neutral(f, op, "x", "y", 0.0)?;
    Some(match zero {
        Number::Float(zero) if zero.is_sign_negative() => Found::Not(SIGNED_ZERO),
        _ => Found::Same(x),
    })
}

fn mul(f: &Function, op: &Op) -> Option<Found> {
    let found = [("x", "y"), ("y", "x")]
        .into_iter()
        .find_map(|(x, c)| neutral(f, op, x, c, 1.0))?;
    Some(Found::Same(found.0))
}

fn real_div(f: &Function, op: &Op) -> Option<Found> {
    Some(Found::Same(neutral(f, op, "x", "y", 1.0)?.0))
}

/// A constant that equals the neutral element.
enum Number {
    Int,
    Float(f32),
}

/// The value `x` of an op whose other operand is the constant `neutral` in one element, which
/// leaves the shape alone.
fn neutral(
    f: &Function,
    op: &Op,
    x: &str,
    constant: &str,
    neutral: f32,
) -> Option<(ValueId, Number)> {
    let x = op.value_arg(x)?;
    let literal = f.literal_arg(op, constant)?;
    let Literal::Tensor(ty, _) = literal else {
        return None;
    };
    let fits = ty.shape.iter().all(|d| *d == Dim::Known(1)) && ty.rank() <= tensor(f, x)?.rank();
    if !fits {
        return None;
    }
    let number = match (literal.to_floats().as_deref(), literal.to_ints().as_deref()) {
        (Some([v]), _) if *v == neutral => Number::Float(*v),
        (_, Some([v])) if *v == neutral as i64 => Number::Int,
        _ => return None,
    };
    Some((x, number))
}
