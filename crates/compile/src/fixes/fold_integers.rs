//! Folds integers that follow from shapes and constants into constants.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [2, 4]> x) {
//!     tensor<int32, [2]> s = shape(x = x);
//!     tensor<int32, [2]> d = mul(x = s, y = tensor<int32, [2]>([2, 1]));
//!     tensor<fp16, [4, 2]> y = reshape(x = x, shape = tensor<int32, [2]>([4, 2]));
//!     tensor<int32, [2]> z = add(x = d, y = int32(1));
//! } -> (y, z);
//! ```
//!
//! becomes the same with s = [2, 4], d = [4, 4] and z = [5, 5] stated: nothing is computed in a
//! call.

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op as MilOp};

use super::*;

/// The fix.
pub const FIX: Fix = Fix {
    name: "fold_integers",
    rules: &["ANE019", "ANE027", "ANE008", "ANE046", "ANE047"],
    what: "integers that follow from shapes and constants as constants",
    numbers: Numbers::Exact,
    pattern: ANY_OP,
    write,
};

/// Integers of a constant; more are no shapes or indices.
const MOST: usize = 4096;
/// Ops that are followed back.
const DEEPEST: usize = 16;

/// Integers in a shape.
#[derive(Clone, Debug)]
struct Ints {
    shape: Vec<usize>,
    ints: Vec<i64>,
}

fn write(new: &Rewrite<'_>) -> Answer {
    let op = new.graph.op(new.root());
    let [result] = op.results[..] else {
        return Err("it has several results");
    };
    if new.graph.dtype(result) != Some(DType::Int32) {
        return Err("it does not make int32");
    }
    let found = of_op(new.graph, op, 0)
        .ok_or("a call decides its numbers: compute them on the host and pass them in")?;
    if new
        .graph
        .known_shape(result)
        .is_none_or(|s| s != found.shape)
    {
        return Err("its declared shape is not the one that follows");
    }
    let ints: Option<Vec<i32>> = found.ints.iter().map(|i| i32::try_from(*i).ok()).collect();
    let ints = ints.ok_or("its numbers are beyond int32")?;
    let data = Data::owned(ints.iter().flat_map(|i| i.to_le_bytes()).collect());
    new.instead(new.tensor(DType::Int32, &found.shape, data))
}

fn of_value(graph: &Graph<'_>, value: ValueId, depth: usize) -> Option<Ints> {
    of_op(graph, graph.f.definer(value)?, depth + 1)
}

fn of_literal(literal: &Literal) -> Option<Ints> {
    let Literal::Tensor(ty, data) = literal else {
        return None;
    };
    let small = data.byte_len() <= 8 * MOST && !matches!(ty.dtype, DType::Bool);
    small.then(|| {
        Some(Ints {
            shape: ty.known_shape()?,
            ints: literal.to_ints()?,
        })
    })?
}

fn of_arg(graph: &Graph<'_>, op: &MilOp, name: &str, depth: usize) -> Option<Ints> {
    match op.arg(name)? {
        Arg::Literal(literal) => of_literal(literal),
        Arg::Value(v) => of_value(graph, *v, depth),
        Arg::Values(_) => None,
    }
}

fn of_op(graph: &Graph<'_>, op: &MilOp, depth: usize) -> Option<Ints> {
    if depth > DEEPEST {
        return None;
    }
    let arg = |name: &str| of_arg(graph, op, name, depth);
    let result_shape = || graph.known_shape(*op.results.first()?);
    let found = match op.def.name {
        "const" => of_literal(graph.f.constant(*op.results.first()?)?)?,
        "shape" => {
            let shape = graph.known_shape(op.value_arg("x")?)?;
            Ints {
                shape: vec![shape.len()],
                ints: shape.into_iter().map(|n| n as i64).collect(),
            }
        }
        "add" | "sub" | "mul" | "floor_div" | "mod" | "maximum" | "minimum" => broadcast(
            &arg("x")?,
            &arg("y")?,
            result_shape()?,
            arithmetic(op.def.name),
        )?,
        "squeeze" | "expand_dims" | "reshape" | "identity" => Ints {
            shape: result_shape()?,
            ..arg("x")?
        },
        "cast" if graph.dtype(op.value_arg("x")?) == Some(DType::Int32) => arg("x")?,
        "concat" => {
            let Some(Arg::Values(values)) = op.arg("values") else {
                return None;
            };
            let parts = values
                .iter()
                .map(|v| of_value(graph, *v, depth))
                .collect::<Option<Vec<_>>>()?;
            let vectors = parts.iter().all(|p| p.shape.len() <= 1)
                && arg("interleave").is_none_or(|i| i.ints == [0]);
            let ints =
                vectors.then(|| parts.into_iter().flat_map(|p| p.ints).collect::<Vec<_>>())?;
            Ints {
                shape: vec![ints.len()],
                ints,
            }
        }
        "gather" => {
            let (x, indices) = (arg("x")?, arg("indices")?);
            let at = |i: &i64| {
                x.ints
                    .get(usize::try_from(if *i < 0 { i + x.ints.len() as i64 } else { *i }).ok()?)
            };
            let ints = indices
                .ints
                .iter()
                .map(|i| at(i).copied())
                .collect::<Option<_>>();
            Ints {
                shape: result_shape()?,
                ints: ints.filter(|_| x.shape.len() == 1)?,
            }
        }
        "range_1d" => range(
            arg("start")?.ints[..].first()?,
            arg("end")?.ints.first()?,
            arg("step")?.ints.first()?,
        )?,
        _ => return None,
    };
    (found.ints.len() <= MOST && found.shape.iter().product::<usize>() == found.ints.len())
        .then_some(found)
}

fn range(start: &i64, end: &i64, step: &i64) -> Option<Ints> {
    let step = usize::try_from(*step).ok().filter(|s| *s > 0)?;
    let ints: Vec<i64> = (*start..*end).step_by(step).take(MOST + 1).collect();
    Some(Ints {
        shape: vec![ints.len()],
        ints,
    })
}

fn arithmetic(kind: &str) -> fn(i64, i64) -> Option<i64> {
    match kind {
        "add" => i64::checked_add,
        "sub" => i64::checked_sub,
        "mul" => i64::checked_mul,
        // MIL rounds both down.
        "floor_div" => |x, y| {
            Some(x.checked_div_euclid(y)? - i64::from(y < 0 && x.checked_rem_euclid(y)? != 0))
        },
        "mod" => |x, y| {
            let rest = x.checked_rem_euclid(y)?;
            Some(if y < 0 && rest != 0 { rest + y } else { rest })
        },
        "maximum" => |x, y| Some(x.max(y)),
        _ => |x, y| Some(x.min(y)),
    }
}

/// Of vectors and scalars.
fn broadcast(
    x: &Ints,
    y: &Ints,
    shape: Vec<usize>,
    f: fn(i64, i64) -> Option<i64>,
) -> Option<Ints> {
    let n: usize = shape.iter().product();
    let fits = shape.len() <= 1
        && n <= MOST
        && [x, y]
            .iter()
            .all(|v| v.ints.len() == 1 || v.ints.len() == n);
    let at = |v: &Ints, i: usize| v.ints[if v.ints.len() == 1 { 0 } else { i }];
    let ints = fits.then(|| {
        (0..n)
            .map(|i| f(at(x, i), at(y, i)))
            .collect::<Option<Vec<_>>>()
    })??;
    Some(Ints { shape, ints })
}
