//! The price of a form: what its calls take, how large it is, and whether it loads.

use std::fmt::Write as _;

use thane_calls::Form;

use super::Goal;
use crate::calls::PricedCalls;
use crate::finding::Finding;
use crate::latency::{Latency, LoadRisk};
use crate::number::predicted_bytes;
use crate::report::memory::MemoryRow;
use crate::report::{Subject, SubjectAudit, Verdict};
use crate::target::Target;

/// The predicted price of a form.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// The form.
    pub form: Form,
    /// Its calls.
    pub calls: PricedCalls,
    /// The verdict of an audit of its programs.
    pub verdict: Verdict,
    /// The risk that one of its programs does not load: it is too large, or a rule knows a failure.
    pub load_risk: LoadRisk,
    /// Why one may not load, the first finding of each rule; empty if nothing speaks against it.
    pub doubts: Vec<String>,
    /// Ops on the Neural Engine, and all.
    pub ops: (usize, usize),
    /// Number of programs.
    pub programs: usize,
    /// Bytes of the packages, without what is beside weights and tables.
    pub disk_bytes: u64,
    /// Bytes of the tables beside the programs, which the caller maps.
    pub table_bytes: u64,
    /// The memory that all functions hold once they are loaded, by the way in of the target.
    pub memory: Option<MemoryRow>,
    /// Bytes of the weights of the largest function, as they are loaded.
    pub(super) weight_bytes: f64,
    /// Bytes of these weights as fp16, in which cuts are counted.
    pub(super) fp16_bytes: f64,
}

impl Priced {
    /// The figure that a goal minimizes: milliseconds or bytes.
    pub fn cost(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Latency => self.calls.mean_decode_ms(),
            Goal::Throughput => {
                let first = self.calls.answer().map(|answer| answer.first_token.ms);
                first.or(self.calls.prefill_ms()).unwrap_or(f64::INFINITY)
            }
            Goal::Memory => self.memory.as_ref().map_or(f64::INFINITY, |row| row.bytes),
        }
    }

    /// The form in words.
    pub fn describe(&self) -> String {
        let mut text = self.form.to_string();
        if self.programs > 1 {
            let _ = write!(text, ", {} programs", self.programs);
        }
        text
    }

    /// Whether its programs fail, or give wrong numbers, before what they cost.
    pub(super) fn rank(&self) -> (LoadRisk, bool) {
        (self.load_risk, self.verdict == Verdict::Wrong)
    }
}

/// Price the programs of a form for a target.
pub fn price(form: Form, subject: &Subject, target: &Target) -> Priced {
    let judged = SubjectAudit::of(subject, target);
    let calls = judged.priced_calls();
    let sizes = judged.latencies().map(|latency| latency.load_risk);
    let by_size = sizes.max().unwrap_or(LoadRisk::None);
    let by_rules = match judged.verdict() {
        Verdict::Fails | Verdict::MayFail => LoadRisk::Possible,
        _ => LoadRisk::None,
    };
    let largest = |bytes: fn(&Latency) -> f64| judged.latencies().map(bytes).fold(0.0, f64::max);
    Priced {
        form,
        verdict: judged.verdict(),
        load_risk: by_size.max(by_rules),
        ops: judged.ops(),
        programs: subject.parts.len(),
        disk_bytes: subject.disk_bytes,
        table_bytes: subject.table_bytes,
        memory: judged.memory(),
        doubts: doubts(&judged, by_size, target),
        weight_bytes: largest(|latency| latency.memory.program_bytes),
        fp16_bytes: largest(|latency| latency.memory.dense_bytes),
        calls,
    }
}

/// What says that a program may not load: its size, and the first finding of each rule.
fn doubts(judged: &SubjectAudit<'_>, by_size: LoadRisk, target: &Target) -> Vec<String> {
    let limit = target.release.program_bytes(target.is_mobile()).low;
    let most = judged.latencies().map(|l| l.memory.program_bytes);
    let most = most.fold(0.0, f64::max);
    let size = match (by_size, most > limit) {
        (LoadRisk::None, _) => None,
        (_, true) => Some(format!(
            "{} of weights in one, {} are the most that every source has seen to load",
            predicted_bytes(most),
            predicted_bytes(limit)
        )),
        (_, false) => Some(format!(
            "it takes more memory than devices with {} have",
            target.chip.name
        )),
    };
    let found = judged.counted_findings();
    let mut found: Vec<&Finding> = found.filter(|finding| finding.rule.stops()).collect();
    found.sort_by_key(|finding| finding.rule.id);
    found.dedup_by_key(|finding| finding.rule.id);
    let rules = found.into_iter();
    let rules = rules.map(|finding| format!("{} ({})", finding.message, finding.rule.id));
    size.into_iter().chain(rules).collect()
}
