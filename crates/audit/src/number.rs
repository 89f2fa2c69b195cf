//! Numbers and counts as reports for people show them.

use std::fmt::Display;

/// A value with a low and a high bound, as [`rounded`] has them: `0.80 (0.68-0.94)`.
pub fn between(value: f64, low: f64, high: f64) -> String {
    let [value, low, high] = rounded(value, low, high);
    format!("{value} ({low}-{high})")
}

/// A value, its low and its high bound, with as many digits as the interval deserves: the last one
/// is worth a hundredth to a tenth of its width, and no more than three are significant.
pub fn rounded(value: f64, low: f64, high: f64) -> [String; 3] {
    let all = [value, low, high];
    let width = high - low;
    if !all
        .iter()
        .all(|v| v.is_finite() && *v > 0.0 && *v < 99_999.5)
        || width <= 0.0
    {
        return all.map(short);
    }
    let least = libm::log10(width / 10.0).floor();
    let exponent = least.max(libm::log10(value).floor() - 2.0);
    let unit = libm::pow(10.0, exponent);
    let digits = (-exponent).max(0.0) as usize;
    all.map(|v| format!("{:.digits$}", (v / unit).round() * unit))
}

/// A number with three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() || v >= 99_999.5 => format!("{value:.2e}"),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        v if v >= 0.0005 => format!("{value:.3}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.1e}"),
    }
}

/// Milliseconds from which on a time is shown in seconds.
const IN_SECONDS: f64 = 10_000.0;

/// A predicted time: `0.801 ms`, or `0.031 us` where three digits of a millisecond say nothing, or
/// `1620 s`.
pub fn milliseconds(ms: f64) -> String {
    match ms.abs() {
        v if v >= IN_SECONDS => format!("{} s", short(ms / 1e3)),
        v if v < 1e-9 => "0 ms".to_owned(),
        v if v < 0.0005 => format!("{} us", short(ms * 1e3)),
        _ => format!("{} ms", short(ms)),
    }
}

/// The unit that a predicted time and its bounds are shown in, and its milliseconds.
pub fn time_unit(ms: f64) -> (&'static str, f64) {
    if ms >= IN_SECONDS {
        ("s", 1e3)
    } else {
        ("ms", 1.0)
    }
}

/// A percentage with one decimal place; less than all is never shown as 100.0.
pub fn share(percent: f64) -> String {
    let rounded = format!("{percent:.1}");
    match rounded.as_str() {
        "100.0" if percent < 100.0 => {
            format!("{:.2}", (percent.min(99.99) * 100.0).floor() / 100.0)
        }
        _ => rounded,
    }
}

/// A number of bytes in decimal units, as disks are sold and as the Hugging Face Hub shows them:
/// `98.4 MB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" {
                format!("{n} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// [`bytes`] of a predicted size, which can be larger than any integer.
pub fn predicted_bytes(n: f64) -> String {
    if n >= 1e18 {
        return format!("{:.1e} TB", n / 1e12);
    }
    bytes(n.max(0.0) as u64)
}

/// A count and what is counted: `1 finding`, `2 findings`, `3 dispatches`.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, noun: &str) -> String {
    if n == N::from(1) {
        return format!("{n} {noun}");
    }
    match noun.as_bytes() {
        [.., b'x' | b's'] | [.., b'c' | b's', b'h'] => format!("{n} {noun}es"),
        [stem @ .., b'y'] if !stem.ends_with(b"a") && !stem.ends_with(b"e") => {
            format!("{n} {}ies", &noun[..noun.len() - 1])
        }
        _ => format!("{n} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.1234, "0.123"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1e9, "1.00e9"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        let shares = [
            (100.0, "100.0"),
            (99.974, "99.97"),
            (99.9999, "99.99"),
            (99.94, "99.9"),
            (0.0, "0.0"),
        ];
        for (value, text) in shares {
            assert_eq!(share(value), text);
        }
    }

    #[test]
    fn an_interval_decides_the_digits() {
        let cases = [
            ((0.801, 0.684, 0.937), "0.80 (0.68-0.94)"),
            ((8.1534, 6.91, 9.52), "8.2 (6.9-9.5)"),
            ((8.1534, 8.10, 8.21), "8.15 (8.10-8.21)"),
            ((312.4, 251.2, 390.9), "310 (250-390)"),
            ((0.0, 0.0, 0.0), "0 (0-0)"),
            ((0.00012, 0.0001, 0.0002), "0.00012 (0.00010-0.00020)"),
        ];
        for ((value, low, high), text) in cases {
            assert_eq!(between(value, low, high), text);
        }
    }

    #[test]
    fn times_have_units() {
        let cases = [
            (0.0, "0 ms"),
            (0.0001, "0.100 us"),
            (0.801, "0.801 ms"),
            (9_999.0, "9999 ms"),
            (10_000.0, "10.0 s"),
            (1.62e6, "1620 s"),
        ];
        for (ms, text) in cases {
            assert_eq!(milliseconds(ms), text);
        }
        assert_eq!(time_unit(9_999.0), ("ms", 1.0));
        assert_eq!(time_unit(10_000.0), ("s", 1e3));
    }

    #[test]
    fn sizes_are_decimal() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (2_000_000_000_000, "2.0 TB"),
        ];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(predicted_bytes(1.58e32), "1.6e20 TB");
        assert_eq!(predicted_bytes(2e12), "2.0 TB");
    }

    #[test]
    fn counts_of_one_are_singular() {
        let cases = [
            (0, "op", "0 ops"),
            (1, "finding", "1 finding"),
            (2, "dispatch", "2 dispatches"),
            (2, "entry", "2 entries"),
            (7, "key", "7 keys"),
            (2, "prefix", "2 prefixes"),
        ];
        for (n, noun, text) in cases {
            assert_eq!(counted(n, noun), text);
        }
    }
}
