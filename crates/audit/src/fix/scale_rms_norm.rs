//! Divides x by its largest magnitude before a root mean square norm, so that no square overflows
//! fp16.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 64, 1, 4]> x) {
//!     tensor<fp16, [1, 64, 1, 4]> q = mul(x = x, y = x);
//!     tensor<fp16, [1, 1, 1, 4]> m = reduce_mean(x = q, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));
//!     tensor<fp16, [1, 1, 1, 4]> e = add(x = m, y = fp16(0x1p-14));
//!     tensor<fp16, [1, 1, 1, 4]> r = rsqrt(x = e);
//!     tensor<fp16, [1, 64, 1, 4]> y = mul(x = x, y = r);
//! } -> (y);
//! ```
//!
//! With t = max(1, max |x|) it becomes s = x / t, and s * rsqrt(mean(s^2) + e / t / t): the same,
//! since t cancels. It also does `sqrt` and a division, and `reduce_l2_norm` by itself, as t *
//! norm(s).

use thane_mil::edit::New;
use thane_mil::program::{OpId, ValueId};
use thane_mil::types::DType;

use super::rewrite::{Rewrite, one, operand};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{ints, scalar, wrap};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "scale_rms_norm",
    rules: &["ANE105"],
    what: "sums of squares of what was divided by its largest magnitude",
    numbers: Numbers::Exact,
    run,
};

fn run(view: &View<'_>, id: OpId) -> Answer {
    let found = Norm::of(view, id)?;
    if view.op(id).def.name == "reduce_l2_norm" {
        return norm(view, id, found.x, found.dtype, &found.axes);
    }
    found.rewrite()
}

fn axes(view: &View<'_>, id: OpId, rank: usize) -> Result<Vec<usize>, &'static str> {
    match view.op(id).arg("axes") {
        None => Ok((0..rank).collect()),
        Some(_) => {
            let axes = ints(view, id, "axes").ok_or("its axes are not constant")?;
            axes.into_iter()
                .map(|a| wrap(a, rank))
                .collect::<Option<_>>()
                .ok_or("its axes are none of x")
        }
    }
}

/// max(1, max |x|) along axes, which stay.
fn largest(new: &mut Rewrite<'_>, x: ValueId, dtype: DType, axes: &[usize]) -> New {
    let magnitudes = new.unary("abs", New::Value(x));
    let most = new.reduce("reduce_max", magnitudes, axes);
    new.with_number("maximum", most, dtype, 1.0)
}

fn norm(view: &View<'_>, id: OpId, x: ValueId, dtype: DType, axes: &[usize]) -> Answer {
    let op = view.op(id);
    let out = super::rewrite::result_shape(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let t = largest(&mut new, x, dtype, axes);
    let s = new.binary("real_div", New::Value(x), t);
    let norm = new.again(op, &[("x", s)]);
    let t = new.reshape(t, &out);
    let y = new.binary("mul", norm, t);
    new.instead(y)
}

/// x * rsqrt(mean(x^2) + epsilon), or x / sqrt(..), found from its sum.
pub struct Norm<'a> {
    view: &'a View<'a>,
    sum: OpId,
    /// What is normed.
    pub x: ValueId,
    /// Its element type.
    pub dtype: DType,
    /// Along which.
    pub axes: Vec<usize>,
}

/// What follows the sum.
pub struct Tail {
    epsilon: Option<f32>,
    /// `rsqrt` with its own epsilon, or `sqrt`.
    root: OpId,
    /// The product of x and the root, or the quotient.
    pub last: OpId,
}

impl<'a> Norm<'a> {
    /// The norm that an op sums the squares of.
    pub fn of(view: &'a View<'a>, sum: OpId) -> Result<Self, &'static str> {
        let squares = matches!(
            view.op(sum).def.name,
            "reduce_l2_norm" | "reduce_sum_square"
        );
        let x = view
            .op(sum)
            .value_arg("x")
            .ok_or("its operand is written in place")?;
        let x = if squares {
            x
        } else {
            squared(view, x).ok_or("what it sums is no square")?
        };
        let (_, dtype, shape) = operand(view, sum, "x")?;
        Ok(Self {
            view,
            sum,
            x,
            dtype,
            axes: axes(view, sum, shape.len())?,
        })
    }

    /// The epsilon that is added to the mean of squares in all.
    pub fn epsilon(&self, tail: &Tail) -> f32 {
        let own = match self.view.op(tail.root).def.name {
            "rsqrt" => crate::rules::query::float(self.view, tail.root, "epsilon").unwrap_or(1e-12),
            _ => 0.0,
        };
        tail.epsilon.unwrap_or(0.0) + own
    }

    fn only_user(&self, op: OpId) -> Result<OpId, &'static str> {
        let [result] = self.view.op(op).results[..] else {
            return Err("it has several results");
        };
        match self.view.users(result) {
            [user] if !self.view.is_output(result) => Ok(*user),
            _ => Err("the mean of squares has other uses than the norm"),
        }
    }

    /// What follows, up to the normed x.
    pub fn tail(&self) -> Result<Tail, &'static str> {
        const OTHER: &str = "no root and product of a norm follow it";
        let mut at = self.only_user(self.sum)?;
        let mut epsilon = None;
        if self.view.op(at).def.name == "add" {
            let op = self.view.op(at);
            let of = |name: &str| match op.arg(name) {
                Some(thane_mil::program::Arg::Value(v)) => scalar(self.view, *v),
                Some(thane_mil::program::Arg::Literal(l)) => {
                    l.to_floats().filter(|f| f.len() == 1).map(|f| f[0])
                }
                _ => None,
            };
            epsilon = Some(
                of("y")
                    .or_else(|| of("x"))
                    .ok_or("its epsilon is no constant")?,
            );
            at = self.only_user(at)?;
        }
        let (root, kind) = (at, self.view.op(at).def.name);
        let own = crate::rules::query::float(self.view, root, "epsilon").unwrap_or(0.0);
        if !matches!(kind, "rsqrt" | "sqrt") || kind == "rsqrt" && own > 1e-3 {
            return Err(OTHER);
        }
        let last = self.only_user(root)?;
        let op = self.view.op(last);
        let (x, r) = (Some(self.x), Some(self.view.op(root).results[0]));
        let (a, b) = (op.value_arg("x"), op.value_arg("y"));
        let fits = match op.def.name {
            "mul" => kind == "rsqrt" && ((a, b) == (x, r) || (a, b) == (r, x)),
            "real_div" => kind == "sqrt" && (a, b) == (x, r),
            _ => false,
        };
        if fits {
            Ok(Tail {
                epsilon,
                root,
                last,
            })
        } else {
            Err(OTHER)
        }
    }

    fn rewrite(&self) -> Answer {
        let tail = self.tail()?;
        let view = self.view;
        let shape = view.known_shape(self.x).ok_or("its shape is not fixed")?;
        let kept = super::rewrite::result_shape(view, self.sum)?.len() == shape.len();
        if !kept {
            return Err("the reduced axes are dropped");
        }
        let kind = view.op(tail.root).def.name;
        let mut new = Rewrite::new(view, tail.last, FIX.name);
        let t = largest(&mut new, self.x, self.dtype, &self.axes);
        let s = new.binary("real_div", New::Value(self.x), t);
        // Squares that are no values of their own are not rounded to fp16, where small ones are 0.
        let sum = match view.op(self.sum).def.name {
            "reduce_sum_square" => new.reduce("reduce_sum_square", s, &self.axes),
            reduce => {
                let squares = new.binary("mul", s, s);
                new.reduce(
                    if reduce == "reduce_mean" {
                        "reduce_mean"
                    } else {
                        "reduce_sum"
                    },
                    squares,
                    &self.axes,
                )
            }
        };
        // Twice by t and not once by its square, which fp16 may not hold.
        let epsilon = new.number(self.dtype, self.epsilon(&tail));
        let epsilon = new.binary("real_div", epsilon, t);
        let epsilon = new.binary("real_div", epsilon, t);
        let sum = new.binary("add", sum, epsilon);
        let y = match kind {
            "rsqrt" => {
                let none = new.number(self.dtype, 0.0);
                let root = new.op("rsqrt", vec![one("x", sum), one("epsilon", none)]);
                new.binary("mul", s, root)
            }
            _ => {
                let root = new.unary("sqrt", sum);
                new.binary("real_div", s, root)
            }
        };
        new.instead_of(tail.last, y)
    }
}

/// What is squared to give a value.
fn squared(view: &View<'_>, value: ValueId) -> Option<ValueId> {
    let op = view.f.definer(value)?;
    let x = op.value_arg("x")?;
    match op.def.name {
        "square" => Some(x),
        "mul" if op.value_arg("y") == Some(x) => Some(x),
        "pow" => {
            let two = match op.arg("y")? {
                thane_mil::program::Arg::Value(v) => scalar(view, *v),
                thane_mil::program::Arg::Literal(l) => l.to_floats()?.first().copied(),
                thane_mil::program::Arg::Values(_) => None,
            };
            (two == Some(2.0)).then_some(x)
        }
        _ => None,
    }
}
