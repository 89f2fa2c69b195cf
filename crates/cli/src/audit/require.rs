//! What is asked of a program: how much of it is to run on the engine, and what may not be found in it.

use thane_compile::audit::{Severity, rules};

use super::plan::{severity_name, severity_rank};
use super::report::Report;

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
    pub fn parse(text: &str) -> Result<Self, String> {
        let severities = [Severity::Note, Severity::Warning, Severity::Error];
        if let Some(severity) = severities.into_iter().find(|s| severity_name(*s) == text) {
            return Ok(Self::Severity(severity));
        }
        let rule = rules::all().find(|r| r.id.eq_ignore_ascii_case(text));
        rule.map(|r| Self::Rule(r.id)).ok_or_else(|| {
            "neither a severity (note, warning, error) nor a rule: thane explain --list has them all".to_owned()
        })
    }

    fn holds(self, rule: &str, severity: &str) -> bool {
        match self {
            Self::Rule(id) => id == rule,
            Self::Severity(least) => severity_rank(severity) >= severity_rank(severity_name(least)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rule(id) => id,
            Self::Severity(severity) => severity_name(severity),
        }
    }
}

/// Parses a share in percent.
pub fn percentage(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.trim_end_matches('%').trim().parse().ok();
    let value = value.filter(|v| (0.0..=100.0).contains(v));
    value.ok_or_else(|| "a share in percent is due, 0 to 100, such as 99.5".to_owned())
}

/// Judge a report by what is asked; findings that the baseline has do not count.
pub fn judge(report: &mut Report, least: Option<f64>, denied: &[Deny]) {
    let mut failures = Vec::new();
    for target in &report.targets {
        for function in target.functions.iter().filter(|f| !f.catch_all) {
            if let Some(least) = least.filter(|least| function.residency < *least) {
                failures.push(format!(
                    "{}: {} of {} ops of `{}` are on the engine, {:.2} %, {least} % are required",
                    target.target, function.ane_ops, function.ops, function.name, function.residency
                ));
            }
        }
        for deny in denied {
            let n = target.findings.iter().filter(|f| !f.known && deny.holds(f.rule, f.severity)).count();
            if n > 0 {
                let new = if report.baseline.is_some() { "new " } else { "" };
                let findings = if n == 1 { "finding" } else { "findings" };
                failures.push(format!("{}: {n} {new}{findings} denied by --deny {}", target.target, deny.name()));
            }
        }
    }
    report.passed = failures.is_empty();
    report.failures = failures;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_denied_is_a_rule_or_a_severity() {
        assert_eq!(Deny::parse("ane102"), Ok(Deny::Rule("ANE102")));
        assert_eq!(Deny::parse("warning"), Ok(Deny::Severity(Severity::Warning)));
        assert!(Deny::parse("ANE999").unwrap_err().contains("explain --list"));
        assert!(Deny::Severity(Severity::Warning).holds("ANE001", "error"));
        assert!(!Deny::Severity(Severity::Warning).holds("ANE001", "note"));
    }

    #[test]
    fn shares_are_percent() {
        assert_eq!((percentage("99.5"), percentage("99.5%")), (Ok(99.5), Ok(99.5)));
        for wrong in ["", "nan", "-1", "101", "many"] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
    }
}
