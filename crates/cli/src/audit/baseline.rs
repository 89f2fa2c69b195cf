//! What an earlier audit found, so that only what is new counts.
//!
//! A finding is the same where target, rule, function and op are; its numbers may have changed.
//! Several of one key are counted, so that a second one is new.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use thane_mil::package::read_small;

use super::report::{Report, SCHEMA};

/// How a report compares with an earlier one.
#[derive(Debug, Serialize)]
pub struct Baseline {
    pub file: String,
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
    pub target: String,
    pub rule: String,
    pub function: Option<String>,
    pub op: Option<String>,
    pub message: String,
}

/// What is read of an earlier report; fields are only ever added to it.
#[derive(Debug, Deserialize)]
struct Earlier {
    schema: u32,
    targets: Vec<EarlierTarget>,
}

#[derive(Debug, Deserialize)]
struct EarlierTarget {
    target: String,
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

/// Longest report that is read: a hundred thousand findings.
const MOST_BYTES: u64 = 1 << 28;

/// Mark the findings that the report in a file has, and say which of its are gone.
pub fn apply(report: &mut Report, file: &Path) -> anyhow::Result<()> {
    let earlier = read(file).with_context(|| file.display().to_string())?;
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
        file: file.display().to_string(),
        known,
        new,
        fixed,
    });
    Ok(())
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

fn read(file: &Path) -> anyhow::Result<Earlier> {
    let text = read_small(file, MOST_BYTES)?;
    let earlier: Earlier = serde_json::from_slice(&text)
        .context("it is no report of an audit: `thane audit X --format json -o FILE` writes one")?;
    ensure!(
        earlier.schema == SCHEMA,
        "its schema is {}, this version of Thane reads {SCHEMA}",
        earlier.schema
    );
    Ok(earlier)
}
