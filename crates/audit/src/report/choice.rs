//! Why ops run where they do: what the engine cannot run, and what Core ML's cost model prices
//! lower on another unit.

use super::{FunctionRow, OpRow};
use crate::number::{counted, short};
use crate::place::segment::HOP_MS;

/// A compute unit, as sentences name it, and its backends.
struct Unit {
    name: &'static str,
    backends: &'static [&'static str],
}

const ANE: Unit = Unit {
    name: "engine",
    backends: &["ane"],
};
const GPU: Unit = Unit {
    name: "GPU",
    backends: &["mps_graph"],
};
const CPU: Unit = Unit {
    name: "CPU",
    backends: &["bnns", "classic_cpu"],
};
const UNITS: [Unit; 3] = [ANE, GPU, CPU];

impl Unit {
    fn has(&self, backend: &str) -> bool {
        self.backends.contains(&backend)
    }

    /// Milliseconds of an op by the cost model, where the unit may run it.
    fn cost(&self, op: &OpRow) -> Option<f64> {
        let here = op.supported.iter().filter(|e| self.has(e.backend));
        here.map(|e| e.ms).min_by(f64::total_cmp)
    }
}

impl FunctionRow {
    /// Why ops that are not on the engine are not: what it cannot run, what it may not, and what
    /// it could at a higher cost.
    pub fn elsewhere(&self) -> Option<String> {
        /// Ops that are named.
        const MOST_NAMED: usize = 4;
        let off = || self.table.iter().filter(|op| op.backend != "ane");
        let can = |op: &&OpRow| ANE.cost(op).is_some();
        let is_refused = |op: &&OpRow| op.reasons.iter().any(|why| ANE.has(why.backend));
        let (n_off, n_able) = (off().count(), off().filter(can).count());
        let n_unable = off().filter(|op| !can(op) && is_refused(op)).count();
        let n_barred = n_off - n_able - n_unable;
        let mut said = Vec::new();
        if n_unable > 0 {
            said.push(format!("{n_unable} that the engine does not run"));
        }
        if n_barred > 0 {
            said.push(format!(
                "{n_barred} that the compute units keep off the engine"
            ));
        }
        if n_able > 0 {
            let names: Vec<String> = off()
                .filter(can)
                .take(MOST_NAMED)
                .map(|op| format!("`{}`", op.name))
                .collect();
            let more = if n_able > MOST_NAMED { ", .." } else { "" };
            let names = names.join(", ");
            said.push(format!(
                "{n_able} that Core ML's cost model places elsewhere ({names}{more})"
            ));
        }
        (n_off > 0).then(|| format!("{}: {}", counted(n_off, "op"), said.join(", ")))
    }

    /// A line for each unit that was chosen over another, with what its ops cost on each by Core
    /// ML's cost model. Where only CPU and engine compete, ops on the engine need no reason.
    pub fn choices(&self) -> Vec<String> {
        let has_gpu = self.table.iter().any(|op| GPU.cost(op).is_some());
        let chosen = UNITS.iter().filter(|unit| has_gpu || unit.name != ANE.name);
        let mut lines: Vec<String> = chosen.filter_map(|unit| self.choice(unit)).collect();
        if let Some(last) = lines.last_mut() {
            *last += &format!(
                ". Another {} ms for each change of unit, and for each start or end on the engine",
                short(HOP_MS)
            );
        }
        lines
    }

    fn choice(&self, unit: &Unit) -> Option<String> {
        let n_able = |op: &OpRow| UNITS.iter().filter(|u| u.cost(op).is_some()).count();
        let had_a_choice = |op: &&OpRow| unit.has(op.backend) && n_able(op) > 1;
        let ops: Vec<&OpRow> = self.table.iter().filter(had_a_choice).collect();
        if ops.is_empty() {
            return None;
        }
        let runs = self.segments.iter().filter(|run| unit.has(run.backend));
        let others = UNITS.iter().filter(|other| other.name != unit.name);
        let compared: Vec<String> = others
            .filter_map(|other| compared(&ops, unit, other))
            .collect();
        let here: f64 = ops.iter().filter_map(|op| unit.cost(op)).sum();
        Some(format!(
            "{} for {} in {}: {} ms by Core ML's cost model, {}",
            unit.name,
            counted(ops.len(), "op"),
            counted(runs.count(), "run"),
            short(here),
            compared.join(", ")
        ))
    }
}

/// What ops of a unit cost on another.
fn compared(ops: &[&OpRow], unit: &Unit, other: &Unit) -> Option<String> {
    let both = ops
        .iter()
        .filter_map(|op| Some((unit.cost(op)?, other.cost(op)?)));
    let (n, here, there) = both.fold((0, 0.0, 0.0), |(n, here, there), cost| {
        (n + 1, here + cost.0, there + cost.1)
    });
    let there = format!("{} on the {}", short(there), other.name);
    match n {
        0 => None,
        _ if n == ops.len() => Some(there),
        _ => Some(format!(
            "{there} for {n} of them that cost {} here",
            short(here)
        )),
    }
}
