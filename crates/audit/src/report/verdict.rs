//! What is judged of a subject, and the verdict on it.

use crate::rule::{Effect, Rule, Severity};

/// The verdict on a program for a target, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does not compile, load or run.
    Fails,
    /// It may not compile, load or run: the source is contradicted or unchecked, or is about
    /// similar programs.
    MayFail,
    /// It gives wrong numbers.
    Wrong,
    /// No op runs on the engine.
    Off,
    /// All of it may run elsewhere: the source is contradicted or unchecked.
    MayLeave,
    /// Some ops run on the engine.
    Partly,
    /// 95 % of the ops or more run on the engine.
    Mostly,
    /// All ops run on the engine.
    On,
}

impl Verdict {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fails => "fails",
            Self::MayFail => "may-fail",
            Self::Wrong => "wrong-results",
            Self::MayLeave => "may-leave-engine",
            Self::Off => "off-engine",
            Self::Partly => "partly-on-engine",
            Self::Mostly => "mostly-on-engine",
            Self::On => "on-engine",
        }
    }
}

/// The part of a subject that is judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// The one function that is in the report.
    pub only: Option<&'a str>,
    /// Lengths that functions of any length are priced at.
    pub lengths: &'a [usize],
}

/// Percent of ops; of no ops, nothing is on the engine.
pub fn percent(part: usize, all: usize) -> f64 {
    if all == 0 {
        0.0
    } else {
        part as f64 / all as f64 * 100.0
    }
}

/// The verdict on programs in which these rules were found.
pub fn verdict(rules: &[&Rule], refused: bool, ane_ops: usize, ops: usize) -> Verdict {
    let errors = || rules.iter().filter(|r| r.severity == Severity::Error);
    let stops = || rules.iter().filter(|r| r.stops());
    match () {
        () if refused || stops().any(|r| r.is_certain()) => Verdict::Fails,
        () if stops().next().is_some() => Verdict::MayFail,
        () if errors().any(|r| r.effect == Effect::WrongResult) => Verdict::Wrong,
        () if ane_ops == 0 => Verdict::Off,
        () if rules.iter().any(|r| r.effect == Effect::ProgramLeaves) => Verdict::MayLeave,
        () if ane_ops == ops => Verdict::On,
        () if percent(ane_ops, ops) >= 95.0 => Verdict::Mostly,
        () => Verdict::Partly,
    }
}
