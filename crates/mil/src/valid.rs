//! Checks that a program is legal. The first [`MAX_VIOLATIONS`] violations are collected.
//!
//! 1. Function names are identifiers and unique; all functions share one opset.
//! 2. Value names are identifiers and unique in their function, nested blocks included. Each value
//!    is defined before it is used; a value that is defined in a nested block is used only there.
//! 3. Each op exists in the function's opset, in the form that this opset defines. Required
//!    parameters are bound, each to a value that the parameter accepts. Parameters that must be
//!    constant are bound to a `const`, to a constexpr op or to a literal.
//! 4. Declared result types match the types that the op's rule infers.
//! 5. Ranks are at most 5, except for constants that only constexpr ops use, and at most 4 in
//!    lists. Inputs have rank 1 or more.
//! 6. A literal, attributes included, has exactly the bytes of its type and survives printing and
//!    parsing: booleans are 0 or 1, unused bits are 0, strings are scalars. Infinities and NaN are
//!    legal. Data without a text form (fp8, NaN with a payload) must be the whole value of a
//!    constant, so that it can go to a weight file; fp64 never goes to a weight file, so an fp64
//!    NaN with a payload is illegal.
//! 7. Functions have outputs. An output is a tensor or, for a classifier, a dictionary.
//!
//! Later stages may return errors for a program that passes these checks, but they do not panic.

use std::collections::HashSet;
use std::fmt;

use crate::data::Data;
use crate::literal::{Literal, quiet_nan};
use crate::opset::{self, Accepts};
use crate::program::{Arg, BlockId, Function, Op, OpId, Program, ValueId};
use crate::shorten::shorten;
use crate::types::{DType, MAX_RANK, TensorType, Type, is_type_word};

/// A broken rule and its place in the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {place}: {message}")]
pub struct Violation {
    /// Name of the function, or `program` or `package` for what belongs to none.
    pub function: String,
    /// The op or value, such as ``relu `y` ``.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// Most violations that are told.
pub const MAX_VIOLATIONS: usize = 1000;

impl Violation {
    /// Most bytes of each text: names may be as long as a program.
    const MAX_BYTES: usize = 1000;

    /// Adds a violation, unless there are enough.
    pub(crate) fn report(out: &mut Vec<Self>, function: &str, place: &str, message: &str) {
        if out.len() < MAX_VIOLATIONS {
            let cut = |text: &str| text[..text.floor_char_boundary(Self::MAX_BYTES)].to_owned();
            out.push(Self {
                function: cut(function),
                place: cut(place),
                message: cut(message),
            });
        }
    }
}

/// Checks every rule; returns the violations of all functions, in program order.
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
                "expected a unique identifier as name".to_owned(),
            );
        }
        if function.opset != program.functions()[0].opset {
            checker.report(
                "function",
                "expected the opset of the first function, found another".to_owned(),
            );
        }
        checker.run();
    }
    if out.is_empty() { Ok(()) } else { Err(out) }
}

fn attributes(attributes: &[(String, Literal)], owner: &str, out: &mut Vec<Violation>) {
    for (name, literal) in attributes {
        if let Err(e) = check_literal(literal) {
            Violation::report(
                out,
                owner,
                "attributes",
                &shorten(format_args!("`{name}`: {e}")),
            );
        }
    }
}

/// Whether `name` is a MIL identifier: a letter or `_`, then letters, digits, `_` and `@`.
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
    fn report(&mut self, place: &str, message: impl fmt::Display) {
        Violation::report(self.out, &self.function.name, place, &shorten(message));
    }

    fn run(&mut self) {
        let f = self.function;
        self.names();
        let mut defined = vec![false; f.n_values()];
        f.body().inputs.iter().for_each(|input| self.input(*input));
        self.block(Function::BODY, &mut defined);
        if f.body().outputs.is_empty() {
            self.report(
                "function",
                "expected at least one output, found none".to_owned(),
            );
        }
        for &output in &f.body().outputs {
            let value = f.value(output);
            if !defined[output.index()] {
                self.report(&value.name, "this output is never defined".to_owned());
            }
            match &value.ty {
                Type::Tensor(t)
                    if t.rank() > 5
                        && f.definer(output).is_some_and(|op| op.def.is_constexpr()) =>
                {
                    self.report(
                        &value.name,
                        format_args!("expected an output of rank 5 or less, found {t}"),
                    );
                }
                Type::Tensor(_) | Type::Dict(..) => {}
                ty => self.report(
                    &value.name,
                    format_args!("expected an output of tensor or dictionary type, found {ty}"),
                ),
            }
        }
    }

    /// Checks the ops of a block. Values of the block remain marked in `defined`; the caller resets
    /// them.
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
                    format_args!("`{}` is used before it is defined", f.value(used).name),
                );
            }
            for &nested in &op.blocks {
                self.nested(op, nested, defined);
            }
            op.results.iter().for_each(|r| defined[r.index()] = true);
            self.op(id);
        }
    }

    /// Checks a block that `op` runs. Values that the block defines are not visible outside of it.
    fn nested(&mut self, op: &Op, id: BlockId, defined: &mut [bool]) {
        let f = self.function;
        self.block(id, defined);
        for &input in &f.block(id).inputs {
            if !matches!(f.value(input).ty, Type::Tensor(_) | Type::List(..)) {
                self.report(
                    &f.value(input).name,
                    format_args!(
                        "expected a block input of tensor or list type, found {}",
                        f.value(input).ty
                    ),
                );
            }
        }
        for output in f.block(id).outputs.iter().filter(|v| !defined[v.index()]) {
            self.report(
                &label(f, op),
                format_args!(
                    "a nested block returns `{}`, which is not defined",
                    f.value(*output).name
                ),
            );
        }
        let inputs = f.block(id).inputs.iter();
        let ops = f.block(id).ops.iter();
        let results = ops.flat_map(|op| &f.op(*op).results);
        inputs
            .chain(results)
            .for_each(|v| defined[v.index()] = false);
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
                self.report(name, "the name is not an identifier".to_owned());
            }
            if is_type_word(name) {
                self.report(name, "the name is the name of a type".to_owned());
            }
            if !seen.insert(name) {
                self.report(name, "the name is not unique".to_owned());
            }
        }
    }

    fn input(&mut self, id: ValueId) {
        let value = self.function.value(id);
        match &value.ty {
            Type::Tensor(t) if t.rank() == 0 => self.report(
                &value.name,
                "expected an input of rank 1 or more, found a scalar".to_owned(),
            ),
            Type::Tensor(t) | Type::State(t) if t.rank() > 5 => {
                self.report(
                    &value.name,
                    format_args!("expected an input of rank 5 or less, found {t}"),
                );
            }
            Type::State(t) if t.known_shape().is_none() => {
                self.report(
                    &value.name,
                    format_args!("expected a state of known size, found {t}"),
                );
            }
            Type::Tensor(_) | Type::State(_) => {}
            other => self.report(
                &value.name,
                format_args!("expected an input of tensor or state type, found {other}"),
            ),
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
                format_args!("expected the form of opset {has}, found the form of {since}"),
            );
        }
        for (param, arg) in op.def.params.iter().zip(&op.args) {
            if param.constant
                && param.accepts != Accepts::Any
                && !arg.iter().all(|a| is_constant(f, a))
            {
                self.report(
                    &place,
                    format_args!("`{}`: expected a constant", param.name),
                );
            }
            if let Some(Arg::Literal(literal)) = arg {
                check_literal(literal)
                    .unwrap_or_else(|e| self.report(&place, format_args!("`{}`: {e}", param.name)));
            }
        }
        self.ranks(op, &place);
        let mut next_symbol = u32::MAX / 2;
        match f.infer_with(op.def, &op.args, &op.blocks, &mut next_symbol) {
            Err(e) => self.report(&place, e.0),
            Ok(types) => self.results(op, &place, &types),
        }
    }

    /// Reports constants of a rank above 5 that an op other than a constexpr op uses.
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
                format_args!(
                    "expected operands of rank 5 or less, found {ty}: only constexpr ops take \
                     higher ranks"
                ),
            );
        }
    }

    fn results(&mut self, op: &Op, place: &str, types: &[Type]) {
        let f = self.function;
        if types.len() != op.results.len() {
            self.report(
                place,
                format_args!(
                    "expected {} results, found {}",
                    types.len(),
                    op.results.len()
                ),
            );
        }
        for (r, ty) in op.results.iter().zip(types) {
            let value = f.value(*r);
            if !value.ty.compatible(ty) {
                self.report(
                    place,
                    format_args!(
                        "`{}`: expected the inferred type {ty}, found the declared type {}",
                        value.name, value.ty
                    ),
                );
            }
            if let Type::List(element, _) = &value.ty
                && element.tensor().is_some_and(|t| t.rank() > 4)
            {
                self.report(
                    place,
                    format_args!(
                        "`{}`: expected a list of tensors of rank 4 or less, found {}",
                        value.name, value.ty
                    ),
                );
            }
            if !op.def.is_constexpr() && value.ty.tensor().is_some_and(|t| t.rank() > 5) {
                self.report(
                    place,
                    format_args!(
                        "`{}`: expected rank 5 or less, found {}",
                        value.name, value.ty
                    ),
                );
            }
        }
    }
}

pub(crate) fn label(f: &Function, op: &Op) -> String {
    match op.results.first() {
        Some(r) => shorten(format_args!("{} `{}`", op.def.name, f.value(*r).name)),
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

/// Checks a literal nested in another literal. Nested literals need a text form, because only the
/// whole value of a constant can be in a weight file.
fn check_item(literal: &Literal) -> Result<(), String> {
    match literal {
        Literal::String(_) => Ok(()),
        Literal::List(_, items) | Literal::Tuple(items) => items.iter().try_for_each(check_item),
        Literal::Dict(_, _, items) => items
            .iter()
            .try_for_each(|(k, v)| check_item(k).and(check_item(v))),
        Literal::Tensor(ty, data) if !has_text(ty.dtype, data) => Err(format!(
            "{ty} has no text form (fp8 or NaN with a payload): make it the whole value of a \
             constant"
        )),
        Literal::Tensor(ty, data) => check_tensor(ty, data),
    }
}

fn check_tensor(ty: &TensorType, data: &Data) -> Result<(), String> {
    if ty.byte_len() != Some(data.byte_len()) {
        return Err(format!(
            "expected the bytes of {ty}, found {} bytes of data",
            data.byte_len()
        ));
    }
    if ty.rank() > MAX_RANK {
        return Err(format!(
            "expected rank {MAX_RANK} or less, found {ty} of rank {}",
            ty.rank()
        ));
    }
    // The text of an empty tensor is the brackets of its nonempty dimensions.
    let brackets = ty
        .shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(d.known()?.max(1)));
    if data.byte_len() == 0 && brackets.is_none_or(|n| n > 1 << 16) {
        return Err(format!("{ty} is empty and too long to print"));
    }
    match ty.dtype {
        DType::String => Err(format!("expected a scalar string, found {ty}")),
        _ if !is_clean(ty.dtype, ty.n_elements().unwrap_or(0), data) => Err(format!(
            "{ty} holds bits that are not a valid {} or have no text form",
            ty.dtype
        )),
        _ => Ok(()),
    }
}

/// Whether all elements are valid booleans or printable fp64 numbers, and every bit behind the last
/// element is 0.
fn is_clean(dtype: DType, n: usize, data: &Data) -> bool {
    let mut last = [0u8];
    let n_last_bits = n.wrapping_mul(dtype.bits()) % 8;
    if n_last_bits != 0
        && !(data.read(data.byte_len() - 1, &mut last) && last[0] >> n_last_bits == 0)
    {
        return false;
    }
    // Data in weight files is not inspected, since that would page in a whole checkpoint. Booleans
    // and fp64 are never in weight files.
    match (dtype, data) {
        (DType::Bool, Data::Bytes(bytes)) => bytes.as_slice().iter().all(|b| *b <= 1),
        (DType::Fp64, Data::Bytes(_)) => has_text(dtype, data),
        _ => true,
    }
}

/// Whether MIL text can express all elements. It has no form for fp8, and for NaN only the one
/// without a payload (with either sign).
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
