//! What a pass is: a function that looks at a program's function and answers, place by place, what
//! it would change.
//!
//! A pass changes nothing itself; the [`driver`](crate::driver) applies its answers. A pass may be
//! a [`Pattern`](thane_mil::pattern::Pattern) and a builder, which [`sites`](crate::rewrite::sites)
//! asks at each op.

use thane_mil::edit::Patch;
use thane_mil::program::{Function, OpId};

/// What a pass answers for one place.
#[derive(Debug)]
pub enum Outcome {
    /// It matches, and this is the change.
    Applied(Patch),
    /// It does not match; the same as no answer.
    NoMatch,
    /// It matches, but the change would gain nothing.
    NoEffect,
    /// It matches, but must not be changed, because of this.
    Refused(&'static str),
}

impl From<Result<Patch, &'static str>> for Outcome {
    fn from(answer: Result<Patch, &'static str>) -> Self {
        answer.map_or_else(Self::Refused, Self::Applied)
    }
}

/// What a pass answers for one op.
#[derive(Debug)]
pub struct Site {
    /// The op.
    pub op: OpId,
    /// The answer.
    pub outcome: Outcome,
}

/// Looks at a function and answers site by site. Any first part of the answers must be a legal
/// change, and the same function must get the same answers.
pub type Answers = fn(&Function) -> Vec<Site>;

/// One pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name, such as `eliminate_dead_code`.
    pub name: &'static str,
    /// What it would do to a function.
    pub run: Answers,
}
