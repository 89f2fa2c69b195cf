//! What a rule is: what it looks for, what happens where it fires, and how that is known.
//!
//! The rules themselves are the rows of [`rules`](crate::rules).

use thane_mil::program::{OpId, Program};

use crate::target::{Evidence, Route, Target};
use crate::view::View;

/// What happens where a rule fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The op runs elsewhere.
    OpLeaves,
    /// The ops around it run elsewhere too, or the whole program.
    ProgramLeaves,
    /// The compiler fails, with this code if one is known.
    CompileFails(Option<&'static str>),
    /// It does not load.
    LoadFails(Option<&'static str>),
    /// A call fails.
    RunFails(Option<&'static str>),
    /// A call gives wrong numbers.
    WrongResult,
    /// It is slower than it need be.
    Slow,
}

/// How bad that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Good to know.
    Note,
    /// It costs.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    /// Every severity, the least first.
    pub const ALL: [Self; 3] = [Self::Note, Self::Warning, Self::Error];

    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// The severity of a word, in capitals or not.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|severity| severity.name().eq_ignore_ascii_case(word))
    }
}

/// Where a rule holds. Empty slices say everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// Generations of the engine, first and last: 13 is M1 and A14, 18 is M6 and A19.
    pub generations: (u8, u8),
    /// macOS releases, first and last, by number and point release.
    pub releases: ((u32, u32), (u32, u32)),
    /// One way in only.
    pub route: Option<Route>,
}

impl Scope {
    /// Everywhere.
    pub const ALL: Self = Self {
        generations: (0, u8::MAX),
        releases: ((0, 0), (u32::MAX, u32::MAX)),
        route: None,
    };

    /// Whether a target is in it.
    pub fn holds(&self, target: &Target) -> bool {
        let (generation, release) = (target.chip.generation, target.release.version());
        (self.generations.0..=self.generations.1).contains(&generation)
            && (self.releases.0..=self.releases.1).contains(&release)
            && self.route.is_none_or(|r| r == target.route)
    }
}

impl Scope {
    /// These generations of the engine only.
    pub(crate) const fn generations(first: u8, last: u8) -> Self {
        Self {
            generations: (first, last),
            ..Self::ALL
        }
    }

    /// This way in only.
    pub(crate) const fn on(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// These releases of macOS only, and those of iOS that go with them; their point releases too.
    pub(crate) const fn releases(mut self, first: u32, last: u32) -> Self {
        self.releases = ((first, 0), (last, u32::MAX));
        self
    }

    /// This point release of macOS and later ones only.
    pub(crate) const fn since(mut self, release: (u32, u32)) -> Self {
        self.releases.0 = release;
        self
    }
}

/// A place in a function and what was found there.
pub struct Hit {
    /// The op, unless it is about the function.
    pub op: Option<OpId>,
    /// What, with its numbers.
    pub message: String,
}

impl From<String> for Hit {
    /// About the function.
    fn from(message: String) -> Self {
        Self { op: None, message }
    }
}

impl Hit {
    /// The hit of a rule about a function if the condition holds, and none otherwise.
    pub(crate) fn when(
        holds: bool,
        op: Option<OpId>,
        message: impl FnOnce() -> String,
    ) -> Vec<Self> {
        let hit = || Self {
            op,
            message: message(),
        };
        holds.then(hit).into_iter().collect()
    }
}

/// How a rule looks.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// At each op that computes: what is wrong, if anything.
    Op(fn(&View<'_>, OpId) -> Option<String>),
    /// At each op of these kinds. In the message `{op}` is the kind, and `{chip}` the chip.
    Kinds(&'static [&'static str], &'static str),
    /// At a function.
    Function(fn(&View<'_>) -> Vec<Hit>),
    /// At the whole program.
    Program(fn(&Program, &Target) -> Vec<String>),
}

impl Check {
    /// What is wrong at an op that computes, if the rule looks at ops.
    pub(crate) fn at(&self, view: &View<'_>, op: OpId) -> Option<String> {
        match self {
            Self::Op(check) => check(view, op),
            Self::Kinds(kinds, message) => {
                let kind = view.op(op).def.name;
                let message = || message.replace("{op}", kind);
                let is_one = kinds.contains(&kind);
                is_one.then(|| message().replace("{chip}", view.target.chip.name))
            }
            Self::Function(_) | Self::Program(_) => None,
        }
    }
}

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// `ANE001` and on; never used for another again.
    pub id: &'static str,
    /// What it is about, in a line.
    pub title: &'static str,
    /// What happens.
    pub effect: Effect,
    /// How bad that is.
    pub severity: Severity,
    /// Where it holds.
    pub scope: Scope,
    /// How it is known.
    pub evidence: Evidence,
    /// Who says so: project and place, chip and release.
    pub source: &'static str,
    /// What another source says against it; empty where none does.
    pub disputed: &'static str,
    /// Why it is so.
    pub why: &'static str,
    /// What to do instead.
    pub fix: &'static str,
    /// How it looks.
    pub check: Check,
}

impl Rule {
    /// Whether the program does not compile, load or run where it fires. Notes are only good to
    /// know, so a program does not stop at one.
    pub fn stops(&self) -> bool {
        use Effect::{CompileFails, LoadFails, RunFails};
        let fails = matches!(self.effect, CompileFails(_) | LoadFails(_) | RunFails(_));
        fails && self.severity > Severity::Note
    }

    /// Whether a program that it finds does not do what it should: it fails, leaves the engine
    /// whole, or gives wrong numbers.
    pub fn is_fault(&self) -> bool {
        self.severity == Severity::Error || self.effect == Effect::WrongResult
    }

    /// Whether sources contradict the rule, or nobody says how it was found.
    pub fn is_doubtful(&self) -> bool {
        self.evidence == Evidence::Folklore || !self.disputed.is_empty()
    }

    /// Whether what it says happens wherever it fires. A warning of a failure is about cases
    /// beside those that were seen to fail.
    pub fn is_certain(&self) -> bool {
        self.severity == Severity::Error && !self.is_doubtful()
    }
}
