//! The rules, as rows: a file a group. Adding one is a row and `tests/audit/<ID>.mil` with a
//! function that fires it and one that just does not.
//!
//! Most of what is published was measured on M4. A rule is taken to hold on every chip unless its
//! scope says otherwise, and its source names the chips that it is known of.

mod numerics;
mod ops;
mod parameters;
mod program;
pub(crate) mod query;
mod shapes;
mod sharing;
mod speed;
mod state;
mod traffic;
mod types;
mod weights;

use thane_mil::program::{OpId, Program};

pub(crate) use shapes::ROW_LEN;

use super::report::Finding;
use super::view::View;
use crate::target::{Evidence, Route, Target};

/// What happens where a rule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The op runs elsewhere.
    OpLeaves,
    /// The ops around it run elsewhere too, or the whole program.
    ProgramLeaves,
    /// The compiler fails, with this code if one is known.
    CompileFails(Option<&'static str>),
    /// It does not load.
    LoadFails(Option<&'static str>),
    /// A call fails.
    RunFails(Option<&'static str>),
    /// A call gives wrong numbers.
    WrongResult,
    /// It is slower than it need be.
    Slow,
}

/// How bad that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// It costs.
    Warning,
    /// It does not work.
    Error,
}

/// Where a rule holds. Empty slices say everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Generations of the engine, first and last: 13 is M1 and A14, 18 is M6 and A19.
    pub generations: (u8, u8),
    /// macOS releases, first and last, by number.
    pub releases: (u32, u32),
    /// One way in only.
    pub route: Option<Route>,
}

impl Scope {
    /// Everywhere.
    pub const ALL: Self = Self {
        generations: (0, u8::MAX),
        releases: (0, u32::MAX),
        route: None,
    };

    /// Whether a target is in it.
    pub fn holds(&self, target: &Target) -> bool {
        let within = |n, (first, last)| first <= n && n <= last;
        within(
            u32::from(target.chip.generation),
            (self.generations.0.into(), self.generations.1.into()),
        ) && within(target.release.version(), self.releases)
            && self.route.is_none_or(|r| r == target.route)
    }
}

impl Scope {
    /// These generations of the engine only.
    const fn generations(first: u8, last: u8) -> Self {
        Self {
            generations: (first, last),
            ..Self::ALL
        }
    }

    /// This way in only.
    const fn on(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// These releases of macOS only, and those of iOS that go with them.
    const fn releases(mut self, first: u32, last: u32) -> Self {
        self.releases = (first, last);
        self
    }
}

/// A place in a function and what was found there.
pub struct Hit {
    /// The op, unless it is about the function.
    pub op: Option<OpId>,
    /// What, with its numbers.
    pub message: String,
}

/// How a rule looks.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// At each op that computes: what is wrong, if anything.
    Op(fn(&View<'_>, OpId) -> Option<String>),
    /// At a function.
    Function(fn(&View<'_>) -> Vec<Hit>),
    /// At the whole program.
    Program(fn(&Program, &Target) -> Vec<String>),
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// `ANE001` and on; never used for another again.
    pub id: &'static str,
    /// What it is about, in a line.
    pub title: &'static str,
    /// What happens.
    pub effect: Effect,
    /// How bad that is.
    pub severity: Severity,
    /// Where it holds.
    pub scope: Scope,
    /// How it is known.
    pub evidence: Evidence,
    /// Who says so: project and place, chip and release.
    pub source: &'static str,
    /// What another source says against it.
    pub disputed: Option<&'static str>,
    /// Why it is so.
    pub why: &'static str,
    /// What to do instead.
    pub fix: &'static str,
    /// How it looks.
    pub check: Check,
}

/// What rows have that do not say otherwise.
const ROW: Rule = Rule {
    id: "",
    title: "",
    effect: Effect::OpLeaves,
    severity: Severity::Warning,
    scope: Scope::ALL,
    evidence: Evidence::Measured,
    source: "",
    disputed: None,
    why: "",
    fix: "",
    check: Check::Op(|_, _| None),
};

/// Every rule, in the order of ids.
pub static RULES: &[&[Rule]] = &[
    ops::RULES,
    parameters::RULES,
    types::RULES,
    shapes::RULES,
    state::RULES,
    weights::RULES,
    numerics::RULES,
    speed::RULES,
    traffic::RULES,
    program::RULES,
];

/// Ops that neither the engine nor the GPU runs.
///
/// 751K, single-op probes on M4 with macOS 27 (`data/audit/ane_placement_m4.csv`).
const CPU_ONLY: &[&str] = &[
    "crop_resize",
    "non_zero",
    "range_1d",
    "sliding_windows",
    "affine",
];

/// What Core ML runs on the CPU wherever it is: control flow, lists and the mapping of classes to
/// names.
const HOST: &[&str] = &[
    "cond",
    "while_loop",
    "classify",
    "list_length",
    "list_write",
    "list_read",
    "list_gather",
    "list_scatter",
    "make_list",
];

/// Whether Core ML can run an op on the GPU.
pub fn gpu_supports(view: &View<'_>, op: OpId) -> bool {
    !query::is_any(view, op, CPU_ONLY) && !query::is_any(view, op, HOST)
}

/// All rules, one after the other.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().flat_map(|group| group.iter())
}

/// What the rules about ops and functions find.
pub fn find(view: &View<'_>) -> Vec<Finding> {
    let ops = view.f.all_ops();
    let computes = |op: &OpId| !view.op(*op).def.is_const();
    let mut findings = Vec::new();
    for rule in all().filter(|r| r.scope.holds(view.target)) {
        match rule.check {
            Check::Op(check) => {
                findings.extend(ops.iter().filter(|op| computes(op)).filter_map(|op| {
                    check(view, *op).map(|message| Finding {
                        rule,
                        op: Some(*op),
                        message,
                    })
                }))
            }
            Check::Function(check) => {
                findings.extend(check(view).into_iter().map(|hit| Finding {
                    rule,
                    op: hit.op,
                    message: hit.message,
                }));
            }
            Check::Program(_) => {}
        }
    }
    findings
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
