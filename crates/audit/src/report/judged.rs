//! A subject, judged for a target: what reports and plans are made of.

use std::collections::HashMap;

use thane_calls::Call;
use thane_mil::program::Function;
use thane_mil::types::Type;

use super::length;
use super::memory::{self, Loaded, MemoryRow};
use super::subject::{Part, Subject};
use super::verdict::{Scope, Verdict, verdict};
use crate::calls::{PricedCall, PricedCalls, Span};
use crate::finding::Finding;
use crate::judged::{Audit, FunctionAudit, audit_calls};
use crate::latency::Latency;
use crate::rule::Rule;
use crate::rules::shared_weights;
use crate::target::{Route, Target};

/// The programs of a subject, judged for a target.
pub struct SubjectAudit<'a> {
    subject: &'a Subject,
    target: Target,
    scope: Scope<'a>,
    /// An entry for each part.
    audits: Vec<Audit>,
}

/// A function of a part, judged.
#[derive(Clone, Copy)]
pub struct JudgedFunction<'a> {
    /// Its program.
    pub part: &'a Part,
    /// The function.
    pub function: &'a Function,
    /// What was found.
    pub done: &'a FunctionAudit,
}

impl<'a> SubjectAudit<'a> {
    /// Judges all functions of a subject.
    pub fn of(subject: &'a Subject, target: &Target) -> Self {
        let audit = Self::of_until(subject, target, Scope::default(), &|| false);
        audit.expect("nobody interrupts it")
    }

    /// Judges what `scope` leaves of a subject; `None` if `interrupted` returned true, which is
    /// asked after each rule of each function.
    pub fn of_until(
        subject: &'a Subject,
        target: &Target,
        scope: Scope<'a>,
        interrupted: &dyn Fn() -> bool,
    ) -> Option<Self> {
        let audit = |part: &Part| {
            let calls =
                |f: &Function| length::calls(f, part.interfaces.get(&f.name), scope.lengths);
            let first = |f: &Function| calls(f).into_iter().next().unwrap_or_default().inputs;
            audit_calls(&part.program, target, &first, interrupted)
        };
        let audits = subject.parts.iter().map(audit);
        Some(Self {
            subject,
            target: *target,
            scope,
            audits: audits.collect::<Option<_>>()?,
        })
    }

    /// Each part with what was found in it.
    pub fn parts(&self) -> impl Iterator<Item = (&'a Part, &Audit)> {
        self.subject.parts.iter().zip(&self.audits)
    }

    /// The functions of the scope.
    pub fn functions(&self) -> impl Iterator<Item = JudgedFunction<'_>> {
        let all = self.parts().flat_map(|(part, audit)| {
            let functions = part.program.functions().iter().zip(&audit.functions);
            functions.map(move |(function, done)| JudgedFunction {
                part,
                function,
                done,
            })
        });
        all.filter(|function| {
            let only = self.scope.only;
            only.is_none_or(|only| only == function.name() || only == function.function.name)
        })
    }

    /// The rules that were found, those about a whole program first.
    pub fn rules(&self) -> impl Iterator<Item = &'static Rule> {
        let of_programs = self.audits.iter().flat_map(|audit| &audit.findings);
        let of_functions = self.functions().flat_map(|f| &f.done.findings);
        of_programs.chain(of_functions).map(|finding| finding.rule)
    }

    /// The rules that count in the verdict: what takes the function of any length off the engine
    /// says nothing about the others.
    pub fn counted_rules(&self) -> impl Iterator<Item = &'static Rule> {
        self.counted_findings().map(|finding| finding.rule)
    }

    /// What was found by the rules that count in the verdict.
    pub fn counted_findings(&self) -> impl Iterator<Item = &Finding> {
        let of_programs = self.audits.iter().flat_map(|audit| &audit.findings);
        let of_functions = self.functions().flat_map(|f| {
            let findings = f.done.findings.iter();
            let is_catch_all = self.is_catch_all(f);
            findings.filter(move |finding| !is_catch_all || finding.rule.stops())
        });
        of_programs.chain(of_functions)
    }

    /// What makes the program unfit for the target ([`Rule::is_fault`]), the first finding of each
    /// rule, in the order of their ids.
    pub fn faults(&self) -> Vec<&Finding> {
        let of_programs = self.audits.iter().flat_map(|audit| &audit.findings);
        let of_functions = self.functions().flat_map(|f| &f.done.findings);
        let all = of_programs.chain(of_functions);
        let mut faults: Vec<&Finding> = all.filter(|found| found.rule.is_fault()).collect();
        faults.sort_by_key(|found| found.rule.id);
        faults.dedup_by_key(|found| found.rule.id);
        faults
    }

    /// Whether a function takes what is too long for the others, and nobody asks for it.
    pub fn is_catch_all(&self, f: JudgedFunction<'_>) -> bool {
        let named = f.part.catch_all.as_ref();
        named.is_some_and(|of| *of == f.function.name) && self.scope.only.is_none()
    }

    /// Ops on the Neural Engine, and all, of the functions that count.
    pub fn ops(&self) -> (usize, usize) {
        let counted = self.functions().filter(|f| !self.is_catch_all(*f));
        counted.fold((0, 0), |(ane, all), f| {
            let placement = &f.done.placement;
            (ane + placement.n_ane_ops(), all + placement.ops.len())
        })
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        let rules: Vec<&Rule> = self.counted_rules().collect();
        // What no device with the chip has the memory for does not load.
        let most = self.target.chip.memory_bytes();
        let refused = self.functions().any(|f| {
            !f.done.placement.refused.is_empty() || f.done.latency.memory.peak_bytes > most
        });
        let (ane_ops, ops) = self.ops();
        verdict(&rules, refused, ane_ops, ops)
    }

    /// What is predicted of each function.
    pub fn latencies(&self) -> impl Iterator<Item = &Latency> {
        self.functions().map(|f| &f.done.latency)
    }

    /// The memory that the functions hold once they are loaded, by each way in.
    pub fn memory_rows(&self) -> Vec<MemoryRow> {
        let loaded = self.subject.parts.iter().map(|part| {
            let own = self.functions().filter(|f| std::ptr::eq(f.part, part));
            Loaded {
                functions: own.map(|f| f.done.latency).collect(),
                shared: shared_weights(&part.program),
            }
        });
        memory::rows(&loaded.collect::<Vec<_>>(), &self.target)
    }

    /// The memory by the way in of the target.
    pub fn memory(&self) -> Option<MemoryRow> {
        let route = match self.target.route {
            Route::CoreMl => "coreml",
            Route::Direct => "direct",
        };
        let mut rows = self.memory_rows().into_iter();
        rows.find(|row| row.route == route)
    }

    /// What the calls of a language model take. A call has no price if one of its functions is not
    /// in the scope.
    pub fn priced_calls(&self) -> PricedCalls {
        let functions: HashMap<String, JudgedFunction<'_>> =
            self.functions().map(|f| (f.name(), f)).collect();
        let host = Span::of_logits(self.subject.host_bytes, self.target.chip);
        let price = |call: &Call| {
            let functions = call.functions.iter().map(|name| functions.get(name));
            let functions: Vec<_> = functions.collect::<Option<_>>()?;
            // Of a prompt, the caller computes the logits of the last token only.
            let host = if call.tokens == 1 {
                host
            } else {
                Span::default()
            };
            Some(self.priced(call, host, &functions))
        };
        let calls = self.subject.calls.iter();
        PricedCalls {
            calls: calls.filter_map(|chain| price(&chain.call)).collect(),
            host,
        }
    }

    fn priced(&self, call: &Call, host: Span, functions: &[&JudgedFunction<'_>]) -> PricedCall {
        let latencies = || functions.iter().map(|f| &f.done.latency);
        let gbps = self.target.chip.activation_gbps.value * 1e9;
        let cache_bytes: f64 = functions.iter().map(|f| cache_bytes(f.function)).sum();
        let reading_ms: f64 = latencies().map(|latency| latency.reading_ms).sum();
        let placements = || functions.iter().map(|f| &f.done.placement);
        PricedCall {
            call: call.clone(),
            time: latencies().fold(host, |sum, latency| sum.plus(Span::of(latency))),
            floor_ms: host.ms + cache_bytes / gbps * 1e3 + reading_ms,
            loaded_bytes: latencies().map(|l| l.memory.program_bytes).sum(),
            ops: placements().map(|p| p.ops.len()).sum(),
            ane_ops: placements().map(|p| p.n_ane_ops()).sum(),
        }
    }
}

impl JudgedFunction<'_> {
    /// Its name, behind the package where there are several.
    pub fn name(&self) -> String {
        match self.part.package.as_str() {
            "" => self.function.name.clone(),
            package => format!("{package}/{}", self.function.name),
        }
    }
}

/// Bytes of the caches that a function reads.
fn cache_bytes(f: &Function) -> f64 {
    let values = f.body().inputs.iter().map(|v| f.value(*v));
    let caches = values.filter(|value| {
        let is_state = matches!(value.ty, Type::State(_));
        is_state || value.name.contains("_cache_") || value.name.starts_with("recurrent_")
    });
    let bytes = caches.filter_map(|value| value.ty.tensor_or_state()?.byte_len());
    bytes.sum::<usize>() as f64
}
