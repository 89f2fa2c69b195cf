//! Computes integers that follow from shapes and constants: the sizes, places and indices that a
//! program computes with small int32 tensors.

use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, ValueId};

/// A tensor of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ints {
    /// Lengths of its axes.
    pub shape: Vec<usize>,
    /// Its elements, in order.
    pub ints: Vec<i64>,
}

/// What is known of the values of a function.
pub struct Facts<'a> {
    /// The integers of a value, be it a constant or computed.
    pub value: &'a dyn Fn(ValueId) -> Option<Ints>,
    /// The lengths of the axes of a value.
    pub shape: &'a dyn Fn(ValueId) -> Option<Vec<usize>>,
    /// Most integers of a tensor: larger ones are no sizes and not computed.
    pub most: usize,
}

impl Ints {
    /// The integers or truth values of a literal that has `most` at most.
    pub fn of_literal(literal: &Literal, most: usize) -> Option<Self> {
        let Literal::Tensor(ty, _) = literal else {
            return None;
        };
        let shape = ty.known_shape()?;
        let is_small = !ty.dtype.is_float() && ty.n_elements()? <= most;
        let ints = is_small.then(|| literal.to_ints())??;
        Some(Self { shape, ints })
    }

    fn vector(ints: Vec<i64>) -> Self {
        let shape = vec![ints.len()];
        Self { shape, ints }
    }

    fn is_vector(&self) -> bool {
        self.shape.len() == 1
    }
}

/// The first result of an op, if it follows from `facts`.
pub fn evaluate(op: &Op, facts: &Facts<'_>) -> Option<Ints> {
    let result = *op.results.first()?;
    let arg = |name: &str| facts.arg(op, name);
    let shaped = |ints: Vec<i64>| {
        let shape = (facts.shape)(result)?;
        Some(Ints { shape, ints })
    };
    let found = match op.def.name {
        "const" => arg("val")?,
        "shape" => {
            let shape = (facts.shape)(op.value_arg("x")?)?;
            Ints::vector(shape.into_iter().map(|n| n as i64).collect())
        }
        "squeeze" | "expand_dims" | "reshape" | "identity" | "cast" => shaped(arg("x")?.ints)?,
        "reduce_prod" => {
            let x = arg("x").filter(Ints::is_vector)?;
            shaped(vec![x.ints.into_iter().try_fold(1i64, i64::checked_mul)?])?
        }
        "concat" => concat(op, facts)?,
        "gather" => {
            let x = arg("x").filter(Ints::is_vector)?;
            let at = |i: i64| x.ints.get(place(i, x.ints.len())?).copied();
            shaped(
                arg("indices")?
                    .ints
                    .into_iter()
                    .map(at)
                    .collect::<Option<_>>()?,
            )?
        }
        "slice_by_index" => shaped(slice(op, facts)?)?,
        "range_1d" => {
            let one = |name: &str| facts.one(op, name);
            let step = usize::try_from(one("step")?).ok().filter(|s| *s > 0)?;
            let range = (one("start")?..one("end")?).step_by(step);
            Ints::vector(range.take(facts.most + 1).collect())
        }
        name => {
            let f = arithmetic(name)?;
            shaped(broadcast(&arg("x")?, &arg("y")?, f)?)?
        }
    };
    let n: usize = found.shape.iter().product();
    (n == found.ints.len() && n <= facts.most).then_some(found)
}

impl Facts<'_> {
    fn arg(&self, op: &Op, name: &str) -> Option<Ints> {
        match op.arg(name)? {
            Arg::Literal(literal) => Ints::of_literal(literal, self.most),
            Arg::Value(v) => (self.value)(*v),
            Arg::Values(_) => None,
        }
    }

    fn one(&self, op: &Op, name: &str) -> Option<i64> {
        self.arg(op, name)?.ints.first().copied()
    }
}

/// Scalars and vectors, one after the other.
fn concat(op: &Op, facts: &Facts<'_>) -> Option<Ints> {
    let Some(Arg::Values(values)) = op.arg("values") else {
        return None;
    };
    let parts: Vec<Ints> = values
        .iter()
        .map(|v| (facts.value)(*v))
        .collect::<Option<_>>()?;
    let are_vectors = parts.iter().all(|p| p.shape.len() <= 1);
    let is_plain = facts.one(op, "interleave").unwrap_or(0) == 0;
    (are_vectors && is_plain)
        .then(|| Ints::vector(parts.into_iter().flat_map(|p| p.ints).collect()))
}

/// A run of a vector.
fn slice(op: &Op, facts: &Facts<'_>) -> Option<Vec<i64>> {
    let x = facts.arg(op, "x").filter(Ints::is_vector)?.ints;
    let one = |name: &str| facts.one(op, name);
    if one("stride").is_some_and(|s| s != 1) {
        return None;
    }
    let end = |mask: &str, name: &str, open: usize| match one(mask) {
        Some(1) => Some(open),
        _ => place(one(name)?, x.len()),
    };
    let first = end("begin_mask", "begin", 0)?;
    let last = end("end_mask", "end", x.len())?.min(x.len());
    Some(x.get(first..last)?.to_vec())
}

/// A place in a vector, counted from the end when negative.
fn place(i: i64, n: usize) -> Option<usize> {
    usize::try_from(if i < 0 { i + n as i64 } else { i }).ok()
}

fn arithmetic(kind: &str) -> Option<fn(i64, i64) -> Option<i64>> {
    Some(match kind {
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
        "minimum" => |x, y| Some(x.min(y)),
        _ => return None,
    })
}

/// Of scalars and vectors, one of which may have one element for all of the other.
fn broadcast(x: &Ints, y: &Ints, f: fn(i64, i64) -> Option<i64>) -> Option<Vec<i64>> {
    let n = x.ints.len().max(y.ints.len());
    let fits = |v: &Ints| v.shape.len() <= 1 && (v.ints.len() == 1 || v.ints.len() == n);
    let at = |v: &Ints, i: usize| v.ints[if v.ints.len() == 1 { 0 } else { i }];
    let all = || (0..n).map(|i| f(at(x, i), at(y, i))).collect();
    (fits(x) && fits(y)).then(all)?
}

#[cfg(test)]
mod tests {
    use thane_mil::program::Function;
    use thane_mil::text::parse;

    use super::*;

    fn made_by(f: &Function, op: &Op) -> Option<Ints> {
        let facts = Facts {
            value: &|v| made_by(f, f.definer(v)?),
            shape: &|v| f.value(v).ty.tensor()?.known_shape(),
            most: 8,
        };
        evaluate(op, &facts)
    }

    /// The integers of `y`, where `s` is the shape [2, 3].
    fn y(ty: &str, op: &str) -> Option<Vec<i64>> {
        let text = format!(
            "program(1.3) {{ func f<ios18>(tensor<fp16, [2, 3]> x) {{
                 tensor<int32, [2]> s = shape(x = x);
                 tensor<int32, [{ty}]> y = {op};
             }} -> (y); }}"
        );
        let program = parse(&text, &|_, _, _| None).unwrap();
        let f = &program.functions()[0];
        let op = f.definer(f.body().outputs[0]).unwrap();
        made_by(f, op).map(|found| found.ints)
    }

    #[test]
    fn integers_follow_from_shapes() {
        let slice = "slice_by_index(x = s, begin = tensor<int32, [1]>([-1]), \
            end = tensor<int32, [1]>([0]), end_mask = tensor<bool, [1]>([true]))";
        let product = "reduce_prod(x = s, axes = tensor<int32, [1]>([0]), keep_dims = bool(true))";
        let plain = "concat(values = (s, s), axis = int32(0), interleave = bool(false))";
        let interleaved = "concat(values = (s, s), axis = int32(0), interleave = bool(true))";
        let cases: [(&str, &str, Option<&[i64]>); 12] = [
            ("2", "add(x = s, y = int32(-3))", Some(&[-1, 0])),
            ("2", "maximum(x = int32(3), y = s)", Some(&[3, 3])),
            ("2", "floor_div(x = s, y = int32(-2))", Some(&[-1, -2])),
            ("2", "mod(x = s, y = int32(-2))", Some(&[0, -1])),
            ("2", "mod(x = s, y = int32(0))", None),
            ("1", slice, Some(&[3])),
            ("1", product, Some(&[6])),
            ("4", plain, Some(&[2, 3, 2, 3])),
            ("4", interleaved, None),
            (
                "",
                "gather(x = s, indices = int32(-1), axis = int32(0))",
                Some(&[3]),
            ),
            (
                "3",
                "range_1d(start = int32(0), end = int32(6), step = int32(2))",
                Some(&[0, 2, 4]),
            ),
            (
                "9",
                "range_1d(start = int32(0), end = int32(9), step = int32(1))",
                None,
            ),
        ];
        for (ty, op, expected) in cases {
            assert_eq!(y(ty, op).as_deref(), expected, "{op}");
        }
    }
}
