//! Tries fixes on functions: apply, clean up, verify, judge, prove, then keep or reject.

use std::collections::{BTreeMap, HashSet};

use thane_compile::graph::label;
use thane_compile::passes;
use thane_compile::price::cheapest_first;
use thane_compile::{Pass, driver};
use thane_mil::program::{Function, OpId, Program};
use thane_mil::valid;

use super::report::Place;
use super::{
    Fix, Forms, Left, Measure, Numbers, Options, Proof, Prover, Step, Verdict, cancel_layouts,
    judge, pad_interface,
};
use crate::judged::FunctionAudit;
use crate::price::Predictor;
use crate::rules::find_in_program;
use crate::target::Target;
use crate::view::View;

/// Trials of one fix on one function: a group that fails is halved so often, to find what of it can
/// be kept.
const MAX_TRIALS: usize = 12;

/// What runs after a fix. Not `eliminate_noops`: an `identity` may be what a rule asks for.
static CLEANUP: &[Pass] = &[
    cancel_layouts::PASS,
    passes::merge_identical_ops::PASS,
    passes::eliminate_dead_code::PASS,
];

/// A program while it is fixed.
pub struct Trials<'a> {
    program: Program,
    target: &'a Target,
    options: &'a Options<'a>,
    fixes: &'a [&'static Fix],
    prover: &'a mut dyn Prover,
    /// The audit of each function, until the function changes.
    audits: Vec<Option<FunctionAudit>>,
    /// What was tried and is left: fix, function, what the op makes.
    settled: HashSet<(&'static str, usize, String)>,
    steps: Vec<Step>,
    /// The functions as they were given.
    originals: Vec<Function>,
    /// What was kept of each function, in order.
    kept: Vec<Vec<Kept>>,
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
struct Draft {
    fix: &'static Fix,
    function: Function,
    audit: FunctionAudit,
}

/// A function that a fix made, and how.
struct Made {
    draft: Draft,
    proof: Proof,
    /// Fixes that answer the same, slower, and what they would come to.
    slower: Vec<(&'static Fix, Measure)>,
}

/// Why there is none.
struct Refused {
    reason: String,
    after: Measure,
    /// Whether fewer sites may do.
    divisible: bool,
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

impl<'a> Trials<'a> {
    /// Begin.
    pub fn new(
        program: Program,
        target: &'a Target,
        options: &'a Options<'a>,
        fixes: &'a [&'static Fix],
        prover: &'a mut dyn Prover,
    ) -> Self {
        let audits = program.functions().iter().map(|_| None).collect();
        let originals = program.functions().to_vec();
        let kept = originals.iter().map(|_| Vec::new()).collect();
        let (settled, steps) = Default::default();
        Self {
            program,
            target,
            options,
            fixes,
            prover,
            audits,
            settled,
            steps,
            originals,
            kept,
        }
    }

    /// Functions of the program.
    pub fn n_functions(&self) -> usize {
        self.program.functions().len()
    }

    /// The program, and what was tried.
    pub fn finish(self) -> (Program, Vec<Step>) {
        (self.program, self.steps)
    }

    fn audit(&mut self, at: usize) -> FunctionAudit {
        let (program, target) = (&self.program, self.target);
        self.audits[at]
            .get_or_insert_with(|| judge::function(program, &program.functions()[at], target))
            .clone()
    }

    /// Whether anything lossy is in a function.
    fn is_lossy(&self, at: usize) -> bool {
        self.kept[at].iter().any(|kept| kept.is_lossy)
    }

    /// Whether a fix is tried at all.
    fn is_tried(&self, fix: &Fix) -> bool {
        fix.numbers == Numbers::Exact || self.prover.takes_lossy()
    }

    /// Judge all that was kept of each function together; what is too far off goes, the last first.
    pub fn confirm(&mut self) {
        for at in 0..self.n_functions() {
            if !self.kept[at].is_empty() {
                self.confirm_function(at);
            }
        }
    }

    fn confirm_function(&mut self, at: usize) {
        self.prover.announce(&format!(
            "{}: all rewrites together",
            self.originals[at].name
        ));
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
                Proof::Unknown(_) if self.options.unproven => holds = n,
                Proof::Differs(how) => {
                    (fails, why) = (
                        n,
                        format!("with those before it the function differs: {how}"),
                    )
                }
                Proof::Unknown(how) => {
                    (holds, fails, why) = (
                        0,
                        1,
                        format!("the function could not be run as a whole: {how}"),
                    );
                }
            }
            n = holds + (fails - holds) / 2;
        }
        if holds < self.kept[at].len() {
            self.put(at, forms(&self.kept[at], holds));
            self.audits[at] = None;
            for kept in self.kept[at].drain(holds..) {
                self.steps[kept.step].verdict = Verdict::Rejected(why.clone());
            }
        }
        for kept in &self.kept[at] {
            add_whole(&mut self.steps[kept.step].verdict, proof.as_ref());
        }
    }

    /// Try a fix on a function; whether the function changed.
    pub fn attempt(&mut self, fix: &'static Fix, at: usize) -> bool {
        if !self.is_tried(fix) || self.prover.is_over() {
            return false;
        }
        let audit = self.audit(at);
        let mut sites: Vec<OpId> = audit
            .findings
            .iter()
            .filter(|f| fix.rules.contains(&f.rule.id))
            .filter_map(|f| f.op)
            .collect();
        let mut seen = HashSet::new();
        sites.retain(|op| seen.insert(*op));
        let f = &self.program.functions()[at];
        let view = View::new(&self.program, f, self.target);
        sites.retain(|op| {
            let settled = self.settled.contains(&(fix.name, at, label(f, *op)));
            !settled && (fix.run)(&view, *op).is_ok()
        });
        if sites.is_empty() {
            return false;
        }
        self.prover.announce(&format!(
            "{}: {}",
            self.program.functions()[at].name,
            fix.what
        ));
        let mut n_trials = MAX_TRIALS;
        self.halve(fix, at, &sites, &mut n_trials)
    }

    /// Try some sites together, and where that fails each half of them.
    fn halve(
        &mut self,
        fix: &'static Fix,
        at: usize,
        sites: &[OpId],
        n_trials: &mut usize,
    ) -> bool {
        if sites.is_empty() || *n_trials == 0 {
            return false;
        }
        *n_trials -= 1;
        let before = self.audit(at);
        let f = &self.program.functions()[at];
        let places: Vec<Place> = sites.iter().map(|op| place(f, *op)).collect();
        let rules = fired(&before, fix, sites);
        let step = |fix: &'static Fix, after, verdict| Step {
            fix: fix.name,
            what: fix.what,
            rules: rules.clone(),
            function: before.name.clone(),
            sites: places.clone(),
            before: Measure::of(&before),
            after,
            verdict,
        };
        match self.make(fix, at, sites, &before) {
            Ok(made) => {
                let Draft {
                    fix,
                    function,
                    audit,
                } = made.draft;
                let after = Measure::of(&audit);
                let before = self.program.functions()[at].clone();
                self.put(at, function);
                self.audits[at] = Some(audit);
                for (other, slower) in made.slower {
                    let why = format!(
                        "{} is predicted to be faster: {:.3} ms, not {:.3} ms",
                        fix.name, after.ms, slower.ms
                    );
                    self.steps.push(step(other, slower, Verdict::Rejected(why)));
                }
                let is_lossy = matches!(made.proof, Proof::Lossy { .. });
                self.kept[at].push(Kept {
                    step: self.steps.len(),
                    before,
                    is_lossy,
                });
                self.steps.push(step(fix, after, Verdict::Kept(made.proof)));
                true
            }
            Err(refused) if refused.divisible && sites.len() > 1 && *n_trials > 1 => {
                let (first, second) = sites.split_at(sites.len() / 2);
                let first = self.halve(fix, at, first, n_trials);
                // What the first half wrote may have removed ops of the second.
                let live: HashSet<OpId> =
                    self.program.functions()[at].all_ops().into_iter().collect();
                let second: Vec<OpId> = second
                    .iter()
                    .copied()
                    .filter(|op| live.contains(op))
                    .collect();
                self.halve(fix, at, &second, n_trials) | first
            }
            Err(refused) => {
                self.settled
                    .extend(places.iter().map(|p| (fix.name, at, p.op.clone())));
                self.steps
                    .push(step(fix, refused.after, Verdict::Rejected(refused.reason)));
                false
            }
        }
    }

    /// The function after a fix at some ops, or after a faster one that answers the same, if it is
    /// one to keep.
    fn make(
        &mut self,
        fix: &'static Fix,
        at: usize,
        sites: &[OpId],
        before: &FunctionAudit,
    ) -> Result<Made, Refused> {
        let mut drafts = vec![self.draft(fix, at, sites, before)?];
        let others = self.others(fix, at, sites).into_iter();
        drafts.extend(others.filter_map(|other| self.draft(other, at, sites, before).ok()));
        let price = Predictor {
            target: self.target,
        };
        let drafts = cheapest_first(drafts, |draft| &draft.function, &self.program, &price);
        let measures: Vec<_> = drafts
            .iter()
            .map(|d| (d.fix, Measure::of(&d.audit)))
            .collect();
        let mut refused = None;
        for (n, draft) in drafts.into_iter().enumerate() {
            match self.prove(at, &draft) {
                Ok(proof) => {
                    return Ok(Made {
                        draft,
                        proof,
                        slower: measures[n + 1..].to_vec(),
                    });
                }
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        Err(refused.expect("there is a draft"))
    }

    /// Other fixes that answer a rule of a fix at each of the ops.
    fn others(&self, fix: &Fix, at: usize, sites: &[OpId]) -> Vec<&'static Fix> {
        let view = View::new(&self.program, &self.program.functions()[at], self.target);
        let shares = |other: &Fix| {
            other.name != fix.name && other.rules.iter().any(|id| fix.rules.contains(id))
        };
        let tried = |other: &Fix| self.is_tried(other);
        let answers = |other: &Fix| sites.iter().all(|op| (other.run)(&view, *op).is_ok());
        self.fixes
            .iter()
            .copied()
            .filter(|other| shares(other) && tried(other) && answers(other))
            .collect()
    }

    /// The function after a fix at some ops, if that is a gain.
    fn draft(
        &self,
        fix: &'static Fix,
        at: usize,
        sites: &[OpId],
        before: &FunctionAudit,
    ) -> Result<Draft, Refused> {
        let refused = |reason: String, after| Refused {
            reason,
            after,
            divisible: true,
        };
        let function = self
            .written(fix, at, sites)
            .map_err(|reason| refused(reason, Measure::of(before)))?;
        let audit = judge::function(&self.program, &function, self.target);
        match judge::objection(before, &audit, fix.rules, sites) {
            Some(objection) => Err(refused(objection, Measure::of(&audit))),
            None => Ok(Draft {
                fix,
                function,
                audit,
            }),
        }
    }

    /// Whether a draft computes what the function does.
    fn prove(&mut self, at: usize, draft: &Draft) -> Result<Proof, Refused> {
        let is_lossy = self.is_lossy(at);
        let (original, before) = (&self.originals[at], &self.program.functions()[at]);
        let forms = Forms {
            original,
            before,
            after: &draft.function,
            is_lossy,
        };
        let proof = self.prover.prove(&forms, draft.fix.numbers);
        let after = Measure::of(&draft.audit);
        match &proof {
            Proof::Equal(_) | Proof::Lossy { .. } => {}
            Proof::Unknown(_) if self.options.unproven && draft.fix.numbers == Numbers::Exact => {}
            Proof::Unknown(why) => {
                let reason = format!("it could not be proven: {why}");
                return Err(Refused {
                    reason,
                    after,
                    divisible: false,
                });
            }
            Proof::Differs(how) => {
                let reason = format!("it does not compute the same: {how}");
                return Err(Refused {
                    reason,
                    after,
                    divisible: true,
                });
            }
        }
        Ok(proof)
    }

    fn written(&self, fix: &Fix, at: usize, sites: &[OpId]) -> Result<Function, String> {
        let old = &self.program.functions()[at];
        let view = View::new(&self.program, old, self.target);
        let mut whole = thane_mil::edit::Patch::new();
        let mut removed = HashSet::new();
        for op in sites {
            let Ok(patch) = (fix.run)(&view, *op) else {
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
        let program = Program::new(vec![function]);
        let verify = driver::Options {
            verify: false,
            stop_after: None,
        };
        let (program, _) = driver::run(program, CLEANUP, &verify).map_err(|e| e.to_string())?;
        valid::check(&program)
            .map_err(|violations| format!("it would not be legal: {}", violations[0]))
            .map(|()| program.functions()[0].clone())
    }

    fn put(&mut self, at: usize, function: Function) {
        let mut functions = self.program.functions().to_vec();
        functions[at] = function;
        let attributes = std::mem::take(&mut self.program.attributes);
        self.program = Program::new(functions);
        self.program.attributes = attributes;
    }

    /// What no fix answered, each rule of a function once.
    pub fn left(&mut self, fixes: &[&Fix]) -> Vec<Left> {
        let mut left = Vec::new();
        for at in 0..self.n_functions() {
            let audit = self.audit(at);
            let f = &self.program.functions()[at];
            let view = View::new(&self.program, f, self.target);
            let mut found: BTreeMap<(&str, String), Left> = BTreeMap::new();
            for finding in &audit.findings {
                let reason = self.reason(
                    fixes,
                    &view,
                    at,
                    finding.rule.id,
                    finding.op,
                    finding.rule.fix,
                );
                let place = finding.op.map(|op| place(f, op));
                let key = (finding.rule.id, reason.clone());
                let entry = Left {
                    rule: finding.rule.id,
                    function: f.name.clone(),
                    place,
                    n: 0,
                    reason,
                };
                found.entry(key).or_insert(entry).n += 1;
            }
            left.extend(found.into_values());
        }
        for finding in find_in_program(&self.program, self.target) {
            let reason = no_rewrite(finding.rule.fix);
            left.push(Left {
                rule: finding.rule.id,
                function: String::new(),
                place: None,
                n: 1,
                reason,
            });
        }
        left
    }

    fn reason(
        &self,
        fixes: &[&Fix],
        view: &View<'_>,
        at: usize,
        rule: &str,
        op: Option<OpId>,
        advice: &str,
    ) -> String {
        if pad_interface::RULES.contains(&rule) {
            let tried = self.options.pad_interface;
            let why = if tried {
                "was tried in vain, see above"
            } else {
                "changes what callers pass, and is not asked for"
            };
            return format!("{} {why}", pad_interface::NAME);
        }
        let Some(op) = op else {
            return no_rewrite(advice);
        };
        let mut reasons = fixes.iter().filter(|f| f.rules.contains(&rule)).map(|fix| {
            let rejected = self.settled.contains(&(fix.name, at, label(view.f, op)));
            match (fix.run)(view, op) {
                Err(reason) => format!("{}: {reason}", fix.name),
                Ok(_) if !self.is_tried(fix) => {
                    format!(
                        "{} changes precision: --lossy MAX_ERROR tries it and measures the error",
                        fix.name
                    )
                }
                Ok(_) if self.prover.is_over() && !rejected => {
                    format!(
                        "{} was not tried: the time is over; --time-limit allows more",
                        fix.name
                    )
                }
                Ok(_) if rejected => format!("{} was tried in vain, see above", fix.name),
                Ok(_) => format!("{} was not tried: too many trials", fix.name),
            }
        });
        reasons.next().unwrap_or_else(|| no_rewrite(advice))
    }
}

fn no_rewrite(advice: &str) -> String {
    if advice.is_empty() {
        "no rewrite is known".to_owned()
    } else {
        format!("no rewrite; by hand: {advice}")
    }
}

fn place(f: &Function, op: OpId) -> Place {
    Place {
        op: label(f, op),
        layer: f.op(op).origin.place.to_string(),
    }
}

/// The rules of a fix that found something at some ops.
fn fired(audit: &FunctionAudit, fix: &Fix, sites: &[OpId]) -> Vec<&'static str> {
    let at = |op: Option<OpId>| op.is_some_and(|op| sites.contains(&op));
    let mut ids: Vec<&'static str> = audit
        .findings
        .iter()
        .filter(|f| at(f.op))
        .map(|f| f.rule.id)
        .collect();
    ids.retain(|id| fix.rules.contains(id));
    ids.sort_unstable();
    ids.dedup();
    ids
}
