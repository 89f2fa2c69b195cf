//! Builds the report of a subject for some targets.

use std::collections::{BTreeMap, HashMap};

use thane_mil::program::{Function, OpId};

use super::chain::{self, ChainRow};
use super::energy::EnergyRow;
use super::explain::explain;
use super::judged::{JudgedFunction, SubjectAudit};
use super::length::{self, SizedCall};
use super::module::modules;
use super::subject::{Part, Subject};
use super::verdict::{Scope, percent};
use super::{
    Ceilings, ChunkRow, Estimate, FindingRow, FunctionRow, LatencyRow, NOT_COVERED, OpRow,
    PartsRow, PricedRow, Reason, Report, RuleRow, SCHEMA, SegmentRow, SubjectRow, TargetRow,
};
use crate::finding::Finding;
use crate::judged::FunctionAudit;
use crate::latency::ane::{self, Parts};
use crate::latency::spread::{COMPRESSED_WEIGHTS, is_unscored};
use crate::latency::whole::Class;
use crate::latency::{self, Latency, LoadRisk};
use crate::place::{Backend, Placed, Segment, place};
use crate::plan::chunk;
use crate::rule::{Rule, Severity};
use crate::target::{Chip, Route, Target};
use crate::view::View;

/// Judge a subject for targets.
pub fn build(subject: &Subject, targets: &[Target], scope: Scope<'_>) -> Report {
    build_until(subject, targets, scope, &|| false).expect("nobody interrupts it")
}

/// As [`build`]; `None` if `interrupted` returned true, which is asked after each rule of each
/// function.
pub fn build_until(
    subject: &Subject,
    targets: &[Target],
    scope: Scope<'_>,
    interrupted: &dyn Fn() -> bool,
) -> Option<Report> {
    let mut rules = BTreeMap::new();
    let targets: Vec<(TargetRow, Vec<ChainRow>)> = targets
        .iter()
        .map(|t| target(subject, t, (scope, interrupted), &mut rules))
        .collect::<Option<_>>()?;
    let (targets, chains): (Vec<TargetRow>, Vec<Vec<ChainRow>>) = targets.into_iter().unzip();
    Some(Report {
        schema: SCHEMA,
        generator: concat!("thane ", env!("CARGO_PKG_VERSION")),
        subject: SubjectRow {
            name: subject.name.clone(),
            kind: subject.kind,
            built: subject.built.clone(),
            absent_constants: subject.n_absent,
            disk_bytes: subject.disk_bytes,
            table_bytes: subject.table_bytes,
        },
        passed: true,
        requirements: Vec::new(),
        unmet: Vec::new(),
        failures: Vec::new(),
        denied: Vec::new(),
        targets,
        rules: rules.into_values().map(RuleRow::from).collect(),
        contexts: Vec::new(),
        chains: chains.concat(),
        baseline: None,
        comparison: None,
        not_covered: NOT_COVERED,
    })
}

type Fired = BTreeMap<&'static str, &'static Rule>;

fn target(
    subject: &Subject,
    target: &Target,
    (scope, interrupted): (Scope<'_>, &dyn Fn() -> bool),
    fired: &mut Fired,
) -> Option<(TargetRow, Vec<ChainRow>)> {
    let audit = SubjectAudit::of_until(subject, target, scope, interrupted)?;
    let of_programs = audit.parts().flat_map(|(part, audit)| {
        let findings = audit.findings.iter();
        findings.map(move |finding| about_program(part, finding))
    });
    let mut findings: Vec<FindingRow> = of_programs.collect();
    let mut functions = Vec::new();
    for f in audit.functions() {
        let function = FunctionRows::new(f, target, (scope, audit.is_catch_all(f)));
        findings.extend(function.findings());
        functions.push(function.row());
    }
    let judged: Vec<&'static Rule> = audit.rules().collect();
    fired.extend(judged.iter().map(|rule| (rule.id, *rule)));
    let counted: Vec<&Rule> = audit.counted_rules().collect();
    let severities = |s: Severity| counted.iter().filter(|r| r.severity == s).count();
    findings.sort_by_key(|f| (std::cmp::Reverse(Severity::parse(f.severity)), f.rule));
    let (ane_ops, ops) = audit.ops();
    let calls = audit.priced_calls();
    let reads_compressed = audit.latencies().any(|latency| latency.reads_compressed);
    let row = TargetRow {
        target: target.to_string(),
        chip: target.chip.name,
        release: target.release_name(),
        implied: implied(target),
        units: target.units.name(),
        route: if target.route == Route::Direct {
            "direct"
        } else {
            "coreml"
        },
        verdict: audit.verdict().name(),
        ops,
        ane_ops,
        residency: percent(ane_ops, ops),
        errors: severities(Severity::Error),
        warnings: severities(Severity::Warning),
        notes: severities(Severity::Note),
        inferred: inferred(target.chip, &functions, reads_compressed),
        answer: calls.answer(),
        functions,
        findings,
        ceilings: Ceilings {
            gflops: target.chip.peak_tflops.value * 1e3 * f64::from(target.chip.engines.max(1)),
            weight_gbps: target.chip.weight_gbps.value,
            local_gbps: target.chip.local_gbps.value,
        },
        memory: audit.memory_rows(),
    };
    let chains = chain::rows(&row, &subject.calls, &calls);
    Some((row, chains))
}

/// Figures that were not measured on a chip, those of the CPU and GPU where ops run there, and how
/// compressed weights are read where they are.
fn inferred(chip: &Chip, functions: &[FunctionRow], reads_compressed: bool) -> Vec<&'static str> {
    let any_on = |backends: &[&str]| {
        let mut runs = functions.iter().flat_map(|f| &f.segments);
        runs.any(|run| backends.contains(&run.backend))
    };
    let on_cpu = any_on(&[Backend::Bnns.name(), Backend::ClassicCpu.name()]);
    let on_gpu = any_on(&[Backend::MpsGraph.name()]);
    let mut names = chip.inferred();
    names.retain(|name| match name.split('_').next() {
        Some("cpu") => on_cpu,
        Some("gpu") => on_gpu,
        _ => true,
    });
    if reads_compressed && is_unscored(chip) {
        names.push(COMPRESSED_WEIGHTS);
    }
    names
}

fn implied(target: &Target) -> Vec<&'static str> {
    let words = [
        (target.implied.chip, "chip"),
        (target.implied.release, "release"),
    ];
    words
        .into_iter()
        .filter_map(|(implied, word)| implied.then_some(word))
        .collect()
}

/// A share as percent; a sum over nothing is minus zero, which nobody wants to read.
fn percent_of(share: f64) -> f64 {
    share * 100.0 + 0.0
}

impl From<&Finding> for FindingRow {
    fn from(finding: &Finding) -> Self {
        Self {
            rule: finding.rule.id,
            severity: finding.rule.severity.name(),
            function: None,
            op: None,
            kind: None,
            place: None,
            message: finding.message.clone(),
            known: false,
        }
    }
}

fn about_program(part: &Part, finding: &Finding) -> FindingRow {
    FindingRow {
        op: (!part.package.is_empty()).then(|| part.package.clone()),
        ..FindingRow::from(finding)
    }
}

/// A function with what its rows are made of.
struct FunctionRows<'a> {
    view: View<'a>,
    done: &'a FunctionAudit,
    name: String,
    catch_all: bool,
    /// What it is priced at; figures are of the first.
    calls: Vec<SizedCall>,
    places: HashMap<OpId, String>,
}

impl<'a> FunctionRows<'a> {
    fn new(
        judged: JudgedFunction<'a>,
        target: &'a Target,
        (scope, catch_all): (Scope<'_>, bool),
    ) -> Self {
        let JudgedFunction {
            part,
            function: f,
            done,
        } = judged;
        let program = &part.program;
        let calls = length::calls(f, part.interfaces.get(&f.name), scope.lengths);
        let view = match calls.first() {
            Some(call) => View::of_call(program, f, target, &call.inputs),
            None => View::new(program, f, target),
        };
        let ids: Vec<OpId> = f
            .all_ops()
            .into_iter()
            .filter(|id| !f.op(*id).def.is_const())
            .collect();
        let places = modules(&view, &ids);
        Self {
            view,
            done,
            name: judged.name(),
            catch_all,
            calls,
            places,
        }
    }

    fn findings(&self) -> impl Iterator<Item = FindingRow> + '_ {
        let f = self.view.f;
        self.done.findings.iter().map(move |finding| FindingRow {
            function: Some(self.name.clone()),
            op: finding.op.map(|op| label(f, op)),
            kind: finding.op.map(|op| f.op(op).def.name),
            place: finding
                .op
                .and_then(|op| self.places.get(&op).cloned())
                .filter(|p| !p.is_empty()),
            ..FindingRow::from(finding)
        })
    }

    fn table(&self, times: &[(f64, Parts)]) -> Vec<OpRow> {
        let mut at: HashMap<OpId, Vec<&'static str>> = HashMap::new();
        for finding in &self.done.findings {
            if let Some(op) = finding.op {
                at.entry(op).or_default().push(finding.rule.id);
            }
        }
        let ops = self.done.placement.ops.iter().zip(times);
        ops.map(|(op, (seconds, _))| self.op(op, *seconds, at.remove(&op.op).unwrap_or_default()))
            .collect()
    }

    fn op(&self, op: &Placed, seconds: f64, findings: Vec<&'static str>) -> OpRow {
        OpRow {
            name: label(self.view.f, op.op),
            kind: self.view.op(op.op).def.name,
            place: self.places.get(&op.op).cloned().unwrap_or_default(),
            backend: op.chosen.name(),
            supported: op
                .estimates
                .iter()
                .map(|(b, ms)| Estimate {
                    backend: b.name(),
                    ms: *ms,
                })
                .collect(),
            ms: seconds * 1e3,
            flops: op.work.flops,
            bytes: op.work.bytes(),
            reasons: op
                .validation
                .iter()
                .map(|(b, m)| Reason {
                    backend: b.name(),
                    message: m.clone(),
                })
                .collect(),
            findings,
        }
    }

    /// Where to cut a function that may be too large, or why it cannot be.
    fn chunks(&self) -> (Vec<ChunkRow>, Option<String>) {
        if self.done.latency.load_risk == LoadRisk::None {
            return (Vec::new(), None);
        }
        let f = self.view.f;
        let row = |c: chunk::Chunk| ChunkRow {
            last: label(f, c.last),
            ops: c.n_ops,
            weight_bytes: c.weight_bytes,
            out_bytes: c.out_bytes,
        };
        match chunk::of_function(f, self.view.target) {
            Ok(chunks) => (chunks.into_iter().map(row).collect(), None),
            Err(e) => (Vec::new(), Some(e.to_string())),
        }
    }

    /// What calls of each length take.
    fn lengths(&self) -> Vec<PricedRow> {
        let View {
            program, target, ..
        } = self.view;
        let f = self.view.f;
        let price = |call: &SizedCall| {
            let view = View::of_call(program, f, target, &call.inputs);
            latency::predict(&view, &place(&view, &self.done.findings))
        };
        let first = std::iter::once(self.done.latency).chain(self.calls.iter().skip(1).map(price));
        let row = |(call, l): (&SizedCall, Latency)| {
            let length = call.length.clone()?;
            Some(PricedRow {
                length,
                ms: l.ms,
                low_ms: l.interval_ms.0,
                high_ms: l.interval_ms.1,
            })
        };
        self.calls.iter().zip(first).filter_map(row).collect()
    }

    fn row(self) -> FunctionRow {
        let times = ane::each(&self.view, &self.done.placement);
        let table = self.table(&times);
        let timed = table.iter().zip(times);
        let explained =
            explain(timed.map(|(op, (seconds, terms))| (op.kind, &*op.place, seconds, terms)));
        let placement = &self.done.placement;
        let segment = |s: &Segment| SegmentRow {
            backend: s.backend.name(),
            first: s.first,
            ops: s.n_ops,
            ms: table[s.first..s.first + s.n_ops]
                .iter()
                .map(|op| op.ms)
                .sum(),
        };
        let (chunks, uncut) = self.chunks();
        FunctionRow {
            chunks,
            uncut,
            ops: placement.ops.len(),
            ane_ops: placement.n_ane_ops(),
            residency: percent_of(placement.residency()),
            residency_of_flops: percent_of(placement.residency_of_flops()),
            residency_of_cost: percent_of(placement.residency_of_cost()),
            refused: placement.refused.len(),
            may_leave: placement.may_leave.clone(),
            latency: latency_row(self.done, self.view.target.chip),
            explained,
            length: self.calls.first().and_then(|call| call.length.clone()),
            lengths: self.lengths(),
            segments: placement.segments.iter().map(segment).collect(),
            name: self.name,
            catch_all: self.catch_all,
            table,
        }
    }
}

fn latency_row(done: &FunctionAudit, chip: &Chip) -> LatencyRow {
    let l = &done.latency;
    let p = &l.parts;
    let energy = l.energy.total();
    LatencyRow {
        ms: l.ms,
        low_ms: l.interval_ms.0,
        high_ms: l.interval_ms.1,
        tokens_per_second: l.tokens_per_second,
        class: l.class.map(Class::name),
        far: l
            .class
            .map(|class| l.far.reasons(class, chip.name).join(", and "))
            .filter(|said| !said.is_empty()),
        bound: l.bound.name(),
        parts: PartsRow {
            compute_ms: p.compute * 1e3,
            weights_ms: p.weights * 1e3,
            elements_ms: p.elements * 1e3,
            tasks_ms: p.tasks * 1e3,
            activations_ms: p.activations * 1e3,
            dispatch_ms: p.dispatch * 1e3,
            host_ms: p.host * 1e3,
        },
        positions: l.positions,
        weight_bytes: l.weight_bytes,
        activation_bytes: l.activation_bytes,
        dispatches: l.n_dispatches,
        energy_mj: energy.mj,
        low_energy_mj: energy.interval_mj.0,
        high_energy_mj: energy.interval_mj.1,
        energy_parts: EnergyRow {
            engine_mj: l.energy.ane().mj,
            memory_mj: l.energy.memory.mj,
            host_mj: l.energy.host.mj,
        },
        reading_ms: l.reading_ms,
        peak_bytes: l.memory.peak_bytes,
        over_memory_gib: (l.memory.peak_bytes > chip.memory_bytes()).then_some(chip.memory_gib),
        load_risk: match l.load_risk {
            LoadRisk::None => "none",
            LoadRisk::Possible => "possible",
            LoadRisk::Likely => "likely",
        },
    }
}

/// What an op is called: its first result, which Apple's tools show too.
pub fn label(f: &Function, id: OpId) -> String {
    let op = f.op(id);
    let named = || op.name.clone().unwrap_or_else(|| op.def.name.to_owned());
    op.results
        .first()
        .map_or_else(named, |r| f.value(*r).name.clone())
}
