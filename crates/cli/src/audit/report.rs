//! An audit in the form that leaves the program: plain data with names instead of ids. Every format
//! is made of it.

use serde::Serialize;
use thane_mil::text::Lines;

use super::baseline::Baseline;
use super::compare::Comparison;
use super::length::LengthRow;
use super::plan::Context;

/// Version of the form.
pub const SCHEMA: u32 = 1;

/// What the model of time leaves out; see [`thane_compile::audit::latency`].
pub const NOT_COVERED: [&str; 6] = [
    "the first call after a pause, and the ramp of the clock",
    "heat, and other work on the engine or in memory",
    "what an app does between calls",
    "masked positions that A19 leaves out",
    "programs that Core ML takes off the engine without telling, unless a rule finds it",
    "times of GPUs, and of CPUs but for products, which are the segmenter's own estimates",
];

/// What `thane audit` found, for every target.
#[derive(Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    /// Name and version of this program.
    pub generator: &'static str,
    pub subject: SubjectRow,
    /// Whether every requirement holds.
    pub passed: bool,
    /// What was required, as flags.
    pub requirements: Vec<String>,
    /// Those of them that do not hold.
    #[serde(skip)]
    pub unmet: Vec<String>,
    /// How they do not.
    pub failures: Vec<String>,
    /// The rules that were found and are denied.
    pub denied: Vec<&'static str>,
    pub targets: Vec<TargetRow>,
    /// The rules that fired, in the order of ids.
    pub rules: Vec<RuleRow>,
    pub contexts: Vec<Context>,
    pub baseline: Option<Baseline>,
    pub comparison: Option<Comparison>,
    pub not_covered: [&'static str; 6],
}

/// What was audited.
#[derive(Debug, Serialize)]
pub struct SubjectRow {
    pub name: String,
    pub kind: &'static str,
    pub built: Option<String>,
    pub absent_constants: usize,
}

/// A rule, whole.
#[derive(Clone, Debug, Serialize)]
pub struct RuleRow {
    pub id: &'static str,
    pub title: &'static str,
    pub severity: &'static str,
    pub effect: &'static str,
    pub code: Option<&'static str>,
    pub evidence: &'static str,
    pub source: &'static str,
    pub disputed: Option<&'static str>,
    pub why: &'static str,
    pub fix: &'static str,
}

/// A program, judged for a target.
#[derive(Debug, Serialize)]
pub struct TargetRow {
    pub target: String,
    pub chip: &'static str,
    pub release: &'static str,
    /// What was not given but follows from the tables: `chip`, `release` or both.
    pub implied: Vec<&'static str>,
    pub units: &'static str,
    pub route: &'static str,
    /// See [`super::plan::Verdict`].
    pub verdict: &'static str,
    pub ops: usize,
    pub ane_ops: usize,
    /// `ane_ops` of `ops`, in percent.
    pub residency: f64,
    pub errors: usize,
    pub warnings: usize,
    pub notes: usize,
    pub functions: Vec<FunctionRow>,
    pub findings: Vec<FindingRow>,
    pub inferred: Vec<&'static str>,
    /// The ceilings of the roofline.
    pub ceilings: Ceilings,
}

/// What the chip does at most.
#[derive(Debug, Serialize)]
pub struct Ceilings {
    pub gflops: f64,
    pub weight_gbps: f64,
    pub local_gbps: f64,
}

/// A rule that fired, and where.
#[derive(Clone, Debug, Serialize)]
pub struct FindingRow {
    pub rule: &'static str,
    pub severity: &'static str,
    /// Null where it is about the whole program.
    pub function: Option<String>,
    /// Name of the op's first result; null where it is about the whole function.
    pub op: Option<String>,
    pub kind: Option<&'static str>,
    /// Module of the checkpoint; a name that ends in `?` is a guess.
    pub place: Option<String>,
    pub message: String,
    /// Whether the baseline has it.
    pub known: bool,
}

/// A function, judged.
#[derive(Debug, Serialize)]
pub struct FunctionRow {
    pub name: String,
    /// Whether it is there for what is too long for the others: `--require-ane` leaves it out,
    /// unless it is asked for.
    pub catch_all: bool,
    pub ops: usize,
    pub ane_ops: usize,
    pub residency: f64,
    pub residency_of_flops: f64,
    pub residency_of_cost: f64,
    /// Ops that the engine refuses where nothing else may run them.
    pub refused: usize,
    /// Rules by which all of it would run elsewhere, which are disputed or folklore.
    pub may_leave: Vec<&'static str>,
    pub latency: LatencyRow,
    /// The length that the figures are of; null where the function has one only.
    pub length: Option<LengthRow>,
    /// What calls of each priced length take; empty where it has one only.
    pub lengths: Vec<PricedRow>,
    /// Where to cut it; empty where it is small enough.
    pub chunks: Vec<ChunkRow>,
    /// Why it cannot be cut; null where it can, or need not be.
    pub uncut: Option<String>,
    pub segments: Vec<SegmentRow>,
    pub table: Vec<OpRow>,
}

/// What a call takes.
#[derive(Debug, Serialize)]
pub struct LatencyRow {
    pub ms: f64,
    pub low_ms: f64,
    pub high_ms: f64,
    pub tokens_per_second: Option<f64>,
    pub bound: &'static str,
    pub parts: PartsRow,
    pub positions: f64,
    pub weight_bytes: f64,
    pub activation_bytes: f64,
    pub dispatches: usize,
    pub energy_mj: f64,
    pub low_energy_mj: f64,
    pub high_energy_mj: f64,
    pub peak_bytes: f64,
    pub load_risk: &'static str,
}

/// What a call of some length takes.
#[derive(Debug, Serialize)]
pub struct PricedRow {
    #[serde(flatten)]
    pub length: LengthRow,
    pub ms: f64,
    pub low_ms: f64,
    pub high_ms: f64,
}

/// A program that a function which may be too large is best cut into.
#[derive(Debug, Serialize)]
pub struct ChunkRow {
    pub last: String,
    pub ops: usize,
    pub weight_bytes: f64,
    pub out_bytes: f64,
}

/// What the milliseconds are made of.
#[derive(Debug, Serialize)]
pub struct PartsRow {
    pub compute_ms: f64,
    pub weights_ms: f64,
    pub elements_ms: f64,
    pub activations_ms: f64,
    pub dispatch_ms: f64,
    pub host_ms: f64,
}

/// Ops in a row on one backend.
#[derive(Debug, Serialize)]
pub struct SegmentRow {
    pub backend: &'static str,
    /// Position of the first in the table.
    pub first: usize,
    pub ops: usize,
    pub ms: f64,
}

/// An op that computes.
#[derive(Debug, Serialize)]
pub struct OpRow {
    pub name: String,
    pub kind: &'static str,
    pub place: String,
    pub backend: &'static str,
    /// What can run it, and the milliseconds that Core ML's segmenter reckons with.
    pub supported: Vec<Estimate>,
    /// Milliseconds that it is predicted to take.
    pub ms: f64,
    pub flops: f64,
    pub bytes: f64,
    /// Why a backend cannot run it.
    pub reasons: Vec<Reason>,
    /// Ids of the rules that fired at it.
    pub findings: Vec<&'static str>,
}

/// A backend that can run an op.
#[derive(Debug, Serialize)]
pub struct Estimate {
    pub backend: &'static str,
    pub ms: f64,
}

/// A backend that cannot.
#[derive(Debug, Serialize)]
pub struct Reason {
    pub backend: &'static str,
    pub message: String,
}

impl Report {
    /// The rule of an id that fired.
    pub fn rule(&self, id: &str) -> Option<&RuleRow> {
        self.rules.iter().find(|r| r.id == id)
    }
}

impl TargetRow {
    /// Chip and system.
    pub fn short(&self) -> String {
        format!("{}+{}", self.chip, self.release)
    }
}

impl FindingRow {
    /// The line of a text that it is about.
    pub fn line(&self, lines: &Lines) -> Option<usize> {
        let function = self.function.as_ref()?;
        let value = self.op.as_ref().and_then(|op| lines.value(function, op));
        value.or_else(|| lines.function(function))
    }
}

impl FunctionRow {
    /// Why ops that are not on the engine are not: what it cannot run, and what it could at a
    /// higher cost.
    pub fn elsewhere(&self) -> Option<String> {
        /// Ops that are named.
        const MOST_NAMED: usize = 4;
        let off = || self.table.iter().filter(|op| op.backend != "ane");
        let can = |op: &&OpRow| op.supported.iter().any(|e| e.backend == "ane");
        let n_able = off().filter(can).count();
        let n_unable = off().count() - n_able;
        let mut said = Vec::new();
        if n_unable > 0 {
            said.push(format!("{n_unable} that the engine does not run"));
        }
        if n_able > 0 {
            let names: Vec<String> = off()
                .filter(can)
                .take(MOST_NAMED)
                .map(|op| format!("`{}`", op.name))
                .collect();
            let more = if n_able > MOST_NAMED { ", .." } else { "" };
            let names = names.join(", ");
            said.push(format!(
                "{n_able} that cost less elsewhere, by what Core ML reckons with ({names}{more})"
            ));
        }
        let ops = if n_able + n_unable == 1 { "op" } else { "ops" };
        (!said.is_empty()).then(|| format!("{} {ops}: {}", n_able + n_unable, said.join(", ")))
    }
}
