//! The target that a program is judged for: a chip, a release of the operating system, the compute
//! units that Core ML may use, and the route to the Neural Engine.
//!
//! Each part is a table with sources. Nothing here was measured by this project. A target is
//! written `m4`, `a19`, `ios26` or `m4+macos26`, and a device stands for its chip and system:
//! `iphone-17-pro`.

mod chip;
mod device;
mod family;
mod figure;
mod host;
mod release;

use std::fmt;

use thane_calls::names::TARGETS;
use thane_mil::nearest::nearest;
use thane_mil::package::Package;

pub use chip::{ASLEEP_US, CHIPS, Chip, most_channels};
pub use device::{DEVICES, Device};
pub use family::{Caps, Family, Segmenter, Streaming};
pub use figure::Figure;
pub use host::Host;
pub use release::{RELEASES, Release};

/// How a number or a rule is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// Apple says so.
    Documented,
    /// Somebody measured it on this chip or release, and published how.
    Measured,
    /// Taken from a related chip, or read from Apple's binaries.
    Inferred,
    /// Claimed by somebody who does not say how it was found.
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

/// The compute units that Core ML may use, as `MLComputeUnits` has them.
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
    pub const ALL: [Self; 4] = [
        Self::CpuAndNeuralEngine,
        Self::All,
        Self::CpuAndGpu,
        Self::CpuOnly,
    ];

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
    /// Directly to the engine's compiler, which takes the whole program or nothing.
    Direct,
}

/// The kind of system that a program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// macOS.
    Mac,
    /// iOS, on phones.
    Phone,
    /// iPadOS.
    Pad,
}

impl System {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Mac, Self::Phone, Self::Pad];

    /// The device that runs the system.
    pub fn device(self) -> &'static str {
        match self {
            Self::Mac => "Mac",
            Self::Phone => "iPhone",
            Self::Pad => "iPad",
        }
    }

    /// The chip that is meant where only the system is given: the oldest of the tables that runs
    /// it, since a program for a system must run on each of its devices.
    pub fn oldest_chip(self) -> &'static Chip {
        let of_kind = CHIPS.iter().filter(|chip| chip.runs(self));
        // Among the chips of a generation, that of phones is the slowest.
        let oldest = of_kind.min_by_key(|chip| (chip.generation, !chip.runs(Self::Phone)));
        oldest.unwrap_or(&CHIPS[0])
    }
}

/// The parts of a target that the user did not give, and that follow from the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Implied {
    /// The chip.
    pub chip: bool,
    /// The release of the system.
    pub release: bool,
}

/// The target that a program is judged for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The chip.
    pub chip: &'static Chip,
    /// The release of the operating system.
    pub release: &'static Release,
    /// The system of that release.
    pub system: System,
    /// The compute units that Core ML may use.
    pub units: Units,
    /// The route to the Neural Engine.
    pub route: Route,
    /// The parts that the user did not give.
    pub implied: Implied,
}

/// Why a text names no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// A word is in no table.
    #[error(
        "{word:?} in target {text:?} is no chip ({}), no system ({}) and no device ({}){}",
        CHIPS.iter().map(|c| c.name).collect::<Vec<_>>().join(", "),
        RELEASES.iter().flat_map(|r| r.names()).collect::<Vec<_>>().join(", "),
        DEVICES.iter().map(|d| d.name).collect::<Vec<_>>().join(", "),
        suggested(nearest)
    )]
    Unknown {
        /// The target as written.
        text: String,
        /// The unknown word.
        word: String,
        /// The names that are spelled most like it, the nearest first.
        nearest: Vec<&'static str>,
    },
    /// A `+` with nothing before or behind it.
    #[error("target {text:?}: expected a chip or a system on both sides of `+`, found nothing")]
    Empty {
        /// The target as written.
        text: String,
    },
    /// Two chips or two systems.
    #[error(
        "target {text:?}: expected one chip and one system, found {first} and {second}; write \
         {first},{second} to judge for both"
    )]
    Twice {
        /// The target as written.
        text: String,
        /// A chip or system.
        first: &'static str,
        /// Another one.
        second: &'static str,
    },
    /// The device has another system.
    #[error("target {text:?}: {device} does not run {found}; write {device}+{own}")]
    OtherSystem {
        /// The target as written.
        text: String,
        /// The device.
        device: &'static str,
        /// The system that was asked for.
        found: &'static str,
        /// The release of that autumn that the device runs.
        own: &'static str,
    },
    /// No device has both.
    #[error("target {text:?}: no {} has {chip}; write {remedy}", system.device())]
    Apart {
        /// The target as written.
        text: String,
        /// The chip, as Apple sells it.
        chip: &'static str,
        /// The system that was asked for.
        system: System,
        /// Targets that exist.
        remedy: String,
    },
}

/// `; did you mean A, B or C?`, or nothing where no name is near.
pub fn suggested(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [first @ .., last] => format!("; did you mean {} or {last}?", first.join(", ")),
    }
}

impl Target {
    /// A target of a chip and a release, on the chip's first system.
    pub fn new(chip: &'static Chip, release: &'static Release, units: Units, route: Route) -> Self {
        Self {
            chip,
            release,
            system: chip.first_system(),
            units,
            route,
            implied: Implied::default(),
        }
    }

    /// A target from words joined by `+`, in capitals or not: a chip or a [`Device`], a system, or
    /// both. Where a word is missing, a chip implies [`Release::newest`] of its system, and a
    /// system [`System::oldest_chip`].
    pub fn parse(text: &str, units: Units, route: Route) -> Result<Self, TargetError> {
        if text.contains('+') && text.split('+').any(|word| word.trim().is_empty()) {
            return Err(TargetError::Empty {
                text: text.to_owned(),
            });
        }
        let Words {
            chip,
            device,
            release,
        } = Words::of(text)?;
        let implied = Implied {
            chip: chip.is_none(),
            release: release.is_none(),
        };
        let newest = Release::newest();
        let (chip, release, system) = match (chip, release) {
            (None, None) => return Err(unknown(text, text)),
            (Some(chip), None) => {
                let system = device.map_or_else(|| chip.first_system(), Device::system);
                (chip, newest, system)
            }
            (None, Some((release, system))) => (system.oldest_chip(), release, system),
            (Some(chip), Some((release, system))) => match device {
                Some(device) if device.system() != system => {
                    return Err(TargetError::OtherSystem {
                        text: text.to_owned(),
                        device: device.name,
                        found: release.name(system),
                        own: release.name(device.system()),
                    });
                }
                None if !chip.runs(system) => return Err(apart(text, chip, release, system)),
                _ => (chip, release, system),
            },
        };
        Ok(Self {
            chip,
            release,
            system,
            units,
            route,
            implied,
        })
    }

    /// The targets that a package was written for, as its metadata has them.
    pub fn written_for(package: &Package) -> Vec<Self> {
        let named = package.metadata.user_defined.get(TARGETS);
        let names = named.iter().flat_map(|names| names.split(','));
        let parse = |name| Self::parse(name, Units::default(), Route::default()).ok();
        names.filter_map(parse).collect()
    }

    /// The default target: M4, on which most of what is published was measured.
    pub fn usual() -> Self {
        let newest = Release::newest();
        let target = Self::new(
            Chip::from_name("m4").unwrap_or(&CHIPS[0]),
            newest,
            Units::default(),
            Route::default(),
        );
        Self {
            implied: Implied {
                chip: true,
                release: true,
            },
            ..target
        }
    }

    /// The name of the release on the target's system.
    pub fn release_name(&self) -> &'static str {
        self.release.name(self.system)
    }

    /// Chip and system, as [`Target::parse`] reads them: `a14+ios18`.
    pub fn name(&self) -> String {
        format!("{}+{}", self.chip.name, self.release_name())
    }

    /// Chip and system: `a14+ios18 (the oldest chip here that runs ios18)`, if no chip was given.
    pub fn described(&self) -> String {
        let release = self.release_name();
        let name = self.name();
        match self.implied {
            Implied {
                chip: true,
                release: false,
            } => format!("{name} (the oldest chip here that runs {release})"),
            _ => name,
        }
    }

    /// Whether it runs iOS or iPadOS: what was measured on iPhones is taken to hold for iPads.
    pub fn is_mobile(&self) -> bool {
        self.system != System::Mac
    }
}

/// What the words of a target name.
#[derive(Default)]
struct Words {
    chip: Option<&'static Chip>,
    /// The device that has the chip, if one is named.
    device: Option<&'static Device>,
    release: Option<(&'static Release, System)>,
}

impl Words {
    fn of(text: &str) -> Result<Self, TargetError> {
        let mut words = Self::default();
        let twice = |first, second| TargetError::Twice {
            text: text.to_owned(),
            first,
            second,
        };
        for word in text.split('+').map(str::trim) {
            let device = Device::from_name(word);
            let chip = Chip::from_name(word).or_else(|| device.and_then(Device::chip));
            match (chip, Release::from_name(word)) {
                (Some(new), _) => {
                    words.device = device;
                    if let Some(old) = words.chip.replace(new) {
                        return Err(twice(old.name, new.name));
                    }
                }
                (None, Some(new)) => {
                    if let Some((release, old)) = words.release.replace(new) {
                        return Err(twice(release.name(old), new.0.name(new.1)));
                    }
                }
                (None, None) => return Err(unknown(text, word)),
            }
        }
        Ok(words)
    }
}

fn unknown(text: &str, word: &str) -> TargetError {
    /// Suggestions.
    const MOST: usize = 3;
    let names = CHIPS
        .iter()
        .map(|c| c.name)
        .chain(RELEASES.iter().flat_map(Release::names))
        .chain(DEVICES.iter().map(|device| device.name));
    let mut names: Vec<&'static str> = names.collect();
    let next = || {
        let name = nearest(word, names.iter().copied())?;
        names.retain(|other| *other != name);
        Some(name)
    };
    let near = std::iter::from_fn(next).take(MOST).collect();
    TargetError::Unknown {
        text: text.to_owned(),
        word: word.to_owned(),
        nearest: near,
    }
}

/// The targets that are near one that no device is.
fn apart(
    text: &str,
    chip: &'static Chip,
    release: &'static Release,
    system: System,
) -> TargetError {
    let of_chip = System::ALL
        .into_iter()
        .filter(|s| chip.runs(*s))
        .map(|s| (chip, s));
    // The system alone: which of its devices had this release is not in the tables.
    let names: Vec<String> = of_chip
        .map(|(chip, system)| format!("{}+{}", chip.name, release.name(system)))
        .chain([release.name(system).to_owned()])
        .collect();
    TargetError::Apart {
        text: text.to_owned(),
        chip: chip.marketing,
        system,
        remedy: names.join(" or "),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self.route {
            Route::CoreMl => write!(f, " ({})", self.units.name()),
            Route::Direct => write!(f, " (direct)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, TargetError> {
        Target::parse(text, Units::default(), Route::default())
    }

    #[test]
    fn a_system_implies_a_chip_of_its_kind() {
        let cases = [
            ("ios26", "a14+ios26", true, false),
            ("iOS26", "a14+ios26", true, false),
            ("ipados26", "a14+ipados26", true, false),
            ("macos26", "m1+macos26", true, false),
            ("a19", "a19+ios27", false, true),
            ("M4 Max", "m4-max+macos27", false, true),
            ("m4+iPadOS26", "m4+ipados26", false, false),
            ("MACOS15+m1", "m1+macos15", false, false),
            ("m5+macos27.2", "m5+macos27.2", false, false),
            ("a20-pro", "a20-pro+ios27", false, true),
            ("iPhone 17 Pro", "a19-pro+ios27", false, true),
            ("iphone17", "a19+ios27", false, true),
            ("ipad-pro-m4", "m4+ipados27", false, true),
            ("macbook-air-m4", "m4+macos27", false, true),
            ("iphone-15+ios18", "a16+ios18", false, false),
        ];
        for (text, name, chip, release) in cases {
            let target = parse(text).unwrap();
            assert_eq!(
                target.to_string(),
                format!("{name} (cpuAndNeuralEngine)"),
                "{text}"
            );
            assert_eq!(target.implied, Implied { chip, release }, "{text}");
        }
        assert_eq!(
            Target::usual().to_string(),
            "m4+macos27 (cpuAndNeuralEngine)"
        );
    }

    #[test]
    fn a_chip_and_a_system_that_no_device_has_are_an_error_with_a_remedy() {
        let cases = [
            ("a19+macos26", "no Mac has A19; write a19+ios26 or macos26"),
            (
                "m4+ios26",
                "no iPhone has M4; write m4+macos26 or m4+ipados26 or ios26",
            ),
            (
                "m4-max+ipados26",
                "no iPad has M4 Max; write m4-max+macos26 or ipados26",
            ),
            (
                "m4+m5",
                "expected one chip and one system, found m4 and m5; write m4,m5",
            ),
            ("ios18+ios26", "found ios18 and ios26"),
            ("m4mx", "did you mean m4-max or m4?"),
            ("macos62", "did you mean macos"),
            ("iphone-19", "did you mean iphone-1"),
            ("macbook-air-m9", "did you mean macbook-air-m"),
            ("ipad-pro-m4+macos26", "write ipad-pro-m4+ipados26"),
            ("iphone-17+m4", "found a19 and m4"),
            ("", "is no chip"),
            ("m4+", "a system on both sides of `+`"),
            ("+ios18", "a system on both sides of `+`"),
        ];
        for (text, said) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
