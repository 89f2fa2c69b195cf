//! Requirements of the user: the share of ops that must run on the Neural Engine, and the findings
//! that are denied.

use std::collections::BTreeSet;

use super::{FindingRow, FunctionRow, Report, TargetRow};
use crate::number::{counted, predicted_bytes, short};
use crate::rule::{Effect, Rule, Severity};
use crate::rules;
use thane_mil::nearest::nearest;

/// A word that is neither a severity nor a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "neither a severity (note, warning, error) nor a rule: thane explain --list has them all{}",
    nearest.map(|name| format!("; the nearest name is {name}")).unwrap_or_default()
)]
pub struct UnknownDeny {
    /// The severity or rule that is spelled most like it.
    pub nearest: Option<&'static str>,
}

/// A value of `--deny`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deny {
    /// Findings of this rule.
    Rule(&'static str),
    /// Findings as bad as this, or worse.
    Severity(Severity),
}

impl Deny {
    /// Parses `ANE102`, `error`, `warning` or `note`.
    pub fn parse(text: &str) -> Result<Self, UnknownDeny> {
        if let Some(severity) = Severity::parse(text) {
            return Ok(Self::Severity(severity));
        }
        let rule = rules::all().find(|r| r.id.eq_ignore_ascii_case(text));
        rule.map(|r| Self::Rule(r.id)).ok_or_else(|| {
            let severity = nearest(text, Severity::ALL.map(Severity::name));
            let nearest = severity.or_else(|| nearest_rule(text));
            UnknownDeny { nearest }
        })
    }

    fn holds(self, rule: &str, severity: &str) -> bool {
        match self {
            Self::Rule(id) => id == rule,
            Self::Severity(least) => Severity::parse(severity) >= Some(least),
        }
    }

    /// The value as a flag has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule(id) => id,
            Self::Severity(severity) => severity.name(),
        }
    }
}

/// The rule whose id is spelled most like a text: `ANE7` is ANE007.
pub fn nearest_rule(text: &str) -> Option<&'static str> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let id = format!("ANE{digits:0>3}");
    let exact = rules::all()
        .map(|r| r.id)
        .find(|r| !digits.is_empty() && *r == id);
    exact.or_else(|| nearest(text, rules::all().map(|r| r.id)))
}

/// What the user requires of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requirements<'a> {
    /// The least percentage of a function's ops that must run on the Neural Engine.
    pub least: Option<f64>,
    /// Whether rules that sources contradict, or that are folklore, do not break `least`.
    pub allow_disputed: bool,
    /// The most milliseconds that a call of a function may be predicted to take.
    pub most_ms: Option<f64>,
    /// The findings that are denied.
    pub denied: &'a [Deny],
}

/// Judge a report by the requirements; findings that the baseline has do not count.
pub fn judge(report: &mut Report, required: Requirements<'_>) {
    let Requirements { denied, .. } = required;
    let share = required
        .least
        .map(|least| (least, format!("--require-ane {least}")));
    let time = required
        .most_ms
        .map(|most| (most, format!("--max-ms {most}")));
    let numbers = [&share, &time].into_iter().flatten();
    let requirements: Vec<String> = numbers
        .map(|(_, flag)| flag.clone())
        .chain(denied.iter().map(|d| format!("--deny {}", d.name())))
        .collect();
    let denials = &requirements[requirements.len() - denied.len()..];
    let (mut failures, mut found, mut broken_ones) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for target in &report.targets {
        if let Some((least, flag)) = &share {
            let missing = unmet(target, *least, required.allow_disputed);
            broken_ones.extend(Some(flag).filter(|_| !missing.is_empty()));
            failures.extend(missing);
        }
        if let Some((most, flag)) = &time {
            let late = slow(target, *most);
            broken_ones.extend(Some(flag).filter(|_| !late.is_empty()));
            failures.extend(late);
        }
        for (deny, requirement) in denied.iter().zip(denials) {
            if let Some(failure) = broken(report, target, *deny) {
                broken_ones.insert(requirement);
                failures.push(failure);
            }
        }
        let is_denied = |f: &&FindingRow| {
            let holds = |deny: &Deny| deny.holds(f.rule, f.severity);
            !f.known && is_asked(target, f) && denied.iter().any(holds)
        };
        found.extend(target.findings.iter().filter(is_denied).map(|f| f.rule));
    }
    report.unmet = requirements
        .iter()
        .filter(|one| broken_ones.contains(one))
        .cloned()
        .collect();
    report.requirements = requirements;
    report.passed = failures.is_empty();
    report.denied = found.into_iter().collect();
    report.failures = failures;
}

/// The functions of a target that fail `--require-ane`: functions with too few ops on the engine,
/// and functions that a finding keeps off it altogether, or may keep off it unless disputed rules
/// are allowed. The catch-all function is exempt.
fn unmet(target: &TargetRow, least: f64, allow_disputed: bool) -> Vec<String> {
    let name = target.short();
    let mut failures = Vec::new();
    for f in target.functions.iter().filter(|f| !f.catch_all) {
        if f.ops == 0 && least > 0.0 {
            failures.push(format!(
                "{name}: `{}` has no op, so nothing of it runs on the engine",
                f.name
            ));
        } else if f.residency < least {
            failures.push(format!(
                "{name}: {} of {} of `{}` are on the engine, {:.2} %, {least} % are required",
                f.ane_ops,
                counted(f.ops, "op"),
                f.name,
                f.residency
            ));
        }
        if least > 0.0 && f.residency >= least && !allow_disputed {
            failures.extend(may_leave(target, f));
        }
        if f.refused > 0 {
            let ops = counted(f.refused, "op");
            failures.push(format!(
                "{name}: the engine refuses {ops} of `{}`, so that it does not compile",
                f.name
            ));
        }
        if let Some(gib) = f.latency.over_memory_gib {
            failures.push(format!(
                "{name}: `{}` needs {} at once, devices with this chip have {gib} GiB at most",
                f.name,
                predicted_bytes(f.latency.peak_bytes)
            ));
        }
    }
    failures.extend(stopped(target, allow_disputed));
    failures
}

/// A failure for each function whose predicted time is more than `most` milliseconds. The catch-all
/// function is exempt.
fn slow(target: &TargetRow, most: f64) -> Vec<String> {
    let asked = target.functions.iter().filter(|f| !f.catch_all);
    let late = asked.filter(|f| f.latency.ms > most);
    late.map(|f| {
        let l = &f.latency;
        format!(
            "{}: a call of `{}` takes {} ms ({} to {} in 80 % of cases), {most} ms are allowed",
            target.short(),
            f.name,
            short(l.ms),
            short(l.low_ms),
            short(l.high_ms)
        )
    })
    .collect()
}

/// A failure for each disputed rule by which all ops of a function would leave the engine.
fn may_leave(target: &TargetRow, f: &FunctionRow) -> Vec<String> {
    let of_rule = |rule: &str| -> Vec<&FindingRow> {
        let found = target.findings.iter().filter(|found| !found.known);
        found
            .filter(|found| found.rule == rule && found.function.as_ref() == Some(&f.name))
            .collect()
    };
    let failure = |id: &&'static str| {
        let found = of_rule(id);
        let rule = rules::all().find(|rule| rule.id == *id)?;
        (!found.is_empty()).then(|| {
            format!(
                "{}: {} of `{}` may leave the engine: {id} ({}; sources differ){}; \
                 --allow-disputed accepts that",
                target.short(),
                counted(f.ops, "op"),
                f.name,
                rule.title,
                ops_of(&found)
            )
        })
    };
    f.may_leave.iter().filter_map(failure).collect()
}

/// ` at `a`, `b` and 3 more ops`.
fn ops_of(found: &[&FindingRow]) -> String {
    /// Ops that are named.
    const MOST: usize = 3;
    let ops: Vec<&str> = found.iter().filter_map(|f| f.op.as_deref()).collect();
    let named: Vec<String> = ops.iter().take(MOST).map(|op| format!("`{op}`")).collect();
    match (named.is_empty(), ops.len().saturating_sub(MOST)) {
        (true, _) => String::new(),
        (_, 0) => format!(" at {}", named.join(", ")),
        (_, n) => format!(" at {} and {}", named.join(", "), counted(n, "more op")),
    }
}

/// A failure for each rule and function that does not compile, load or run; without those of
/// disputed rules if these are allowed.
fn stopped(target: &TargetRow, allow_disputed: bool) -> impl Iterator<Item = String> {
    let found = target.findings.iter().filter(|f| !f.known);
    let found = found.filter(|f| !is_of_catch_all(target, f));
    let places: BTreeSet<(&str, Option<&str>)> =
        found.map(|f| (f.rule, f.function.as_deref())).collect();
    let counts = move |rule: &&Rule| rule.stops() && !(allow_disputed && rule.is_doubtful());
    let rule = move |id: &str| rules::all().filter(counts).find(|rule| rule.id == id);
    let stopped = places
        .into_iter()
        .filter_map(move |(id, function)| Some((rule(id)?, function)));
    stopped.map(|(rule, function)| {
        let of = function.map_or("the program".to_owned(), |f| format!("`{f}`"));
        let what = match (rule.effect, rule.is_certain()) {
            (Effect::CompileFails(_), true) => "does not compile",
            (Effect::CompileFails(_), false) => "may not compile",
            (Effect::LoadFails(_), true) => "does not load",
            (Effect::LoadFails(_), false) => "may not load",
            (_, true) => "fails when it is called",
            (_, false) => "may fail when it is called",
        };
        let doubt = if rule.is_doubtful() {
            "; sources differ"
        } else {
            ""
        };
        let (name, id, title) = (target.short(), rule.id, rule.title);
        format!("{name}: {of} {what} on the engine: {id} ({title}{doubt})")
    })
}

/// Whether a finding is about the function for what is too long for the others.
fn is_of_catch_all(target: &TargetRow, finding: &FindingRow) -> bool {
    let of = |f: &&FunctionRow| finding.function.as_ref() == Some(&f.name);
    target.functions.iter().filter(of).any(|f| f.catch_all)
}

/// Whether a finding counts for `--deny`. Those about the catch-all function do if they keep the
/// program from running.
fn is_asked(target: &TargetRow, finding: &FindingRow) -> bool {
    let stops = || rules::all().any(|rule| rule.id == finding.rule && rule.stops());
    !is_of_catch_all(target, finding) || stops()
}

/// The failure of one `--deny` on a target, if it finds something.
fn broken(report: &Report, target: &TargetRow, deny: Deny) -> Option<String> {
    let found: Vec<&FindingRow> = target
        .findings
        .iter()
        .filter(|f| !f.known && deny.holds(f.rule, f.severity) && is_asked(target, f))
        .collect();
    if found.is_empty() {
        return None;
    }
    let new = if report.baseline.is_some() {
        "new "
    } else {
        ""
    };
    let what = counted(found.len(), &format!("{new}finding"));
    let by = deny.name();
    let which = if matches!(deny, Deny::Rule(_)) {
        String::new()
    } else {
        format!(": {}", rules_of(&found))
    };
    Some(format!(
        "{}: {what} denied by --deny {by}{which}",
        target.short()
    ))
}

/// `ANE070, ANE046 (2 places)`, in the order of the findings.
fn rules_of(found: &[&FindingRow]) -> String {
    /// Rules that are named.
    const MOST: usize = 10;
    let groups: Vec<_> = found.chunk_by(|a, b| a.rule == b.rule).collect();
    let name = |group: &&[&FindingRow]| match group.len() {
        1 => group[0].rule.to_owned(),
        n => format!("{} ({n} places)", group[0].rule),
    };
    let mut names: Vec<String> = groups.iter().take(MOST).map(name).collect();
    if groups.len() > MOST {
        names.push(format!("and {} more", counted(groups.len() - MOST, "rule")));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_is_a_rule_or_a_severity() {
        assert_eq!(Deny::parse("ane102"), Ok(Deny::Rule("ANE102")));
        assert_eq!(
            Deny::parse("Warning"),
            Ok(Deny::Severity(Severity::Warning))
        );
        assert!(
            Deny::parse("warnings")
                .unwrap_err()
                .to_string()
                .ends_with("the nearest name is warning")
        );
        assert!(
            Deny::parse("ANE-070")
                .unwrap_err()
                .to_string()
                .ends_with("the nearest name is ANE070")
        );
        assert!(
            Deny::parse("ANE999")
                .unwrap_err()
                .to_string()
                .contains("explain --list")
        );
        assert!(Deny::Severity(Severity::Warning).holds("ANE001", "error"));
        assert!(!Deny::Severity(Severity::Warning).holds("ANE001", "note"));
    }
}
