//! Apple's own word on a program against ours: `analytics.mil` of a compiled bundle, or a dump of
//! `MLComputePlan`.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use thane_mil::package::read_small;

use super::report::{OpRow, TargetRow};
use super::text::short;
use super::wrap::{shorten, wrap};
use crate::output::counted;

mod analytics;
mod dump;

/// Where something runs, whichever library does it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    Ane,
    Gpu,
    Cpu,
}

impl Device {
    /// By any of the names in use: `ane`, `bnns`, `MLNeuralEngineComputeDevice`, `.gpu`.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|w| name.contains(w));
        match () {
            () if name == "ane" || has(&["neural", "_ane"]) => Some(Self::Ane),
            () if has(&["gpu", "mps", "jit_call"]) => Some(Self::Gpu),
            () if has(&["cpu", "bnns"]) => Some(Self::Cpu),
            () => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ane => "ANE",
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        }
    }
}

/// What a file says of an op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Empty where the file does not tell functions apart.
    pub function: String,
    /// Name of its first output.
    pub name: String,
    pub selected: Option<Device>,
    pub supported: Option<BTreeSet<Device>>,
    /// Milliseconds on what runs it.
    pub ms: Option<f64>,
    /// Share of the program's cost, 0 to 1.
    pub share: Option<f64>,
}

/// How a file and the report agree.
#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    pub file: String,
    /// `analytics` or `plan`.
    pub kind: &'static str,
    pub target: String,
    /// Ops that both have.
    pub matched: usize,
    /// Ops that the file does not judge: Core ML folds some away.
    pub only_here: usize,
    pub only_there: usize,
    pub selected: Agreement,
    pub supported: Agreement,
    pub estimates: EstimateScore,
    pub differences: Vec<Difference>,
}

/// Of how many, how many are the same.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Agreement {
    pub same: usize,
    pub of: usize,
}

/// How far estimates, or shares of the cost, are apart.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct EstimateScore {
    pub of: usize,
    /// Median of how far ours is off, over theirs; null of none.
    pub median_error: Option<f64>,
    /// How many, 0 to 1, are off by a quarter at most; null of none.
    pub within_quarter: Option<f64>,
}

/// An op of which the two say different things.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub function: String,
    pub op: String,
    pub kind: String,
    /// `selected` or `supported`.
    pub what: &'static str,
    pub here: String,
    pub there: String,
}

const MOST_BYTES: u64 = 1 << 28;

/// Compare a report's target with a file of Apple's.
pub fn with(target: &TargetRow, file: &Path) -> anyhow::Result<Comparison> {
    let (kind, said) = read(file).with_context(|| file.display().to_string())?;
    ensure!(!said.is_empty(), "{}: it judges no op", file.display());
    let by_name: HashMap<(&str, &str), &Said> = said
        .iter()
        .map(|s| ((s.function.as_str(), s.name.as_str()), s))
        .collect();
    let mut out = Comparison {
        file: file.display().to_string(),
        kind,
        target: target.target.clone(),
        ..Comparison::default()
    };
    let mut errors = Vec::new();
    for function in &target.functions {
        let cost: f64 = function.table.iter().filter_map(reckoned).sum();
        for op in &function.table {
            let plain = function.name.rsplit('/').next().unwrap_or(&function.name);
            let there = by_name
                .get(&(plain, op.name.as_str()))
                .or_else(|| by_name.get(&("", op.name.as_str())));
            let Some(there) = there else {
                out.only_here += 1;
                continue;
            };
            out.matched += 1;
            one(&function.name, op, there, &mut out);
            errors.extend(error(op, there, cost));
        }
    }
    if out.matched == 0 {
        bail!(
            "{}: none of its {} is one of this program: ops are matched by outputs",
            file.display(),
            counted(said.len(), "op")
        );
    }
    out.only_there = said.len().saturating_sub(out.matched);
    out.estimates = score(errors);
    Ok(out)
}

fn read(file: &Path) -> anyhow::Result<(&'static str, Vec<Said>)> {
    let text = String::from_utf8(read_small(file, MOST_BYTES)?)?;
    match text.trim_start().starts_with(['{', '[']) {
        true => Ok(("plan", dump::read(&text)?)),
        false => Ok(("analytics", analytics::read(&text)?)),
    }
}

/// What the segmenter reckons with on the backend that runs an op.
fn reckoned(op: &OpRow) -> Option<f64> {
    op.supported
        .iter()
        .find(|e| e.backend == op.backend)
        .map(|e| e.ms)
}

fn one(function: &str, op: &OpRow, there: &Said, out: &mut Comparison) {
    let mut differ = |what: &'static str, here: String, there: String| {
        out.differences.push(Difference {
            function: function.to_owned(),
            op: op.name.clone(),
            kind: op.kind.to_owned(),
            what,
            here,
            there,
        });
    };
    if let (Some(here), Some(selected)) = (Device::parse(op.backend), there.selected) {
        out.selected.of += 1;
        out.selected.same += usize::from(here == selected);
        if here != selected {
            differ(
                "selected",
                here.name().to_owned(),
                selected.name().to_owned(),
            );
        }
    }
    if let Some(supported) = &there.supported {
        let here: BTreeSet<Device> = op
            .supported
            .iter()
            .filter_map(|e| Device::parse(e.backend))
            .collect();
        out.supported.of += 1;
        out.supported.same += usize::from(here == *supported);
        if here != *supported {
            differ("supported", names(&here), names(supported));
        }
    }
}

fn names(devices: &BTreeSet<Device>) -> String {
    let names: Vec<&str> = devices.iter().map(|d| d.name()).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    }
}

/// How far our estimate is off: of milliseconds, or of the share of the cost.
fn error(op: &OpRow, there: &Said, cost: f64) -> Option<f64> {
    let here = reckoned(op)?;
    let (here, there) = match (there.ms, there.share) {
        (Some(ms), _) => (here, ms),
        (None, Some(share)) if cost > 0.0 => (here / cost, share),
        _ => return None,
    };
    (there > 0.0 && there.is_finite()).then(|| (here / there - 1.0).abs())
}

fn score(mut errors: Vec<f64>) -> EstimateScore {
    errors.sort_by(f64::total_cmp);
    let of = errors.len();
    if of == 0 {
        return EstimateScore::default();
    }
    let within = errors.iter().filter(|e| **e <= 0.25).count();
    EstimateScore {
        of,
        median_error: Some((errors[(of - 1) / 2] + errors[of / 2]) / 2.0),
        within_quarter: Some(within as f64 / of as f64),
    }
}

/// Differences that a terminal shows.
const MOST_SHOWN: usize = 20;

/// For a terminal.
pub fn text(c: &Comparison) -> String {
    let share = |a: Agreement| match a.of {
        0 => "the file does not say".to_owned(),
        of => format!(
            "{} of {} ({:.1} %)",
            a.same,
            counted(of, "op"),
            a.same as f64 / of as f64 * 100.0
        ),
    };
    let mut out = format!("\ncompared with {} ({})\n", shorten(&c.file, 50), c.kind);
    let ops = format!(
        "{} matched by output, {} here only, {} there only",
        c.matched, c.only_here, c.only_there
    );
    out += &wrap("  ops", 12, &ops);
    out += &wrap(
        "  device",
        12,
        &format!("the same for {}", share(c.selected)),
    );
    out += &wrap(
        "  support",
        12,
        &format!("the same for {}", share(c.supported)),
    );
    if let (Some(median), Some(within)) = (c.estimates.median_error, c.estimates.within_quarter) {
        let what = if c.kind == "plan" {
            "shares of the cost"
        } else {
            "estimates"
        };
        let (median, within) = (short(median * 100.0), short(within * 100.0));
        let said = format!(
            "{what} are off by {median} % in the median; {within} % of {} within 25 %",
            c.estimates.of
        );
        out += &wrap("  time", 12, &said);
    }
    for d in c.differences.iter().take(MOST_SHOWN) {
        let said = format!(
            "{} `{}`: {} here, {} there ({})",
            d.kind,
            shorten(&d.op, 40),
            d.here,
            d.there,
            d.what
        );
        out += &wrap("  differs", 12, &said);
    }
    if c.differences.len() > MOST_SHOWN {
        out += &format!(
            "  and {} more; --format json has them all\n",
            c.differences.len() - MOST_SHOWN
        );
    }
    out
}
