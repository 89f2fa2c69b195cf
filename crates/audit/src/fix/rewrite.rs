//! Helpers that fixes build patches with: new ops before the op that is replaced, and a value that
//! stands for its result.
//!
//! Shapes and element types are the writer's to know; the patch infers each type again, and one
//! that does not fit is an error there.

use thane_mil::data::Data;
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::literal::{Literal, f64_to_f16};
use thane_mil::opset::{self, OpDef};
use thane_mil::program::{Arg, Op, OpId, Origin, ValueId};
use thane_mil::types::{DType, TensorType};

use super::Answer;
use crate::view::View;

/// What a fix writes in the place of an op.
pub struct Rewrite<'a> {
    view: &'a View<'a>,
    at: OpId,
    patch: Patch,
    base: String,
    origin: Origin,
}

/// An argument of a new op.
pub type NamedArg = (&'static str, NewArg);

/// A value as an argument.
pub fn one(name: &'static str, value: New) -> NamedArg {
    (name, NewArg::One(value))
}

impl<'a> Rewrite<'a> {
    /// Begin to write before an op; new ops are named after what it makes and come from where it
    /// comes from.
    pub fn new(view: &'a View<'a>, at: OpId, fix: &'static str) -> Self {
        let op = view.op(at);
        let base = op
            .results
            .first()
            .map_or(op.def.name, |r| view.f.value(*r).name.as_str())
            .to_owned();
        let origin = Origin {
            place: op.origin.place.clone(),
            pass: Some(fix),
        };
        Self {
            view,
            at,
            patch: Patch::new(),
            base,
            origin,
        }
    }

    /// Go on before another op, in the same patch.
    pub fn before(&mut self, at: OpId) {
        let fix = self.origin.pass.unwrap_or_default();
        let patch = std::mem::take(&mut self.patch);
        *self = Self {
            patch,
            ..Self::new(self.view, at, fix)
        };
    }

    /// An op of a kind that every opset has.
    pub fn op(&mut self, kind: &'static str, args: Vec<NamedArg>) -> New {
        let def = opset::find_in(kind, self.view.f.opset)
            .expect("fixes are written in ops of the first opset");
        self.defined(def, args)
    }

    /// An op of this row.
    pub fn defined(&mut self, def: &'static OpDef, args: Vec<NamedArg>) -> New {
        let name = format!("{}_{}", self.base, def.name);
        self.patch
            .insert(self.at, def, args, name, self.origin.clone())
    }

    /// A constant.
    pub fn literal(&mut self, literal: Literal) -> New {
        self.op("const", vec![("val", NewArg::Same(Arg::Literal(literal)))])
    }

    /// A constant tensor.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize], data: Data) -> New {
        self.literal(Literal::Tensor(
            TensorType::new(dtype, shape.iter().copied()),
            data,
        ))
    }

    /// A constant tensor of numbers, fp16 or fp32.
    pub fn numbers(
        &mut self,
        dtype: DType,
        shape: &[usize],
        numbers: impl Iterator<Item = f32>,
    ) -> New {
        self.tensor(dtype, shape, Data::owned(bytes_of(dtype, numbers)))
    }

    /// A scalar, fp16 or fp32.
    pub fn number(&mut self, dtype: DType, number: f32) -> New {
        self.numbers(dtype, &[], std::iter::once(number))
    }

    /// A vector of int32.
    pub fn ints(&mut self, ints: &[usize]) -> New {
        let ints: Vec<i32> = ints
            .iter()
            .map(|n| i32::try_from(*n).unwrap_or(i32::MAX))
            .collect();
        self.literal(Literal::i32s(&ints))
    }

    /// An int32.
    pub fn int(&mut self, int: i32) -> New {
        self.literal(Literal::i32(int))
    }

    /// An op of one operand.
    pub fn unary(&mut self, kind: &'static str, x: New) -> New {
        self.op(kind, vec![one("x", x)])
    }

    /// An op of two operands.
    pub fn binary(&mut self, kind: &'static str, x: New, y: New) -> New {
        self.op(kind, vec![one("x", x), one("y", y)])
    }

    /// `x` op a scalar.
    pub fn with_number(&mut self, kind: &'static str, x: New, dtype: DType, number: f32) -> New {
        let number = self.number(dtype, number);
        self.binary(kind, x, number)
    }

    /// In another shape.
    pub fn reshape(&mut self, x: New, shape: &[usize]) -> New {
        let shape = self.ints(shape);
        self.op("reshape", vec![one("x", x), one("shape", shape)])
    }

    /// With axes in another order.
    pub fn transpose(&mut self, x: New, perm: &[usize]) -> New {
        let perm = self.ints(perm);
        self.op("transpose", vec![one("x", x), one("perm", perm)])
    }

    /// Elements from `begin` on.
    pub fn slice(&mut self, x: New, begin: &[usize], size: &[usize]) -> New {
        let (begin, size) = (self.ints(begin), self.ints(size));
        self.op(
            "slice_by_size",
            vec![one("x", x), one("begin", begin), one("size", size)],
        )
    }

    /// `len` elements of one axis.
    pub fn slice_axis(
        &mut self,
        x: New,
        shape: &[usize],
        axis: usize,
        begin: usize,
        len: usize,
    ) -> New {
        let (mut begins, mut size) = (vec![0; shape.len()], shape.to_vec());
        (begins[axis], size[axis]) = (begin, len);
        self.slice(x, &begins, &size)
    }

    /// One after the other along an axis.
    pub fn concat(&mut self, values: Vec<New>, axis: usize) -> New {
        let (axis, interleave) = (self.int(axis as i32), self.literal(Literal::bool(false)));
        self.op(
            "concat",
            vec![
                ("values", NewArg::Many(values)),
                one("axis", axis),
                one("interleave", interleave),
            ],
        )
    }

    /// Of another element type.
    pub fn cast(&mut self, x: New, dtype: DType) -> New {
        let dtype = self.literal(Literal::string(dtype.name()));
        self.op("cast", vec![one("x", x), one("dtype", dtype)])
    }

    /// Along axes, which stay with length 1.
    pub fn reduce(&mut self, kind: &'static str, x: New, axes: &[usize]) -> New {
        let (axes, keep) = (self.ints(axes), self.literal(Literal::bool(true)));
        self.op(
            kind,
            vec![one("x", x), one("axes", axes), one("keep_dims", keep)],
        )
    }

    /// A 1x1 convolution.
    pub fn pointwise(&mut self, x: New, weight: New, bias: Option<NewArg>) -> New {
        let (strides, pad) = (self.ints(&[1, 1]), self.ints(&[0, 0, 0, 0]));
        let (pad_type, groups) = (self.literal(Literal::string("valid")), self.int(1));
        let mut args = vec![
            one("x", x),
            one("weight", weight),
            one("strides", strides),
            one("pad_type", pad_type),
        ];
        args.extend([
            one("pad", pad),
            one("dilations", strides),
            one("groups", groups),
        ]);
        args.extend(bias.map(|b| ("bias", b)));
        self.op("conv", args)
    }

    /// A sum, two by two in the order given.
    pub fn sum(&mut self, parts: Vec<New>) -> New {
        parts
            .into_iter()
            .reduce(|a, b| self.binary("add", a, b))
            .expect("there is a part")
    }

    /// `op` again with other arguments in the place of some.
    pub fn again(&mut self, op: &Op, others: &[(&'static str, New)]) -> New {
        let args = op
            .def
            .params
            .iter()
            .zip(&op.args)
            .filter_map(|(param, arg)| {
                let other = others.iter().find(|(name, _)| *name == param.name);
                other
                    .map(|(name, value)| one(name, *value))
                    .or_else(|| Some((param.name, same(arg.as_ref()?))))
            });
        let args = args.collect();
        self.defined(op.def, args)
    }

    /// Let `value` stand for another.
    pub fn replace(&mut self, from: ValueId, value: New) {
        self.patch.replace(from, value);
    }

    /// Remove an op that nothing will use.
    pub fn remove(&mut self, op: OpId) {
        self.patch.remove(op);
    }

    /// What is written so far.
    pub fn finish(self) -> Patch {
        self.patch
    }

    /// Let `value` stand for the result of the op, and remove the op.
    pub fn instead(self, value: New) -> Answer {
        let at = self.at;
        self.instead_of(at, value)
    }

    /// Let `value` stand for the result of an op further on, and remove that op; what else it
    /// leaves unused is dead code.
    pub fn instead_of(mut self, op: OpId, value: New) -> Answer {
        let [result] = self.view.op(op).results[..] else {
            return Err("it has several results");
        };
        self.patch.replace(result, value);
        self.patch.remove(op);
        Ok(self.patch)
    }
}

/// Some result, from 0, of an op that is written.
pub fn result(op: New, k: usize) -> New {
    match op {
        New::Inserted(i) => New::Result(i, k),
        other => other,
    }
}

/// An argument as it stands; values of the function may have been replaced by the same patch, so
/// they are named anew.
pub fn same(arg: &Arg) -> NewArg {
    match arg {
        Arg::Value(v) => NewArg::One(New::Value(*v)),
        other => NewArg::Same(other.clone()),
    }
}

/// An argument of an op as it stands.
pub fn same_arg(op: &Op, name: &str) -> Option<NewArg> {
    op.arg(name).map(same)
}

/// The bytes of numbers of a type, fp16 or fp32.
pub fn bytes_of(dtype: DType, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    match dtype {
        DType::Fp16 => numbers
            .flat_map(|n| f64_to_f16(n.into()).to_le_bytes())
            .collect(),
        _ => numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

/// The value, element type and shape of an operand of floating point and fixed shape.
pub fn operand(
    view: &View<'_>,
    op: OpId,
    name: &str,
) -> Result<(ValueId, DType, Vec<usize>), &'static str> {
    let value = view
        .op(op)
        .value_arg(name)
        .ok_or("its operand is written in place")?;
    let shape = view.known_shape(value).ok_or(NOT_FIXED)?;
    match view.dtype(value) {
        Some(dtype @ (DType::Fp16 | DType::Fp32)) => Ok((value, dtype, shape)),
        _ => Err("it is not computed in floating point"),
    }
}

/// The shape of what an op makes.
pub fn result_shape(view: &View<'_>, op: OpId) -> Result<Vec<usize>, &'static str> {
    let result = view.op(op).results.first().ok_or("it has no result")?;
    view.known_shape(*result).ok_or(NOT_FIXED)
}

const NOT_FIXED: &str = "its shape is not fixed: make one function for each length";
