//! Audits a program that `thane convert` just wrote, and sums up the report in a few lines: whether
//! the program runs on the Neural Engine, what it takes, and what to do.

use std::path::Path;

use serde::Serialize;
use thane_audit::calls::AnswerRow;
use thane_audit::fix::FIXES;
use thane_audit::format::sentence::{sentence, sizes};
use thane_audit::number::{counted, share};
use thane_audit::report::{self, FunctionRow, LengthRow, Scope, TargetRow};
use thane_audit::rules;
use thane_audit::target::Target;
use thane_runtime::{STATES_NEED, has_states};

use super::subject;
use crate::app::App;
use crate::exit::Failure;
use crate::planned::Build;

/// The summary of a report.
#[derive(Debug, Serialize)]
pub struct Verdict {
    pub target: String,
    /// The parts of the target that the user did not give: `chip`, `release` or both.
    pub implied: Vec<&'static str>,
    /// A word of [`report::Verdict`].
    pub verdict: &'static str,
    pub ops: usize,
    pub ane_ops: usize,
    pub residency: f64,
    pub errors: usize,
    pub warnings: usize,
    /// The rules that keep the program off the Neural Engine.
    pub fails_by: Vec<&'static str>,
    /// The function that the milliseconds are for.
    pub function: Option<String>,
    pub length: Option<LengthRow>,
    pub ms: Option<f64>,
    pub low_ms: Option<f64>,
    pub high_ms: Option<f64>,
    /// The predicted speed of answers; null if the model is no language model.
    pub answer: Option<AnswerRow>,
    /// Bytes of all files.
    pub disk_bytes: u64,
    /// Bytes of memory once all functions are loaded.
    pub loaded_bytes: Option<f64>,
    /// Bytes of the tables beside the programs, which the app maps.
    pub table_bytes: u64,
    /// What to do.
    pub remedy: String,
    #[serde(skip)]
    lines: Vec<String>,
}

/// Audit the package at `path` for each target; `is_portable` if it was not written for the Neural
/// Engine.
pub fn of(
    path: &Path,
    targets: &[Target],
    is_portable: bool,
    build: &Build<'_>,
    app: &App,
) -> Result<Vec<Verdict>, Failure> {
    let subject = subject::find(path, build, app)?.subject;
    let report = report::build(&subject, targets, Scope::default());
    let has_states = subject.parts.iter().any(|part| has_states(&part.program));
    let sizes = (report.subject.disk_bytes, report.subject.table_bytes);
    let verdict = |t: &TargetRow| one(t, (has_states, is_portable), sizes, path);
    Ok(report.targets.iter().map(verdict).collect())
}

fn one(
    t: &TargetRow,
    (has_states, is_portable): (bool, bool),
    (disk_bytes, table_bytes): (u64, u64),
    path: &Path,
) -> Verdict {
    let f = principal(t);
    let stops = stops(t);
    let remedy = match () {
        // No form of the package helps there.
        () if has_states && stops.contains(&"ANE143") => newer_system(t),
        () => remedy(t, &stops, is_portable, path),
    };
    let memory = t.memory.iter().find(|row| row.route == t.route);
    let mut lines = vec![said(t, f, &stops)];
    if let Some(answer) = &t.answer {
        lines.push(format!("  {}", answer.text()));
        lines.push(format!("  {}", sizes(disk_bytes, memory, table_bytes)));
    }
    lines.push(format!("  try: {remedy}"));
    Verdict {
        target: t.target.clone(),
        implied: t.implied.clone(),
        verdict: t.verdict,
        ops: t.ops,
        ane_ops: t.ane_ops,
        residency: t.residency,
        errors: t.errors,
        warnings: t.warnings,
        function: f.map(|f| f.name.clone()),
        length: f.and_then(|f| f.length.clone()),
        ms: f.map(|f| f.latency.ms),
        low_ms: f.map(|f| f.latency.low_ms),
        high_ms: f.map(|f| f.latency.high_ms),
        answer: t.answer,
        disk_bytes,
        loaded_bytes: memory.map(|row| row.bytes),
        table_bytes,
        remedy,
        lines,
        fails_by: stops,
    }
}

impl Verdict {
    /// What is said of it.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}

/// The function that is called most: `decode`, else the slowest one that is meant for the engine.
fn principal(t: &TargetRow) -> Option<&FunctionRow> {
    let is_decode = |f: &&FunctionRow| f.name.rsplit('/').next() == Some("decode");
    let slowest = || {
        let called = t.functions.iter().filter(|f| !f.catch_all);
        called.max_by(|a, b| a.latency.ms.total_cmp(&b.latency.ms))
    };
    let decode = t.functions.iter().find(is_decode);
    decode.or_else(slowest).or(t.functions.first())
}

/// The rules that keep the program off the Neural Engine altogether.
fn stops(t: &TargetRow) -> Vec<&'static str> {
    let is_stop = |id: &&str| rules::all().any(|rule| rule.id == *id && rule.stops());
    let mut rules: Vec<&'static str> = t.findings.iter().map(|f| f.rule).filter(is_stop).collect();
    rules.dedup();
    rules
}

fn said(t: &TargetRow, f: Option<&FunctionRow>, stops: &[&str]) -> String {
    let by = if stops.is_empty() {
        String::new()
    } else {
        format!(" ({})", stops.join(", "))
    };
    let ops = match f {
        Some(f) if t.answer.is_none() => format!(
            "{} % of {} of {} there, and a call{} takes {} ms",
            share(f.residency),
            counted(f.ops, "op"),
            f.name,
            f.shown_length(),
            f.latency.interval()
        ),
        _ => format!("{} % of {} there", share(t.residency), counted(t.ops, "op")),
    };
    format!("audit for {}: {}{by}; {ops}", t.short(), sentence(t))
}

fn newer_system(t: &TargetRow) -> String {
    let target = t.short();
    let chip = target.split('+').next().unwrap_or_default();
    let is_phone = chip.starts_with('a');
    let system = if is_phone { "ios18" } else { "macos15" };
    format!("--target {chip}+{system}: {STATES_NEED}")
}

/// Whether `audit --fix` has a rewrite for a rule that keeps the types of inputs and outputs.
fn is_rewritten(rule: &str) -> bool {
    FIXES.iter().any(|fix| fix.rules.contains(&rule))
}

fn remedy(t: &TargetRow, stops: &[&str], is_portable: bool, path: &Path) -> String {
    let direct = if t.route == "direct" { " --direct" } else { "" };
    let audit = format!(
        "thane audit {} --target {}{direct}",
        path.display(),
        t.short()
    );
    if is_portable && t.ane_ops < t.ops {
        return format!(
            "--form ane, which is written for the Neural Engine and which mixtures of experts \
             cannot have; {audit} says what keeps this form off"
        );
    }
    // The one stop that convert itself can avoid, unless the model is cut.
    let is_cut = t.functions.iter().any(|f| f.name.contains('/'));
    if stops.contains(&"ANE071") && !is_cut {
        let names: Vec<&str> = t.functions.iter().map(|f| f.name.as_str()).collect();
        return format!(
            "one package for each function: --functions {}",
            names.join(", then --functions ")
        );
    }
    let error = || t.findings.iter().find(|f| f.severity == "error");
    let worst = stops.first().copied().or_else(|| error().map(|f| f.rule));
    match worst {
        // The states of a model have the size of its heads.
        Some(id @ "ANE070") => format!(
            "a model whose heads have a multiple of 32 elements ({id}), or run this one on the CPU \
             and GPU; {audit} shows where"
        ),
        Some(id) if is_rewritten(id) => {
            format!("{audit} --fix -o FIXED.mlpackage, which rewrites what {id} finds")
        }
        Some(id) => format!("thane explain {id}, which says why, and {audit}, which shows where"),
        None if t.ane_ops == t.ops => format!("{audit}, for times and what makes it slower"),
        None => format!("{audit}, for the ops that run elsewhere and why"),
    }
}
