//! Releases of macOS and iOS: the opset that each reads, and how large a program may be.

use thane_mil::opset::Opset;

use super::{Evidence, Figure, System};

/// A release: macOS and iOS of one autumn hold the same Core ML. A point release has a row of its
/// own where programs run otherwise on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Release {
    /// Name on Macs.
    pub mac: &'static str,
    /// Name on phones.
    pub ios: &'static str,
    /// Name on iPads.
    pub pad: &'static str,
    /// The newest opset that it reads.
    pub opset: Opset,
    /// Bytes of weights of one program that Macs take on the engine: where sources differ, from the
    /// least to the most.
    pub program_bytes: Figure,
    /// Bytes of weights of one program that phones take on the engine.
    pub phone_bytes: Figure,
}

const GIB: f64 = 1_073_741_824.0;
const TWO_GIB: Figure = Figure::measured(2.0 * GIB, 0.95e9, 4.0 * GIB)
    .by("ANEForge: about 2 GB, once 4 GB on M1; ANEMLL keeps to 950 MB");
const PHONE: Figure = Figure::measured(1.0e9, 1.0e9, 1.4e9)
    .by("CoreML-LLM, iPhone 17 Pro: silently on the GPU above 1.0 to 1.4 GB");

/// macOS 12 to 26 differ in the opset only.
const fn release([mac, ios, pad]: [&'static str; 3], opset: Opset) -> Release {
    Release {
        mac,
        ios,
        pad,
        opset,
        program_bytes: TWO_GIB,
        phone_bytes: PHONE,
    }
}

/// Every autumn release that reads ML Programs and the point releases that differ, oldest first.
pub static RELEASES: &[Release] = &[
    release(["macos12", "ios15", "ipados15"], Opset::CoreMl5),
    release(["macos13", "ios16", "ipados16"], Opset::CoreMl6),
    release(["macos14", "ios17", "ipados17"], Opset::CoreMl7),
    release(["macos15", "ios18", "ipados18"], Opset::CoreMl8),
    release(["macos26", "ios26", "ipados26"], Opset::CoreMl8),
    of_27(["macos27", "ios27", "ipados27"]),
    of_27(["macos27.2", "ios27.2", "ipados27.2"]),
];

/// A release of autumn 2026.
const fn of_27(names: [&'static str; 3]) -> Release {
    Release {
        program_bytes: Figure {
            value: GIB,
            low: GIB,
            high: 2.0 * GIB,
            evidence: Evidence::Folklore,
            source: "eeane 2.1.0: macOS 27 cut the limit from 2 GiB to 1 GiB, nobody else says so",
        },
        ..release(names, Opset::CoreMl8)
    }
}

impl Release {
    /// The newest autumn release, which a target without a release means. A point release is meant
    /// only where it is written: what is known of one is known of few chips.
    pub fn newest() -> &'static Self {
        let mut whole = RELEASES.iter().rev().filter(|r| r.version().1 == 0);
        whole.next().unwrap_or(&RELEASES[0])
    }

    /// The release of a name, in capitals or not, and the system that the name is of.
    pub fn from_name(name: &str) -> Option<(&'static Self, System)> {
        let pairs = RELEASES
            .iter()
            .flat_map(|r| System::ALL.map(|system| (r, system)));
        pairs
            .into_iter()
            .find(|(release, system)| release.name(*system).eq_ignore_ascii_case(name))
    }

    /// The name of the release on a system.
    pub fn name(&self, system: System) -> &'static str {
        match system {
            System::Mac => self.mac,
            System::Phone => self.ios,
            System::Pad => self.pad,
        }
    }

    /// The names of the release on every system.
    pub fn names(&self) -> [&'static str; 3] {
        System::ALL.map(|system| self.name(system))
    }

    /// The number of the macOS release, and of the point release, 0 for that of autumn.
    pub fn version(&self) -> (u32, u32) {
        let number = self.mac.trim_start_matches("macos");
        let (major, minor) = number.split_once('.').unwrap_or((number, "0"));
        (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
    }

    /// Bytes of weights that one program may have, on phones and iPads or on Macs.
    pub fn program_bytes(&self, mobile: bool) -> Figure {
        if mobile {
            self.phone_bytes
        } else {
            self.program_bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_rise_and_are_found_by_any_name() {
        assert!(RELEASES.is_sorted_by_key(Release::version));
        for release in RELEASES {
            for system in System::ALL {
                assert_eq!(
                    Release::from_name(release.name(system)),
                    Some((release, system))
                );
            }
        }
        assert_eq!(Release::from_name("macos11"), None);
        assert_eq!(Release::newest().mac, "macos27");
        let point = Release::from_name("iOS27.2").map(|(release, _)| release.version());
        assert_eq!(point, Some((27, 2)));
        assert!(RELEASES.is_sorted_by_key(|r| r.opset));
    }
}
