//! The report of [`run`](super::run): what was fixed, what was not, and why.

use std::collections::HashSet;
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

impl Report {
    /// Whether the program is what it was: nothing was fixed.
    pub fn is_unchanged(&self) -> bool {
        self.kept().next().is_none()
    }

    /// That the program is predicted to be slower than before, and why it is kept; `None` if it is
    /// not, or if nothing was kept.
    fn slower(&self) -> Option<String> {
        let (was, is) = (&self.before, &self.after);
        if self.is_unchanged() || is.ms <= was.ms * (1.0 + LEAST_CHANGE) {
            return None;
        }
        let gains = [
            ("fewer errors", is.n_errors < was.n_errors),
            ("more ops on the engine", is.residency > was.residency),
            (
                "more ops that the engine supports",
                is.supported > was.supported,
            ),
            ("fewer findings", is.n_findings < was.n_findings),
        ];
        let gains = gains.into_iter().filter(|(_, gained)| *gained);
        let gains: Vec<&str> = gains.map(|(gain, _)| gain).collect();
        let gains = match gains.is_empty() {
            true => "what was wrong is right".to_owned(),
            false => gains.join(", "),
        };
        Some(format!(
            "slower than before: {:.3} ms, not {:.3} ms; kept for the gain: {gains}",
            is.ms, was.ms
        ))
    }
}

/// How reasons of rewrites begin that could not be run: many have the same one.
const UNPROVEN: &str = "it could not be proven";
const SAME_REASON: &str = "it could not be proven either, for the reason above";
/// A change of the time by less is none.
const LEAST_CHANGE: f64 = 1e-4;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = HashSet::new();
        for step in &self.steps {
            match &step.verdict {
                Verdict::Rejected(why) if why.starts_with(UNPROVEN) && !said.insert(why) => {
                    let verdict = Verdict::Rejected(SAME_REASON.to_owned());
                    writeln!(
                        f,
                        "{}",
                        Step {
                            verdict,
                            ..step.clone()
                        }
                    )?;
                }
                _ => writeln!(f, "{step}")?,
            }
        }
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
        )?;
        match self.slower() {
            Some(said) => writeln!(f, "{said}"),
            None => Ok(()),
        }
    }
}
