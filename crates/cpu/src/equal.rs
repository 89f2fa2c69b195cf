//! Whether two forms of a function compute the same: both run over made-up inputs, in f32 and as the engine computes.
//!
//! In f32 the second form must give what the first gives, within bounds for the order of sums and roundings. As the
//! engine
//! computes, it must not be further from the first in f32 than twice what the first itself is: a deep program strays by
//! its own roundings, and another form of it may not stray more. Start at [`compare`].

use std::fmt;

use thane_kernels::Isa;
use thane_mil::backend::{Backend, Instance};
use thane_mil::program::{Function, Op, Program, ValueId};
use thane_mil::proof::{Numbers, Proof, Prover};
use thane_mil::types::{DType, TensorType, Type};

use crate::ane::Effects;
use crate::{Cpu, Numerics};

mod inputs;
mod rows;

use inputs::Inputs;

/// How far results may part, over the largest and over the root mean square of what is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// In f32, where nothing is declared fp16.
    pub wide: (f64, f64),
    /// In f32, where results or states are rounded to fp16.
    pub half: (f64, f64),
    /// As the engine computes, beyond twice what the first form is off by.
    pub engine: (f64, f64),
    /// How much of the numbers may be off by more: those that a rounding puts on the other side of a step.
    pub share: f64,
}

impl Bounds {
    /// Another order of sums: 2^-13 of the largest and 2^-16 of the root mean square in f32, a few roundings to fp16
    /// where there are any; as the engine computes, 2^-7 and 2^-8.
    pub const ORDER: Self = Self { wide: (1.3e-4, 1.6e-5), half: (4e-3, 2e-3), engine: (0.008, 0.004), share: 0.0 };
    /// Numbers in fp16 that were in fp32: some ten roundings of 2^-11 in a row.
    pub const NARROW: Self = Self { wide: (0.03, 0.008), half: (0.03, 0.008), engine: (0.03, 0.008), share: 0.0 };
    /// Numbers that are rounded to steps: 2 % of them may be on another.
    pub const STEPS: Self = Self { share: 0.02, ..Self::ORDER };
}

/// What may be spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Multiplications of one call.
    pub n_products: f64,
    /// Threads, the caller's included.
    pub n_threads: usize,
    /// Instructions to compute with; the best of this machine where none are named.
    pub isa: Option<Isa>,
}

impl Default for Budget {
    /// 5 x 10^9: some ten seconds as the engine computes, on a core of today.
    fn default() -> Self {
        Self { n_products: 5e9, n_threads: 1, isa: None }
    }
}

/// What was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Calls compared, both numerics together.
    pub n_calls: usize,
    /// Numbers compared.
    pub n_values: usize,
    /// The largest difference in f32, over the largest number due.
    pub f32_error: f64,
    /// The same of the second form as the engine computes, against the first in f32.
    pub ane_error: f64,
    /// The same of the first form.
    pub ane_error_before: f64,
}

/// Whether they are equal.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// They are.
    Equal(Evidence),
    /// They are not; where, and how far.
    Differs(String),
    /// It cannot be told; why.
    Unknown(String),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls of random inputs, {} numbers: off by {:.1e} of the largest in f32; as the engine computes {:.1e}, before {:.1e}",
            self.n_calls, self.n_values, self.f32_error, self.ane_error, self.ane_error_before
        )
    }
}

/// Proves by running both forms, within a budget.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnCpu(pub Budget);

impl Prover for OnCpu {
    fn prove(&mut self, before: &Function, after: &Function, numbers: Numbers) -> Proof {
        let bounds = match numbers {
            Numbers::Same => Bounds::ORDER,
            Numbers::Half => Bounds::NARROW,
            Numbers::Stepped => Bounds::STEPS,
        };
        match compare(before, after, &bounds, &self.0) {
            Verdict::Equal(evidence) => Proof::Equal(evidence.to_string()),
            Verdict::Differs(how) => Proof::Differs(how),
            Verdict::Unknown(why) => Proof::Unknown(why),
        }
    }
}

/// Seeds, and what floating-point inputs are scaled to.
const RUNS: [(u64, f32); 3] = [(11, 1.0), (29, 0.25), (47, 3.0)];
/// Calls of a run where there are states.
const CALLS_WITH_STATE: usize = 3;
/// Above this, one run in each numerics must do.
const MANY_PRODUCTS: f64 = 5e7;

/// Whether `after` computes what `before` does. Both have the same inputs, outputs and states; where those of `after` have
/// longer rows, what lies behind the old end is filled with NaN in inputs and not looked at in outputs and states.
pub fn compare(before: &Function, after: &Function, bounds: &Bounds, budget: &Budget) -> Verdict {
    let n = n_products(before).max(n_products(after));
    if n > budget.n_products {
        let most = budget.n_products;
        return Verdict::Unknown(format!(
            "a call takes {n:.1e} multiplications, more than the {most:.1e} that are run here"
        ));
    }
    let runs = if n > MANY_PRODUCTS { &RUNS[..1] } else { &RUNS[..] };
    let mut evidence = Evidence::default();
    for (seed, scale) in runs {
        let trial = Trial { before, after, bounds, budget };
        match trial.run(*seed, *scale, &mut evidence) {
            Ok(()) => {}
            Err(verdict) => return verdict,
        }
    }
    match evidence.n_values {
        0 => Verdict::Unknown("no number of the original is finite on made-up inputs".to_owned()),
        _ => Verdict::Equal(evidence),
    }
}

/// Multiplications of products in a call; what is not known counts nothing.
fn n_products(f: &Function) -> f64 {
    let len = |v: ValueId| f.value(v).ty.tensor().and_then(TensorType::n_elements).unwrap_or(0) as f64;
    let dims = |op: &Op, name: &str| op.value_arg(name).and_then(|v| f.value(v).ty.tensor()?.known_shape());
    let of = |op: &Op| -> Option<f64> {
        let out = len(*op.results.first()?);
        Some(match op.def.name {
            "conv" | "linear" => out * dims(op, "weight")?.get(1..)?.iter().map(|n| *n as f64).product::<f64>(),
            "matmul" => {
                let x = dims(op, "x")?;
                let transposed = f.literal_arg(op, "transpose_x").and_then(|l| l.to_ints()) == Some(vec![1]);
                out * *x.get(x.len().checked_sub(1 + usize::from(transposed))?)? as f64
            }
            "scaled_dot_product_attention" => {
                let (q, k) = (dims(op, "query")?, dims(op, "key")?);
                2.0 * q.iter().map(|n| *n as f64).product::<f64>() * *k.get(k.len().checked_sub(2)?)? as f64
            }
            _ => 0.0,
        })
    };
    f.all_ops().into_iter().filter_map(|id| of(f.op(id))).sum()
}

struct Trial<'a> {
    before: &'a Function,
    after: &'a Function,
    bounds: &'a Bounds,
    budget: &'a Budget,
}

/// What a form gives: each output of each call, and the states in the end.
type Results = Vec<(String, DType, Vec<f64>)>;

impl Trial<'_> {
    fn run(&self, seed: u64, scale: f32, evidence: &mut Evidence) -> Result<(), Verdict> {
        let ane = Numerics::Ane(Effects::default());
        let unknown = |why: String| Verdict::Unknown(format!("the original does not run on made-up inputs: {why}"));
        let made = self.inputs(seed, scale);
        let due = self.results(self.before, &made, Numerics::F32).map_err(unknown)?;
        let fails = |why: String| Verdict::Differs(format!("the new form does not run: {why}"));
        let found = self.results(self.after, &made, Numerics::F32).map_err(fails)?;
        evidence.n_calls += 2 * made.n_calls();
        for (due, found) in due.iter().zip(&found) {
            let error = Error::of(due, found);
            evidence.n_values += error.n;
            evidence.f32_error = evidence.f32_error.max(error.largest);
            self.within(due, &error)?;
        }
        // The original may fail as the engine computes, which can be why it is rewritten.
        let strayed = self.results(self.before, &made, ane).ok();
        let found = self.results(self.after, &made, ane).map_err(fails)?;
        for (i, (due, found)) in due.iter().zip(&found).enumerate() {
            let error = Error::of(due, found);
            let own = strayed.as_ref().map(|s| Error::of(due, &s[i]));
            evidence.ane_error = evidence.ane_error.max(error.largest);
            evidence.ane_error_before =
                evidence.ane_error_before.max(own.as_ref().map_or(f64::INFINITY, |e| e.largest));
            self.strays(due, &error, own.as_ref())?;
        }
        Ok(())
    }

    fn inputs(&self, seed: u64, scale: f32) -> Inputs {
        let has_state = self.before.body().inputs.iter().any(|v| matches!(self.before.value(*v).ty, Type::State(_)));
        Inputs::new(self.before, seed, scale, if has_state { CALLS_WITH_STATE } else { 1 })
    }

    fn results(&self, f: &Function, made: &Inputs, numerics: Numerics) -> Result<Results, String> {
        let program = Program::new(vec![f.clone()]);
        let cpu = Cpu::new(numerics, self.budget.n_threads).with_isa(self.budget.isa);
        let executable = cpu.load(&program).map_err(|e| e.to_string())?;
        let mut instance = executable.instantiate().map_err(|e| e.to_string())?;
        let mut results = Results::new();
        for call in made.calls() {
            for (name, shape, bytes) in call {
                let (shape, bytes) = rows::filled(f, name, shape, bytes);
                let buffer = instance.input(name, &shape).map_err(|e| e.to_string())?;
                if buffer.len() != bytes.len() {
                    return Err(format!("input `{name}` takes {} bytes", buffer.len()));
                }
                buffer.copy_from_slice(&bytes);
            }
            instance.run(&f.name).map_err(|e| e.to_string())?;
            outputs(f, self.before, &*instance, &mut results)?;
        }
        Ok(results)
    }

    /// Whether a result is within the bounds of f32.
    fn within(&self, (name, dtype, due): &(String, DType, Vec<f64>), error: &Error) -> Result<(), Verdict> {
        let (largest, mean) = if *dtype == DType::Fp32 && self.is_wide() { self.bounds.wide } else { self.bounds.half };
        let off = error.n_off(largest) as f64;
        let (largest, mean) = if dtype.is_float() { (largest, mean) } else { (0.0, 0.0) };
        let few = off <= self.bounds.share * due.len() as f64;
        let fits = error.largest <= largest && error.mean <= mean || self.bounds.share > 0.0 && few;
        if fits && error.n_lost == 0 {
            return Ok(());
        }
        Err(Verdict::Differs(format!("`{name}` in f32: {error}, bounds {largest:.1e} and {mean:.1e}")))
    }

    /// Whether a result as the engine computes is not further from f32 than twice what the first form is.
    fn strays(&self, due: &(String, DType, Vec<f64>), error: &Error, own: Option<&Error>) -> Result<(), Verdict> {
        let Some(own) = own else { return Ok(()) };
        let (largest, mean) = if due.1.is_float() { self.bounds.engine } else { (0.02, 0.02) };
        let (largest, mean) = (2.0 * own.largest + largest, 2.0 * own.mean + mean);
        let few = error.n_off(largest) as f64 <= self.bounds.share * due.2.len() as f64;
        let fits = error.largest <= largest && error.mean <= mean || self.bounds.share > 0.0 && few;
        if fits && error.n_lost <= own.n_lost {
            return Ok(());
        }
        let name = &due.0;
        Err(Verdict::Differs(format!("`{name}` as the engine computes: {error}; the original: {own}")))
    }

    /// Whether nothing is computed in fp16.
    fn is_wide(&self) -> bool {
        let half = |f: &Function| {
            let values = f.all_ops().into_iter().flat_map(|op| f.op(op).results.clone());
            values.into_iter().any(|v| f.value(v).ty.tensor().is_some_and(|t| t.dtype == DType::Fp16))
        };
        !half(self.before) && !half(self.after)
    }
}

/// What a form gave, in rows as long as those of the first form.
fn outputs(f: &Function, first: &Function, instance: &dyn Instance, results: &mut Results) -> Result<(), String> {
    for output in &f.body().outputs {
        let name = &f.value(*output).name;
        let view = instance.output(name).map_err(|e| e.to_string())?;
        let numbers = rows::cut(first, name, view.shape, inputs::numbers(view.dtype, view.bytes));
        results.push((name.clone(), view.dtype, numbers));
    }
    for input in &f.body().inputs {
        let value = f.value(*input);
        if let Type::State(_) = value.ty {
            let view = instance.state(&value.name).map_err(|e| e.to_string())?;
            let numbers = rows::cut(first, &value.name, view.shape, inputs::numbers(view.dtype, view.bytes));
            results.push((value.name.clone(), view.dtype, numbers));
        }
    }
    Ok(())
}

/// How far numbers are from those due, where those are finite.
struct Error {
    /// Numbers compared.
    n: usize,
    /// The largest difference over the largest number due.
    largest: f64,
    /// The root mean square of differences over that of the numbers.
    mean: f64,
    /// Numbers that are not finite, or not there.
    n_lost: usize,
    differences: Vec<f64>,
    most: f64,
}

impl Error {
    fn of((_, _, due): &(String, DType, Vec<f64>), (_, _, found): &(String, DType, Vec<f64>)) -> Self {
        let mut error = Self { n: 0, largest: 0.0, mean: 0.0, n_lost: 0, differences: Vec::new(), most: 0.0 };
        error.n_lost = due.len().abs_diff(found.len());
        let (mut squares, mut power) = (0.0, 0.0);
        for (due, found) in due.iter().zip(found).filter(|(due, _)| due.is_finite()) {
            error.n += 1;
            error.most = error.most.max(due.abs());
            if !found.is_finite() {
                error.n_lost += 1;
                continue;
            }
            let difference = (due - found).abs();
            error.differences.push(difference);
            squares += difference * difference;
            power += due * due;
        }
        let over = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a / b.max(f64::MIN_POSITIVE) };
        error.largest = over(error.differences.iter().copied().fold(0.0, f64::max), error.most);
        error.mean = over(squares.sqrt(), power.sqrt());
        error
    }

    /// Numbers that are off by more than a bound.
    fn n_off(&self, bound: f64) -> usize {
        self.differences.iter().filter(|d| **d > bound * self.most).count()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "off by {:.1e} of the largest, {:.1e} on average", self.largest, self.mean)?;
        if self.n_lost > 0 {
            write!(f, ", {} of {} numbers are lost", self.n_lost, self.n)?;
        }
        Ok(())
    }
}
