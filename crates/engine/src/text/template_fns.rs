//! The functions and filters that Hugging Face adds to Jinja, and Python's way to print values.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use std::time::{SystemTime, UNIX_EPOCH};

/// Adds all of them to the environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment.set_formatter(format_python);
    set_clock(environment, || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
    });
}

/// Where `strftime_now` has its time from.
pub(super) fn set_clock(environment: &mut Environment<'static>, now: impl Fn() -> i64 + Send + Sync + 'static) {
    environment.add_function("strftime_now", move |format: String| strftime(&format, now()));
}

/// Marks an error that the template itself raised.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

/// The message of `raise_exception`, if that is what went wrong.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut below: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = below {
        if let Some(Raised(message)) = error.downcast_ref::<Raised>() {
            return Some(message.clone());
        }
        below = error.source();
    }
    None
}

/// Prints like Python: `True`, `False`, `None`.
fn format_python(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    let word = match value.kind() {
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        ValueKind::None => "None",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(word).map_err(Error::from)
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=..)`: no HTML escapes, spaces after
/// commas and colons.
fn to_json(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let _ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let json = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, "tojson").with_source(error))?;
    let mut out = String::new();
    write_json(&json, indent, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

fn write_json(json: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    use serde_json::Value as Json;
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match json {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(separator);
                }
                line(out, depth + 1);
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push(']');
        }
        Json::Object(items) if !items.is_empty() => {
            out.push('{');
            for (index, (key, item)) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(separator);
                }
                line(out, depth + 1);
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `strftime` in UTC for the letters that templates use.
fn strftime(format: &str, unix_s: i64) -> Result<String, Error> {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days + 4).rem_euclid(7) as usize]; // 1970-01-01 was a Thursday
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut letter = letters.next();
        let pad = letter != Some('-');
        if !pad {
            letter = letters.next();
        }
        let number = |n: i64| if pad { format!("{n:02}") } else { n.to_string() };
        out.push_str(&match letter {
            Some('Y') => year.to_string(),
            Some('y') => number(year.rem_euclid(100)),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let letter = other.map(String::from).unwrap_or_default();
                let message = format!("strftime_now: '%{letter}' is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(out)
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar. Years are
/// counted from March here, so that the leap day is the last of its year.
fn civil_date(days: i64) -> (i64, i64, i64) {
    // 719,468 days from 0000-03-01 to 1970-01-01; 146,097 days in 400 years.
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on have 153 days in five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // Python: datetime.fromtimestamp(t, timezone.utc).strftime(..)
        let format = "%d %b %Y|%Y-%m-%d %H:%M:%S|%A %a %B %I %p %y %-d %%";
        for (unix_s, text) in [
            (0, "01 Jan 1970|1970-01-01 00:00:00|Thursday Thu January 12 AM 70 1 %"),
            (951_782_400, "29 Feb 2000|2000-02-29 00:00:00|Tuesday Tue February 12 AM 00 29 %"),
            (1_767_225_599, "31 Dec 2025|2025-12-31 23:59:59|Wednesday Wed December 11 PM 25 31 %"),
            (-86_400, "31 Dec 1969|1969-12-31 00:00:00|Wednesday Wed December 12 AM 69 31 %"),
        ] {
            assert_eq!(strftime(format, unix_s).unwrap(), text);
        }
        let message = strftime("%Q", 0).unwrap_err().to_string();
        assert!(message.contains("'%Q' is not supported"), "{message}");
    }

    #[test]
    fn json_as_python_writes_it() {
        let json = serde_json::json!({"a": [1, 2.5, "é<\"\n"], "b": {}, "c": [], "d": null, "e": true});
        let mut out = String::new();
        write_json(&json, None, 0, &mut out);
        assert_eq!(out, r#"{"a": [1, 2.5, "é<\"\n"], "b": {}, "c": [], "d": null, "e": true}"#);
        out.clear();
        write_json(&serde_json::json!({"a": [1], "b": 2}), Some(2), 0, &mut out);
        assert_eq!(out, "{\n  \"a\": [\n    1\n  ],\n  \"b\": 2\n}");
    }
}
