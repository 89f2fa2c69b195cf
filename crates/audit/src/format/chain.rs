//! The table of calls of a chain of packages.

use crate::format::wrap::shorten;
use crate::number::short;
use crate::report::Report;

/// The table; empty for a subject that is no chain.
pub fn text(report: &Report) -> String {
    if report.chains.is_empty() {
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
        let between = format!("{} to {}", short(c.low_ms), short(c.high_ms));
        let positions = format!("{}-{}", c.from, c.to.saturating_sub(1));
        let engine = format!("{}/{}", c.ane_ops, c.ops);
        out += &format!(
            "{:>6} {positions:>11} {:>9} {:>9} {between:>18} {:>9} {engine:>9}  {}\n",
            c.tokens,
            c.functions.len(),
            short(c.ms),
            short(c.tokens_per_second),
            shorten(&c.target, 18)
        );
    }
    out
}
