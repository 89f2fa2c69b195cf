//! A report as lines that grep and editors read: one for each finding, then one for each target.

use thane_mil::text::Lines;

use super::sentence::{closing, location};
use crate::number::{counted, share};
use crate::report::groups::{FindingPlace, counts, groups};
use crate::report::{Report, RuleRow, TargetRow};

/// The report; of a text with the lines that findings are about.
pub fn print(report: &Report, lines: Option<&Lines>, with_failures: bool) -> String {
    let groups = groups(report);
    let mut out = String::new();
    for group in &groups {
        let (any_length, others): (Vec<_>, Vec<_>) = group
            .places
            .iter()
            .partition(|place| place.finding.op.is_some() && is_catch_all(report, place));
        for place in others {
            out += &finding(report, group.rule, place, lines, 0);
        }
        // Every op of such a function has an open axis: one line says it.
        if let Some((first, more)) = any_length.split_first() {
            out += &finding(report, group.rule, first, lines, more.len());
        }
    }
    report.targets.iter().for_each(|t| out += &target(t));
    out += &format!("{}\n", counts(&groups));
    closing(report, with_failures)
        .iter()
        .for_each(|line| out += &format!("{line}\n"));
    out
}

/// Whether a place is in a function for what is too long for the others.
fn is_catch_all(report: &Report, place: &FindingPlace<'_>) -> bool {
    let mut functions = report.targets.iter().flat_map(|t| &t.functions);
    functions.any(|f| f.catch_all && Some(&f.name) == place.finding.function.as_ref())
}

/// A line for a place and for `n_more` other ops of its function.
fn finding(
    report: &Report,
    rule: &RuleRow,
    place: &FindingPlace<'_>,
    lines: Option<&Lines>,
    n_more: usize,
) -> String {
    let f = place.finding;
    let line = lines
        .and_then(|lines| f.line(lines))
        .map(|line| format!(":{line}"))
        .unwrap_or_default();
    let at = location(f, [usize::MAX; 2]);
    let targets = report.names_of(&place.targets, &[], [" [", "]"]);
    let known = if place.known {
        " (in the baseline)"
    } else {
        ""
    };
    let more = match n_more {
        0 => String::new(),
        n => format!(
            " (and {} of this function, which takes any length)",
            counted(n, "more op")
        ),
    };
    format!(
        "{}{line}: {} {} {at}: {}{more}{known}{targets}\n",
        report.subject.name, rule.severity, rule.id, f.message
    )
}

fn target(t: &TargetRow) -> String {
    let calls = t
        .functions
        .iter()
        .map(|f| format!("{}{} {} ms", f.name, f.shown_length(), f.latency.interval()));
    let calls: Vec<String> = calls.collect();
    let ops = counted(t.ops, "op");
    let all = format!(
        "{}: {}, {} % of {ops} on the engine",
        t.short(),
        t.verdict,
        share(t.residency)
    );
    let all = match calls.is_empty() {
        true => format!("{all}\n"),
        false => format!("{all}; {}\n", calls.join(", ")),
    };
    match &t.answer {
        Some(answer) => format!("{all}{}: {}\n", t.short(), answer.text()),
        None => all,
    }
}
