//! Values of a rewrite, with arithmetic.

use std::ops::{Add, Div, Mul, Sub};

use thane_mil::edit::New;
use thane_mil::literal::Literal;
use thane_mil::types::DType;

use super::Rewrite;

/// A value that new ops use: one of the function, or what a new op makes.
#[derive(Clone, Copy)]
pub struct Value<'w> {
    /// For a patch.
    pub new: New,
    /// Its element type, which numbers beside it get.
    pub dtype: DType,
    pub(super) rewrite: &'w Rewrite<'w>,
}

/// Ops of one operand, by the name of the op.
macro_rules! unary {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of each number.")]
            pub fn $name(self) -> Self {
                self.unary(stringify!($name))
            }
        )*
    };
}

impl<'w> Value<'w> {
    unary! { abs atan cos exp floor log relu rsqrt sin sqrt square }

    /// `1 / x` without an epsilon: for what is never 0.
    pub fn inverse(self) -> Self {
        let epsilon = self.number(0.0);
        self.rewrite
            .op("inverse", &[("x", self), ("epsilon", epsilon)])
    }

    /// An op of one operand.
    pub fn unary(self, kind: &'static str) -> Self {
        self.rewrite.op(kind, &[("x", self)])
    }

    /// An op of two operands.
    pub fn binary(self, kind: &'static str, y: Self) -> Self {
        self.rewrite.op(kind, &[("x", self), ("y", y)])
    }

    /// A number of the same element type.
    pub fn number(self, number: f32) -> Self {
        self.rewrite.number(self.dtype, number)
    }

    /// `x` op a scalar.
    pub fn with_number(self, kind: &'static str, number: f32) -> Self {
        let number = self.number(number);
        self.binary(kind, number)
    }

    /// In another shape.
    pub fn reshape(self, shape: &[usize]) -> Self {
        let shape = self.rewrite.ints(shape);
        self.rewrite.op("reshape", &[("x", self), ("shape", shape)])
    }

    /// In the shape `out` without axes of length 1, if that has not the rank that this has.
    pub fn squeezed(self, rank: usize, out: &[usize]) -> Self {
        if out.len() == rank {
            self
        } else {
            self.reshape(out)
        }
    }

    /// With axes in another order.
    pub fn transpose(self, perm: &[usize]) -> Self {
        let perm = self.rewrite.ints(perm);
        self.rewrite.op("transpose", &[("x", self), ("perm", perm)])
    }

    /// Elements from `begin` on.
    pub fn slice(self, begin: &[usize], size: &[usize]) -> Self {
        let (begin, size) = (self.rewrite.ints(begin), self.rewrite.ints(size));
        let args = [("x", self), ("begin", begin), ("size", size)];
        self.rewrite.op("slice_by_size", &args)
    }

    /// `len` elements of one axis; `shape` is what it has.
    pub fn slice_axis(self, shape: &[usize], axis: usize, begin: usize, len: usize) -> Self {
        let (mut begins, mut size) = (vec![0; shape.len()], shape.to_vec());
        (begins[axis], size[axis]) = (begin, len);
        self.slice(&begins, &size)
    }

    /// Of another element type.
    pub fn cast(self, dtype: DType) -> Self {
        let name = self.rewrite.literal(Literal::string(dtype.name()));
        let cast = self.rewrite.op("cast", &[("x", self), ("dtype", name)]);
        Self { dtype, ..cast }
    }

    /// Along axes, which stay with length 1.
    pub fn reduce(self, kind: &'static str, axes: &[usize]) -> Self {
        let (axes, keep) = (
            self.rewrite.ints(axes),
            self.rewrite.literal(Literal::bool(true)),
        );
        let args = [("x", self), ("axes", axes), ("keep_dims", keep)];
        self.rewrite.op(kind, &args)
    }

    /// `a` where it is true, elsewhere `b`.
    pub fn select(self, a: Self, b: Self) -> Self {
        let args = [("cond", self), ("a", a), ("b", b)];
        let dtype = a.dtype;
        Self {
            dtype,
            ..self.rewrite.op("select", &args)
        }
    }

    /// One of the results, from 0, of the new op that makes it.
    pub fn result(self, k: usize) -> Self {
        let new = match self.new {
            New::Inserted(i) => New::Result(i, k),
            other => other,
        };
        Self { new, ..self }
    }
}

/// Operators of values, and of values and numbers.
macro_rules! operators {
    ($($operator:ident $method:ident $kind:literal;)*) => {
        $(
            impl $operator for Value<'_> {
                type Output = Self;
                fn $method(self, y: Self) -> Self {
                    self.binary($kind, y)
                }
            }
            impl $operator<f32> for Value<'_> {
                type Output = Self;
                fn $method(self, y: f32) -> Self {
                    self.with_number($kind, y)
                }
            }
            impl<'w> $operator<Value<'w>> for f32 {
                type Output = Value<'w>;
                fn $method(self, y: Value<'w>) -> Value<'w> {
                    y.number(self).binary($kind, y)
                }
            }
        )*
    };
}

operators! {
    Add add "add";
    Sub sub "sub";
    Mul mul "mul";
    Div div "real_div";
}

/// Sums, two by two in the order given.
impl<'w> std::iter::Sum for Value<'w> {
    fn sum<I: Iterator<Item = Value<'w>>>(values: I) -> Self {
        let sum = values.reduce(Add::add);
        sum.expect("there is a part")
    }
}
