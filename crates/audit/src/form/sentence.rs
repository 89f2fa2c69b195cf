//! Sentences that several text forms share: the verdict, and which requirements hold.

use crate::report::{Report, TargetRow};

/// Which requirements hold and which do not, as lines; `failures` adds a line for each failure.
pub fn closing(report: &Report, failures: bool) -> Vec<String> {
    if report.requirements.is_empty() {
        return Vec::new();
    }
    let asked = report.requirements.join(", ");
    if report.passed {
        return vec![format!("requirements hold: {asked}")];
    }
    let denied = if report.denied.is_empty() {
        String::new()
    } else {
        format!("; denied: {}", report.denied.join(", "))
    };
    let does = if report.unmet.len() == 1 {
        "a requirement does"
    } else {
        "requirements do"
    };
    let first = format!("{does} not hold: {}{denied}", report.unmet.join(", "));
    let held: Vec<&str> = report
        .requirements
        .iter()
        .filter(|one| !report.unmet.contains(one))
        .map(String::as_str)
        .collect();
    let first = if held.is_empty() {
        first
    } else {
        format!("{first}; holds: {}", held.join(", "))
    };
    let others = report
        .failures
        .iter()
        .filter(|_| failures)
        .map(|failure| format!("- {failure}"));
    std::iter::once(first).chain(others).collect()
}

/// The verdict on a target as a sentence.
pub fn sentence(t: &TargetRow) -> String {
    let direct = t.route == "direct";
    let said = match t.verdict {
        "fails" if direct => "the engine refuses it",
        "fails" => "fails to compile, load or run on the engine",
        "may-fail" => "may fail on the engine: sources differ",
        "wrong-results" => "runs, with wrong results",
        "may-leave-engine" => "runs on the engine, or all of it elsewhere: sources differ",
        "off-engine" => "does not run on the engine",
        "partly-on-engine" => "runs on the engine in part",
        "mostly-on-engine" => "runs on the engine, but for some ops",
        _ => "runs on the engine",
    };
    said.to_owned()
}
