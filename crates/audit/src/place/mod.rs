//! Chooses where each op runs: [`place`] finds which backends support it, [`estimate`] what each
//! would take by the constants of Apple's segmenter, and [`segment`] the cheapest way through.
//!
//! These estimates are for choosing a backend. [`latency`](crate::latency) predicts how long a
//! call takes.

pub mod estimate;
pub mod segment;

use std::collections::{BTreeMap, HashMap};

use thane_mil::program::{OpId, ValueId};

use crate::finding::Finding;
use crate::rule::{Effect, Rule, Severity};
use crate::rules::gpu_supports;
use crate::target::{Evidence, Route, Units};
use crate::view::View;
use crate::work::Work;

/// A backend that can run ops, in the order of `BackendSupport` in Apple's `analytics.mil`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    /// The GPU.
    MpsGraph,
    /// The CPU, by BNNS.
    Bnns,
    /// The CPU, by Espresso's own kernels.
    ClassicCpu,
    /// The Neural Engine.
    Ane,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Self; 4] = [Self::MpsGraph, Self::Bnns, Self::ClassicCpu, Self::Ane];

    /// The name in `analytics.mil`.
    pub fn name(self) -> &'static str {
        match self {
            Self::MpsGraph => "mps_graph",
            Self::Bnns => "bnns",
            Self::ClassicCpu => "classic_cpu",
            Self::Ane => "ane",
        }
    }

    /// Whether compute units allow the backend.
    pub fn is_allowed(self, units: Units) -> bool {
        match self {
            Self::Bnns | Self::ClassicCpu => true,
            Self::MpsGraph => matches!(units, Units::All | Units::CpuAndGpu),
            Self::Ane => matches!(units, Units::All | Units::CpuAndNeuralEngine),
        }
    }
}

/// The value of a slot whose backend cannot run an op.
pub const UNSUPPORTED: &str = "unsupported";

/// The five slots of `BackendSupport`; the second is not modeled, and always unsupported here.
pub const SLOTS: [&str; 5] = ["mps_graph", "e5_minimal_cpu", "bnns", "classic_cpu", "ane"];

/// An op with its backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// The op.
    pub op: OpId,
    /// The backends that support it, with the segmenter's estimate in milliseconds.
    pub estimates: Vec<(Backend, f64)>,
    /// The backend that runs it.
    pub chosen: Backend,
    /// Why a backend cannot run it, in the words of Apple's tools.
    pub validation: Vec<(Backend, String)>,
    /// Its work.
    pub work: Work,
}

impl Placed {
    /// Whether a backend supports the op.
    pub fn is_supported(&self, backend: Backend) -> bool {
        self.estimates.iter().any(|(b, _)| *b == backend)
    }

    /// The segmenter's estimate for a backend in milliseconds, if the backend supports the op.
    pub fn estimate(&self, backend: Backend) -> Option<f64> {
        self.estimates
            .iter()
            .find(|(b, _)| *b == backend)
            .map(|(_, ms)| *ms)
    }
}

/// Ops in a row on one backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The backend that runs them.
    pub backend: Backend,
    /// Position of the first in [`Placement::ops`].
    pub first: usize,
    /// Number of ops.
    pub n_ops: usize,
}

/// The ops of a function with their backends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Ops that compute, in order; constants are left out.
    pub ops: Vec<Placed>,
    /// Runs of ops.
    pub segments: Vec<Segment>,
    /// Ops that the engine refuses where nothing else may run them: the program does not compile.
    pub refused: Vec<OpId>,
    /// Rules that would take all of it off the engine, but that other sources contradict or nobody
    /// checked.
    pub may_leave: Vec<&'static str>,
}

impl Placement {
    /// How much of its ops run on the engine, 0 to 1; constants do not count. Of no ops, nothing
    /// does.
    pub fn residency(&self) -> f64 {
        self.share(|_| 1.0)
    }

    /// Share of floating-point operations on the engine, 0 to 1.
    pub fn residency_of_flops(&self) -> f64 {
        self.share(|op| op.work.flops)
    }

    /// Share of the segmenter's estimated time on the engine, 0 to 1.
    pub fn residency_of_cost(&self) -> f64 {
        self.share(|op| op.estimate(op.chosen).unwrap_or(0.0))
    }

    /// Ops on the engine.
    pub fn n_ane_ops(&self) -> usize {
        let chosen = self.ops.iter().map(|op| op.chosen);
        chosen.filter(|b| *b == Backend::Ane).count()
    }

    /// Segments on the engine.
    pub fn n_dispatches(&self) -> usize {
        let backends = self.segments.iter().map(|s| s.backend);
        backends.filter(|b| *b == Backend::Ane).count()
    }

    fn share(&self, weight: impl Fn(&Placed) -> f64) -> f64 {
        let on_ane = self.ops.iter().filter(|op| op.chosen == Backend::Ane);
        let ane: f64 = on_ane.map(&weight).sum();
        let all: f64 = self.ops.iter().map(&weight).sum();
        match () {
            () if all > 0.0 => (ane / all).abs(),
            // Ops without operations or time: by their number.
            () if !self.ops.is_empty() => self.residency(),
            () => 0.0,
        }
    }
}

/// Place the ops of a function. An op that a finding takes off the engine is not supported there;
/// one that takes the whole program off leaves nothing supported, unless that is disputed or
/// folklore: then ops stay where they are, and the rule is named.
pub fn place(view: &View<'_>, findings: &[Finding]) -> Placement {
    let refusals = refusals(findings);
    let leaves = findings
        .iter()
        .find(|f| takes_all(view, f) && is_sure(f.rule));
    let doubted = findings
        .iter()
        .filter(|f| f.rule.effect == Effect::ProgramLeaves && !is_sure(f.rule));
    let mut may_leave: Vec<&'static str> = doubted.map(|f| f.rule.id).collect();
    may_leave.dedup();
    let computes = view
        .f
        .all_ops()
        .into_iter()
        .filter(|id| !view.op(*id).def.is_constexpr());
    let mut ops: Vec<Placed> = Vec::new();
    for op in computes {
        let refusal = refusals
            .get(&op)
            .copied()
            .or(leaves)
            .map(|f| f.message.as_str());
        ops.push(candidate(view, op, refusal));
    }
    let refused = if view.target.route == Route::Direct {
        direct(&mut ops)
    } else {
        segment::choose(&mut ops)
    };
    Placement {
        segments: segment::runs(&ops),
        ops,
        refused,
        may_leave,
    }
}

/// Whether a finding takes all ops off the engine. Core ML says nothing where the engine's compiler
/// fails, and runs all of a function without state elsewhere; one with state does not load.
fn takes_all(view: &View<'_>, finding: &Finding) -> bool {
    let rule = finding.rule;
    let has_state = || {
        view.f
            .body()
            .inputs
            .iter()
            .any(|input| view.f.value(*input).ty.tensor().is_none())
    };
    match rule.effect {
        Effect::ProgramLeaves => true,
        Effect::CompileFails(_) => {
            view.target.route == Route::CoreMl && rule.severity == Severity::Error && !has_state()
        }
        _ => false,
    }
}

/// Whether a rule is measured or documented, and nobody contradicts it.
fn is_sure(rule: &Rule) -> bool {
    rule.disputed.is_empty() && rule.evidence <= Evidence::Measured
}

/// The first finding that takes each op off the engine.
fn refusals(findings: &[Finding]) -> HashMap<OpId, &Finding> {
    let mut found = HashMap::new();
    for finding in findings
        .iter()
        .filter(|f| f.rule.effect == Effect::OpLeaves)
    {
        if let Some(op) = finding.op {
            found.entry(op).or_insert(finding);
        }
    }
    found
}

/// An op with the backends that may run it.
fn candidate(view: &View<'_>, op: OpId, refusal: Option<&str>) -> Placed {
    let work = Work::of(view, op);
    let name = view.op(op).def.name;
    let direct = view.target.route == Route::Direct;
    let mut placed = Placed {
        op,
        estimates: Vec::new(),
        chosen: Backend::Bnns,
        validation: Vec::new(),
        work,
    };
    for backend in Backend::ALL {
        let reason = match backend {
            Backend::Ane => refusal.map(str::to_owned),
            Backend::MpsGraph if !gpu_supports(view, op) => {
                Some(format!("{name} runs on the CPU only"))
            }
            _ => None,
        };
        let allowed = if direct {
            backend == Backend::Ane
        } else {
            backend.is_allowed(view.target.units)
        };
        match reason {
            Some(reason) => placed.validation.push((backend, reason)),
            None if allowed => {
                let seconds = estimate::seconds(&work, name, backend, view.target.chip);
                placed.estimates.push((backend, seconds * 1e3));
            }
            None => {}
        }
    }
    placed
}

/// Place every op on the engine, and return those that it refuses.
fn direct(ops: &mut [Placed]) -> Vec<OpId> {
    ops.iter_mut().for_each(|op| op.chosen = Backend::Ane);
    ops.iter()
        .filter(|op| !op.is_supported(Backend::Ane))
        .map(|op| op.op)
        .collect()
}

/// The constants that ops of a placement copy parts of, each once, with whether all ops that do are
/// on the engine.
pub fn tables(placement: &Placement) -> BTreeMap<ValueId, bool> {
    let mut tables = BTreeMap::new();
    for op in &placement.ops {
        if let Some(table) = op.work.table {
            *tables.entry(table).or_insert(true) &= op.chosen == Backend::Ane;
        }
    }
    tables
}
