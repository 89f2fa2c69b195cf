//! The report of [`run`](super::run): what was fixed, what was not, and why.

use std::fmt;

use super::{Changed, Left, Measure, Step, Verdict, count};
use crate::target::Target;

/// What fixing a program did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What it was judged for.
    pub target: Target,
    /// The program before: all functions together.
    pub before: Measure,
    /// The program after.
    pub after: Measure,
    /// What was tried, in order.
    pub steps: Vec<Step>,
    /// What is left.
    pub left: Vec<Left>,
    /// What callers pass in another type.
    pub interface: Vec<Changed>,
}

impl Report {
    /// What is in the program.
    pub fn kept(&self) -> impl Iterator<Item = &Step> {
        self.steps
            .iter()
            .filter(|s| matches!(s.verdict, Verdict::Kept(_)))
    }

    /// What is not.
    pub fn rejected(&self) -> impl Iterator<Item = &Step> {
        self.steps
            .iter()
            .filter(|s| matches!(s.verdict, Verdict::Rejected(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps
            .iter()
            .try_for_each(|step| writeln!(f, "{step}"))?;
        self.left
            .iter()
            .try_for_each(|left| writeln!(f, "{left}"))?;
        self.interface
            .iter()
            .try_for_each(|changed| writeln!(f, "interface  {changed}"))?;
        writeln!(
            f,
            "{}: {} fixed, {} tried in vain, {} left; {}",
            self.target,
            self.kept().count(),
            self.rejected().count(),
            count(self.after.n_findings, "finding"),
            self.before.change(&self.after)
        )
    }
}
