//! What an earlier audit found, so that only what is new counts.
//!
//! Two findings are the same if target, rule, function and op agree; their numbers may differ.
//! Findings with equal keys are counted, so that a second one is new.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

use super::{Baseline, Fixed, Report, SCHEMA};

/// Why a file cannot be a baseline.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// It is not a report in the JSON format.
    #[error("it is no report of an audit: `thane audit X --format json -o FILE` writes one")]
    NotAReport(#[source] serde_json::Error),
    /// It is the report of another program.
    #[error(
        "it is the report of {name}, none of whose functions ({functions}) this program has; make \
         the baseline from an earlier version of the same program"
    )]
    OtherProgram {
        /// The program of the earlier report.
        name: String,
        /// The functions of the earlier report.
        functions: String,
    },
    /// It is a report of another version.
    #[error("its schema is {found}, this version of Thane reads {SCHEMA}")]
    Schema {
        /// The version that the file states.
        found: u32,
    },
}

/// What is read of an earlier report; fields are only ever added to it.
#[derive(Debug, Deserialize)]
struct Earlier {
    schema: u32,
    #[serde(default)]
    subject: EarlierSubject,
    targets: Vec<EarlierTarget>,
}

#[derive(Debug, Default, Deserialize)]
struct EarlierSubject {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Deserialize)]
struct EarlierFunction {
    name: String,
}

#[derive(Debug, Deserialize)]
struct EarlierTarget {
    target: String,
    #[serde(default)]
    functions: Vec<EarlierFunction>,
    findings: Vec<EarlierFinding>,
}

#[derive(Debug, Deserialize)]
struct EarlierFinding {
    rule: String,
    function: Option<String>,
    op: Option<String>,
    #[serde(default)]
    message: String,
}

type Key = (String, String, Option<String>, Option<String>);

/// Mark the findings that an earlier report has too, and list those that are gone. `json` is the
/// earlier report in the JSON format, `file` its name for the report.
pub fn apply(report: &mut Report, file: &str, json: &[u8]) -> Result<(), BaselineError> {
    let earlier = read(json)?;
    let other_program = other_program(report, &earlier)?;
    let mut there: HashMap<Key, Vec<&EarlierFinding>> = HashMap::new();
    for target in &earlier.targets {
        for f in &target.findings {
            let key = (
                target.target.clone(),
                f.rule.clone(),
                f.function.clone(),
                f.op.clone(),
            );
            there.entry(key).or_default().push(f);
        }
    }
    let (mut known, mut new) = (0, 0);
    for target in &mut report.targets {
        for f in &mut target.findings {
            let key = (
                target.target.clone(),
                f.rule.to_owned(),
                f.function.clone(),
                f.op.clone(),
            );
            f.known = there.get_mut(&key).is_some_and(|left| left.pop().is_some());
            *(if f.known { &mut known } else { &mut new }) += 1;
        }
    }
    let judged: Vec<&str> = report.targets.iter().map(|t| t.target.as_str()).collect();
    let targets: Vec<String> = earlier.targets.iter().map(|t| t.target.clone()).collect();
    let missing = judged
        .iter()
        .filter(|target| !targets.iter().any(|t| t == *target))
        .map(|target| (*target).to_owned())
        .collect();
    // Of a target that is not judged now nothing is known.
    let left = there
        .into_iter()
        .filter(|(key, _)| judged.contains(&key.0.as_str()));
    let mut fixed: Vec<Fixed> = left
        .flat_map(|(key, left)| {
            left.into_iter()
                .map(move |f| gone(&key.0, f))
                .collect::<Vec<_>>()
        })
        .collect();
    fixed.sort_by(|a, b| {
        (&a.target, &a.rule, &a.function, &a.op).cmp(&(&b.target, &b.rule, &b.function, &b.op))
    });
    report.baseline = Some(Baseline {
        file: file.to_owned(),
        targets,
        other_program,
        missing,
        known,
        new,
        fixed,
    });
    Ok(())
}

/// The name of the program of an earlier report, if it is not that of this one. A program without a
/// function of the earlier one is another, whatever its name.
fn other_program(report: &Report, earlier: &Earlier) -> Result<Option<String>, BaselineError> {
    let before: BTreeSet<&str> = earlier
        .targets
        .iter()
        .flat_map(|t| t.functions.iter().map(|f| f.name.as_str()))
        .collect();
    let has = |name: &&str| {
        let mut functions = report.targets.iter().flat_map(|t| &t.functions);
        functions.any(|f| f.name == **name)
    };
    let name = &earlier.subject.name;
    if !before.is_empty() && !before.iter().any(has) {
        return Err(BaselineError::OtherProgram {
            name: name.clone(),
            functions: before.into_iter().collect::<Vec<_>>().join(", "),
        });
    }
    // Where a file lies says nothing of what it is.
    let last = |name: &str| {
        name.rsplit(['/', '\\'])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let is_other = !name.is_empty() && last(name) != last(&report.subject.name);
    Ok(is_other.then(|| name.clone()))
}

fn gone(target: &str, f: &EarlierFinding) -> Fixed {
    Fixed {
        target: target.to_owned(),
        rule: f.rule.clone(),
        function: f.function.clone(),
        op: f.op.clone(),
        message: f.message.clone(),
    }
}

fn read(json: &[u8]) -> Result<Earlier, BaselineError> {
    let earlier: Earlier = serde_json::from_slice(json).map_err(BaselineError::NotAReport)?;
    if earlier.schema != SCHEMA {
        let found = earlier.schema;
        return Err(BaselineError::Schema { found });
    }
    Ok(earlier)
}
