//! What the passes did.

use std::fmt;

use thane_mil::program::Program;

use crate::pass::Pass;

/// What the passes did to a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// One entry a function, in order.
    pub functions: Vec<FunctionReport>,
    /// One entry a pass, in the order of the pipeline.
    pub passes: Vec<PassReport>,
}

/// The size of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionReport {
    /// Function name.
    pub name: String,
    /// Ops of its body at first, constants included.
    pub n_ops_before: usize,
    /// Ops of its body in the end.
    pub n_ops_after: usize,
}

/// What one pass did to all functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// Pass name.
    pub pass: &'static str,
    /// Sites that it changed.
    pub n_applied: usize,
    /// Sites that it matched in the end, where a change gains nothing.
    pub n_without_effect: usize,
    /// Sites that it matched in the end, but must not change.
    pub refusals: Vec<Refusal>,
}

/// A place that a pass must not change, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Function name.
    pub function: String,
    /// The op, and what it makes.
    pub op: String,
    /// Why not.
    pub reason: &'static str,
}

impl Report {
    pub(crate) fn new(program: &Program, passes: &[Pass]) -> Self {
        let functions = program.functions().iter().map(|f| {
            let n = f.body().ops.len();
            FunctionReport {
                name: f.name.clone(),
                n_ops_before: n,
                n_ops_after: n,
            }
        });
        let passes = passes.iter().map(|p| PassReport {
            pass: p.name,
            n_applied: 0,
            n_without_effect: 0,
            refusals: Vec::new(),
        });
        Self {
            functions: functions.collect(),
            passes: passes.collect(),
        }
    }

    pub(crate) fn finish(&mut self, program: &Program) {
        for (report, f) in self.functions.iter_mut().zip(program.functions()) {
            report.n_ops_after = f.body().ops.len();
        }
    }
}

impl fmt::Display for PassReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} changed", self.pass, self.n_applied)?;
        if self.n_without_effect > 0 {
            write!(f, ", {} without effect", self.n_without_effect)?;
        }
        let mut reasons: Vec<(&str, usize)> = Vec::new();
        for refusal in &self.refusals {
            match reasons.iter_mut().find(|(r, _)| *r == refusal.reason) {
                Some((_, n)) => *n += 1,
                None => reasons.push((refusal.reason, 1)),
            }
        }
        reasons
            .iter()
            .try_for_each(|(reason, n)| write!(f, ", {n} refused ({reason})"))
    }
}

impl fmt::Display for FunctionReport {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} ops of {}",
            self.name, self.n_ops_after, self.n_ops_before
        )
    }
}
