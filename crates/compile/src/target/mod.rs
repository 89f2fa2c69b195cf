//! What a program is judged for: a chip, a release of the operating system, what Core ML may use, and the way in.
//!
//! Each is a table with sources; nothing here was measured by this project. A target is written `m4`, `a19`, `m4+macos26`.

mod chip;
mod family;
mod figure;
mod release;

use std::fmt;

pub use chip::{CHIPS, Chip};
pub use family::{Caps, Family, Segmenter, Streaming};
pub use figure::Figure;
pub use release::{Quirk, RELEASES, Release};

/// How a number or a rule is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// Apple says so.
    Documented,
    /// Somebody measured it on this chip or release, and published how.
    Measured,
    /// Taken from a kindred chip, or read out of Apple's binaries.
    Inferred,
    /// Told by somebody who does not say how it was found.
    Folklore,
}

impl Evidence {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Documented => "documented",
            Self::Measured => "measured",
            Self::Inferred => "inferred",
            Self::Folklore => "folklore",
        }
    }
}

/// What Core ML is allowed to use, as `MLComputeUnits` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// `cpuAndNeuralEngine`.
    #[default]
    CpuAndNeuralEngine,
    /// `all`.
    All,
    /// `cpuAndGPU`.
    CpuAndGpu,
    /// `cpuOnly`.
    CpuOnly,
}

impl Units {
    /// Every setting.
    pub const ALL: [Self; 4] = [Self::CpuAndNeuralEngine, Self::All, Self::CpuAndGpu, Self::CpuOnly];

    /// As Core ML spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuAndNeuralEngine => "cpuAndNeuralEngine",
            Self::All => "all",
            Self::CpuAndGpu => "cpuAndGPU",
            Self::CpuOnly => "cpuOnly",
        }
    }
}

/// How a program reaches the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// Through Core ML, which may place ops elsewhere.
    #[default]
    CoreMl,
    /// Straight to the engine's compiler, which takes all or nothing.
    Direct,
}

/// The chip that is meant where none is said: the one most of what is published was measured on.
const USUAL: &str = "m4";

/// What a program is judged for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The chip.
    pub chip: &'static Chip,
    /// The release of the operating system.
    pub release: &'static Release,
    /// What Core ML may use.
    pub units: Units,
    /// How the program gets there.
    pub route: Route,
}

/// Why a target is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} in target {text:?} is neither a chip ({}) nor a release ({})", names(CHIPS.iter().map(|c| c.name)), names(RELEASES.iter().flat_map(|r| [r.mac, r.ios])))]
pub struct TargetError {
    /// The target as written.
    pub text: String,
    /// What is wrong in it.
    pub word: String,
}

fn names(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

impl Target {
    /// A target from words joined by `+`: a chip, a release, or both. Not said, the chip is `m4` and the release the
    /// newest.
    pub fn parse(text: &str, units: Units, route: Route) -> Result<Self, TargetError> {
        let usual = CHIPS.iter().find(|c| c.name == USUAL).unwrap_or(&CHIPS[0]);
        let mut target = Self { chip: usual, release: &RELEASES[RELEASES.len() - 1], units, route };
        for word in text.split('+').map(str::trim) {
            match (Chip::from_name(word), Release::from_name(word)) {
                (Some(chip), _) => target.chip = chip,
                (None, Some(release)) => target.release = release,
                (None, None) => return Err(TargetError { text: text.to_owned(), word: word.to_owned() }),
            }
        }
        Ok(target)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.chip.name, if self.chip.is_phone() { self.release.ios } else { self.release.mac })?;
        match self.route {
            Route::CoreMl => write!(f, " ({})", self.units.name()),
            Route::Direct => write!(f, " (direct)"),
        }
    }
}
