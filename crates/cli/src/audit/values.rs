//! The values of flags that verbs about the audit share.

use thane_audit::format::wrap::wrap;
use thane_audit::report::require::Deny;
use thane_audit::target::{CHIPS, DEVICES, RELEASES, Route, Target, TargetError, Units, suggested};

/// Parse a target: a chip or a device, a system, or both. Other flags give compute units and route.
pub fn target(text: &str) -> Result<Target, String> {
    Target::parse(text, Units::default(), Route::default()).map_err(|error| match error {
        TargetError::Unknown { word, nearest, .. } => {
            let chips: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
            let systems: Vec<&str> = RELEASES
                .iter()
                .flat_map(|release| release.names())
                .collect();
            let devices: Vec<&str> = DEVICES.iter().map(|device| device.name).collect();
            let lists = [
                wrap("  chips", 11, &chips.join(", ")),
                wrap("  systems", 11, &systems.join(", ")),
                wrap("  devices", 11, &devices.join(", ")),
            ]
            .concat();
            format!(
                "{word:?} is no chip, system or device{}\n{}",
                suggested(&nearest),
                lists.trim_end()
            )
        }
        other => other.to_string(),
    })
}

/// Parse compute units as Core ML spells them, in capitals or not.
pub fn units(text: &str) -> Result<Units, String> {
    let names = || Units::ALL.map(Units::name).join(", ");
    let found = Units::ALL
        .into_iter()
        .find(|u| u.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| format!("the settings are {}", names()))
}

/// Parse what may not be found: a rule or a severity.
pub fn deny(text: &str) -> Result<Deny, String> {
    Deny::parse(text).map_err(|e| e.to_string())
}

/// Parse a length that a call can have.
pub fn length(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 30;
    let n = text.trim().parse().ok().filter(|n| (1..=MOST).contains(n));
    n.ok_or_else(|| format!("expected a number from 1 to {MOST}"))
}

/// Parse a percentage.
pub fn percentage(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.trim_end_matches('%').trim().parse().ok();
    let value = value.filter(|v| (0.0..=100.0).contains(v));
    value.ok_or_else(|| "expected a percentage from 0 to 100, such as 99.5".to_owned())
}

/// Parse a time in milliseconds.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.trim_end_matches("ms").trim().parse().ok();
    let value = value.filter(|v| v.is_finite() && *v > 0.0);
    value.ok_or_else(|| "expected milliseconds above 0, such as 2.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percent() {
        assert_eq!(
            (percentage("99.5"), percentage("99.5%")),
            (Ok(99.5), Ok(99.5))
        );
        for wrong in ["", "nan", "-1", "101", "many"] {
            assert!(percentage(wrong).is_err(), "{wrong}");
        }
    }
}
