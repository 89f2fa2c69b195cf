//! The report of [`run`](super::run): what was fixed, what was not, and why.

use std::fmt;

use super::Proof;
use super::judge::Measure;
use crate::target::Target;

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

/// A finding that no fix answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The rule.
    pub rule: &'static str,
    /// The function.
    pub function: String,
    /// The first op, unless it is about the function.
    pub place: Option<Place>,
    /// How many such findings there are.
    pub n: usize,
    /// Why it is left.
    pub reason: String,
}

/// An input, output or state that has another type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The function.
    pub function: String,
    /// `input`, `output` or `state`.
    pub role: &'static str,
    /// Its name.
    pub name: String,
    /// Its type before.
    pub was: String,
    /// Its type.
    pub is: String,
}

impl Changed {
    /// What it has behind its old end.
    pub fn padding(&self) -> &'static str {
        if self.role == "input" {
            "anything: it is not read"
        } else {
            "0"
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            function,
            role,
            name,
            was,
            is,
        } = self;
        write!(
            f,
            "{function}: {role} `{name}` was {was}, is {is}; behind that {}",
            self.padding()
        )
    }
}

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
        let kept = matches!(self.verdict, Verdict::Kept(_));
        write!(
            f,
            "{} {}: {}",
            if kept { "fixed" } else { "left " },
            self.rules.join(" "),
            self.what
        )?;
        if !self.function.is_empty() {
            match self.sites.len() {
                0 => write!(f, " [{} in {}]", self.fix, self.function)?,
                n => write!(
                    f,
                    " [{}, {} in {}]",
                    self.fix,
                    count(n, "place"),
                    self.function
                )?,
            }
        }
        for place in self.sites.iter().take(MOST_PLACES) {
            write!(f, "\n        {place}")?;
        }
        if self.sites.len() > MOST_PLACES {
            write!(f, "\n        and {} more", self.sites.len() - MOST_PLACES)?;
        }
        match &self.verdict {
            Verdict::Rejected(reason) => write!(f, "\n      because {reason}"),
            Verdict::Kept(proof) => {
                if self.before != self.after {
                    write!(
                        f,
                        "\n      predicted: {}",
                        change(&self.before, &self.after)
                    )?;
                }
                match proof {
                    Proof::Equal(how) => write!(f, "\n      proven: {}", readable(how)),
                    Proof::Lossy { how, .. } => write!(f, "\n      lossy: {how}"),
                    Proof::Differs(how) | Proof::Unknown(how) => {
                        write!(f, "\n      NOT proven: {how}")
                    }
                }
            }
        }
    }
}

/// Without numbers of errors that are 0.
fn readable(how: &str) -> String {
    how.replace("are off by 0.0e0", "are exact")
        .replace("is off by 0.0e0 of the largest output", "is exact")
}

fn change(before: &Measure, after: &Measure) -> String {
    let share = |m: &Measure| m.residency * 100.0;
    format!(
        "{:.3} -> {:.3} ms, on the engine {:.1} -> {:.1} % of ops, {} -> {}",
        before.ms,
        after.ms,
        share(before),
        share(after),
        before.n_findings,
        count(after.n_findings, "finding")
    )
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "left  {} in {}",
            self.rule,
            if self.function.is_empty() {
                "the program"
            } else {
                &self.function
            }
        )?;
        if let Some(place) = &self.place {
            write!(f, ", {place}")?;
        }
        if self.n > 1 {
            write!(f, " and {} more", self.n - 1)?;
        }
        write!(f, ": {}", self.reason)
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
            change(&self.before, &self.after)
        )
    }
}
