//! The function `strftime_now`.

use super::meter::{Error, Result};

const MAX_FORMAT_BYTES: usize = 1000;
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

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Formats a time in UTC; supports the letters that templates use.
pub(super) fn strftime(format: &str, unix_s: i64) -> Result<String> {
    if format.len() > MAX_FORMAT_BYTES {
        return Err(Error::new(format!(
            "strftime_now: expected a format of at most {MAX_FORMAT_BYTES} bytes, found more"
        )));
    }
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
        let number = |n: i64| {
            if pad {
                format!("{n:02}")
            } else {
                n.to_string()
            }
        };
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
                return Err(Error::new(format!(
                    "strftime_now: '%{letter}' is not supported"
                )));
            }
        });
    }
    Ok(out)
}

/// Year, month and day from the number of days since 1970-01-01, in the Gregorian calendar. The
/// computation starts years in March, so that the leap day is the last day of a year.
fn civil_date(days: i64) -> (i64, i64, i64) {
    // 719,468 days from 0000-03-01 to 1970-01-01; 146,097 days in 400 years.
    let days = days.saturating_add(719_468);
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
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
            (
                0,
                "01 Jan 1970|1970-01-01 00:00:00|Thursday Thu January 12 AM 70 1 %",
            ),
            (
                951_782_400,
                "29 Feb 2000|2000-02-29 00:00:00|Tuesday Tue February 12 AM 00 29 %",
            ),
            (
                1_767_225_599,
                "31 Dec 2025|2025-12-31 23:59:59|Wednesday Wed December 11 PM 25 31 %",
            ),
            (
                -86_400,
                "31 Dec 1969|1969-12-31 00:00:00|Wednesday Wed December 12 AM 69 31 %",
            ),
        ] {
            assert_eq!(strftime(format, unix_s).unwrap(), text);
        }
        let message = strftime("%Q", 0).unwrap_err().to_string();
        assert!(message.contains("'%Q' is not supported"), "{message}");
    }
}
