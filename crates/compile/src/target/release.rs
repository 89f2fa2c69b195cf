//! Releases of the operating systems, as far as programs are concerned.

use thane_mil::opset::Opset;

/// A release: macOS and iOS of one autumn hold the same Core ML.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Name on Macs.
    pub mac: &'static str,
    /// Name on phones.
    pub ios: &'static str,
    /// The newest opset that it reads.
    pub opset: Opset,
}

/// Every release that reads ML Programs, oldest first.
pub const RELEASES: &[Release] = &[
    Release { mac: "macos12", ios: "ios15", opset: Opset::CoreMl5 },
    Release { mac: "macos13", ios: "ios16", opset: Opset::CoreMl6 },
    Release { mac: "macos14", ios: "ios17", opset: Opset::CoreMl7 },
    Release { mac: "macos15", ios: "ios18", opset: Opset::CoreMl8 },
    Release { mac: "macos26", ios: "ios26", opset: Opset::CoreMl8 },
    Release { mac: "macos27", ios: "ios27", opset: Opset::CoreMl8 },
];

impl Release {
    /// The release of that name, on either system.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        RELEASES.iter().find(|r| r.mac == name || r.ios == name)
    }

    /// The number of the macOS release.
    pub fn version(&self) -> u32 {
        self.mac.trim_start_matches("macos").parse().unwrap_or(0)
    }
}
