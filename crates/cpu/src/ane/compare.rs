//! A function in f32 and as the engine computes it, op by op side by side: where numbers part, how
//! far, and why.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use thane_kernels::Isa;
use thane_mil::backend::{LoadError, LoadOptions, RunError, View, of_op};
use thane_mil::budget::Budget;
use thane_mil::loops::Loops;
use thane_mil::program::{Arg, Function, Op, OpId, Program, ValueId};

use super::effects::Effects;
use crate::exec::{Frame, Plan, Step};
use crate::instance::{Running, run_error};
use crate::load::same_states;
use crate::ops::Fault;
use crate::shared::Shared;
use crate::tensor::Tensor;
use crate::{Cpu, Limits, Numerics};

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the engine does.
    pub effects: Effects,
    /// The relative error of a result from which on it counts as lost.
    pub tolerance: f64,
    /// Threads, the caller's included.
    pub n_threads: usize,
    /// Instructions to compute with; the best of this machine where none are named.
    pub isa: Option<Isa>,
    /// What the program may take.
    pub limits: Limits,
    /// What both runs may take together.
    pub budget: Budget,
}

impl Default for Options {
    /// 2 %: 41 roundings to fp16 in a row, all to one side.
    fn default() -> Self {
        let (effects, limits, budget) = Default::default();
        Self {
            effects,
            tolerance: 0.02,
            n_threads: 1,
            isa: None,
            limits,
            budget,
        }
    }
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An input does not fit, or an op failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// One result of one op.
#[derive(Clone, Debug)]
pub struct OpReport {
    /// The op.
    pub op: OpId,
    /// Its name in the opset.
    pub name: &'static str,
    /// The name of the result.
    pub result: String,
    /// Module or tensor of the checkpoint that it computes.
    pub place: String,
    /// The name of the largest constant that it takes, which is the weight where it has one.
    pub tensor: Option<String>,
    /// Elements.
    pub n_values: usize,
    /// The largest difference from f32, where f32 is finite; infinite where only f32 is.
    pub max_abs_error: f64,
    /// That over the largest finite number of the result in f32.
    pub max_relative_error: f64,
    /// The norm of the difference over the norm of the result in f32, as far as both are finite.
    pub drift: f64,
    /// The largest finite magnitude in f32.
    pub largest: f64,
    /// Elements that are finite in f32 and here are not.
    pub n_overflows: usize,
    /// Numbers that were flushed to zero.
    pub n_flushed: usize,
    /// The element of the largest difference.
    pub worst: usize,
    /// That element in f32.
    pub expected: f64,
    /// That element here.
    pub found: f64,
}

/// Why a result is not what f32 gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The names of the effects without which this op would be right on the very operands that it
    /// got.
    Effects(Vec<&'static str>),
    /// None of this op: what it got was off already.
    Inherited,
}

/// The first op of a kind.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its place in [`Report::ops`].
    pub index: usize,
    /// What does it.
    pub cause: Cause,
}

/// Where f32 and the engine part.
#[derive(Clone, Debug)]
pub struct Report {
    /// Every result that something uses, in the order of the program.
    pub ops: Vec<OpReport>,
    /// The first with infinite values that f32 does not have.
    pub first_overflow: Option<Finding>,
    /// The first that is further from f32 than the tolerance.
    pub first_loss: Option<Finding>,
}

impl Report {
    /// The last result of each layer, which is the residual stream behind it. Programs from
    /// packages have layers in the names of results only.
    pub fn layers(&self) -> Vec<(&str, &OpReport)> {
        let mut layers: Vec<(&str, &OpReport)> = Vec::new();
        for op in &self.ops {
            let Some(layer) = layer_of(&op.place).or(layer_of(&op.result)) else {
                continue;
            };
            match layers.iter_mut().find(|(name, _)| *name == layer) {
                Some((_, last)) => *last = op,
                None => layers.push((layer, op)),
            }
        }
        layers
    }

    /// What a finding is about.
    pub fn op(&self, finding: &Finding) -> &OpReport {
        &self.ops[finding.index]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, finding) in [
            ("overflows", &self.first_overflow),
            ("loses accuracy", &self.first_loss),
        ] {
            match finding {
                None => writeln!(f, "nothing {what}")?,
                Some(finding) => writeln!(
                    f,
                    "the first that {what}: {}; {}",
                    self.op(finding),
                    finding.cause
                )?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for OpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&of_op(self.name, Some(&self.result), &self.place))?;
        if let Some(tensor) = &self.tensor {
            write!(f, " with `{tensor}`")?;
        }
        write!(
            f,
            ": element {} is {}, {} in f32",
            self.worst, self.found, self.expected
        )?;
        if self.n_overflows > 0 {
            write!(f, "; {} of {} overflow", self.n_overflows, self.n_values)?;
        }
        Ok(())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Effects(names) => write!(f, "because of {}", names.join(" with ")),
            Cause::Inherited => f.write_str("because of what it got from earlier ops"),
        }
    }
}

/// Run `function` twice on the same inputs and states, but once without effects, which is f32.
/// States that are not given are zeros; values are held until their last use, so this takes the
/// memory of two runs.
pub fn compare(
    program: &Program,
    function: &str,
    inputs: &[(&str, View<'_>)],
    states: &[(&str, View<'_>)],
    options: &Options,
) -> Result<Report, CompareError> {
    let f = program
        .function(function)
        .ok_or_else(|| RunError::NoFunction(function.to_owned()))?;
    let cpu = Cpu::new(Numerics::Ane(options.effects), options.n_threads)
        .with_isa(options.isa)
        .with_budget(&options.budget);
    same_states(program)?;
    let ours = cpu.plan(
        std::slice::from_ref(f),
        &LoadOptions::within(options.limits),
    )?;
    let sure = Shared {
        numerics: Numerics::F32,
        ..ours.clone()
    };
    let [ours, sure] = [Arc::new(ours), Arc::new(sure)];
    let [mut our_run, mut sure_run] = [
        Running::new(Arc::clone(&ours))?,
        Running::new(Arc::clone(&sure))?,
    ];
    for run in [&mut our_run, &mut sure_run] {
        run.fill(inputs, states)?;
    }
    let plan = ours
        .plans
        .get(function)
        .ok_or_else(|| RunError::NoFunction(function.to_owned()))?;
    let lockstep = Lockstep {
        plan,
        options,
        sure: sure_run.frame(&sure, plan)?,
        ours: our_run.frame(&ours, plan)?,
        report: Report {
            ops: Vec::new(),
            first_overflow: None,
            first_loss: None,
        },
    };
    Ok(lockstep.run()?)
}

struct Lockstep<'a> {
    plan: &'a Plan,
    options: &'a Options,
    sure: Frame<'a>,
    ours: Frame<'a>,
    report: Report,
}

/// Values of a step, held beyond their last use.
type Kept = Vec<(ValueId, Tensor)>;

impl Lockstep<'_> {
    fn run(mut self) -> Result<Report, RunError> {
        for step in &self.plan.steps {
            let open = self.report.first_overflow.is_none() || self.report.first_loss.is_none();
            let dropped = step.last_uses.iter().filter(|_| open);
            let operands: Kept = dropped
                .filter_map(|v| Some((*v, self.ours.slots[v.index()].clone()?)))
                .collect();
            if let Err(reason) = self.both(step, &operands) {
                let refused = [&mut self.sure, &mut self.ours]
                    .into_iter()
                    .find_map(|f| f.pool.refusal(&reason));
                return Err(run_error(self.plan, step.op, reason, refused));
            }
        }
        Ok(self.report)
    }

    fn both(&mut self, step: &Step, operands: &Kept) -> Result<(), Fault> {
        self.sure.step(self.plan, step)?;
        self.ours.tally = super::Tally::default();
        self.ours.step(self.plan, step)?;
        step.results
            .iter()
            .try_for_each(|result| self.look(step, result.id, operands))
    }

    fn look(&mut self, step: &Step, result: ValueId, operands: &Kept) -> Result<(), Fault> {
        let [sure, ours] =
            [&self.sure, &self.ours].map(|frame| frame.slots[result.index()].as_ref());
        let (Some(sure), Some(ours)) = (sure, ours) else {
            return Ok(());
        };
        let measure = Measure::new(sure, ours)?;
        let f = &self.plan.function;
        let op = f.op(step.op);
        let index = self.report.ops.len();
        self.report.ops.push(OpReport {
            op: step.op,
            name: op.def.name,
            result: f.value(result).name.clone(),
            place: op.origin.place.to_string(),
            tensor: largest_constant(f, op),
            n_values: ours.len(),
            max_abs_error: measure.max_abs_error,
            max_relative_error: measure.relative(),
            drift: measure.drift(),
            largest: measure.size,
            n_overflows: measure.n_overflows,
            n_flushed: self.ours.tally.flushed,
            worst: measure.worst,
            expected: measure.expected,
            found: measure.found,
        });
        if measure.n_overflows > 0 && self.report.first_overflow.is_none() {
            let cause = self.cause(step, result, operands, |m| m.n_overflows == 0)?;
            self.report.first_overflow = Some(Finding { index, cause });
        }
        let tolerance = self.options.tolerance;
        if measure.relative() > tolerance && self.report.first_loss.is_none() {
            let cause = self.cause(step, result, operands, |m| m.relative() <= tolerance)?;
            self.report.first_loss = Some(Finding { index, cause });
        }
        Ok(())
    }

    /// The fewest effects without which the step is right on the operands that it had: one alone
    /// where there is one, else what is left when those are put back that do no harm.
    fn cause(
        &mut self,
        step: &Step,
        result: ValueId,
        operands: &Kept,
        is_right: impl Fn(&Measure) -> bool,
    ) -> Result<Cause, Fault> {
        let all = self.options.effects;
        let mut is_right_with = |effects| {
            self.again(step, result, operands, effects)
                .map(|m| is_right(&m))
        };
        for effect in all.on() {
            let mut but_one = all;
            effect.switch(&mut but_one, false);
            if is_right_with(but_one)? {
                return Ok(Cause::Effects(vec![effect.name]));
            }
        }
        let mut harmless = Effects::NONE;
        if !is_right_with(harmless)? {
            return Ok(Cause::Inherited);
        }
        let mut names = Vec::new();
        for effect in all.on() {
            let mut more = harmless;
            effect.switch(&mut more, true);
            if is_right_with(more)? {
                harmless = more
            } else {
                names.push(effect.name)
            }
        }
        Ok(Cause::Effects(names))
    }

    /// The step once more with other effects; everything is left as it was.
    fn again(
        &mut self,
        step: &Step,
        result: ValueId,
        operands: &Kept,
        effects: Effects,
    ) -> Result<Measure, Fault> {
        let held: HashMap<ValueId, Option<Tensor>> = step
            .results
            .iter()
            .map(|r| (r.id, self.ours.slots[r.id.index()].clone()))
            .collect();
        for (value, tensor) in operands {
            self.ours.slots[value.index()] = Some(tensor.clone());
        }
        let (numerics, tally) = (self.ours.numerics, self.ours.tally);
        let loops = Loops::within(self.options.limits);
        let loops = std::mem::replace(&mut self.ours.loops, loops);
        self.ours.numerics = Numerics::Ane(effects);
        let done = self.ours.step(self.plan, step);
        (self.ours.numerics, self.ours.tally) = (numerics, tally);
        self.ours.loops = loops;
        let found = self.ours.slots[result.index()].take();
        held.into_iter()
            .for_each(|(value, tensor)| self.ours.slots[value.index()] = tensor);
        done?;
        match (self.sure.slots[result.index()].as_ref(), found) {
            (Some(sure), Some(found)) => Measure::new(sure, &found),
            _ => Err("the op gave nothing when it was run again".to_owned()),
        }
    }
}

/// How far a tensor is from another.
struct Measure {
    max_abs_error: f64,
    /// The largest finite number that is expected.
    size: f64,
    /// The sums of squares of what is expected and of the difference.
    squares: [f64; 2],
    n_overflows: usize,
    worst: usize,
    expected: f64,
    found: f64,
}

impl Measure {
    fn new(sure: &Tensor, ours: &Tensor) -> Result<Self, Fault> {
        if sure.shape != ours.shape {
            return Err(format!(
                "f32 gives {:?} and the engine {:?}: a size follows from numbers",
                sure.shape, ours.shape
            ));
        }
        let mut out = Self {
            max_abs_error: 0.0,
            size: 0.0,
            squares: [0.0; 2],
            n_overflows: 0,
            worst: 0,
            expected: 0.0,
            found: 0.0,
        };
        if let (Some(sure), Some(ours)) = (sure.f32s(), ours.f32s()) {
            let pairs = sure.iter().zip(ours).enumerate();
            pairs.for_each(|(i, (s, o))| out.add(i, f64::from(*s), f64::from(*o)));
            return Ok(out);
        }
        let mut expected = Vec::with_capacity(sure.len());
        sure.each(|_, v| expected.push(v));
        ours.each(|i, v| out.add(i, expected[i], v));
        Ok(out)
    }

    fn add(&mut self, i: usize, expected: f64, found: f64) {
        if !expected.is_finite() {
            return;
        }
        self.size = self.size.max(expected.abs());
        self.n_overflows += usize::from(!found.is_finite());
        let error = if found.is_finite() {
            self.squares[0] += expected * expected;
            self.squares[1] += (found - expected).powi(2);
            (found - expected).abs()
        } else {
            f64::INFINITY
        };
        if error > self.max_abs_error || i == 0 {
            (self.worst, self.expected, self.found) = (i, expected, found);
            self.max_abs_error = error;
        }
    }

    fn drift(&self) -> f64 {
        let [size, error] = self.squares;
        if error == 0.0 {
            0.0
        } else {
            (error / size).sqrt()
        }
    }

    fn relative(&self) -> f64 {
        if self.max_abs_error == 0.0 {
            0.0
        } else {
            self.max_abs_error / self.size
        }
    }
}

/// Words that the number of a layer follows.
const LAYERS: [&str; 5] = ["layers", "layer", "blocks", "block", "h"];

/// The layer in the name of a module, such as `model.layers.3`, or of a result, such as `layers_3`.
pub fn layer_of(name: &str) -> Option<&str> {
    let (mut end, mut before) = (0, "");
    for part in name.split(['.', '_']) {
        end += part.len();
        let is_number = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if is_number && LAYERS.contains(&before) {
            return Some(&name[..end]);
        }
        end += 1;
        before = part;
    }
    None
}

/// The name of the largest constant among what an op takes.
fn largest_constant(f: &Function, op: &Op) -> Option<String> {
    let values = op.args.iter().flatten().filter_map(|arg| {
        if let Arg::Value(v) = arg {
            Some(*v)
        } else {
            None
        }
    });
    let constants = values.filter_map(|v| {
        f.definer(v).filter(|by| by.def.is_constexpr())?;
        let n = f.value(v).ty.tensor()?.n_elements()?;
        Some((n, f.value(v).name.clone()))
    });
    constants
        .filter(|(n, _)| *n > 1)
        .max_by_key(|(n, _)| *n)
        .map(|(_, name)| name)
}
