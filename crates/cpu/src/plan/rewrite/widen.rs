//! fp16 values become fp32 values: the CPU computes in fp32, and rounding each result to fp16 takes
//! longer than most ops.
//!
//! Inputs, outputs and states keep their types, and an explicit `cast` to fp16 still rounds.
//! Constants stay fp16 in the program; whether products read them so is decided when weights are
//! packed. What a state holds is moved as fp16 and widened where an op computes with it, also where
//! the program widens it first.
//!
//! ```text
//! %y: fp16 = add(x: %x, y: %c: fp16)
//! ```
//! becomes
//! ```text
//! %x_wide: fp32 = cast(dtype: "fp32", x: %x)
//! %c_wide: fp32 = constexpr_cast(output_dtype: "fp32", source_val: ..)
//! %y: fp32 = add(x: %x_wide, y: %c_wide)
//! ```

use std::collections::HashMap;

use thane_mil::copy::{Copier, args};
use thane_mil::literal::{Literal, f16_to_f32, f64_to_f16};
use thane_mil::opset::OpKind;
use thane_mil::program::{Arg, BlockId, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::{add, is_as_known};

/// Elements up to which a constant is written anew as fp32.
const SMALL: usize = 64;

/// Ops that only move elements, so that they leave what a state holds in fp16.
const MOVES: &[&str] = &[
    "slice_by_index",
    "slice_by_size",
    "slice_update",
    "reshape",
    "expand_dims",
    "squeeze",
    "transpose",
    "split",
    "identity",
];

/// The function with fp32 in place of fp16; `None` where it has no fp16 values or has lists of
/// them.
pub fn widen(f: &Function) -> Option<Function> {
    let is_half = |ty: &Type| ty.tensor_or_state().is_some_and(|t| t.dtype == DType::Fp16);
    if !f.values().iter().any(|v| is_half(&v.ty)) {
        return None;
    }
    let has_lists = f.values().iter().any(|v| matches!(v.ty, Type::List(..)));
    if has_lists {
        return None;
    }
    let mut widen = Widen {
        copy: Copier::new(f),
        wide: HashMap::new(),
        narrow: HashMap::new(),
        is_read: is_read(f),
    };
    widen.copy.inputs();
    for v in &f.body().inputs {
        widen.wide(*v)?;
    }
    widen.block(Function::BODY)?;
    let outputs = f.body().outputs.iter().map(|v| widen.copy.get(*v));
    let outputs: Vec<ValueId> = outputs.collect::<Option<_>>()?;
    widen.copy.finish(&outputs).ok()
}

struct Widen<'a> {
    copy: Copier<'a>,
    /// New fp16 values, as fp32.
    wide: HashMap<ValueId, ValueId>,
    /// The fp16 values behind new fp32 values that were rounded.
    narrow: HashMap<ValueId, ValueId>,
    /// Of each old value, whether anything but a cast to fp16 reads it.
    is_read: Vec<bool>,
}

impl<'a> Widen<'a> {
    fn is_half(&self, new: ValueId) -> bool {
        is_type(self.copy.ty(new), DType::Fp16)
    }

    /// The new value of an old one, as fp32 where it is fp16.
    fn wide(&mut self, old: ValueId) -> Option<ValueId> {
        let new = self.copy.get(old)?;
        if !self.is_half(new) {
            return Some(new);
        }
        if let Some(wide) = self.wide.get(&new) {
            return Some(*wide);
        }
        let name = format!("{}_wide", self.copy.f.value(old).name);
        let wide = self.copy.cast(new, &name, DType::Fp32).ok()?;
        self.wide.insert(new, wide);
        Some(wide)
    }

    fn block(&mut self, block: BlockId) -> Option<()> {
        let f = self.copy.f;
        for &id in &f.block(block).ops {
            self.op(id)?;
        }
        Some(())
    }

    fn op(&mut self, id: OpId) -> Option<()> {
        let op = self.copy.f.op(id);
        match op.def.name {
            "const" => self.constant(id, op),
            name if name.starts_with("constexpr_") => {
                self.keep(id)?;
                // Here, where every later use can see it.
                op.results.iter().try_for_each(|r| self.wide(*r).map(drop))
            }
            "cast" => self.cast(id, op),
            "coreml_update_state" => self.write(id, op, "value"),
            "write_state" => self.write(id, op, "data"),
            _ if op.def.kind == OpKind::Random => self.random(id, op),
            name if MOVES.contains(&name) && self.moves_half(op) => self.moved(id),
            _ => self.compute(id, op),
        }
    }

    /// The op on new values as they are.
    fn keep(&mut self, id: OpId) -> Option<()> {
        self.with_narrow(id, |_| false)
    }

    /// A constant stays; what computes with it reads another of fp32.
    fn constant(&mut self, id: OpId, op: &'a Op) -> Option<()> {
        self.keep(id)?;
        let (old, new) = (op.results[0], self.copy.get(op.results[0])?);
        if !self.is_half(new) {
            return Some(());
        }
        let literal = self.copy.f.constant(old)?;
        let name = format!("{}_wide", self.copy.f.value(old).name);
        let is_small = literal
            .ty()
            .tensor()
            .and_then(TensorType::n_elements)
            .is_some_and(|n| n <= SMALL);
        let wide = if is_small {
            let args = vec![("val", Arg::Literal(widened(literal)?))];
            self.copy.op("const", &name, args).ok()?
        } else {
            let dtype = Arg::Literal(Literal::string("fp32"));
            let args = vec![
                ("source_val", Arg::Literal(literal.clone())),
                ("output_dtype", dtype),
            ];
            self.copy.op("constexpr_cast", &name, args).ok()?
        };
        self.wide.insert(new, wide);
        Some(())
    }

    /// What is cast to fp16 is rounded; from fp16 on there is nothing to do.
    fn cast(&mut self, id: OpId, op: &'a Op) -> Option<()> {
        let (old, result) = (op.value_arg("x")?, op.results[0]);
        let (from, to) = (
            self.copy.f.value(old).ty.tensor()?.dtype,
            self.copy.f.value(result).ty.tensor()?.dtype,
        );
        let is_wide = |dtype: DType| matches!(dtype, DType::Fp16 | DType::Fp32);
        if is_wide(from) && is_wide(to) && self.moves_half(op) {
            let x = self.copy.get(old)?;
            is_as_known(&self.copy, result, x).then_some(())?;
            self.copy.set(result, x);
            return Some(());
        }
        let x = self.wide(old)?;
        if from == to && is_wide(to) || from == DType::Fp16 && to == DType::Fp32 {
            is_as_known(&self.copy, result, x).then_some(())?;
            self.copy.set(result, x);
            return Some(());
        }
        if to == DType::Fp16 {
            self.copy.to.set_place(&op.origin.place);
            let name = self.copy.name(result);
            let narrow = self.copy.cast(x, name, DType::Fp16).ok()?;
            let wide = self.copy.cast(narrow, name, DType::Fp32).ok()?;
            is_as_known(&self.copy, result, wide).then_some(())?;
            self.narrow.insert(wide, narrow);
            self.copy.set(result, wide);
            return Some(());
        }
        self.compute(id, op)
    }

    /// Whether the op moves elements of a state, directly or through other moves.
    fn moves_half(&self, op: &Op) -> bool {
        let x = op.value_arg("x").and_then(|x| self.copy.get(x));
        let is_constant = op
            .value_arg("x")
            .is_some_and(|x| self.copy.f.constant(x).is_some());
        !is_constant && x.is_some_and(|x| self.is_half(x)) && !self.keeps_fp32(op)
    }

    /// Whether the op writes fp32 elements that the program does not round after.
    fn keeps_fp32(&self, op: &Op) -> bool {
        let Some(update) = op.value_arg("update") else {
            return false;
        };
        is_of(self.copy.f, update, DType::Fp32) && self.is_read[op.results[0].index()]
    }

    /// A move of fp16, with all that it takes as fp16.
    fn moved(&mut self, id: OpId) -> Option<()> {
        let update = self.copy.f.op(id).value_arg("update");
        self.with_narrow(id, |v| Some(v) == update)
    }

    /// The op on new values as they are, but on fp16 where `is_due`.
    fn with_narrow(&mut self, id: OpId, is_due: impl Fn(ValueId) -> bool) -> Option<()> {
        let (copy, known) = (&mut self.copy, &self.narrow);
        let args = args(copy.f.op(id), |_, v| match is_due(v) {
            true => narrow(copy, known, v),
            false => copy.get(v),
        })?;
        add(&mut self.copy, id, args, Vec::new())
    }

    /// What a state is set to has its type.
    fn write(&mut self, id: OpId, op: &'a Op, param: &str) -> Option<()> {
        let value = op.value_arg(param)?;
        if !is_of(self.copy.f, value, DType::Fp16) {
            return self.compute(id, op);
        }
        self.with_narrow(id, |v| v == value)
    }

    /// Random numbers are drawn as fp16, so that none is rounded to the end of its range.
    fn random(&mut self, id: OpId, op: &'a Op) -> Option<()> {
        let f = self.copy.f;
        self.with_narrow(id, |v| is_of(f, v, DType::Fp16))?;
        op.results.iter().try_for_each(|r| self.wide(*r).map(drop))
    }

    /// Whether it is a product of fp16 with a constant of fp32.
    fn is_mixed(&self, op: &Op) -> bool {
        let f = self.copy.f;
        op.def.name == "matmul" && op.uses().any(|v| is_of(f, v, DType::Fp16))
    }

    /// An fp32 constant of a product with fp16 is rounded, as the op does it.
    fn rounded(&mut self, op: &Op, old: ValueId) -> Option<ValueId> {
        let f = self.copy.f;
        let wide = self.wide(old)?;
        if is_of(f, old, DType::Fp32) && f.constant(old).is_some() && self.is_mixed(op) {
            return self.round(wide, self.copy.name(old));
        }
        Some(wide)
    }

    /// An fp32 value rounded to fp16.
    fn round(&mut self, wide: ValueId, name: &str) -> Option<ValueId> {
        let name = format!("{name}_rounded");
        let narrow = self.copy.cast(wide, &name, DType::Fp16).ok()?;
        self.copy.cast(narrow, &name, DType::Fp32).ok()
    }

    /// Any other op, on fp32.
    fn compute(&mut self, id: OpId, op: &'a Op) -> Option<()> {
        let mut args = Vec::with_capacity(op.args.len());
        for (param, arg) in op.def.params.iter().zip(&op.args) {
            let arg = match arg {
                None => continue,
                Some(Arg::Literal(l)) if is_type(&l.ty(), DType::Fp16) => Arg::Literal(widened(l)?),
                Some(Arg::Literal(l)) if self.is_mixed(op) && is_type(&l.ty(), DType::Fp32) => {
                    let value = vec![("val", Arg::Literal(l.clone()))];
                    let constant = self.copy.op("const", param.name, value).ok()?;
                    Arg::Value(self.round(constant, param.name)?)
                }
                Some(Arg::Literal(l)) => Arg::Literal(l.clone()),
                Some(Arg::Value(v)) => Arg::Value(self.rounded(op, *v)?),
                Some(Arg::Values(vs)) => {
                    Arg::Values(vs.iter().map(|v| self.wide(*v)).collect::<Option<_>>()?)
                }
            };
            args.push((param.name, arg));
        }
        args.extend(self.default_epsilon(op));
        let blocks = op.blocks.iter().map(|b| self.nested(*b));
        let blocks = blocks.collect::<Option<_>>()?;
        add(&mut self.copy, id, args, blocks)
    }

    /// The default of an epsilon is of the type of x: 1e-12 is 0 in fp16.
    fn default_epsilon(&self, op: &Op) -> Option<(&'static str, Arg)> {
        let epsilon = match op.def.name {
            "inverse" => 1e-4,
            "log" | "rsqrt" => 0.0,
            _ => return None,
        };
        let x = self.copy.f.value(op.value_arg("x")?).ty.tensor()?;
        let is_due = op.arg("epsilon").is_none() && x.dtype == DType::Fp16;
        let rounded = f16_to_f32(f64_to_f16(epsilon));
        is_due.then_some(("epsilon", Arg::Literal(Literal::f32(rounded))))
    }

    fn nested(&mut self, block: BlockId) -> Option<BlockId> {
        let f = self.copy.f;
        let old = f.block(block);
        let inputs: Vec<(&str, Type)> = old
            .inputs
            .iter()
            .map(|v| (f.value(*v).name.as_str(), wide_type(&f.value(*v).ty)))
            .collect();
        let new = self.copy.to.begin_block(&inputs);
        for (old, new) in old.inputs.iter().zip(new) {
            self.copy.set(*old, new);
        }
        // What is cast inside is not seen outside.
        let outside = self.wide.clone();
        self.block(block)?;
        let outputs: Vec<ValueId> = old
            .outputs
            .iter()
            .map(|v| self.wide(*v))
            .collect::<Option<_>>()?;
        self.wide = outside;
        Some(self.copy.to.end_block(&outputs))
    }
}

/// Of each value, whether anything but a cast to fp16 reads it.
fn is_read(f: &Function) -> Vec<bool> {
    let mut is_read = vec![false; f.n_values()];
    for id in f.all_ops() {
        let op = f.op(id);
        let is_half = |v: &ValueId| is_of(f, *v, DType::Fp16);
        if op.def.name != "cast" || !op.results.iter().any(is_half) {
            // With the outputs of its blocks.
            for v in f.uses(id) {
                is_read[v.index()] = true;
            }
        }
    }
    for v in &f.body().outputs {
        is_read[v.index()] = true;
    }
    is_read
}

/// The new value of an old fp16 one, as fp16.
fn narrow(
    copy: &mut Copier<'_>,
    known: &HashMap<ValueId, ValueId>,
    old: ValueId,
) -> Option<ValueId> {
    let new = copy.get(old)?;
    if let Some(narrow) = known.get(&new) {
        return Some(*narrow);
    }
    if is_type(copy.ty(new), DType::Fp16) {
        return Some(new);
    }
    let name = format!("{}_narrow", copy.f.value(old).name);
    copy.cast(new, &name, DType::Fp16).ok()
}

/// Whether a value is a tensor of this type.
fn is_of(f: &Function, value: ValueId, dtype: DType) -> bool {
    is_type(&f.value(value).ty, dtype)
}

fn is_type(ty: &Type, dtype: DType) -> bool {
    ty.tensor().is_some_and(|t| t.dtype == dtype)
}

fn widened(literal: &Literal) -> Option<Literal> {
    let shape = literal.ty().tensor()?.known_shape()?;
    let Literal::Tensor(_, data) = Literal::f32s(&literal.to_floats()?) else {
        return None;
    };
    Some(Literal::Tensor(TensorType::new(DType::Fp32, shape), data))
}

fn wide_type(ty: &Type) -> Type {
    match ty {
        Type::Tensor(t) if t.dtype == DType::Fp16 => Type::Tensor(TensorType {
            dtype: DType::Fp32,
            ..t.clone()
        }),
        _ => ty.clone(),
    }
}
