//! Releases of macOS and iOS: the opset that each reads, and known defects.

use thane_mil::opset::Opset;

use super::{Evidence, Figure, System};

/// A defect or peculiarity of one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirk {
    /// A short name.
    pub id: &'static str,
    /// What happens.
    pub what: &'static str,
    /// Evidence.
    pub evidence: Evidence,
    /// Sources.
    pub source: &'static str,
}

/// A release: macOS and iOS of one autumn hold the same Core ML.
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
    /// Defects and peculiarities of the release.
    pub quirks: &'static [Quirk],
}

const GIB: f64 = 1_073_741_824.0;
const TWO_GIB: Figure = Figure::measured(2.0 * GIB, 0.95e9, 4.0 * GIB)
    .by("ANEForge: about 2 GB, once 4 GB on M1; ANEMLL keeps to 950 MB");
const PHONE: Figure = Figure::measured(1.0e9, 1.0e9, 1.4e9)
    .by("CoreML-LLM, iPhone 17 Pro: silently on the GPU above 1.0 to 1.4 GB");

/// macOS 12 to 26 differ in the opset only, and in quirks.
const fn release(
    [mac, ios, pad]: [&'static str; 3],
    opset: Opset,
    quirks: &'static [Quirk],
) -> Release {
    Release {
        mac,
        ios,
        pad,
        opset,
        program_bytes: TWO_GIB,
        phone_bytes: PHONE,
        quirks,
    }
}

/// Every release that reads ML Programs, oldest first.
pub static RELEASES: &[Release] = &[
    release(["macos12", "ios15", "ipados15"], Opset::CoreMl5, &[]),
    release(["macos13", "ios16", "ipados16"], Opset::CoreMl6, &[]),
    release(
        ["macos14", "ios17", "ipados17"],
        Opset::CoreMl7,
        &[Quirk {
            id: "opset-refused",
            what: "a program of opset CoreML8 does not parse, whatever the compute units",
            evidence: Evidence::Measured,
            source: "ane-linux-experiments, macOS 14.8.9",
        }],
    ),
    release(
        ["macos15", "ios18", "ipados18"],
        Opset::CoreMl8,
        &[
            Quirk {
                id: "state-axis",
                what: "a state whose last axis is no multiple of 32 fails on the engine only",
                evidence: Evidence::Measured,
                source: "coremltools issue 2631, M4, macOS 15.2",
            },
            Quirk {
                id: "palettized-state",
                what: "a stateful program with 4-bit palettes written by coremltools 9.0 crashes \
                    after 100 to 200 calls",
                evidence: Evidence::Folklore,
                source: "coremltools issue 2716; written by 8.3 it does not",
            },
        ],
    ),
    release(
        ["macos26", "ios26", "ipados26"],
        Opset::CoreMl8,
        &[
            Quirk {
                id: "stateful-h17",
                what: "stateful programs fail on M5 Max when they are called (E5RT code 8)",
                evidence: Evidence::Folklore,
                source: "VoxCPMANE issues 10 and 15, macOS 26.4.1 and the beta of 27",
            },
            Quirk {
                id: "sub-byte-direct",
                what: "straight to the engine, weights of less than 8 bits and blockwise scales \
                    are rejected or crash the compiler on M4 Max",
                evidence: Evidence::Measured,
                source: "mlx-serve, M4 Max, macOS 26; M5 Max accepts one scale a row",
            },
            Quirk {
                id: "monolith-ios26",
                what: "24 layers of fp16 in one program end in `No space left on device` of the \
                    compiler",
                evidence: Evidence::Measured,
                source: "CoreML-LLM, iOS 26.1",
            },
        ],
    ),
    Release {
        program_bytes: Figure {
            value: GIB,
            low: GIB,
            high: 2.0 * GIB,
            evidence: Evidence::Folklore,
            source: "eeane 2.1.0: macOS 27 cut the limit from 2 GiB to 1 GiB, nobody else says so",
        },
        ..release(
            ["macos27", "ios27", "ipados27"],
            Opset::CoreMl8,
            &[
                Quirk {
                    id: "channel-palettes",
                    what: "palettes with a table a channel run at 0.065 to 0.45 of fp16 on M5 Pro",
                    evidence: Evidence::Measured,
                    source: "cadamcat, M5 Pro, macOS 27.0",
                },
                Quirk {
                    id: "stateful-h17",
                    what: "stateful programs fail on M5 Max when they are called",
                    evidence: Evidence::Folklore,
                    source: "VoxCPMANE issue 15, beta of macOS 27",
                },
            ],
        )
    },
];

impl Release {
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

    /// The number of the macOS release.
    pub fn version(&self) -> u32 {
        self.mac.trim_start_matches("macos").parse().unwrap_or(0)
    }

    /// The quirk of a name, if the release has it.
    pub fn quirk(&self, id: &str) -> Option<&'static Quirk> {
        self.quirks.iter().find(|q| q.id == id)
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
        assert!(RELEASES.is_sorted_by_key(|r| r.opset));
    }
}
