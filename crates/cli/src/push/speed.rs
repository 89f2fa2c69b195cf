//! The predicted speed of a publication, and what the audit says of it, by chip.

use std::path::Path;

use thane_audit::format::sentence::said_of;
use thane_audit::report::{self, Report, Scope, TargetRow};
use thane_audit::target::{Route, Target, Units};

use crate::app::App;
use crate::audit::subject;
use crate::exit::Failure;

/// The chips of the table: what is sold or common in the end of 2026.
const CHIPS: [&str; 8] = ["m1", "m2", "m3", "m4", "m5", "a17-pro", "a18", "a19"];

/// The prediction for each chip.
pub struct Speeds {
    /// The systems, which the chips have in common.
    pub systems: Vec<String>,
    /// Names of chips.
    pub chips: Vec<&'static str>,
    /// A row for each function or figure: its name, and a text for each chip.
    pub rows: Vec<(String, Vec<String>)>,
    /// What the audit says, for each chip.
    pub verdicts: Vec<&'static str>,
    /// Rules that fired as errors or warnings, each with its id and title.
    pub rules: Vec<(&'static str, &'static str)>,
}

/// Audits the packages at `path`. Weights are not read.
pub fn speeds(path: &Path, app: &App) -> Result<Speeds, Failure> {
    app.output.busy("predicting the speed");
    let subject = subject::local(path, app)?.subject;
    let parse = |name: &&str| Target::parse(name, Units::default(), Route::default()).ok();
    let targets: Vec<Target> = CHIPS.iter().filter_map(parse).collect();
    let report = report::build(&subject, &targets, Scope::default());
    let mut systems: Vec<String> = report
        .targets
        .iter()
        .map(|t| t.release.to_owned())
        .collect();
    systems.dedup();
    systems.sort();
    systems.dedup();
    Ok(Speeds {
        systems,
        chips: report.targets.iter().map(|t| t.chip).collect(),
        rows: rows(&report),
        verdicts: report
            .targets
            .iter()
            .map(|t| said_of(t.verdict, false))
            .collect(),
        rules: rules(&report),
    })
}

/// Errors and warnings about functions that are called as a rule, not only for what is too long.
fn rules(report: &Report) -> Vec<(&'static str, &'static str)> {
    let counts = |target: &TargetRow, id: &str| {
        let rare = target.functions.iter().filter(|f| f.catch_all);
        let rare: Vec<&String> = rare.map(|f| &f.name).collect();
        let mut findings = target.findings.iter().filter(|finding| finding.rule == id);
        findings.any(|finding| finding.function.as_ref().is_none_or(|f| !rare.contains(&f)))
    };
    let rules = report.rules.iter().filter(|rule| rule.severity != "note");
    rules
        .filter(|rule| report.targets.iter().any(|target| counts(target, rule.id)))
        .map(|rule| (rule.id, rule.title))
        .collect()
}

fn rows(report: &Report) -> Vec<(String, Vec<String>)> {
    let answers: Vec<_> = report.targets.iter().map(|t| t.answer.as_ref()).collect();
    if let Some(Some(first)) = answers.first() {
        let row = |name: String, figure: &dyn Fn(usize) -> Option<f64>| {
            let texts = (0..answers.len()).map(|i| figure(i).map_or("-".to_owned(), shown));
            (name, texts.collect())
        };
        let of = |i: usize| answers.get(i).copied().flatten();
        return vec![
            row(format!("tokens/s at {} tokens", first.context), &|i| {
                Some(of(i)?.tokens_per_second)
            }),
            row(
                format!("ms to the first token of {}", first.prompt_tokens),
                &|i| Some(of(i)?.first_token.ms),
            ),
        ];
    }
    let functions = report.targets.first().map_or(&[][..], |t| &t.functions[..]);
    let row = |(i, f): (usize, &report::FunctionRow)| {
        let ms = |t: &TargetRow| {
            t.functions
                .get(i)
                .map_or("-".to_owned(), |f| shown(f.latency.ms))
        };
        let texts = report.targets.iter().map(ms).collect();
        (format!("{}, ms a call", f.name), texts)
    };
    let mut rows: Vec<_> = functions.iter().enumerate().map(row).collect();
    rows.sort_by_key(|(name, _)| number(name));
    rows
}

/// The first number in a name, so that L64 stands before L128; names without one stand last.
fn number(name: &str) -> u64 {
    let from = name
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(name.len());
    let digits = name[from..].split(|c: char| !c.is_ascii_digit()).next();
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(u64::MAX)
}

/// Three digits, as predictions have no more.
fn shown(figure: f64) -> String {
    match figure {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}
