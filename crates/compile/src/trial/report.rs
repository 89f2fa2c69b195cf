//! What was tried of a program, and what became of it.

use std::fmt;

use thane_mil::program::{Function, OpId};

use crate::graph::label;
use crate::proof::Proof;

/// The predicted figures of a function, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measure {
    /// Milliseconds of a call.
    pub ms: f64,
    /// Share of its ops on the engine.
    pub residency: f64,
    /// Share of its operations on the engine.
    pub residency_of_flops: f64,
    /// Share of its ops that the engine supports, wherever they are cheapest.
    pub supported: f64,
    /// Ops that compute.
    pub n_ops: usize,
    /// Findings.
    pub n_findings: usize,
    /// Findings of the severity error.
    pub n_errors: usize,
}

impl Measure {
    /// The figures of several functions together; shares are of the ops of all.
    pub fn total(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self::default();
        for m in parts {
            let n = m.n_ops as f64;
            sum.ms += m.ms;
            sum.residency += m.residency * n;
            sum.residency_of_flops += m.residency_of_flops * n;
            sum.supported += m.supported * n;
            sum.n_ops += m.n_ops;
            sum.n_findings += m.n_findings;
            sum.n_errors += m.n_errors;
        }
        let n = sum.n_ops.max(1) as f64;
        Self {
            residency: sum.residency / n,
            residency_of_flops: sum.residency_of_flops / n,
            supported: sum.supported / n,
            ..sum
        }
    }

    /// How the figures change, in a line.
    pub fn change(&self, after: &Self) -> String {
        format!(
            "{:.3} -> {:.3} ms, on the engine {:.1} -> {:.1} % of ops, {} -> {}",
            self.ms,
            after.ms,
            self.residency * 100.0,
            after.residency * 100.0,
            self.n_findings,
            count(after.n_findings, "finding")
        )
    }
}

/// A number of things.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is in the program.
    Kept(Proof),
    /// It is not.
    Rejected(String),
}

/// A fix of one function, at one or several ops.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The fix.
    pub fix: &'static str,
    /// What it writes.
    pub what: &'static str,
    /// The rules that had found something.
    pub rules: Vec<&'static str>,
    /// The function; empty where it is the program.
    pub function: String,
    /// The ops, and where in the checkpoint they come from.
    pub sites: Vec<Place>,
    /// The function before.
    pub before: Measure,
    /// The function after.
    pub after: Measure,
    /// What became of it.
    pub verdict: Verdict,
}

/// An op, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its kind and what it makes.
    pub op: String,
    /// The module or tensor of the checkpoint; empty where it is not known.
    pub layer: String,
}

impl Place {
    /// Of an op of a function.
    pub fn of(f: &Function, op: OpId) -> Self {
        Self {
            op: label(f, op),
            layer: f.op(op).origin.place.to_string(),
        }
    }
}

/// A finding that no fix answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The rule.
    pub rule: &'static str,
    /// The function; empty where it is the program.
    pub function: String,
    /// The first op, unless it is about the function.
    pub place: Option<Place>,
    /// How many such findings there are.
    pub n: usize,
    /// Why it is left.
    pub reason: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.op)?;
        if self.layer.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.layer)
        }
    }
}

/// Places of a step that are listed.
const MOST_PLACES: usize = 4;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verdict {
            Verdict::Kept(_) => "fixed",
            Verdict::Rejected(_) => "left ",
        };
        write!(f, "{verb} {}: {}", self.rules.join(" "), self.what)?;
        let places = match self.sites.len() {
            0 => String::new(),
            n => format!(", {}", count(n, "place")),
        };
        if !self.function.is_empty() {
            write!(f, " [{}{places} in {}]", self.fix, self.function)?;
        }
        for place in self.sites.iter().take(MOST_PLACES) {
            write!(f, "\n        {place}")?;
        }
        if self.sites.len() > MOST_PLACES {
            write!(f, "\n        and {} more", self.sites.len() - MOST_PLACES)?;
        }
        let proof = match &self.verdict {
            Verdict::Rejected(reason) => return write!(f, "\n      because {reason}"),
            Verdict::Kept(proof) => proof,
        };
        if self.before != self.after {
            write!(f, "\n      predicted: {}", self.before.change(&self.after))?;
        }
        match proof {
            Proof::Equal(how) => write!(f, "\n      proven: {}", readable(how)),
            Proof::Lossy { how, .. } => write!(f, "\n      lossy: {how}"),
            Proof::Differs(how) | Proof::Unknown(how) => write!(f, "\n      NOT proven: {how}"),
        }
    }
}

/// Without numbers of errors that are 0.
fn readable(how: &str) -> String {
    how.replace("are off by 0.0e0", "are exact")
        .replace("is off by 0.0e0 of the largest output", "is exact")
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = match self.function.as_str() {
            "" => "the program",
            name => name,
        };
        write!(f, "left  {} in {function}", self.rule)?;
        if let Some(place) = &self.place {
            write!(f, ", {place}")?;
        }
        if self.n > 1 {
            write!(f, " and {} more", self.n - 1)?;
        }
        write!(f, ": {}", self.reason)
    }
}
