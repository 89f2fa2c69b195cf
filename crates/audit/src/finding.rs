//! A rule that fired.

use thane_mil::program::OpId;

use crate::rule::Rule;

/// A rule that fired, and where.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The op, unless the finding is about the whole function or program.
    pub op: Option<OpId>,
    /// What the rule found there, with its numbers.
    pub message: String,
}
