//! The table of calls of a language model whose layers are in several packages.

use crate::number::{rounded, short};
use crate::report::{Report, TargetRow};

/// The table; empty where each call is one function, which is described by itself.
pub fn text(report: &Report) -> String {
    if report.chains.iter().all(|call| call.functions.len() < 2) {
        return String::new();
    }
    let mut out = format!(
        "\n{:>6} {:>11} {:>9} {:>9} {:>18} {:>9} {:>9}  {}\n",
        "tokens",
        "positions",
        "functions",
        "ms",
        "80 % of calls",
        "tokens/s",
        "on engine",
        "target"
    );
    for c in &report.chains {
        let [ms, low, high] = rounded(c.ms, c.low_ms, c.high_ms);
        let between = format!("{low} to {high}");
        let positions = format!("{}-{}", c.from, c.to.saturating_sub(1));
        let engine = format!("{}/{}", c.ane_ops, c.ops);
        out += &format!(
            "{:>6} {positions:>11} {:>9} {:>9} {between:>18} {:>9} {engine:>9}  {}\n",
            c.tokens,
            c.functions.len(),
            ms,
            short(c.tokens_per_second),
            short_target(report, &c.target)
        );
    }
    out
}

/// Chip and system of a target: all targets of a report have the same compute units.
fn short_target(report: &Report, target: &str) -> String {
    let found = report.targets.iter().find(|t| t.target == target);
    found.map_or_else(|| target.to_owned(), TargetRow::short)
}
