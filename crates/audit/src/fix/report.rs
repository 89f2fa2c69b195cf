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
    /// True if no rewrite was kept: the program is unchanged.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fix::Proof;

    fn step(verdict: Verdict) -> Step {
        Step {
            fix: "narrow_floats",
            what: "fp32 in fp16",
            rules: vec!["ANE048"],
            function: "main".to_owned(),
            sites: Vec::new(),
            before: Measure::default(),
            after: Measure::default(),
            verdict,
        }
    }

    fn report(steps: Vec<Step>, after_ms: f64) -> Report {
        let measure = |ms, n_findings| Measure {
            ms,
            n_findings,
            ..Measure::default()
        };
        Report {
            target: Target::usual(),
            before: measure(1.0, 3),
            after: measure(after_ms, 2),
            steps,
            left: Vec::new(),
            interface: Vec::new(),
        }
    }

    #[test]
    fn the_reason_that_nothing_can_be_proven_is_given_once() {
        let why = format!("{UNPROVEN}: a chord makes the program itself overflow fp16 at add `y`");
        let steps = vec![step(Verdict::Rejected(why)); 3];
        let text = report(steps, 1.0).to_string();
        assert_eq!(text.matches("overflow fp16").count(), 1, "{text}");
        assert_eq!(text.matches(SAME_REASON).count(), 2, "{text}");
    }

    #[test]
    fn a_program_that_is_slower_says_why_it_is_kept() {
        let kept = || vec![step(Verdict::Kept(Proof::Equal(String::new())))];
        let said = "slower than before: 1.500 ms, not 1.000 ms; kept for the gain: fewer findings";
        assert!(report(kept(), 1.5).to_string().contains(said));
        assert!(!report(kept(), 1.0).to_string().contains("slower"));
        assert!(!report(Vec::new(), 1.5).to_string().contains("slower"));
    }
}
