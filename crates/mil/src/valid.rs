//! The rules that a legal program keeps. All errors are collected.
//!
//! 1. Function names are unique and identifiers; all functions share one opset.
//! 2. Value names are identifiers, unique in their function, nested blocks included; each value is
//!    defined before it is used, and one that is defined in a nested block is used there only.
//! 3. Each op is in the function's opset, in the form that this opset has; required parameters are
//!    bound, each to what it accepts; parameters that must be constant are bound to `const`, to a
//!    constexpr op or to a literal.
//! 4. Declared result types are those that the op's rule infers.
//! 5. Ranks are at most 5, except for constants that only constexpr ops use, and at most 4 in
//!    lists; inputs have rank 1 or more.
//! 6. A literal, attributes included, has as many bytes as its type asks for, and reads back: truth
//!    values are 0 or 1, unused bits 0, strings scalars. Infinities and NaN are legal. What has no
//!    text, fp8 and NaN with a payload, is a whole constant, for a weight file, and not fp64, which
//!    is in none.
//! 7. Functions have outputs, and an output is a tensor or, of a classifier, a dictionary.
//!
//! Passing them means that later stages return errors but do not panic.

use std::collections::HashSet;

use crate::data::Data;
use crate::literal::{Literal, quiet_nan};
use crate::opset::{self, Accepts};
use crate::program::{Arg, BlockId, Function, Op, OpId, Program, ValueId};
use crate::types::{DType, MAX_RANK, TensorType, Type, is_type_word};

/// A rule that a program breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {place}: {message}")]
pub struct Violation {
    /// Function name.
    pub function: String,
    /// Op or value.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// Check every rule; the errors of all functions, in order.
pub fn check(program: &Program) -> Result<(), Vec<Violation>> {
    let mut out = Vec::new();
    let mut names = HashSet::new();
    attributes(&program.attributes, "program", &mut out);
    for function in program.functions() {
        attributes(&function.attributes, &function.name, &mut out);
        let mut checker = Checker {
            function,
            out: &mut out,
        };
        if !is_identifier(&function.name) || !names.insert(function.name.as_str()) {
            checker.report(
                "function",
                "its name is not an identifier or not unique".to_owned(),
            );
        }
        if function.opset != program.functions()[0].opset {
            checker.report(
                "function",
                "its opset differs from that of the first function".to_owned(),
            );
        }
        checker.run();
    }
    if out.is_empty() { Ok(()) } else { Err(out) }
}

fn attributes(attributes: &[(String, Literal)], of: &str, out: &mut Vec<Violation>) {
    for (name, literal) in attributes {
        if let Err(e) = check_literal(literal) {
            out.push(Violation {
                function: of.to_owned(),
                place: "attributes".to_owned(),
                message: format!("`{name}`: {e}"),
            });
        }
    }
}

/// Whether a name can stand in MIL: a letter or `_`, then letters, digits, `_` and `@`.
pub fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '@')
}

struct Checker<'a> {
    function: &'a Function,
    out: &'a mut Vec<Violation>,
}

impl Checker<'_> {
    fn report(&mut self, place: &str, message: String) {
        self.out.push(Violation {
            function: self.function.name.clone(),
            place: place.to_owned(),
            message,
        });
    }

    fn run(&mut self) {
        let f = self.function;
        self.names();
        let mut defined = vec![false; f.n_values()];
        f.body().inputs.iter().for_each(|input| self.input(*input));
        self.block(Function::BODY, &mut defined);
        if f.body().outputs.is_empty() {
            self.report("function", "it has no outputs".to_owned());
        }
        for &output in &f.body().outputs {
            let value = f.value(output);
            if !defined[output.index()] {
                self.report(&value.name, "it is an output but never defined".to_owned());
            }
            match &value.ty {
                Type::Tensor(t)
                    if t.rank() > 5
                        && f.definer(output).is_some_and(|op| op.def.is_constexpr()) =>
                {
                    self.report(
                        &value.name,
                        format!(
                            "it is an output of type {t}, ranks above 5 are for constants only"
                        ),
                    );
                }
                Type::Tensor(_) | Type::Dict(..) => {}
                ty => self.report(&value.name, format!("it is an output of type {ty}")),
            }
        }
    }

    /// Check the ops of a block; what is defined in it stays `defined` for the block that runs it
    /// to take back.
    fn block(&mut self, id: BlockId, defined: &mut [bool]) {
        let f = self.function;
        f.block(id)
            .inputs
            .iter()
            .for_each(|input| defined[input.index()] = true);
        for &id in &f.block(id).ops {
            let op = f.op(id);
            for used in op.uses().filter(|v| !defined[v.index()]) {
                self.report(
                    &label(f, op),
                    format!("`{}` is used before it is defined", f.value(used).name),
                );
            }
            for &nested in &op.blocks {
                self.nested(op, nested, defined);
            }
            op.results.iter().for_each(|r| defined[r.index()] = true);
            self.op(id);
        }
    }

    /// Check a block that `op` runs; nothing that is defined in it is seen outside.
    fn nested(&mut self, op: &Op, id: BlockId, defined: &mut [bool]) {
        let f = self.function;
        let before = defined.to_vec();
        self.block(id, defined);
        for &input in &f.block(id).inputs {
            if !matches!(f.value(input).ty, Type::Tensor(_) | Type::List(..)) {
                self.report(
                    &f.value(input).name,
                    format!("it is an input of a block, of type {}", f.value(input).ty),
                );
            }
        }
        for output in f.block(id).outputs.iter().filter(|v| !defined[v.index()]) {
            self.report(
                &label(f, op),
                format!(
                    "its block gives `{}`, which is not defined",
                    f.value(*output).name
                ),
            );
        }
        defined.copy_from_slice(&before);
    }

    fn names(&mut self) {
        let f = self.function;
        let mut seen = HashSet::new();
        let mut values = f.body().inputs.clone();
        for op in f.all_ops().into_iter().map(|id| f.op(id)) {
            values.extend(op.blocks.iter().flat_map(|b| &f.block(*b).inputs));
            values.extend(&op.results);
        }
        for v in values {
            let name = &f.value(v).name;
            if !is_identifier(name) {
                self.report(name, "its name is not an identifier".to_owned());
            }
            if is_type_word(name) {
                self.report(name, "its name is that of a type".to_owned());
            }
            if !seen.insert(name) {
                self.report(name, "its name is not unique".to_owned());
            }
        }
    }

    fn input(&mut self, id: ValueId) {
        let value = self.function.value(id);
        match &value.ty {
            Type::Tensor(t) if t.rank() == 0 => {
                self.report(&value.name, "it is an input of rank 0".to_owned())
            }
            Type::Tensor(t) | Type::State(t) if t.rank() > 5 => {
                self.report(
                    &value.name,
                    format!("it is {t}, ranks above 5 are for constants only"),
                );
            }
            Type::State(t) if t.known_shape().is_none() => {
                self.report(
                    &value.name,
                    format!("it is a state of type {t}, whose size is not known"),
                );
            }
            Type::Tensor(_) | Type::State(_) => {}
            other => self.report(&value.name, format!("it is an input of type {other}")),
        }
    }

    fn op(&mut self, id: OpId) {
        let f = self.function;
        let op = f.op(id);
        let place = label(f, op);
        if opset::find_in(op.def.name, f.opset) != Some(op.def) {
            let (since, has) = (op.def.since.name(), f.opset.name());
            self.report(
                &place,
                format!("it is the form of opset {since}, the function has {has}"),
            );
        }
        for (param, arg) in op.def.params.iter().zip(&op.args) {
            if param.constant
                && param.accepts != Accepts::Any
                && !arg.iter().all(|a| is_constant(f, a))
            {
                self.report(&place, format!("`{}` must be constant", param.name));
            }
            if let Some(Arg::Literal(literal)) = arg {
                check_literal(literal)
                    .unwrap_or_else(|e| self.report(&place, format!("`{}`: {e}", param.name)));
            }
        }
        self.ranks(op, &place);
        let mut next_symbol = u32::MAX / 2;
        match f.infer_with(op.def, &op.args, &op.blocks, &mut next_symbol) {
            Err(e) => self.report(&place, e.0),
            Ok(types) => self.results(op, &place, &types),
        }
    }

    /// Constants of a rank above 5 are for constexpr ops.
    fn ranks(&mut self, op: &Op, place: &str) {
        let f = self.function;
        if op.def.is_constexpr() {
            return;
        }
        let constants = op
            .uses()
            .filter(|v| f.definer(*v).is_some_and(|d| d.def.is_constexpr()));
        let literals = op.args.iter().flatten().filter_map(|a| {
            if let Arg::Literal(l) = a {
                Some(l.ty())
            } else {
                None
            }
        });
        let types = constants.map(|v| f.value(v).ty.clone()).chain(literals);
        for ty in types.filter(|ty| ty.tensor().is_some_and(|t| t.rank() > 5)) {
            self.report(
                place,
                format!("it uses {ty}, ranks above 5 are for what constexpr ops use"),
            );
        }
    }

    fn results(&mut self, op: &Op, place: &str, types: &[Type]) {
        let f = self.function;
        if types.len() != op.results.len() {
            self.report(
                place,
                format!(
                    "it has {} results, {} are due",
                    op.results.len(),
                    types.len()
                ),
            );
        }
        for (r, ty) in op.results.iter().zip(types) {
            let value = f.value(*r);
            if !value.ty.compatible(ty) {
                self.report(
                    place,
                    format!(
                        "`{}` is declared {}, its op gives {ty}",
                        value.name, value.ty
                    ),
                );
            }
            if let Type::List(element, _) = &value.ty
                && element.tensor().is_some_and(|t| t.rank() > 4)
            {
                self.report(
                    place,
                    format!(
                        "`{}` is {}; tensors in lists have at most rank 4",
                        value.name, value.ty
                    ),
                );
            }
            if !op.def.is_constexpr() && value.ty.tensor().is_some_and(|t| t.rank() > 5) {
                self.report(
                    place,
                    format!(
                        "`{}` is {}, ranks above 5 are for constants only",
                        value.name, value.ty
                    ),
                );
            }
        }
    }
}

pub(crate) fn label(f: &Function, op: &Op) -> String {
    match op.results.first() {
        Some(r) => format!("{} `{}`", op.def.name, f.value(*r).name),
        None => op.def.name.to_owned(),
    }
}

fn is_constant(f: &Function, arg: &Arg) -> bool {
    let value = |v: &ValueId| f.definer(*v).is_some_and(|op| op.def.is_constexpr());
    match arg {
        Arg::Literal(_) => true,
        Arg::Value(v) => value(v),
        Arg::Values(vs) => vs.iter().all(value),
    }
}

fn check_literal(literal: &Literal) -> Result<(), String> {
    match literal {
        Literal::Tensor(ty, data) => check_tensor(ty, data),
        other => check_item(other),
    }
}

/// A literal inside of another, which has to have a text: only a whole constant can be in a weight
/// file.
fn check_item(literal: &Literal) -> Result<(), String> {
    match literal {
        Literal::String(_) => Ok(()),
        Literal::List(_, items) | Literal::Tuple(items) => items.iter().try_for_each(check_item),
        Literal::Dict(_, _, items) => items
            .iter()
            .try_for_each(|(k, v)| check_item(k).and(check_item(v))),
        Literal::Tensor(ty, data) if !has_text(ty.dtype, data) => Err(format!(
            "{ty} has no text: it is fp8 or a NaN with a payload, and not a whole constant"
        )),
        Literal::Tensor(ty, data) => check_tensor(ty, data),
    }
}

fn check_tensor(ty: &TensorType, data: &Data) -> Result<(), String> {
    if ty.byte_len() != Some(data.byte_len()) {
        return Err(format!("{ty} has {} bytes of data", data.byte_len()));
    }
    if ty.rank() > MAX_RANK {
        return Err(format!(
            "{ty} has {} dimensions, {MAX_RANK} are the most",
            ty.rank()
        ));
    }
    // What is written for an empty tensor is the brackets of its dimensions that are not empty.
    let brackets = ty
        .shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(d.known()?.max(1)));
    if data.byte_len() == 0 && brackets.is_none_or(|n| n > 1 << 16) {
        return Err(format!("{ty} is empty and cannot be written"));
    }
    match ty.dtype {
        DType::String => Err(format!("{ty}: strings are scalars")),
        _ if !is_clean(ty.dtype, ty.n_elements().unwrap_or(0), data) => Err(format!(
            "{ty} holds bits that are no {} or have no text",
            ty.dtype
        )),
        _ => Ok(()),
    }
}

/// Whether all elements are truth values or fp64 numbers with a text, and no bit is set behind the
/// last.
fn is_clean(dtype: DType, n: usize, data: &Data) -> bool {
    let mut last = [0u8];
    let n_last_bits = n.wrapping_mul(dtype.bits()) % 8;
    if n_last_bits != 0
        && !(data.read(data.byte_len() - 1, &mut last) && last[0] >> n_last_bits == 0)
    {
        return false;
    }
    // What is in a weight file is not looked at: a whole checkpoint is not paged in to be
    // validated. These are in none.
    match (dtype, data) {
        (DType::Bool, Data::Bytes(bytes)) => bytes.as_slice().iter().all(|b| *b <= 1),
        (DType::Fp64, Data::Bytes(_)) => has_text(dtype, data),
        _ => true,
    }
}

/// Whether MIL text can spell all elements: fp8 never, and of NaN only the one that has nothing but
/// a sign.
pub(crate) fn has_text(dtype: DType, data: &Data) -> bool {
    fn all<const N: usize>(
        dtype: DType,
        data: &Data,
        bits: impl Fn([u8; N]) -> u64,
        infinity: u64,
    ) -> bool {
        let magnitude = !(1 << (dtype.bits() - 1));
        let has_text = |bits: u64| bits <= infinity || Some(bits) == quiet_nan(dtype);
        data.to_vec()
            .as_chunks::<N>()
            .0
            .iter()
            .all(|b| has_text(bits(*b) & magnitude))
    }
    let half = |b| u64::from(u16::from_le_bytes(b));
    match dtype {
        DType::Fp16 => all(dtype, data, half, 0x7c00),
        DType::Bf16 => all(dtype, data, half, 0x7f80),
        DType::Fp32 => all(
            dtype,
            data,
            |b| u64::from(u32::from_le_bytes(b)),
            0x7f80_0000,
        ),
        DType::Fp64 => all(dtype, data, u64::from_le_bytes, 0x7ff0_0000_0000_0000),
        DType::Fp8E4M3 | DType::Fp8E5M2 => false,
        _ => true,
    }
}
