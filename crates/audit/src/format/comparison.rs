//! The comparison with what Apple's tools say, for a terminal.

use super::wrap::{item, shorten};
use crate::number::{counted, short};
use crate::report::{Agreement, Comparison};

/// Differences that a terminal shows.
const MOST_SHOWN: usize = 20;

/// For a terminal.
pub fn text(c: &Comparison) -> String {
    let share = |a: Agreement| match a.of {
        0 => "not in the file".to_owned(),
        of => format!(
            "the same for {} of {} ({:.1} %)",
            a.same,
            counted(of, "op"),
            a.same as f64 / of as f64 * 100.0
        ),
    };
    let mut out = format!("\ncompared with {} ({})\n", shorten(&c.file, 50), c.kind);
    let ops = format!(
        "{} matched by output, {} here only, {} there only",
        c.matched, c.only_here, c.only_there
    );
    out += &item("ops", &ops);
    out += &item("device", &share(c.selected));
    out += &item("support", &share(c.supported));
    if let (Some(median), Some(within)) = (c.estimates.median_error, c.estimates.within_quarter) {
        let what = if c.kind == "plan" {
            "shares of the cost"
        } else {
            "estimates"
        };
        let (median, within) = (short(median * 100.0), short(within * 100.0));
        let said = format!(
            "{what} are off by {median} % in the median; {within} % of {} within 25 %",
            c.estimates.of
        );
        out += &item("time", &said);
    }
    for d in c.differences.iter().take(MOST_SHOWN) {
        let said = format!(
            "{} `{}`: {} here, {} there ({})",
            d.kind,
            shorten(&d.op, 40),
            d.here,
            d.there,
            d.what
        );
        out += &item("differs", &said);
    }
    if c.differences.len() > MOST_SHOWN {
        out += &format!(
            "  and {} more; --format json has them all\n",
            c.differences.len() - MOST_SHOWN
        );
    }
    out
}
