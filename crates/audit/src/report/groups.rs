//! Groups findings by rule, over all targets, for the formats that people read.

use super::{FindingRow, Report, RuleRow};
use crate::number::counted;

/// A rule that fired.
pub struct Group<'a> {
    /// The rule.
    pub rule: &'a RuleRow,
    /// Where it fired.
    pub places: Vec<FindingPlace<'a>>,
    /// Positions of the targets that it fired for.
    pub targets: Vec<usize>,
}

/// A place that a rule fired at.
pub struct FindingPlace<'a> {
    /// The finding on the first of these targets.
    pub finding: &'a FindingRow,
    /// Positions of the targets that it fired for.
    pub targets: Vec<usize>,
    /// Whether the baseline has it for all of these.
    pub known: bool,
}

/// The rules that fired, errors first.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for severity in ["error", "warning", "note"] {
        let rules = report.rules.iter().filter(|r| r.severity == severity);
        groups.extend(
            rules
                .map(|rule| group(report, rule))
                .filter(|group| !group.places.is_empty()),
        );
    }
    groups
}

fn group<'a>(report: &'a Report, rule: &'a RuleRow) -> Group<'a> {
    let mut places: Vec<FindingPlace<'a>> = Vec::new();
    let mut at = std::collections::HashMap::new();
    let mut targets = Vec::new();
    for (i, target) in report.targets.iter().enumerate() {
        // Two findings that say the same of one target are two places.
        let mut seen = std::collections::HashMap::new();
        for f in target.findings.iter().filter(|f| f.rule == rule.id) {
            if !targets.contains(&i) {
                targets.push(i);
            }
            let what = (&f.function, &f.op, &f.message);
            let nth = seen.entry(what).and_modify(|n| *n += 1).or_insert(0usize);
            let index = *at.entry((what, *nth)).or_insert_with(|| {
                places.push(FindingPlace {
                    finding: f,
                    targets: Vec::new(),
                    known: true,
                });
                places.len() - 1
            });
            let place: &mut FindingPlace<'_> = &mut places[index];
            place.targets.push(i);
            place.known &= f.known;
        }
    }
    Group {
        rule,
        places,
        targets,
    }
}

/// `6 findings: 1 error, 4 warnings, 1 note`; what several targets have in common counts once.
pub fn counts(groups: &[Group<'_>]) -> String {
    let of = |severity: &str| {
        groups
            .iter()
            .filter(|g| g.rule.severity == severity)
            .map(|g| g.places.len())
            .sum::<usize>()
    };
    let all = of("error") + of("warning") + of("note");
    if all == 0 {
        return "no findings".to_owned();
    }
    let parts = ["error", "warning", "note"]
        .map(|s| counted(of(s), s))
        .join(", ");
    format!("{}: {parts}", counted(all, "finding"))
}

impl Report {
    /// Some of the targets by name between marks; empty where it is all of them, or `whole`.
    pub fn names_of(&self, targets: &[usize], whole: &[usize], marks: [&str; 2]) -> String {
        let names = targets.iter().filter_map(|i| self.targets.get(*i));
        let names: Vec<String> = names.map(|t| t.short()).collect();
        if names.is_empty() || targets.len() == self.targets.len() || targets == whole {
            return String::new();
        }
        let [before, after] = marks;
        format!("{before}{}{after}", names.join(", "))
    }
}
