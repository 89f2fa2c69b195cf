//! Compares the prediction with what Apple's tools say: `analytics.mil` of a compiled model, or a
//! dump of `MLComputePlan`.

use std::collections::{BTreeSet, HashMap};

use super::{Comparison, Difference, EstimateScore, OpRow, TargetRow};
use crate::number::counted;

mod analytics;
mod dump;

/// Where something runs, whichever library does it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// The Neural Engine.
    Ane,
    /// The GPU.
    Gpu,
    /// The CPU.
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
    /// The device that runs it.
    pub selected: Option<Device>,
    /// The devices that can run it.
    pub supported: Option<BTreeSet<Device>>,
    /// Milliseconds on what runs it.
    pub ms: Option<f64>,
    /// Share of the program's cost, 0 to 1.
    pub share: Option<f64>,
}

/// Why a file of Apple's tools cannot be compared with a report.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// It is not JSON, though it begins like it.
    #[error("it is no JSON")]
    NotJson(#[source] serde_json::Error),
    /// It is JSON without a list of ops.
    #[error(
        "expected a list of ops, objects with `output` and `preferred`, at the top or under \
         `operations`; found none"
    )]
    NoList,
    /// It is neither MIL text nor JSON.
    #[error("it is neither MIL text nor JSON")]
    NotText,
    /// A string in it has no closing quote.
    #[error("a string has no end: the file was not copied whole")]
    Cut,
    /// None of its ops has the attributes of `analytics.mil`.
    #[error(
        "no op of it has the attribute BackendSupport or SelectedBackend, as those of \
         analytics.mil have"
    )]
    NoAttributes,
    /// A word for a device that is none.
    #[error("op `{op}`: expected a device (CPU, GPU or Neural Engine), found {value}")]
    Device {
        /// The first output of the op.
        op: String,
        /// What stands for a device, as JSON.
        value: String,
    },
    /// None of its ops is in the program.
    #[error(
        "none of its {} is one of this program: ops are matched by outputs",
        counted(*n_ops, "op")
    )]
    NoMatch {
        /// Ops that the file judges.
        n_ops: usize,
    },
}

/// Compare one target of a report with the text of `analytics.mil` or of a dump of
/// `MLComputePlan`; `file` is its name for the report.
pub fn with(target: &TargetRow, file: &str, text: &str) -> Result<Comparison, CompareError> {
    let (kind, said) = read(text)?;
    let by_name: HashMap<(&str, &str), &Said> = said
        .iter()
        .map(|s| ((s.function.as_str(), s.name.as_str()), s))
        .collect();
    let mut out = Comparison {
        file: file.to_owned(),
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
        let n_ops = said.len();
        return Err(CompareError::NoMatch { n_ops });
    }
    out.only_there = said.len().saturating_sub(out.matched);
    out.estimates = score(errors);
    Ok(out)
}

fn read(text: &str) -> Result<(&'static str, Vec<Said>), CompareError> {
    match text.trim_start().starts_with(['{', '[']) {
        true => Ok(("plan", dump::read(text)?)),
        false => Ok(("analytics", analytics::read(text)?)),
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
