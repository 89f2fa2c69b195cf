//! How long a model stays loaded after its last request: `30m`, `1h30m`, a number of seconds.

use std::str::FromStr;
use std::time::Duration;

/// How long a model stays loaded; `None` for as long as the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

impl KeepAlive {
    /// As long as the server runs.
    pub const FOREVER: Self = Self(None);

    /// The longer of two.
    pub(crate) fn max(self, other: Self) -> Self {
        Self(self.0.zip(other.0).map(|(a, b)| a.max(b)))
    }
}

impl FromStr for KeepAlive {
    type Err = String;

    /// Reads `30m`, `1h30m`, `90s`, `500ms`, a number of seconds, `never`, or a negative number,
    /// which means never.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "never" {
            return Ok(Self::FOREVER);
        }
        let size = text.trim_start_matches(['-', '+']);
        let time = seconds(size).and_then(|s| Duration::try_from_secs_f64(s).ok());
        match time {
            Some(_) if text.starts_with('-') => Ok(Self::FOREVER),
            Some(time) => Ok(Self(Some(time))),
            None => Err(format!(
                "expected a time such as 30m, 90s or never, found `{text}`"
            )),
        }
    }
}

/// The seconds of a number, or of numbers with units.
fn seconds(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    if text.chars().all(is_digit) {
        return text.parse().ok();
    }
    let (mut rest, mut sum) = (text, 0.0);
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c| !is_digit(c))?);
        let (unit, factor) = UNITS.iter().find(|(unit, _)| behind.starts_with(unit))?;
        sum += number.parse::<f64>().ok()? * factor;
        rest = behind.strip_prefix(unit)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_go_and_seconds() {
        let ms = |ms| KeepAlive(Some(Duration::from_millis(ms)));
        for (text, time) in [
            ("30m", ms(1_800_000)),
            ("1h30m", ms(5_400_000)),
            ("500ms", ms(500)),
            ("1.5h", ms(5_400_000)),
            ("90", ms(90_000)),
            ("0", ms(0)),
            ("0s", ms(0)),
            ("-1", KeepAlive::FOREVER),
            ("-1m", KeepAlive::FOREVER),
            ("never", KeepAlive::FOREVER),
        ] {
            assert_eq!(text.parse(), Ok(time), "{text}");
        }
        for text in [
            "", "m", "5x", "5m3", "inf", "nan", "1e400", "-", "5 m", "1e300",
        ] {
            text.parse::<KeepAlive>().unwrap_err();
        }
    }
}
