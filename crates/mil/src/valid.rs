//! The rules that a legal program keeps. All errors are collected.
//!
//! 1. Function names are unique and identifiers; all functions share one opset.
//! 2. Value names are identifiers, unique in their function; each value is defined before it is used.
//! 3. Each op is in the function's opset; required parameters are bound, each to what it accepts; parameters that must be
//!    constant are bound to `const`, to a constexpr op or to a literal.
//! 4. Declared result types are those that the op's rule infers.
//! 5. Ranks are at most 5, except for constants that only constexpr ops use; inputs have rank 1 or more.
//! 6. A literal has as many bytes as its type asks for; floating-point literals are finite.
//! 7. Functions have outputs, and an output is no state.
//!
//! Passing them means that later stages return errors but do not panic.

use std::collections::HashSet;

use crate::data::Data;
use crate::literal::Literal;
use crate::opset::Accepts;
use crate::program::{Arg, Function, Op, OpId, Program, ValueId};
use crate::types::{DType, Type};

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
    for function in program.functions() {
        let mut checker = Checker { function, out: &mut out };
        if !is_identifier(&function.name) || !names.insert(function.name.as_str()) {
            checker.report("function", "its name is not an identifier or not unique".to_owned());
        }
        if function.opset != program.functions()[0].opset {
            checker.report("function", "its opset differs from that of the first function".to_owned());
        }
        checker.run();
    }
    if out.is_empty() { Ok(()) } else { Err(out) }
}

/// Whether a name can stand in MIL: a letter or `_`, then letters, digits, `_` and `@`.
pub fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '@')
}

struct Checker<'a> {
    function: &'a Function,
    out: &'a mut Vec<Violation>,
}

impl Checker<'_> {
    fn report(&mut self, place: &str, message: String) {
        self.out.push(Violation { function: self.function.name.clone(), place: place.to_owned(), message });
    }

    fn run(&mut self) {
        let f = self.function;
        self.names();
        let mut defined = vec![false; f.n_values()];
        for &input in &f.body().inputs {
            defined[input.index()] = true;
            self.input(input);
        }
        for &id in &f.body().ops {
            let op = f.op(id);
            for used in op.uses().filter(|v| !defined[v.index()]) {
                self.report(&label(f, op), format!("`{}` is used before it is defined", f.value(used).name));
            }
            op.results.iter().for_each(|r| defined[r.index()] = true);
            self.op(id);
        }
        if f.body().outputs.is_empty() {
            self.report("function", "it has no outputs".to_owned());
        }
        for &output in &f.body().outputs {
            let value = f.value(output);
            if !defined[output.index()] {
                self.report(&value.name, "it is an output but never defined".to_owned());
            }
            if value.ty.tensor().is_none() {
                self.report(&value.name, format!("it is an output of type {}", value.ty));
            }
        }
    }

    fn names(&mut self) {
        let f = self.function;
        let mut seen = HashSet::new();
        let values = f.body().inputs.iter().chain(f.body().ops.iter().flat_map(|o| &f.op(*o).results));
        for &v in values {
            let name = &f.value(v).name;
            if !is_identifier(name) {
                self.report(name, "its name is not an identifier".to_owned());
            }
            if !seen.insert(name) {
                self.report(name, "its name is not unique".to_owned());
            }
        }
    }

    fn input(&mut self, id: ValueId) {
        let value = self.function.value(id);
        match &value.ty {
            Type::Tensor(t) if t.rank() == 0 => self.report(&value.name, "it is an input of rank 0".to_owned()),
            Type::State(t) if t.known_shape().is_none() => {
                self.report(&value.name, format!("it is a state of type {t}, whose size is not known"));
            }
            Type::Tensor(_) | Type::State(_) => {}
            other => self.report(&value.name, format!("it is an input of type {other}")),
        }
    }

    fn op(&mut self, id: OpId) {
        let f = self.function;
        let op = f.op(id);
        let place = label(f, op);
        if op.def.since > f.opset {
            self.report(&place, format!("it needs opset {}, the function has {}", op.def.since.name(), f.opset.name()));
        }
        for (param, arg) in op.def.params.iter().zip(&op.args) {
            if param.constant && param.accepts != Accepts::Any && !arg.iter().all(|a| is_constant(f, a)) {
                self.report(&place, format!("`{}` must be constant", param.name));
            }
            if let Some(Arg::Literal(literal)) = arg {
                check_literal(literal).unwrap_or_else(|e| self.report(&place, format!("`{}`: {e}", param.name)));
            }
        }
        let mut next_symbol = u32::MAX / 2;
        match f.infer_with(op.def, &op.args, &mut next_symbol) {
            Err(e) => self.report(&place, e.0),
            Ok(types) => self.results(op, &place, &types),
        }
    }

    fn results(&mut self, op: &Op, place: &str, types: &[Type]) {
        let f = self.function;
        if types.len() != op.results.len() {
            self.report(place, format!("it has {} results, {} are due", op.results.len(), types.len()));
        }
        for (r, ty) in op.results.iter().zip(types) {
            let value = f.value(*r);
            if !value.ty.compatible(ty) {
                self.report(place, format!("`{}` is declared {}, its op gives {ty}", value.name, value.ty));
            }
            if !op.def.is_constexpr() && value.ty.tensor().is_some_and(|t| t.rank() > 5) {
                self.report(place, format!("`{}` is {}, ranks above 5 are for constants only", value.name, value.ty));
            }
        }
    }
}

fn label(f: &Function, op: &Op) -> String {
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
        Literal::String(_) => Ok(()),
        Literal::List(_, items) | Literal::Tuple(items) => items.iter().try_for_each(check_literal),
        Literal::Dict(_, _, items) => items.iter().try_for_each(|(k, v)| check_literal(k).and(check_literal(v))),
        Literal::Tensor(ty, data) => {
            let due = ty.n_elements().and_then(|n| ty.dtype.byte_len(n));
            if due != Some(data.byte_len()) {
                return Err(format!("{ty} has {} bytes of data", data.byte_len()));
            }
            // Large constants are checked where they are read: a whole checkpoint is not paged in to be validated.
            let small = data.byte_len() <= 4096 && matches!(data, Data::Bytes(_));
            let finite = |l: &Literal| l.to_floats().is_none_or(|v| v.iter().all(|x| x.is_finite()));
            if small && matches!(ty.dtype, DType::Fp16 | DType::Fp32) && !finite(literal) {
                return Err("it holds a number that is not finite".to_owned());
            }
            Ok(())
        }
    }
}
