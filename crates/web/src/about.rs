//! What programs can be judged for, from the auditor's own tables.

use serde::Serialize;
use thane_audit::target::{CHIPS, RELEASES, System, Target, Units};

use crate::Answer;

#[derive(Serialize)]
struct About {
    version: &'static str,
    /// The target where none is chosen.
    usual: String,
    chips: Vec<ChipRow>,
    /// Names of releases, the newest first, by the kind of system.
    releases: Vec<ReleaseRow>,
    units: [&'static str; 4],
}

#[derive(Serialize)]
struct ChipRow {
    name: &'static str,
    /// As Apple sells it.
    marketing: &'static str,
    /// The systems that it runs, the usual one first: `mac`, `phone` or `pad`.
    systems: Vec<&'static str>,
}

#[derive(Serialize)]
struct ReleaseRow {
    mac: &'static str,
    phone: &'static str,
    pad: &'static str,
}

pub fn answer() -> Result<Answer, String> {
    let chips = CHIPS.iter().map(|chip| {
        let first = chip.first_system();
        let others = System::ALL.into_iter();
        let others = others.filter(|system| *system != first && chip.runs(*system));
        ChipRow {
            name: chip.name,
            marketing: chip.marketing,
            systems: [first].into_iter().chain(others).map(kind).collect(),
        }
    });
    let releases = RELEASES.iter().rev().map(|release| ReleaseRow {
        mac: release.mac,
        phone: release.ios,
        pad: release.pad,
    });
    let about = About {
        version: env!("CARGO_PKG_VERSION"),
        usual: Target::usual().name(),
        chips: chips.collect(),
        releases: releases.collect(),
        units: Units::ALL.map(Units::name),
    };
    Ok(serde_json::to_string(&about)
        .map_err(|e| e.to_string())?
        .into())
}

fn kind(system: System) -> &'static str {
    match system {
        System::Mac => "mac",
        System::Phone => "phone",
        System::Pad => "pad",
    }
}
