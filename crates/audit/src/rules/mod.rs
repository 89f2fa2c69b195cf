//! The rules, as rows: one file for each group. To add one, add a row with the next free id to the
//! group that it belongs to, and `tests/audit/<ID>.mil` with a function that fires it and one that
//! just does not. Ids are permanent: they are never renumbered and never reused.
//!
//! Most of what is published was measured on M4. A rule is taken to hold on every chip unless its
//! scope says otherwise, and its source names the chips that were measured.

mod numerics;
mod ops;
mod palettes;
mod parameters;
mod program;
pub(crate) mod query;
mod recurrence;
mod shapes;
mod sharing;
mod speed;
mod state;
mod traffic;
mod types;
mod weights;

use std::sync::LazyLock;

use thane_mil::opset::{OpDef, OpKind};
use thane_mil::program::{OpId, Program};

pub(crate) use shapes::ROW_LEN;
pub(crate) use sharing::{SharedWeights, shared_weights};

use crate::finding::Finding;
use crate::rule::{Check, Effect, Hit, Rule, Scope, Severity};
use crate::target::{Evidence, Route, Target};
use crate::view::View;

/// What rows have that do not say otherwise.
const ROW: Rule = Rule {
    id: "",
    title: "",
    effect: Effect::OpLeaves,
    severity: Severity::Warning,
    scope: Scope::ALL,
    evidence: Evidence::Measured,
    source: "",
    disputed: "",
    why: "",
    fix: "",
    check: Check::Op(|_, _| None),
};

/// A row with what happens where the rule fires, and how bad that is.
const fn row(effect: Effect, severity: Severity) -> Rule {
    Rule {
        effect,
        severity,
        ..ROW
    }
}

/// A row of a rule that holds on the direct route only.
const fn direct(effect: Effect, severity: Severity) -> Rule {
    Rule {
        scope: Scope::ALL.on(Route::Direct),
        ..row(effect, severity)
    }
}

/// A row of a rule that holds through Core ML only.
const fn core_ml(effect: Effect, severity: Severity) -> Rule {
    Rule {
        scope: Scope::ALL.on(Route::CoreMl),
        ..row(effect, severity)
    }
}

/// Every rule, by group.
pub static RULES: &[&[Rule]] = &[
    ops::RULES,
    parameters::RULES,
    types::RULES,
    shapes::RULES,
    state::RULES,
    weights::RULES,
    palettes::RULES,
    numerics::RULES,
    speed::RULES,
    traffic::RULES,
    program::RULES,
];

/// Ops that neither the engine nor the GPU runs.
///
/// 751K, single-op probes on M4 with macOS 27 (`crates/audit/data/ane_placement_m4.csv`).
const CPU_ONLY: &[&str] = &[
    "crop_resize",
    "non_zero",
    "range_1d",
    "sliding_windows",
    "affine",
];

/// Whether Core ML runs an op on the CPU wherever its program is: control flow, lists and the
/// mapping of classes to names.
fn runs_on_host(def: &OpDef) -> bool {
    matches!(def.kind, OpKind::Control | OpKind::List) || def.name == "classify"
}

/// Whether Core ML can run an op on the GPU.
pub fn gpu_supports(view: &View<'_>, op: OpId) -> bool {
    !query::is_any(view, op, CPU_ONLY) && !runs_on_host(view.op(op).def)
}

/// Every rule, in the order of ids. A group's file need not hold consecutive ids.
static ALL: LazyLock<Vec<&'static Rule>> = LazyLock::new(|| {
    let mut rules: Vec<&Rule> = RULES.iter().flat_map(|group| group.iter()).collect();
    rules.sort_by_key(|rule| rule.id);
    rules
});

/// Every rule, in the order of ids.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    ALL.iter().copied()
}

/// What the rules about ops and functions find.
pub fn find(view: &View<'_>) -> Vec<Finding> {
    find_until(view, &|| false).expect("nobody interrupts it")
}

/// As [`find`]; `None` if `interrupted` returned true, which is asked after each rule.
pub fn find_until(view: &View<'_>, interrupted: &dyn Fn() -> bool) -> Option<Vec<Finding>> {
    let ops = view.f.all_ops();
    let computes = |op: &OpId| !view.op(*op).def.is_const();
    let mut findings = Vec::new();
    for rule in all().filter(|r| r.scope.holds(view.target)) {
        let found = ops.iter().filter(|op| computes(op)).filter_map(|op| {
            let (op, message) = (Some(*op), rule.check.at(view, *op)?);
            Some(Finding { rule, op, message })
        });
        findings.extend(found);
        if let Check::Function(check) = rule.check {
            findings.extend(check(view).into_iter().map(|Hit { op, message }| Finding {
                rule,
                op,
                message,
            }));
        }
        if interrupted() {
            return None;
        }
    }
    Some(findings)
}

/// What the rules about programs find.
pub fn find_in_program(program: &Program, target: &Target) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in all().filter(|r| r.scope.holds(target)) {
        if let Check::Program(check) = rule.check {
            findings.extend(check(program, target).into_iter().map(|message| Finding {
                rule,
                op: None,
                message,
            }));
        }
    }
    findings
}
