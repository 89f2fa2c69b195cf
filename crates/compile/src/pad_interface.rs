//! Pads the rows of inputs, outputs and states to 64 bytes.
//!
//! This changes what callers pass, so it runs only if the user asks for it. The last axis grows
//! to the next full row. The program slices inputs back to their old length at once, so the
//! values behind the old end are never read. Outputs, and what is written to a state, are 0
//! there.

use std::collections::{HashMap, HashSet};
use std::fmt;

use thane_mil::build::BuildError;
use thane_mil::copy::Copier;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, OpId, Program, ValueId};
use thane_mil::types::{DType, Dim, TensorType, Type};

use crate::proof::{Forms, Numbers, Prover};
use crate::trial::{Judge, Step, Verdict, accept};

/// Its name in reports.
pub const NAME: &str = "pad_interface";
/// The rules that it answers: of what a call passes, and of states.
pub const RULES: [&str; 2] = ["ANE062", "ANE070"];

/// An input, output or state that has another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The function.
    pub function: String,
    /// `input`, `output` or `state`.
    pub role: &'static str,
    /// Its name.
    pub name: String,
    /// Its type before.
    pub was: String,
    /// Its type.
    pub is: String,
}

impl Changed {
    /// What it has behind its old end.
    pub fn padding(&self) -> &'static str {
        if self.role == "input" {
            "anything: it is not read"
        } else {
            "0"
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            role,
            name,
            was,
            is,
        } = self;
        write!(
            f,
            "{function}: {role} `{name}` was {was}, is {is}; behind that {}",
            self.padding()
        )
    }
}

/// A function with longer rows, and what of it has them.
type Padded = (Function, Vec<Changed>);

/// The program with all that the rules are about padded, what that is, and what was tried. All
/// functions or none: those that share a state must agree on it.
pub fn run<J: Judge>(
    program: Program,
    judge: &J,
    prover: &mut dyn Prover,
    unproven: bool,
) -> (Program, Vec<Changed>, Vec<Step>) {
    let tried: Vec<_> = program
        .functions()
        .iter()
        .map(|f| attempt(&program, f, judge, prover, unproven))
        .collect();
    let is_failed = |tried: &Option<Tried>| tried.as_ref().is_some_and(|(_, made)| made.is_none());
    let fails = tried.iter().any(is_failed);
    let (mut functions, mut changed, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for (f, tried) in program.functions().iter().zip(tried) {
        let Some((mut step, made)) = tried else {
            functions.push(f.clone());
            continue;
        };
        if let Some((padded, list)) = made.filter(|_| !fails) {
            functions.push(padded);
            changed.extend(list);
        } else if matches!(step.verdict, Verdict::Kept(_)) {
            let why = "another function of the program cannot be padded".to_owned();
            (step.after, step.verdict) = (step.before, Verdict::Rejected(why));
        }
        steps.push(step);
    }
    if fails {
        return (program, Vec::new(), steps);
    }
    let mut padded = Program::new(functions);
    padded.attributes.clone_from(&program.attributes);
    (padded, changed, steps)
}

/// What was tried of a function, and what it gives if it can be kept.
type Tried = (Step, Option<Padded>);

/// Pad a function; nothing where nothing has to be padded.
fn attempt<J: Judge>(
    program: &Program,
    f: &Function,
    judge: &J,
    prover: &mut dyn Prover,
    unproven: bool,
) -> Option<Tried> {
    let before = judge.judge(program, f);
    let found = judge.found(&before);
    let is_found = |rule: &&str| found.iter().any(|found| found.rule == *rule);
    let unchanged = judge.measure(&before);
    let mut step = Step {
        fix: NAME,
        what: "rows of inputs, outputs and states that fill 64 bytes",
        rules: RULES.into_iter().filter(is_found).collect(),
        function: f.name.clone(),
        sites: Vec::new(),
        before: unchanged,
        after: unchanged,
        verdict: Verdict::Rejected(String::new()),
    };
    let made = match pad(
        f,
        [is_found(&RULES[0]), is_found(&RULES[1])],
        judge.limits().row,
    ) {
        Ok(made) => made?,
        Err(why) => {
            step.verdict = Verdict::Rejected(why);
            return Some((step, None));
        }
    };
    let after = judge.judge(program, &made.0);
    step.after = judge.measure(&after);
    let forms = Forms {
        original: f,
        before: f,
        after: &made.0,
        is_lossy: false,
    };
    let proof = prover.prove(&forms, Numbers::Exact);
    let proof = match judge.objection(&before, &after, &RULES, &[]) {
        Some(objection) => Err(objection),
        None => accept(proof, Numbers::Exact, unproven).map_err(|(why, _)| why),
    };
    let kept = proof.is_ok().then_some(made);
    step.verdict = proof.map_or_else(Verdict::Rejected, Verdict::Kept);
    Some((step, kept))
}

/// A function in which all that the rules are about is padded to rows of `row` elements, and what
/// that is; nothing where that is nothing.
fn pad(f: &Function, [calls, states]: [bool; 2], row: usize) -> Result<Option<Padded>, String> {
    let padded = |value: ValueId| match &f.value(value).ty {
        Type::Tensor(t) if calls => longer(t, row).map(|len| (value, len)),
        Type::State(t) if calls || states => longer(t, row).map(|len| (value, len)),
        _ => None,
    };
    let inputs: HashMap<ValueId, usize> =
        f.body().inputs.iter().filter_map(|v| padded(*v)).collect();
    let outputs: HashMap<ValueId, usize> =
        f.body().outputs.iter().filter_map(|v| padded(*v)).collect();
    if inputs.is_empty() && outputs.is_empty() {
        return Ok(None);
    }
    if f.attributes
        .iter()
        .any(|(key, _)| key == "FlexibleShapeInformation")
    {
        return Err("it takes several shapes".to_owned());
    }
    if f.body().outputs.iter().any(|v| f.body().inputs.contains(v)) {
        return Err("an input of it is an output".to_owned());
    }
    let own: HashSet<OpId> = f.body().ops.iter().copied().collect();
    let nested = f.all_ops().into_iter().filter(|op| !own.contains(op));
    let is_state = |v: ValueId| matches!(f.value(v).ty, Type::State(_)) && inputs.contains_key(&v);
    if nested
        .flat_map(|op| f.op(op).uses().collect::<Vec<_>>())
        .any(is_state)
    {
        return Err("control flow of it uses a state".to_owned());
    }
    let of = |value: &ValueId, len: Option<&usize>, role| {
        len.map(|len| described(f, role, *value, *len))
    };
    let taken = f.body().inputs.iter().filter_map(|v| {
        let role = if is_state(*v) { "state" } else { "input" };
        of(v, inputs.get(v), role)
    });
    let given = f
        .body()
        .outputs
        .iter()
        .filter_map(|v| of(v, outputs.get(v), "output"));
    let changed = taken.chain(given).collect();
    let mut writer = Writer {
        f,
        inputs,
        outputs,
        copier: Copier::new(f),
        n_names: 0,
    };
    let made = writer
        .write()
        .map_err(|e| format!("it cannot be written: {e}"))?;
    let named: Vec<(&str, ValueId)> = made
        .iter()
        .map(|(name, value)| (name.as_str(), *value))
        .collect();
    Ok(Some((writer.copier.to.finish_under(&named), changed)))
}

/// The length that the last axis of a tensor grows to, if it has to.
fn longer(ty: &TensorType, row: usize) -> Option<usize> {
    let last = ty.shape.last()?.known()?;
    ty.known_shape().filter(|_| !last.is_multiple_of(row))?;
    last.checked_next_multiple_of(row)
}

fn described(f: &Function, role: &'static str, value: ValueId, len: usize) -> Changed {
    let value = f.value(value);
    let (function, name, was) = (f.name.clone(), value.name.clone(), value.ty.to_string());
    Changed {
        function,
        role,
        name,
        was,
        is: grown(&value.ty, len).to_string(),
    }
}

fn grown(ty: &Type, len: usize) -> Type {
    let grow = |t: &TensorType| {
        let mut t = t.clone();
        if let Some(last) = t.shape.last_mut() {
            *last = Dim::Known(len);
        }
        t
    };
    match ty {
        Type::Tensor(t) => Type::Tensor(grow(t)),
        Type::State(t) => Type::State(grow(t)),
        other => other.clone(),
    }
}

struct Writer<'a> {
    f: &'a Function,
    /// New lengths of last axes.
    inputs: HashMap<ValueId, usize>,
    outputs: HashMap<ValueId, usize>,
    copier: Copier<'a>,
    n_names: usize,
}

impl Writer<'_> {
    /// The new function up to its outputs, and those.
    fn write(&mut self) -> Result<Vec<(String, ValueId)>, BuildError> {
        let f = self.f;
        let mut cut = Vec::new();
        for &value in &f.body().inputs {
            let ty = match self.inputs.get(&value) {
                Some(len) => grown(&f.value(value).ty, *len),
                None => f.value(value).ty.clone(),
            };
            let is_cut = self.inputs.contains_key(&value) && ty.tensor().is_some();
            let input = self.copier.input(value, ty);
            cut.extend(is_cut.then_some((value, input)));
        }
        for (value, input) in cut {
            let short = self.cut(input, &self.shape(value))?;
            self.copier.set(value, short);
        }
        for &id in &f.body().ops {
            self.op(id)?;
        }
        let mut outputs = Vec::new();
        for &value in &f.body().outputs {
            let made = self.made(value)?;
            let made = match self.outputs.get(&value) {
                Some(len) => self.padded(made, *len)?,
                None => made,
            };
            outputs.push((f.value(value).name.clone(), made));
        }
        Ok(outputs)
    }

    fn op(&mut self, id: OpId) -> Result<(), BuildError> {
        let f = self.f;
        let op = f.op(id);
        if op.def.is_constexpr() {
            return Ok(());
        }
        let Some(len) = op.uses().find_map(|v| {
            f.value(v)
                .ty
                .tensor()
                .is_none()
                .then(|| self.inputs.get(&v))
                .flatten()
        }) else {
            return self.copier.copy(id);
        };
        let len = *len;
        // What goes into a state is padded, what comes out of it cut.
        let written: Vec<ValueId> = op
            .uses()
            .filter(|v| f.value(*v).ty.tensor().is_some())
            .collect();
        let mut kept = Vec::new();
        for value in &written {
            let short = self.made(*value)?;
            kept.push(short);
            let wide = self.padded(short, len)?;
            self.copier.set(*value, wide);
        }
        self.copier.copy(id)?;
        for (value, kept) in written.iter().zip(kept) {
            self.copier.set(*value, kept);
        }
        for result in &op.results {
            let long = self.made(*result)?;
            let short = self.cut(long, &self.shape(*result))?;
            self.copier.set(*result, short);
        }
        Ok(())
    }

    /// What stands for a value; a constant is copied.
    fn made(&mut self, value: ValueId) -> Result<ValueId, BuildError> {
        self.copier.constant(value)?;
        let made = self.copier.get(value);
        Ok(made.expect("values are copied before what uses them"))
    }

    fn shape(&self, value: ValueId) -> Vec<usize> {
        self.f
            .value(value)
            .ty
            .tensor()
            .and_then(TensorType::known_shape)
            .unwrap_or_default()
    }

    fn name(&mut self, what: &str) -> String {
        self.n_names += 1;
        format!("{what}_{}", self.n_names)
    }

    fn ints(&mut self, ints: impl Iterator<Item = usize>) -> Result<Arg, BuildError> {
        let ints: Vec<i32> = ints.map(|n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
        let name = self.name("lengths");
        Ok(Arg::Value(
            self.copier.to.constant(&name, Literal::i32s(&ints))?,
        ))
    }

    /// The elements of `x` within a shape, from the first on.
    fn cut(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, BuildError> {
        let (begin, size) = (
            self.ints(shape.iter().map(|_| 0))?,
            self.ints(shape.iter().copied())?,
        );
        let name = self.name("unpadded");
        self.copier.to.op(
            "slice_by_size",
            &name,
            [("x", Arg::Value(x)), ("begin", begin), ("size", size)],
        )
    }

    /// `x` with zeros behind, in rows of this length.
    fn padded(&mut self, x: ValueId, len: usize) -> Result<ValueId, BuildError> {
        let ty = self.copier.to.function().value(x).ty.tensor().cloned();
        let ty = ty.unwrap_or_else(|| TensorType::scalar(DType::Fp16));
        let shape = ty.known_shape().unwrap_or_default();
        let more = len.saturating_sub(shape.last().copied().unwrap_or(0));
        let name = self.name("padded");
        if ty.dtype.is_float() {
            let pad = self.ints(
                (0..2 * shape.len()).map(|i| if i + 1 == 2 * shape.len() { more } else { 0 }),
            )?;
            let zero = Literal::Tensor(
                TensorType::scalar(ty.dtype),
                Data::owned(vec![0; ty.dtype.bits() / 8]),
            );
            let args = [
                ("x", Arg::Value(x)),
                ("pad", pad),
                ("mode", Arg::Literal(Literal::string("constant"))),
                ("constant_val", Arg::Literal(zero)),
            ];
            return self.copier.to.op("pad", &name, args);
        }
        let mut rest = shape.clone();
        if let Some(last) = rest.last_mut() {
            *last = more;
        }
        let ty = TensorType::new(ty.dtype, rest.iter().copied());
        let zeros = Data::owned(vec![0; ty.byte_len().unwrap_or(0)]);
        let zeros = self
            .copier
            .to
            .constant(&format!("{name}_zeros"), Literal::Tensor(ty, zeros))?;
        let args = [
            ("values", Arg::Values(vec![x, zeros])),
            ("axis", Arg::Literal(Literal::i32(shape.len() as i32 - 1))),
            ("interleave", Arg::Literal(Literal::bool(false))),
        ];
        self.copier.to.op("concat", &name, args)
    }
}
