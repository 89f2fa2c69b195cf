//! The figures of a function on a target that decide whether a fix is kept.

use std::collections::BTreeMap;

use thane_compile::rewrite::Limits;
use thane_compile::trial::{Found, Judge, Measure};
use thane_mil::program::{Function, OpId, Program};

use crate::finding::Finding;
use crate::judged::FunctionAudit;
use crate::place::Backend;
use crate::price::Predictor;
use crate::rule::{Effect, Severity};
use crate::rules;
use crate::target::Target;
use crate::view::View;

/// All functions and the findings of the program together; shares are of all ops.
pub fn program(program: &Program, judge: &Predictor<'_>) -> Measure {
    let of = |f: &Function| measure(&judge.judge(program, f));
    let mut sum = Measure::total(program.functions().iter().map(of));
    let findings = rules::find_in_program(program, judge.target);
    sum.n_findings += findings.len();
    sum.n_errors += findings
        .iter()
        .filter(|f| f.rule.severity == Severity::Error)
        .count();
    sum
}

/// The figures of one function.
fn measure(audit: &FunctionAudit) -> Measure {
    let is_error = |f: &&Finding| f.rule.severity == Severity::Error;
    let ops = &audit.placement.ops;
    let n_supported = ops
        .iter()
        .filter(|op| op.is_supported(Backend::Ane))
        .count();
    Measure {
        ms: audit.latency.ms,
        // A sum of nothing is -0.0.
        residency: audit.placement.residency() + 0.0,
        residency_of_flops: audit.placement.residency_of_flops() + 0.0,
        supported: n_supported as f64 / ops.len().max(1) as f64,
        n_ops: ops.len(),
        n_findings: audit.findings.len(),
        n_errors: audit.findings.iter().filter(is_error).count(),
    }
}

impl Judge for Predictor<'_> {
    type Opinion = FunctionAudit;

    fn judge(&self, program: &Program, function: &Function) -> FunctionAudit {
        FunctionAudit::of(&View::new(program, function, self.target))
    }

    fn measure(&self, audit: &FunctionAudit) -> Measure {
        measure(audit)
    }

    fn found(&self, audit: &FunctionAudit) -> Vec<Found> {
        audit.findings.iter().map(found).collect()
    }

    fn found_in_program(&self, program: &Program) -> Vec<Found> {
        let findings = rules::find_in_program(program, self.target);
        findings.iter().map(found).collect()
    }

    fn objection(
        &self,
        before: &FunctionAudit,
        after: &FunctionAudit,
        rules: &[&'static str],
        sites: &[OpId],
    ) -> Option<String> {
        objection(before, after, rules, sites)
    }

    fn limits(&self) -> Limits {
        limits(self.target)
    }
}

/// The limits of a chip and a system that fixes keep to, as numbers.
pub fn limits(target: &Target) -> Limits {
    let caps = &target.chip.family.caps;
    Limits {
        channels: caps.channels,
        spatial: caps.spatial,
        row: rules::ROW_LEN,
    }
}

fn found(finding: &Finding) -> Found {
    Found {
        rule: finding.rule.id,
        op: finding.op,
        advice: finding.rule.fix,
    }
}

/// How often each rule fired.
fn counts(audit: &FunctionAudit) -> BTreeMap<&'static str, (usize, &Finding)> {
    let mut counts = BTreeMap::new();
    for finding in &audit.findings {
        counts.entry(finding.rule.id).or_insert((0, finding)).0 += 1;
    }
    counts
}

/// What a prediction may grow by where a finding goes: a quarter of the model's median error of 12
/// %, since the model does not know what every rule knows.
const LITTLE: f64 = 1.03;

/// What a program that stays on the CPU may lose for the sake of ops that the engine supports, of
/// which there can be more.
const SLOWER: f64 = 1.05;

/// Why a change of a function for the sake of some rules is no gain; nothing where it is one.
fn objection(
    before: &FunctionAudit,
    after: &FunctionAudit,
    rules: &[&'static str],
    sites: &[OpId],
) -> Option<String> {
    let (old, new) = (counts(before), counts(after));
    // What ailed an op that is written as several may ail each of them.
    let ailed = |id: &str| {
        before
            .findings
            .iter()
            .any(|f| f.rule.id == id && f.op.is_some_and(|op| sites.contains(&op)))
    };
    let n = |counts: &BTreeMap<&str, (usize, &Finding)>, id: &str| {
        counts.get(id).map_or(0, |(n, _)| *n)
    };
    for (id, (found, finding)) in &new {
        let harms = finding.rule.severity == Severity::Error
            || finding.rule.severity == Severity::Warning
                && finding.rule.effect == Effect::WrongResult;
        if harms && *found > n(&old, id) && !rules.contains(id) && !ailed(id) {
            return Some(format!("it would bring {id}: {}", finding.message));
        }
    }
    let (was, is) = (measure(before), measure(after));
    let cured: Vec<&&str> = rules
        .iter()
        .filter(|id| n(&new, id) < n(&old, id))
        .collect();
    // A small program may stay on the CPU whatever it is made of.
    let supported = is.supported > was.supported + 1e-9 && is.ms < was.ms * SLOWER;
    let onto_engine = supported
        || is.residency_of_flops > was.residency_of_flops + 1e-9
        || is.residency > was.residency + 1e-9;
    // A tenth of a per mille: what only sums up differently is no gain.
    let faster = is.ms < was.ms * (1.0 - 1e-4);
    if cured.is_empty() && !onto_engine && !faster {
        return Some("the finding stays, and nothing is predicted to be better".to_owned());
    }
    // What the engine refuses where nothing else may run it does not compile.
    let compiles = after.placement.refused.len() < before.placement.refused.len();
    let mends = compiles
        || cured.iter().any(|id| {
            let effect = old[**id].1.rule.effect;
            !matches!(effect, Effect::Slow | Effect::OpLeaves)
        });
    if is.n_findings >= was.n_findings && !mends && !onto_engine && !faster {
        return Some(
            "it brings as many findings as it answers, and nothing is predicted to be better"
                .to_owned(),
        );
    }
    let off_engine = is.residency < was.residency - 1e-9
        && is.residency_of_flops <= was.residency_of_flops + 1e-9;
    if off_engine {
        let share = |m: &Measure| format!("{:.1} %", m.residency * 100.0);
        return Some(format!(
            "fewer ops would run on the engine: {} of {}",
            share(&is),
            share(&was)
        ));
    }
    let slower = is.ms > was.ms * if cured.is_empty() { 1.0 + 1e-4 } else { LITTLE };
    if slower && !mends && !onto_engine {
        return Some(format!(
            "it is predicted to be slower: {:.3} ms, now {:.3} ms",
            is.ms, was.ms
        ));
    }
    None
}
