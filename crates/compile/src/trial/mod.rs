//! Tries fixes on functions: apply, clean up, verify, judge, prove, then keep or reject.
//!
//! Who knows a target is the [`Judge`]: it finds the sites, prices what a fix made of them and
//! objects to what is no gain. A [`Prover`] runs both forms. What a group of sites is refused for,
//! each half of it may not be. Where several fixes answer a rule at the same ops, the cheapest that
//! holds is kept.

mod cancel_layouts;
mod left;
mod report;

use std::collections::HashSet;

use thane_mil::edit::Patch;
use thane_mil::graph::Graph;
use thane_mil::program::{Function, OpId, Program};
use thane_mil::valid;

use crate::fixes::Fix;
use crate::graph::label;
use crate::passes::{eliminate_dead_code, merge_identical_ops};
use crate::price::{Price, cheapest_first};
use crate::proof::{Forms, Numbers, Proof, Prover, Stage};
use crate::rewrite::Limits;
use crate::{Pass, driver};
pub use report::{Left, Measure, Place, Step, Verdict, count};

impl Step {
    /// The same step by another fix, decided.
    fn of(&self, fix: &Fix, after: Measure, verdict: Verdict) -> Self {
        Self {
            fix: fix.name,
            what: fix.what,
            after,
            verdict,
            ..self.clone()
        }
    }
}

/// Something that a rule finds in a function or program.
#[derive(Clone, Debug)]
pub struct Found {
    /// The rule.
    pub rule: &'static str,
    /// The op, where it is about one.
    pub op: Option<OpId>,
    /// What to do by hand.
    pub advice: &'static str,
}

/// Judges functions for a target; its prices choose between fixes.
pub trait Judge: Price {
    /// All that it knows of a function.
    type Opinion: Clone;

    /// Look at a function, which stands in a program or would.
    fn judge(&self, program: &Program, function: &Function) -> Self::Opinion;

    /// What a report shows of a function.
    fn measure(&self, opinion: &Self::Opinion) -> Measure;

    /// What it found in a function.
    fn found(&self, opinion: &Self::Opinion) -> Vec<Found>;

    /// What it finds in a program as a whole.
    fn found_in_program(&self, program: &Program) -> Vec<Found>;

    /// Why a change of a function for the sake of some rules is no gain; `None` where it is one.
    fn objection(
        &self,
        before: &Self::Opinion,
        after: &Self::Opinion,
        rules: &[&'static str],
        sites: &[OpId],
    ) -> Option<String>;

    /// What of the target fixes have to know.
    fn limits(&self) -> Limits;
}

/// Rounds over all fixes: one may make room for another.
const MAX_ROUNDS: usize = 4;

/// Trials of one fix on one function: a group that fails is halved so often, to find what of it can
/// be kept.
const MAX_TRIALS: usize = 12;

/// What runs after a fix. Not `eliminate_noops`: an `identity` may be what a rule asks for.
static CLEANUP: &[Pass] = &[
    cancel_layouts::PASS,
    merge_identical_ops::PASS,
    eliminate_dead_code::PASS,
];

/// A program while it is fixed.
pub struct Trials<'a, J: Judge> {
    program: Program,
    judge: &'a J,
    fixes: &'a [&'static Fix],
    prover: &'a mut dyn Prover,
    /// Keep exact rewrites that cannot be run, though not what is seen to differ.
    unproven: bool,
    /// Of each function, until the function changes.
    opinions: Vec<Option<J::Opinion>>,
    /// What was tried and is left: fix, function, what the op makes.
    settled: HashSet<(&'static str, usize, String)>,
    steps: Vec<Step>,
    /// The functions as they were given.
    originals: Vec<Function>,
    /// What was kept of each function, in order.
    kept: Vec<Vec<Kept>>,
    /// Trials that are done or not needed, and all that there may be.
    trials: (usize, usize),
}

/// A rewrite that was kept.
struct Kept {
    /// Its place in the steps.
    step: usize,
    /// The function before.
    before: Function,
    is_lossy: bool,
}

/// A function that a fix would make.
struct Draft<O> {
    fix: &'static Fix,
    function: Function,
    opinion: O,
}

/// Why a rewrite is not kept.
struct Refused {
    reason: String,
    after: Measure,
    /// Whether fewer sites may do.
    divisible: bool,
}

/// The proof, if it is one to keep a rewrite for; else why not, and whether fewer sites may do.
pub fn accept(proof: Proof, numbers: Numbers, unproven: bool) -> Result<Proof, (String, bool)> {
    match proof {
        Proof::Unknown(why) if !unproven || numbers == Numbers::Lossy => {
            Err((format!("it could not be proven: {why}"), false))
        }
        Proof::Differs(how) => Err((format!("it does not compute the same: {how}"), true)),
        proof => Ok(proof),
    }
}

/// Adds to the proof of a rewrite what was seen of the function with all rewrites: a trial runs as
/// much of it as there is time for, so its numbers are those of one machine.
fn add_whole(verdict: &mut Verdict, whole: Option<&Proof>) {
    match (verdict, whole) {
        (Verdict::Kept(Proof::Equal(own)), Some(Proof::Equal(how))) if !how.is_empty() => {
            own.push_str(&format!("; {how}"));
        }
        (Verdict::Kept(own @ Proof::Lossy { .. }), Some(whole @ Proof::Lossy { .. })) => {
            own.clone_from(whole);
        }
        _ => {}
    }
}

impl<'a, J: Judge> Trials<'a, J> {
    /// Begin.
    pub fn new(
        program: Program,
        judge: &'a J,
        fixes: &'a [&'static Fix],
        prover: &'a mut dyn Prover,
        unproven: bool,
    ) -> Self {
        let originals = program.functions().to_vec();
        Self {
            opinions: originals.iter().map(|_| None).collect(),
            kept: originals.iter().map(|_| Vec::new()).collect(),
            settled: HashSet::new(),
            steps: Vec::new(),
            program,
            judge,
            fixes,
            prover,
            unproven,
            originals,
            trials: (0, 0),
        }
    }

    /// Try every fix on every function until none changes one, and confirm what was kept: the
    /// program, what was tried, and what is left.
    pub fn run(mut self) -> (Program, Vec<Step>, Vec<Left>) {
        let functions = 0..self.originals.len();
        for _ in 0..MAX_ROUNDS {
            self.count_trials();
            let mut changed = false;
            for fix in self.fixes {
                for at in functions.clone() {
                    changed |= self.attempt(fix, at);
                }
            }
            if !changed {
                break;
            }
        }
        for at in functions {
            if !self.kept[at].is_empty() {
                self.confirm(at);
            }
        }
        let left = self.left();
        (self.program, self.steps, left)
    }

    /// Counts the trials of a round, and those in the end, when all rewrites of a function are
    /// judged together.
    fn count_trials(&mut self) {
        let n_functions = self.originals.len();
        let mut n = n_functions;
        for fix in self.fixes {
            let tries = (0..n_functions).filter(|at| !self.sites(fix, *at).is_empty());
            n += tries.count();
        }
        self.trials.1 = self.trials.0 + n * MAX_TRIALS;
    }

    /// Tells the prover what is tried next.
    fn announce(&mut self, what: &str) {
        let (done, all) = self.trials;
        self.prover.announce(Stage { what, done, all });
        self.trials.0 = all.min(done + 1);
    }

    fn opinion(&mut self, at: usize) -> J::Opinion {
        let (program, judge) = (&self.program, self.judge);
        self.opinions[at]
            .get_or_insert_with(|| judge.judge(program, &program.functions()[at]))
            .clone()
    }

    /// Whether a fix is tried at all.
    fn is_tried(&self, fix: &Fix) -> bool {
        fix.numbers == Numbers::Exact || self.prover.takes_lossy()
    }

    /// Judge all that was kept of a function together; what is too far off goes, the last first.
    fn confirm(&mut self, at: usize) {
        let name = &self.originals[at].name;
        self.announce(&format!("{name}: all rewrites together"));
        let done = self.program.functions()[at].clone();
        let forms =
            |kept: &[Kept], n: usize| kept.get(n).map_or(done.clone(), |next| next.before.clone());
        let (mut why, mut proof) = (String::new(), None);
        // As many of the first as hold together: none do in any case.
        let (mut holds, mut fails) = (0, self.kept[at].len() + 1);
        let mut n = self.kept[at].len();
        while fails - holds > 1 {
            let form = forms(&self.kept[at], n);
            let is_lossy = self.kept[at][..n].iter().any(|kept| kept.is_lossy);
            match self.prover.confirm(&self.originals[at], &form, is_lossy) {
                held @ (Proof::Equal(_) | Proof::Lossy { .. }) => (holds, proof) = (n, Some(held)),
                Proof::Unknown(_) if self.unproven => holds = n,
                Proof::Differs(how) => {
                    fails = n;
                    why = format!("with those before it the function differs: {how}");
                }
                Proof::Unknown(how) => {
                    (holds, fails) = (0, 1);
                    why = format!("the function could not be run as a whole: {how}");
                }
            }
            n = holds + (fails - holds) / 2;
        }
        if holds < self.kept[at].len() {
            self.put(at, forms(&self.kept[at], holds), None);
            for kept in self.kept[at].drain(holds..) {
                self.steps[kept.step].verdict = Verdict::Rejected(why.clone());
            }
        }
        for kept in &self.kept[at] {
            add_whole(&mut self.steps[kept.step].verdict, proof.as_ref());
        }
    }

    /// The ops of a function that a fix is tried at.
    fn sites(&mut self, fix: &Fix, at: usize) -> Vec<OpId> {
        if !self.is_tried(fix) {
            return Vec::new();
        }
        let opinion = self.opinion(at);
        let found = self.judge.found(&opinion).into_iter();
        let (f, limits) = (&self.program.functions()[at], self.judge.limits());
        let graph = Graph::new(f);
        let mut seen = HashSet::new();
        found
            .filter(|found| fix.rules.contains(&found.rule))
            .filter_map(|found| found.op)
            .filter(|op| seen.insert(*op))
            .filter(|op| !self.settled.contains(&(fix.name, at, label(f, *op))))
            .filter(|op| fix.answer(&graph, limits, *op).is_ok())
            .collect()
    }

    /// Try a fix on a function; whether the function changed.
    fn attempt(&mut self, fix: &'static Fix, at: usize) -> bool {
        if self.prover.is_over() {
            return false;
        }
        let sites = self.sites(fix, at);
        if sites.is_empty() {
            return false;
        }
        let name = &self.program.functions()[at].name;
        let (what, done) = (format!("{name}: {}", fix.what), self.trials.0);
        let (mut open, mut n_trials, mut changed) = (vec![sites], MAX_TRIALS, false);
        // What fails together is tried in halves.
        while let Some(mut sites) = open.pop() {
            // What the other half wrote may have removed ops.
            let ops = self.program.functions()[at].all_ops();
            let live: HashSet<OpId> = ops.into_iter().collect();
            sites.retain(|op| live.contains(op));
            if sites.is_empty() || n_trials == 0 {
                continue;
            }
            n_trials -= 1;
            self.announce(&what);
            let before = self.opinion(at);
            let step = self.step(fix, at, &sites, &before);
            match self.make(fix, at, &sites, &before, &step) {
                Ok(()) => changed = true,
                Err(refused) if refused.divisible && sites.len() > 1 && n_trials > 1 => {
                    let second = sites.split_off(sites.len() / 2);
                    open.extend([second, sites]);
                }
                Err(refused) => {
                    let ops = step.sites.iter().map(|place| place.op.clone());
                    self.settled.extend(ops.map(|op| (fix.name, at, op)));
                    self.steps.push(Step {
                        after: refused.after,
                        verdict: Verdict::Rejected(refused.reason),
                        ..step
                    });
                }
            }
        }
        self.trials.0 = self.trials.1.min(done + MAX_TRIALS);
        changed
    }

    /// A step that is not decided yet.
    fn step(&self, fix: &Fix, at: usize, sites: &[OpId], before: &J::Opinion) -> Step {
        let f = &self.program.functions()[at];
        let at_site = |found: &Found| found.op.is_some_and(|op| sites.contains(&op));
        let found = self.judge.found(before).into_iter().filter(at_site);
        let mut rules: Vec<_> = found.map(|found| found.rule).collect();
        rules.retain(|rule| fix.rules.contains(rule));
        rules.sort_unstable();
        rules.dedup();
        let before = self.judge.measure(before);
        Step {
            fix: fix.name,
            what: fix.what,
            rules,
            function: f.name.clone(),
            sites: sites.iter().map(|op| Place::of(f, *op)).collect(),
            before,
            after: before,
            verdict: Verdict::Rejected(String::new()),
        }
    }

    /// Keep a function that a fix made, and write down what is slower than it.
    fn keep(
        &mut self,
        at: usize,
        step: &Step,
        draft: Draft<J::Opinion>,
        proof: Proof,
        slower: Vec<(&'static Fix, Measure)>,
    ) {
        let fix = draft.fix;
        let after = self.judge.measure(&draft.opinion);
        let before = self.put(at, draft.function, Some(draft.opinion));
        for (other, slower) in slower {
            let why = format!(
                "{} is predicted to be faster: {:.3} ms, not {:.3} ms",
                fix.name, after.ms, slower.ms
            );
            self.steps
                .push(step.of(other, slower, Verdict::Rejected(why)));
        }
        self.kept[at].push(Kept {
            step: self.steps.len(),
            before,
            is_lossy: matches!(proof, Proof::Lossy { .. }),
        });
        self.steps.push(step.of(fix, after, Verdict::Kept(proof)));
    }

    /// Keep the function after a fix at some ops, or after a cheaper one that answers the same.
    fn make(
        &mut self,
        fix: &'static Fix,
        at: usize,
        sites: &[OpId],
        before: &J::Opinion,
        step: &Step,
    ) -> Result<(), Refused> {
        let mut drafts = vec![self.draft(fix, at, sites, before)?];
        let others = self.others(fix, at, sites).into_iter();
        drafts.extend(others.filter_map(|other| self.draft(other, at, sites, before).ok()));
        let drafts = cheapest_first(drafts, |draft| &draft.function, &self.program, self.judge);
        let measure = |d: &Draft<J::Opinion>| (d.fix, self.judge.measure(&d.opinion));
        let mut slower: Vec<_> = drafts.iter().map(measure).collect();
        let mut refused = None;
        for draft in drafts {
            let (_, after) = slower.remove(0);
            match self.prove(at, &draft) {
                Ok(proof) => {
                    self.keep(at, step, draft, proof, slower);
                    return Ok(());
                }
                Err((reason, divisible)) => {
                    refused.get_or_insert(Refused {
                        reason,
                        after,
                        divisible,
                    });
                }
            }
        }
        Err(refused.expect("there is a draft"))
    }

    /// Other fixes that answer a rule of a fix at each of the ops.
    fn others(&self, fix: &Fix, at: usize, sites: &[OpId]) -> Vec<&'static Fix> {
        let (graph, limits) = (
            Graph::new(&self.program.functions()[at]),
            self.judge.limits(),
        );
        let mut others = self.fixes.to_vec();
        others.retain(|other| {
            let shares = other.rules.iter().any(|id| fix.rules.contains(id));
            let mut sites = sites.iter();
            other.name != fix.name
                && shares
                && self.is_tried(other)
                && sites.all(|op| other.answer(&graph, limits, *op).is_ok())
        });
        others
    }

    /// The function after a fix at some ops, if that is a gain.
    fn draft(
        &self,
        fix: &'static Fix,
        at: usize,
        sites: &[OpId],
        before: &J::Opinion,
    ) -> Result<Draft<J::Opinion>, Refused> {
        let refused = |reason: String, opinion: &J::Opinion| Refused {
            reason,
            after: self.judge.measure(opinion),
            divisible: true,
        };
        let function = self
            .written(fix, at, sites)
            .map_err(|reason| refused(reason, before))?;
        let opinion = self.judge.judge(&self.program, &function);
        match self.judge.objection(before, &opinion, fix.rules, sites) {
            Some(objection) => Err(refused(objection, &opinion)),
            None => Ok(Draft {
                fix,
                function,
                opinion,
            }),
        }
    }

    /// Whether a draft computes what the function does.
    fn prove(&mut self, at: usize, draft: &Draft<J::Opinion>) -> Result<Proof, (String, bool)> {
        let forms = Forms {
            original: &self.originals[at],
            before: &self.program.functions()[at],
            after: &draft.function,
            is_lossy: self.kept[at].iter().any(|kept| kept.is_lossy),
        };
        let numbers = draft.fix.numbers;
        accept(self.prover.prove(&forms, numbers), numbers, self.unproven)
    }

    fn written(&self, fix: &Fix, at: usize, sites: &[OpId]) -> Result<Function, String> {
        let old = &self.program.functions()[at];
        let (graph, limits) = (Graph::new(old), self.judge.limits());
        let mut whole = Patch::new();
        let mut removed = HashSet::new();
        for op in sites {
            let Ok(patch) = fix.answer(&graph, limits, *op) else {
                continue;
            };
            // Two sites that rewrite one op: the second is found again in the next round.
            if patch.removals().iter().any(|op| removed.contains(op)) {
                continue;
            }
            removed.extend(patch.removals().iter().copied());
            whole.append(patch);
        }
        if whole.is_empty() {
            return Err("nothing of it is left to change".to_owned());
        }
        let mut function = old.clone();
        whole
            .apply(&mut function)
            .map_err(|e| format!("it cannot be written here: {e}"))?;
        let unverified = driver::Options {
            verify: false,
            stop_after: None,
        };
        let (program, _) = driver::run(Program::new(vec![function]), CLEANUP, &unverified)
            .map_err(|e| e.to_string())?;
        valid::check(&program)
            .map_err(|violations| format!("it would not be legal: {}", violations[0]))?;
        Ok(program.functions()[0].clone())
    }

    /// Put a function in the place of another, which it returns.
    fn put(&mut self, at: usize, function: Function, opinion: Option<J::Opinion>) -> Function {
        let mut functions = self.program.functions().to_vec();
        let before = std::mem::replace(&mut functions[at], function);
        let attributes = std::mem::take(&mut self.program.attributes);
        self.program = Program::new(functions);
        self.program.attributes = attributes;
        self.opinions[at] = opinion;
        before
    }
}
