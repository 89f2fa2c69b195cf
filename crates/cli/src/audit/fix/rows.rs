//! Prints the report of `thane audit --fix` as text or JSON.

use std::path::Path;

use serde::Serialize;
use thane_audit::fix::{Measure, Proof, Report, Verdict};
use thane_audit::format::wrap::{COLUMNS, wrap};

use super::Request;
use crate::app::App;
use crate::exit::Outcome;

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    from: &'a Path,
    to: &'a Path,
    /// Whether `to` was written: not if there was nothing to fix.
    written: bool,
    target: String,
    before: Figures,
    after: Figures,
    steps: Vec<StepRow>,
    left: Vec<LeftRow>,
    interface: Vec<ChangedRow>,
}

#[derive(Serialize)]
struct Figures {
    ms: f64,
    residency: f64,
    ops: usize,
    findings: usize,
    errors: usize,
}

#[derive(Serialize)]
struct StepRow {
    fix: &'static str,
    what: &'static str,
    rules: Vec<&'static str>,
    function: String,
    ops: Vec<PlaceRow>,
    kept: bool,
    proven: bool,
    /// The largest error over the largest output, where the rewrite is kept and changes precision.
    lossy_error: Option<f64>,
    /// How it was proven or measured, or why it is not kept.
    reason: String,
    before: Figures,
    after: Figures,
}

#[derive(Serialize)]
struct PlaceRow {
    op: String,
    layer: String,
}

#[derive(Serialize)]
struct LeftRow {
    rule: &'static str,
    function: String,
    op: Option<String>,
    layer: Option<String>,
    findings: usize,
    reason: String,
}

/// An input, output or state whose type changed.
#[derive(Serialize)]
struct ChangedRow {
    function: String,
    role: &'static str,
    name: String,
    was: String,
    is: String,
    /// Content of the padding.
    padding: &'static str,
}

pub fn print(report: &Report, request: &Request<'_>, app: &App) -> Outcome {
    if !app.output.is_json() {
        let text: String = report.to_string().lines().map(wrapped).collect();
        let to = request.to.display();
        if report.is_unchanged() {
            app.output.data(&text)?;
            app.output
                .say(&format!("thane: nothing to fix: {to} is not written"));
            return Ok(());
        }
        app.output.data(&format!("{text}{to}\n"))?;
        // Each rewrite has so many trials in a run, and what was kept is tried no more.
        let mut reasons = report.left.iter().map(|left| &left.reason);
        let is_short = reasons.any(|reason| reason.ends_with("too many trials"));
        if is_short && report.kept().next().is_some() {
            app.output
                .say("thane: not every place was tried: too many trials");
            app.output.say(&format!(
                "  try: thane audit {} --fix -o NEXT, which tries those that are left",
                request.to.display()
            ));
        }
        return Ok(());
    }
    let steps = report.steps.iter().map(|s| {
        let (kept, proven, lossy_error, reason) = match &s.verdict {
            Verdict::Kept(Proof::Equal(how)) => (true, true, None, how.clone()),
            Verdict::Kept(Proof::Lossy { error, how }) => (true, false, Some(*error), how.clone()),
            Verdict::Kept(Proof::Differs(how) | Proof::Unknown(how)) => {
                (true, false, None, how.clone())
            }
            Verdict::Rejected(reason) => (false, false, None, reason.clone()),
        };
        let ops = s.sites.iter().map(|p| PlaceRow {
            op: p.op.clone(),
            layer: p.layer.clone(),
        });
        StepRow {
            fix: s.fix,
            what: s.what,
            rules: s.rules.clone(),
            function: s.function.clone(),
            ops: ops.collect(),
            kept,
            proven,
            lossy_error,
            reason,
            before: figures(&s.before),
            after: figures(&s.after),
        }
    });
    let left = report.left.iter().map(|l| LeftRow {
        rule: l.rule,
        function: l.function.clone(),
        op: l.place.as_ref().map(|p| p.op.clone()),
        layer: l.place.as_ref().map(|p| p.layer.clone()),
        findings: l.n,
        reason: l.reason.clone(),
    });
    let interface = report.interface.iter().map(|c| ChangedRow {
        function: c.function.clone(),
        role: c.role,
        name: c.name.clone(),
        was: c.was.clone(),
        is: c.is.clone(),
        padding: c.padding(),
    });
    Ok(app.output.json(&Printed {
        from: request.from,
        to: request.to,
        written: !report.is_unchanged(),
        target: report.target.to_string(),
        before: figures(&report.before),
        after: figures(&report.after),
        steps: steps.collect(),
        left: left.collect(),
        interface: interface.collect(),
    })?)
}

/// A line of a report as lines that fit: what follows is indented as the line is, or as what stands
/// behind its first word.
fn wrapped(line: &str) -> String {
    /// Columns of `fixed` and its like, with the space behind.
    const WORD: usize = 6;
    let text = line.trim_start();
    if line.chars().count() <= COLUMNS {
        return format!("{line}\n");
    }
    match text.split_once(' ') {
        Some((word, rest)) if text.len() == line.len() && word.len() < WORD => {
            wrap(word, WORD, rest)
        }
        _ => wrap("", line.len() - text.len(), text),
    }
}

fn figures(m: &Measure) -> Figures {
    Figures {
        ms: m.ms,
        residency: m.residency * 100.0,
        ops: m.n_ops,
        findings: m.n_findings,
        errors: m.n_errors,
    }
}
