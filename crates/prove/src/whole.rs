//! What a function gives on inputs that cover its domain, and how far another form of it is from
//! that.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use thane_mil::budget::Reservation;
use thane_mil::evaluate::{Evaluate, HostTensor};
use thane_mil::program::{Function, ValueId};
use thane_mil::types::{TensorType, Type};

use super::diff::{ABSURD, Diff, Judged, MANY, ROUNDINGS, UNIT_16, UNIT_32, numbers, over};
use super::inputs::{self, Given, Sample, Set};
use super::local::is_same_form;
use super::rows;
use super::walk::{self, Env, Held, Mode, Stop, Walk};

/// Calls of a run where there are states.
const CALLS_WITH_STATE: usize = 2;

/// Sets that only add to others are for functions that take less.
const EXTRA_TIME: Duration = Duration::from_millis(2);

/// What a form gives: each output of each call, and the states in the end.
type Results<T> = Vec<(String, Held<T>)>;

/// A run of a form on one set.
struct Run<T> {
    results: Results<T>,
    /// The op of which a finite number is beyond fp16.
    overflow: Option<String>,
}

/// What the original gives on one set of inputs.
struct Case<T> {
    set: Set,
    due: Results<T>,
    results: Vec<Own>,
    /// Whether the original itself overflows fp16, so that what it gives there is no measure of a
    /// lossy form.
    overflows: bool,
    /// Whether it overflows f32: then only what is not finite any more is a fault.
    is_beyond: bool,
}

/// What is known of a result of the original.
struct Own {
    /// How far roundings of f32 put it off.
    spread: f64,
    /// Elements that such roundings leave what they are.
    stable: Judged,
    /// How far its own fp16 puts it off.
    half: Diff,
    /// Elements that its own fp16 holds.
    held: Judged,
}

impl Own {
    fn new<T: HostTensor>(due: &T, nudged: &T, declared: Option<&T>) -> Self {
        let stable = Judged::stable(due, nudged);
        let held = declared.map(|own| Judged::finite(own)).unwrap_or_default();
        let half = declared
            .map(|own| Diff::of(due, own, &held))
            .unwrap_or_default();
        Self {
            spread: Diff::of(due, nudged, &stable).most,
            stable,
            half,
            held,
        }
    }
}

/// The original of a function, run once.
pub struct Reference<T> {
    f: Function,
    cases: Vec<Case<T>>,
    /// The largest number of each result on usual inputs.
    magnitudes: Vec<f64>,
    /// What one run takes.
    pub run_time: Duration,
    /// Why a set was not of use.
    pub note: Option<String>,
    /// Whether there was time for all sets.
    pub is_complete: bool,
    /// The form that was judged last and held.
    held: Option<Sound>,
}

/// A form that is as good as the original on some sets.
struct Sound {
    form: Function,
    judge: Judge,
    /// The first sets, so many.
    n_sets: usize,
    found: Found,
}

/// What was seen of another form.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The sets that were run.
    pub labels: Vec<String>,
    /// Numbers compared.
    pub n_values: usize,
    /// The largest difference, over the largest number.
    pub error: f64,
    /// The set that gave it.
    pub worst: String,
    /// What roundings allow.
    pub allowed: f64,
    /// Why it is not the same.
    pub fault: Option<String>,
}

/// How to judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judge {
    /// By what roundings allow.
    Exact,
    /// By a share of the largest number.
    Lossy(f64),
}

/// The inputs of the calls of a set, and the bytes that they take of the budget.
struct Calls {
    calls: Vec<Vec<Given>>,
    _made: Reservation,
}

impl Calls {
    fn new<E>(original: &Function, set: &Set, env: &Env<E>) -> Result<Self, Stop> {
        let n_calls = n_calls(original);
        let _made = reserve_inputs(original, n_calls, env)?;
        let calls = set.calls(original, n_calls);
        Ok(Self { calls, _made })
    }
}

/// Run a form on the calls of one set.
fn run<E: Evaluate>(
    f: &Function,
    calls: &Calls,
    mode: Mode,
    env: &Env<E>,
) -> Result<Run<E::Tensor>, Stop> {
    let mut walk = Walk::new(f, env, mode);
    let mut results = Results::new();
    let kept: HashSet<ValueId> = f.body().outputs.iter().copied().collect();
    for call in &calls.calls {
        walk.next_call();
        give(f, &mut walk, call)?;
        walk.run(Some(&kept))?;
        for output in &f.body().outputs {
            results.push((f.value(*output).name.clone(), walk.value(*output)?));
        }
    }
    for input in &f.body().inputs {
        if let Type::State(_) = f.value(*input).ty {
            results.push((f.value(*input).name.clone(), walk.state(*input)?));
        }
    }
    Ok(Run {
        results,
        overflow: walk.overflow,
    })
}

fn n_calls(f: &Function) -> usize {
    let has_state = f
        .body()
        .inputs
        .iter()
        .any(|v| matches!(f.value(*v).ty, Type::State(_)));
    if has_state { CALLS_WITH_STATE } else { 1 }
}

/// Give a form the inputs of a call, in rows as long as it takes.
fn give<E: Evaluate>(f: &Function, walk: &mut Walk<'_, E>, call: &[Given]) -> Result<(), Stop> {
    for (name, shape, bytes) in call {
        let named = f.body().inputs.iter().find(|v| f.value(**v).name == *name);
        let (Some(value), Some(ty)) = (named, named.and_then(|v| f.value(*v).ty.tensor())) else {
            return Err(Stop::Op(format!(
                "function `{}` has no input `{name}`",
                f.name
            )));
        };
        let (shape, bytes) = rows::filled(f, name, shape, bytes);
        walk.give_bytes(*value, ty.dtype, &shape, &bytes)?;
    }
    Ok(())
}

/// What the inputs of a set take: bytes, and once more while they are made.
fn reserve_inputs<E>(f: &Function, n_calls: usize, env: &Env<E>) -> Result<Reservation, Stop> {
    let len = |ty: &TensorType| ty.byte_len().unwrap_or(0).saturating_mul(2 * n_calls);
    let tensors = f
        .body()
        .inputs
        .iter()
        .filter_map(|v| f.value(*v).ty.tensor());
    let n_bytes = tensors.map(len).fold(0, usize::saturating_add);
    Ok(env
        .budget
        .reserve(n_bytes, || format!("the inputs of function `{}`", f.name))?)
}

impl<T: HostTensor> Reference<T> {
    /// Run a function on as many sets as fit a time, and on one at least.
    pub fn new<E: Evaluate<Tensor = T>>(
        f: &Function,
        samples: &[Sample],
        most: Duration,
        env: &Env<E>,
    ) -> Result<Self, Stop> {
        let mut reference = Self {
            f: f.clone(),
            cases: Vec::new(),
            magnitudes: Vec::new(),
            run_time: Duration::ZERO,
            note: None,
            is_complete: true,
            held: None,
        };
        let begun = Instant::now();
        for set in inputs::all(f, samples) {
            let is_first = reference.cases.is_empty();
            if set.is_extra && (is_first || reference.run_time > EXTRA_TIME) {
                continue;
            }
            if !is_first && begun.elapsed() > most {
                reference.is_complete = false;
                break;
            }
            let (is_extra, is_given, label) = (set.is_extra, set.is_given(), set.label.clone());
            match reference.add(set, env) {
                Err(Stop::Op(why)) if is_given => return Err(Stop::Op(format!("{label}: {why}"))),
                // The original itself takes no such inputs.
                Err(Stop::Op(why)) if !is_first => reference.note = Some(format!("{label}: {why}")),
                Err(Stop::Memory(_)) if is_extra => {}
                done => done?,
            }
        }
        Ok(reference)
    }

    fn add<E: Evaluate<Tensor = T>>(&mut self, set: Set, env: &Env<E>) -> Result<(), Stop> {
        let begun = Instant::now();
        let calls = Calls::new(&self.f, &set, env)?;
        let wide = run(&self.f, &calls, Mode::Wide, env)?;
        let (due, is_beyond) = (wide.results, wide.overflow.is_some());
        self.run_time = self.run_time.max(begun.elapsed());
        let is_finite = |due: &Held<T>| numbers(&due.tensor).iter().any(|x| x.is_finite());
        if set.is_given() && !due.iter().any(|(_, due)| is_finite(due)) {
            return Err(Stop::Op("no number of the results is finite".to_owned()));
        }
        let declared = match is_half(&self.f) {
            true => Some(run(&self.f, &calls, Mode::Declared, env)?),
            false => None,
        };
        let overflow = declared.as_ref().and_then(|run| run.overflow.as_ref());
        if let Some(op) = overflow {
            self.note = Some(format!(
                "{} makes the program itself overflow fp16 at {op}",
                set.label
            ));
        }
        let nudged = run(&self.f, &calls, Mode::Nudged, env)?.results;
        let results = due.iter().enumerate().map(|(i, (_, due))| {
            let declared = declared.as_ref().map(|run| &run.results[i].1.tensor);
            Own::new(&due.tensor, &nudged[i].1.tensor, declared)
        });
        let results = results.collect();
        self.magnitudes.resize(due.len(), 0.0);
        if set.is_usual {
            let all = Judged::default();
            let largest = self.magnitudes.iter_mut().zip(&due);
            let size = |due: &Held<T>| Diff::of(&due.tensor, &due.tensor, &all).magnitude;
            largest.for_each(|(most, (_, due))| *most = most.max(size(due)));
        }
        let overflows = overflow.is_some();
        self.cases.push(Case {
            set,
            due,
            results,
            overflows,
            is_beyond,
        });
        Ok(())
    }

    /// Runs all calls of a set, and leaves the values of the last one in the walk.
    pub fn run_into<E: Evaluate<Tensor = T>>(
        &self,
        at: usize,
        walk: &mut Walk<'_, E>,
        kept: Option<&HashSet<ValueId>>,
    ) -> Result<(), Stop> {
        let Some(case) = self.cases.get(at) else {
            return Ok(());
        };
        for call in case.set.calls(&self.f, n_calls(&self.f)) {
            walk.next_call();
            give(walk.function(), walk, &call)?;
            walk.run(kept)?;
        }
        Ok(())
    }

    /// Sets that can be judged on.
    pub fn n_cases(&self) -> usize {
        self.cases.len()
    }

    /// Sets that a lossy form can be judged on: the original itself stays within fp16.
    pub fn n_measured(&self) -> usize {
        self.cases.iter().filter(|case| !case.overflows).count()
    }

    /// How far another form is, on so many sets; it ends at the first that is too far, and begins
    /// there next time. What the form that was judged last gives on its sets is known.
    pub fn judge<E: Evaluate<Tensor = T>>(
        &mut self,
        after: &Function,
        n_sets: usize,
        judge: Judge,
        env: &Env<E>,
    ) -> Result<Found, Stop> {
        let n_sets = self.cases.len().min(n_sets);
        let is_known = |held: &Sound| {
            held.judge == judge && held.n_sets <= n_sets && is_same_form(&held.form, after)
        };
        let (first, mut found) = match self.held.take().filter(is_known) {
            Some(held) => (held.n_sets, held.found),
            None => (0, Found::default()),
        };
        for at in first..n_sets {
            let case = &self.cases[at];
            if let Some(fault) = self.case(case, after, judge, env, &mut found)? {
                found.fault = Some(format!("{fault}, for {}", case.set.label));
                let case = self.cases.remove(at);
                self.cases.insert(0, case);
                return Ok(found);
            }
            found.add_label(case, judge);
        }
        self.held = Some(Sound {
            form: after.clone(),
            judge,
            n_sets,
            found: found.clone(),
        });
        Ok(found)
    }

    fn case<E: Evaluate<Tensor = T>>(
        &self,
        case: &Case<T>,
        after: &Function,
        judge: Judge,
        env: &Env<E>,
        found: &mut Found,
    ) -> Result<Option<String>, Stop> {
        let calls = Calls::new(&self.f, &case.set, env)?;
        if judge == Judge::Exact {
            let wide = run(after, &calls, Mode::Wide, env)?.results;
            let fault = self.wide(case, after, &wide, found);
            if fault.is_some() || !is_half(after) {
                return Ok(fault);
            }
        }
        let declared = run(after, &calls, Mode::Declared, env)?;
        Ok(self.declared(case, &declared, judge, found))
    }

    /// How far another form is in f32.
    fn wide(
        &self,
        case: &Case<T>,
        after: &Function,
        wide: &Results<T>,
        found: &mut Found,
    ) -> Option<String> {
        for (i, (name, held)) in wide.iter().enumerate() {
            let own = &case.results[i];
            let (diff, most, _) = self.diff(case, i, held, &own.stable);
            // Constants that are written in fp16 are rounded to it.
            let half = if case.overflows { 0.0 } else { own.half.most };
            let written = if is_half(after) {
                half + UNIT_16 * most
            } else {
                0.0
            };
            let rounded = MANY * own.spread + ROUNDINGS * UNIT_32 * most;
            let allowed = if diff.is_float {
                rounded + written
            } else {
                0.0
            };
            if diff.n_lost > 0 || diff.most > allowed && !case.is_beyond {
                let allowed = over(allowed, most);
                return Some(format!(
                    "`{name}` is off by {}, where roundings of f32 allow {allowed:.1e}",
                    shown(&diff, most)
                ));
            }
            if over(allowed, most) <= ABSURD && !case.is_beyond {
                found.note(&diff, most, allowed, &case.set.label);
            }
        }
        None
    }

    /// How far another form is in what it declares.
    fn declared(
        &self,
        case: &Case<T>,
        declared: &Run<T>,
        judge: Judge,
        found: &mut Found,
    ) -> Option<String> {
        // Where the original gives numbers that are not finite, it is not used.
        let is_finite = |due: &Held<T>| numbers(&due.tensor).iter().all(|x| x.is_finite());
        let is_used = !case.overflows && case.due.iter().all(|(_, due)| is_finite(due));
        if let (Some(op), true) = (&declared.overflow, is_used) {
            return Some(format!("{op} overflows fp16"));
        }
        for (i, (name, held)) in declared.results.iter().enumerate() {
            let own = &case.results[i];
            let (diff, most, n_lost) = self.diff(case, i, held, &own.held);
            let is_exact = judge == Judge::Exact;
            let allowed = match judge {
                Judge::Lossy(_) if case.overflows => f64::INFINITY,
                Judge::Lossy(share) => share * most,
                Judge::Exact if !diff.is_float => 2.0 * own.half.most,
                Judge::Exact => {
                    2.0 * own.half.most + MANY * own.spread + ROUNDINGS * UNIT_16 * most
                }
            };
            if !is_exact && !case.overflows {
                found.note(&Diff { n_lost, ..diff }, most, allowed, &case.set.label);
            }
            // Where rounding to fp16 already moves the original by half of its largest output, a
            // comparison in fp16 shows nothing: the comparison in f32 has decided.
            let is_vague = is_exact && diff.is_float && over(allowed, most) > ABSURD;
            if n_lost == 0 && (diff.most <= allowed || is_vague) {
                continue;
            }
            let shown = shown(&Diff { n_lost, ..diff }, most);
            let allowed = over(allowed, most);
            return Some(match judge {
                Judge::Lossy(_) => format!("`{name}` is off by {shown}, more than {allowed:.1e}"),
                Judge::Exact => format!(
                    "`{name}` in fp16 is off by {shown}; before by {:.1e}, and roundings allow {allowed:.1e}",
                    over(own.half.most, most)
                ),
            });
        }
        None
    }

    /// How far a result is, the number that this is taken over, and how many elements are finite
    /// in the original and not in it.
    fn diff(
        &self,
        case: &Case<T>,
        i: usize,
        held: &Held<T>,
        judged: &Judged,
    ) -> (Diff, f64, usize) {
        let (name, due) = &case.due[i];
        let found = rows::cut(&self.f, name, held.tensor.shape(), numbers(&held.tensor));
        let (is_float, due) = (due.tensor.dtype().is_float(), numbers(&due.tensor));
        let diff = Diff::between(&due, &found, is_float, judged);
        let n_missing = due.len().abs_diff(found.len());
        // Without an fp16 form of its own, what is due is what is finite in the original.
        let n_lost = if is_half(&self.f) {
            judged.n_lost(&found) + n_missing
        } else {
            diff.n_lost
        };
        (diff, diff.magnitude.max(self.magnitudes[i]), n_lost)
    }
}

impl Found {
    fn add_label<T>(&mut self, case: &Case<T>, judge: Judge) {
        let label = &case.set.label;
        let label = match judge {
            Judge::Lossy(_) if case.overflows => return,
            Judge::Exact if case.overflows => {
                format!("{label} (where the program itself does not overflow fp16)")
            }
            _ => label.clone(),
        };
        if !self.labels.contains(&label) {
            self.labels.push(label);
        }
    }

    fn note(&mut self, diff: &Diff, most: f64, allowed: f64, label: &str) {
        self.n_values += diff.n;
        self.allowed = self.allowed.max(over(allowed, most));
        let error = if diff.n_lost > 0 {
            f64::INFINITY
        } else {
            over(diff.most, most)
        };
        if error > self.error || self.worst.is_empty() {
            self.error = self.error.max(error);
            label.clone_into(&mut self.worst);
        }
    }
}

fn shown(diff: &Diff, most: f64) -> String {
    Diff {
        magnitude: most,
        ..*diff
    }
    .to_string()
}

/// Whether anything is in fp16.
pub fn is_half(f: &Function) -> bool {
    let ops = f.all_ops().into_iter();
    let made = ops.flat_map(|op| f.op(op).results.clone());
    let mut values = made.chain(f.body().inputs.iter().copied());
    values.any(|v| walk::is_half(f, v))
}
