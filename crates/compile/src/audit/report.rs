//! What an audit found.

use thane_mil::program::OpId;

use super::latency::Latency;
use super::place::Placement;
use super::rules::Rule;
use crate::target::Target;

/// A rule that fired, and where.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The op, unless it is about the whole function or program.
    pub op: Option<OpId>,
    /// What was found there, with its numbers.
    pub message: String,
}

/// A function, judged.
#[derive(Clone, Debug)]
pub struct FunctionAudit {
    /// Its name.
    pub name: String,
    /// Where each op runs.
    pub placement: Placement,
    /// What a call takes.
    pub latency: Latency,
    /// What the rules found.
    pub findings: Vec<Finding>,
}

/// A program, judged.
#[derive(Clone, Debug)]
pub struct Audit {
    /// For this.
    pub target: Target,
    /// In the order of the program.
    pub functions: Vec<FunctionAudit>,
    /// Findings about the program as a whole.
    pub findings: Vec<Finding>,
}
