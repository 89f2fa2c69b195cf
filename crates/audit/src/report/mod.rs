//! The report of an audit as plain data, with names instead of ids. Every format is printed from
//! it, and its fields are those of the JSON format: docs/json.md documents them, and fields are
//! only ever added.
//!
//! Start at [`build`], which makes a [`Report`] of a [`Subject`] and targets. [`require`] then
//! judges it by what the user demands, [`baseline`] by an earlier report, and [`compare`] by what
//! Apple's own tools say.

pub mod baseline;
mod build;
pub mod chain;
mod choice;
pub mod compare;
pub mod energy;
pub mod explain;
pub mod files;
pub mod groups;
mod judged;
pub mod length;
pub mod memory;
pub mod module;
pub mod require;
mod subject;
mod verdict;

pub use build::{build, build_until};
pub use judged::{JudgedFunction, SubjectAudit};
pub use length::LengthRow;
pub use subject::{Part, Subject, catch_all, is_flexible};
pub use verdict::{Scope, Verdict};

use serde::Serialize;
use thane_mil::text::Lines;

use self::energy::EnergyRow;
use self::memory::MemoryRow;
use crate::calls::AnswerRow;
use crate::number::between;
use crate::rule::{Effect, Rule};

/// Version of the JSON format.
pub const SCHEMA: u32 = 1;

/// What the model of time leaves out; see [`crate::latency`].
pub const NOT_COVERED: [&str; 7] = [
    "the first call after a pause, and the ramp of the clock",
    "heat, and other work on the engine or in memory",
    "what an app does between calls",
    "masked positions that A19 leaves out",
    "programs that Core ML takes off the engine without telling, unless a rule finds it",
    "how often a loop runs: its body counts once",
    "which branch a condition takes: both count",
];

/// What `thane audit` found, for every target.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the JSON format: [`SCHEMA`].
    pub schema: u32,
    /// Name and version of this program.
    pub generator: &'static str,
    /// What was audited.
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
    /// One entry for each target.
    pub targets: Vec<TargetRow>,
    /// The rules that fired, in the order of ids.
    pub rules: Vec<RuleRow>,
    /// Predicted times of `decode` at several context lengths, where they were asked for.
    pub contexts: Vec<ContextRow>,
    /// What the calls of a language model take; empty for other programs, and where nothing says
    /// how functions are called.
    pub chains: Vec<chain::ChainRow>,
    /// How the findings compare with an earlier report.
    pub baseline: Option<Baseline>,
    /// How the prediction compares with what Apple's tools say.
    pub comparison: Option<Comparison>,
    /// What the latency model leaves out: [`NOT_COVERED`].
    pub not_covered: [&'static str; 7],
}

/// What was audited.
#[derive(Debug, Serialize)]
pub struct SubjectRow {
    /// The name that the user gave.
    pub name: String,
    /// `package`, `compiled`, `text`, `folder`, `bundle`, `decoder` or `encoder`.
    pub kind: &'static str,
    /// What was built, if the subject is a checkpoint.
    pub built: Option<String>,
    /// Constants of a MIL text whose weight file is missing; their numbers count as zeros.
    pub absent_constants: usize,
    /// Bytes on disk; of a checkpoint, those of the weights and tables that are written. 0 where
    /// they are not known.
    pub disk_bytes: u64,
    /// Bytes of the tables beside the programs, which the app maps.
    pub table_bytes: u64,
}

/// A rule, whole.
#[derive(Clone, Debug, Serialize)]
pub struct RuleRow {
    /// `ANE001` and on.
    pub id: &'static str,
    /// What the rule is about, in a line.
    pub title: &'static str,
    /// `note`, `warning` or `error`.
    pub severity: &'static str,
    /// `op-leaves`, `program-leaves`, `compile-fails`, `load-fails`, `run-fails`, `wrong-result` or
    /// `slow`.
    pub effect: &'static str,
    /// The error code that the failure shows, if one is known.
    pub code: Option<&'static str>,
    /// `documented`, `measured`, `inferred` or `folklore`.
    pub evidence: &'static str,
    /// Project and place, chip and release.
    pub source: &'static str,
    /// What another source says against the rule.
    pub disputed: Option<&'static str>,
    /// Why it is so.
    pub why: &'static str,
    /// What to do instead.
    pub fix: &'static str,
}

/// A program, judged for a target.
#[derive(Debug, Serialize)]
pub struct TargetRow {
    /// Chip, release, compute units and route, as text.
    pub target: String,
    /// Name of the chip.
    pub chip: &'static str,
    /// Name of the operating system and its version.
    pub release: &'static str,
    /// What was not given but follows from the tables: `chip`, `release` or both.
    pub implied: Vec<&'static str>,
    /// Compute units as Core ML spells them.
    pub units: &'static str,
    /// `coreml` or `direct`.
    pub route: &'static str,
    /// See [`Verdict`].
    pub verdict: &'static str,
    /// Ops that compute; constants do not count, and neither does a function for what is too long
    /// for the others.
    pub ops: usize,
    /// How many of them run on the Neural Engine.
    pub ane_ops: usize,
    /// `ane_ops` of `ops`, in percent.
    pub residency: f64,
    /// Findings of severity error; those about a function for what is too long for the others count
    /// only if they keep the program from running.
    pub errors: usize,
    /// Findings of severity warning, likewise.
    pub warnings: usize,
    /// Findings of severity note, likewise.
    pub notes: usize,
    /// One entry for each function.
    pub functions: Vec<FunctionRow>,
    /// Every finding, the worst first.
    pub findings: Vec<FindingRow>,
    /// What an answer of a language model takes; null where `chains` is empty.
    pub answer: Option<AnswerRow>,
    /// Figures of this chip that are taken from related chips.
    pub inferred: Vec<&'static str>,
    /// The ceilings of the roofline.
    pub ceilings: Ceilings,
    /// The memory that the functions hold once they are loaded, by the way in.
    pub memory: Vec<MemoryRow>,
}

/// What the chip does at most.
#[derive(Debug, Serialize)]
pub struct Ceilings {
    /// Peak compute in GFLOP/s.
    pub gflops: f64,
    /// Bandwidth of weights in GB/s.
    pub weight_gbps: f64,
    /// Bandwidth of on-chip memory in GB/s.
    pub local_gbps: f64,
}

/// A rule that fired, and where.
#[derive(Clone, Debug, Serialize)]
pub struct FindingRow {
    /// Id of the rule.
    pub rule: &'static str,
    /// `note`, `warning` or `error`.
    pub severity: &'static str,
    /// Null where it is about the whole program.
    pub function: Option<String>,
    /// Name of the op's first result; null where it is about the whole function.
    pub op: Option<String>,
    /// Name of the op's type, such as `conv`.
    pub kind: Option<&'static str>,
    /// Module of the checkpoint; a name that ends in `?` is a guess.
    pub place: Option<String>,
    /// What the rule found, with its numbers.
    pub message: String,
    /// Whether the baseline has it.
    pub known: bool,
}

/// A function, judged.
#[derive(Debug, Serialize)]
pub struct FunctionRow {
    /// Name of the function, behind the package where there are several.
    pub name: String,
    /// Whether it is there for what is too long for the others: `--require-ane` leaves it out,
    /// unless it is asked for.
    pub catch_all: bool,
    /// Ops that compute; constants do not count.
    pub ops: usize,
    /// How many of them run on the Neural Engine.
    pub ane_ops: usize,
    /// `ane_ops` of `ops`, in percent.
    pub residency: f64,
    /// Floating-point operations on the Neural Engine, in percent of all.
    pub residency_of_flops: f64,
    /// Time on the Neural Engine by the segmenter's estimates, in percent of all.
    pub residency_of_cost: f64,
    /// Ops that the engine refuses where nothing else may run them.
    pub refused: usize,
    /// Rules by which all of it would run elsewhere, which are disputed or folklore.
    pub may_leave: Vec<&'static str>,
    /// How long a call takes.
    pub latency: LatencyRow,
    /// What the milliseconds of its ops are made of.
    pub explained: explain::ExplainedRow,
    /// The length that the figures are of; null where the function has one only.
    pub length: Option<LengthRow>,
    /// What calls of each priced length take; empty where it has one only.
    pub lengths: Vec<PricedRow>,
    /// Where to cut it; empty where it is small enough.
    pub chunks: Vec<ChunkRow>,
    /// Why it cannot be cut; null where it can, or need not be.
    pub uncut: Option<String>,
    /// Runs of ops on one backend, in order.
    pub segments: Vec<SegmentRow>,
    /// Every op that computes, in order.
    pub table: Vec<OpRow>,
}

/// What a call takes.
#[derive(Debug, Serialize)]
pub struct LatencyRow {
    /// Expected milliseconds.
    pub ms: f64,
    /// About 10 % of calls take less.
    pub low_ms: f64,
    /// About 10 % of calls take more.
    pub high_ms: f64,
    /// Calls a second, where a call is for one token.
    pub tokens_per_second: Option<f64>,
    /// Class of whole models that the interval goes by; null for small programs.
    pub class: Option<&'static str>,
    /// In what it is far from the models that intervals were fitted to; null where it is not.
    pub far: Option<String>,
    /// What limits a call: `compute`, `weights`, `activations`, `dispatch` or `host`.
    pub bound: &'static str,
    /// What the milliseconds are made of.
    pub parts: PartsRow,
    /// Positions of most products with weights.
    pub positions: f64,
    /// Bytes of weights that a call reads.
    pub weight_bytes: f64,
    /// Bytes of activations that enter, leave or spill from the Neural Engine.
    pub activation_bytes: f64,
    /// Segments on the Neural Engine.
    pub dispatches: usize,
    /// Millijoules of the Neural Engine, of memory, and of the host's part of a call.
    pub energy_mj: f64,
    /// Low bound of `energy_mj`.
    pub low_energy_mj: f64,
    /// High bound of `energy_mj`.
    pub high_energy_mj: f64,
    /// What the millijoules are made of.
    pub energy_parts: EnergyRow,
    /// Milliseconds of reading weights, hidden behind other ops or not: what a call that is bound
    /// by weights takes at least.
    pub reading_ms: f64,
    /// Most bytes of weights, tables and activations alive at once.
    pub peak_bytes: f64,
    /// The memory of the largest device with the chip in GiB, where `peak_bytes` are more.
    #[serde(skip)]
    pub over_memory_gib: Option<u16>,
    /// `none`, `possible` or `likely`: whether the program is too large to load.
    pub load_risk: &'static str,
}

/// What a call of some length takes.
#[derive(Debug, Serialize)]
pub struct PricedRow {
    /// The length.
    #[serde(flatten)]
    pub length: LengthRow,
    /// Expected milliseconds.
    pub ms: f64,
    /// About 10 % of calls take less.
    pub low_ms: f64,
    /// About 10 % of calls take more.
    pub high_ms: f64,
}

/// A program that a function which may be too large is best cut into.
#[derive(Debug, Serialize)]
pub struct ChunkRow {
    /// The last op of the chunk, by its first result.
    pub last: String,
    /// Ops that compute.
    pub ops: usize,
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Bytes of tensors that go to the next chunk.
    pub out_bytes: f64,
}

/// What the milliseconds are made of.
#[derive(Debug, Serialize)]
pub struct PartsRow {
    /// Products.
    pub compute_ms: f64,
    /// Reading weights, as far as no other op hides it.
    pub weights_ms: f64,
    /// Elementwise ops.
    pub elements_ms: f64,
    /// Starting the tasks of ops that are not products.
    pub tasks_ms: f64,
    /// Moving activations.
    pub activations_ms: f64,
    /// Entering and leaving the Neural Engine.
    pub dispatch_ms: f64,
    /// Ops on the CPU and GPU.
    pub host_ms: f64,
}

/// Ops in a row on one backend.
#[derive(Debug, Serialize)]
pub struct SegmentRow {
    /// `ane`, `mps_graph`, `bnns` or `classic_cpu`.
    pub backend: &'static str,
    /// Position of the first in the table.
    pub first: usize,
    /// How many ops.
    pub ops: usize,
    /// Milliseconds of these ops.
    pub ms: f64,
}

/// An op that computes.
#[derive(Debug, Serialize)]
pub struct OpRow {
    /// Name of its first result.
    pub name: String,
    /// Name of the op's type, such as `conv`.
    pub kind: &'static str,
    /// Module of the checkpoint; a name that ends in `?` is a guess.
    pub place: String,
    /// What runs it: `ane`, `mps_graph`, `bnns` or `classic_cpu`.
    pub backend: &'static str,
    /// What can run it, and the milliseconds that Core ML's segmenter reckons with.
    pub supported: Vec<Estimate>,
    /// Milliseconds that it is predicted to take.
    pub ms: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Why a backend cannot run it.
    pub reasons: Vec<Reason>,
    /// Ids of the rules that fired at it.
    pub findings: Vec<&'static str>,
}

/// A backend that can run an op.
#[derive(Debug, Serialize)]
pub struct Estimate {
    /// Name of the backend.
    pub backend: &'static str,
    /// Milliseconds by the segmenter's estimate.
    pub ms: f64,
}

/// A backend that cannot.
#[derive(Debug, Serialize)]
pub struct Reason {
    /// Name of the backend.
    pub backend: &'static str,
    /// Why not.
    pub message: String,
}

/// How a report compares with an earlier one.
#[derive(Debug, Serialize)]
pub struct Baseline {
    /// Name of the earlier report.
    pub file: String,
    /// The targets of the earlier report.
    pub targets: Vec<String>,
    /// The program of the earlier report, if its name is another.
    pub other_program: Option<String>,
    /// Targets of this report that the earlier one does not have: all their findings are new.
    pub missing: Vec<String>,
    /// Findings that were there already.
    pub known: usize,
    /// Findings that were not.
    pub new: usize,
    /// Findings that are there no longer.
    pub fixed: Vec<Fixed>,
}

/// A finding that is gone.
#[derive(Clone, Debug, Serialize)]
pub struct Fixed {
    /// The target.
    pub target: String,
    /// Id of the rule.
    pub rule: String,
    /// The function; null where the finding was about the whole program.
    pub function: Option<String>,
    /// The op; null where the finding was about the whole function.
    pub op: Option<String>,
    /// What the rule had found.
    pub message: String,
}

/// How a file of Apple's tools and the report agree.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    /// Name of the file.
    pub file: String,
    /// `analytics` or `plan`.
    pub kind: &'static str,
    /// The target of the report.
    pub target: String,
    /// Ops that both have.
    pub matched: usize,
    /// Ops that the file does not judge: Core ML folds some away.
    pub only_here: usize,
    /// Ops of the file that the program does not have.
    pub only_there: usize,
    /// How often both choose the same device.
    pub selected: Agreement,
    /// How often both name the same devices as able.
    pub supported: Agreement,
    /// How far the times are apart.
    pub estimates: EstimateScore,
    /// Every op that the two judge differently.
    pub differences: Vec<Difference>,
}

/// How many of the compared ops agree.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Agreement {
    /// Ops that agree.
    pub same: usize,
    /// Ops compared.
    pub of: usize,
}

/// How far estimates, or shares of the cost, differ.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EstimateScore {
    /// Ops compared.
    pub of: usize,
    /// Median of how far ours is off, over theirs; null of none.
    pub median_error: Option<f64>,
    /// How many, 0 to 1, are off by a quarter at most; null of none.
    pub within_quarter: Option<f64>,
}

/// An op that the file and the report judge differently.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The function.
    pub function: String,
    /// Name of its first result.
    pub op: String,
    /// Name of the op's type.
    pub kind: String,
    /// `selected` or `supported`.
    pub what: &'static str,
    /// What the audit says.
    pub here: String,
    /// What the file says.
    pub there: String,
}

/// A length of the cache and what a call of `decode` takes with it.
#[derive(Debug, Serialize)]
pub struct ContextRow {
    /// Tokens that the cache holds.
    pub context: usize,
    /// The target.
    pub target: String,
    /// Expected milliseconds.
    pub ms: f64,
    /// About 10 % of calls take less.
    pub low_ms: f64,
    /// About 10 % of calls take more.
    pub high_ms: f64,
    /// Calls a second.
    pub tokens_per_second: Option<f64>,
}

impl Report {
    /// The rule of an id that fired.
    pub fn rule(&self, id: &str) -> Option<&RuleRow> {
        self.rules.iter().find(|r| r.id == id)
    }
}

impl LatencyRow {
    /// The expected milliseconds and the interval that holds 80 % of calls: `0.801 (0.684-0.937)`.
    pub fn interval(&self) -> String {
        between(self.ms, self.low_ms, self.high_ms)
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
    /// The length that the figures are for, as ` at 512`; empty where the length is fixed.
    pub fn shown_length(&self) -> String {
        let length = self.length.as_ref();
        length
            .map(|l| format!(" at {}", l.text))
            .unwrap_or_default()
    }
}

impl From<&Rule> for RuleRow {
    fn from(rule: &Rule) -> Self {
        let (effect, code) = match rule.effect {
            Effect::OpLeaves => ("op-leaves", None),
            Effect::ProgramLeaves => ("program-leaves", None),
            Effect::CompileFails(code) => ("compile-fails", code),
            Effect::LoadFails(code) => ("load-fails", code),
            Effect::RunFails(code) => ("run-fails", code),
            Effect::WrongResult => ("wrong-result", None),
            Effect::Slow => ("slow", None),
        };
        Self {
            id: rule.id,
            title: rule.title,
            severity: rule.severity.name(),
            effect,
            code,
            evidence: rule.evidence.name(),
            source: rule.source,
            disputed: (!rule.disputed.is_empty()).then_some(rule.disputed),
            why: rule.why,
            fix: rule.fix,
        }
    }
}
