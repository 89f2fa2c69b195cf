//! A report for a terminal: 80 columns, the verdicts first, findings by rule over all targets with
//! the worst first.

use super::compare;
use super::groups::{Group, Place, counts, groups};
use super::report::{FunctionRow, LatencyRow, Report, RuleRow, TargetRow};
use super::table;
use super::wrap::{COLUMNS, shorten, wrap};
use crate::output::counted;

/// Places of a rule that are listed; the rest is counted.
const MOST_PLACES: usize = 3;
/// Functions that are described; the rest is counted.
const MOST_FUNCTIONS: usize = 12;
/// Where the text behind a label begins.
const INDENT: usize = 12;

/// What paints words, where the terminal can.
#[derive(Clone, Copy, Debug)]
pub struct Paint(pub bool);

impl Paint {
    /// A severity in its colour, at least as wide as the longest.
    fn severity(self, name: &str) -> String {
        let code = match name {
            "error" => "31;1",
            "warning" => "33;1",
            _ => "36",
        };
        self.with(code, name)
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// How much is said.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// Each function, and the reason and sources of each rule.
    pub all: bool,
    /// Which requirements do not hold, where nothing else says it.
    pub failures: bool,
}

/// The whole report.
pub fn print(report: &Report, paint: Paint, detail: Detail) -> String {
    let mut out = subject(report);
    out.push('\n');
    out += &table::print(report);
    for target in report
        .targets
        .iter()
        .filter(|_| detail.all || report.targets.len() == 1)
    {
        out += &one(target, paint, detail);
    }
    let groups = groups(report);
    out += &format!("\n{}\n", counts(&groups));
    groups
        .iter()
        .for_each(|g| out += &rule_group(report, g, paint, detail));
    if !groups.is_empty() && !detail.all {
        out += "\nthane explain RULE says why, and who measured it; -v says it here\n";
    }
    out += &contexts(report);
    out += &report
        .comparison
        .as_ref()
        .map(compare::text)
        .unwrap_or_default();
    out += &baseline(report);
    let end: String = closing(report, detail.failures)
        .iter()
        .map(|line| wrap("", 0, line))
        .collect();
    if end.is_empty() {
        out
    } else {
        format!("{out}\n{end}")
    }
}

fn subject(report: &Report) -> String {
    let s = &report.subject;
    let mut out = format!("{}\n", shorten(&s.name, COLUMNS));
    if let Some(built) = &s.built {
        out += &wrap("  built", INDENT, built);
    }
    if s.absent_constants > 0 {
        let n = s.absent_constants;
        let (constants, are, their) = if n == 1 {
            ("constant", "is", "its numbers count")
        } else {
            ("constants", "are", "their numbers count")
        };
        let said = format!("{n} {constants} {are} not beside the text; {their} as zeros");
        out += &wrap("  weights", INDENT, &said);
    }
    for t in report.targets.iter().filter(|t| t.implied == ["chip"]) {
        let said = format!(
            "{} of {}: the newest chip of its kind here; --target CHIP+{} names another",
            t.chip, t.release, t.release
        );
        out += &wrap("  implied", INDENT, &said);
    }
    if let Some(t) = report.targets.first() {
        let ways = if t.route == "direct" {
            "straight to the engine".to_owned()
        } else {
            format!("Core ML, {}", t.units)
        };
        out += &wrap("  way", INDENT, &ways);
    }
    out
}

/// What the table does not say of a target.
fn one(t: &TargetRow, paint: Paint, detail: Detail) -> String {
    /// Functions that are described where nobody asks for all.
    const FEW: usize = 3;
    let mut out = format!("\n{}: {}\n", paint.bold(&t.target), sentence(t));
    let all = format!(
        "{} %: {} of {} (const and constexpr are not counted)",
        share(t.residency),
        t.ane_ops,
        counted(t.ops, "op")
    );
    out += &wrap("  on engine", INDENT, &all);
    if !t.inferred.is_empty() {
        let said = format!(
            "{} of this chip are taken from kindred ones",
            t.inferred.join(", ")
        );
        out += &wrap("  inferred", INDENT, &said);
    }
    let most = if detail.all { MOST_FUNCTIONS } else { FEW };
    for f in t.functions.iter().take(most) {
        out += &function(f, paint);
    }
    if t.functions.len() > most {
        let left = counted(t.functions.len() - most, "more function");
        let way = if detail.all {
            ""
        } else {
            "-v describes more, "
        };
        out += &format!("\nand {left}; {way}--function NAME shows one\n");
    }
    out
}

/// What was required, and what of it does not hold, as lines.
pub fn closing(report: &Report, failures: bool) -> Vec<String> {
    if report.requirements.is_empty() {
        return Vec::new();
    }
    let asked = report.requirements.join(", ");
    if report.passed {
        return vec![format!("requirements hold: {asked}")];
    }
    let denied = if report.denied.is_empty() {
        String::new()
    } else {
        format!("; denied: {}", report.denied.join(", "))
    };
    let does = if report.unmet.len() == 1 {
        "a requirement does"
    } else {
        "requirements do"
    };
    let first = format!("{does} not hold: {}{denied}", report.unmet.join(", "));
    let held: Vec<&str> = report
        .requirements
        .iter()
        .filter(|one| !report.unmet.contains(one))
        .map(String::as_str)
        .collect();
    let first = if held.is_empty() {
        first
    } else {
        format!("{first}; holds: {}", held.join(", "))
    };
    let others = report
        .failures
        .iter()
        .filter(|_| failures)
        .map(|failure| format!("- {failure}"));
    std::iter::once(first).chain(others).collect()
}

/// What the verdict means.
pub fn sentence(t: &TargetRow) -> String {
    let direct = t.route == "direct";
    let said = match t.verdict {
        "fails" if direct => "the engine refuses it",
        "fails" => "fails to compile, load or run on the engine",
        "may-fail" => "may fail on the engine: sources differ",
        "wrong-results" => "runs, with wrong results",
        "may-leave-engine" => "runs on the engine, or all of it elsewhere: sources differ",
        "off-engine" => "does not run on the engine",
        "partly-on-engine" => "runs on the engine in part",
        "mostly-on-engine" => "runs on the engine, but for some ops",
        _ => "runs on the engine",
    };
    said.to_owned()
}

fn function(f: &FunctionRow, paint: Paint) -> String {
    let l = &f.latency;
    let mut out = format!(
        "\n{}\n",
        paint.bold(&format!("function {}", shorten(&f.name, COLUMNS - 10)))
    );
    let share = format!(
        "{} % of {}, {} % of the operations, {} % of the estimated time; {}",
        share(f.residency),
        counted(f.ops, "op"),
        share(f.residency_of_flops),
        share(f.residency_of_cost),
        counted(f.segments.len(), "segment")
    );
    out += &wrap("  on engine", INDENT, &share);
    if !f.may_leave.is_empty() && f.ane_ops > 0 {
        out += &wrap(
            "  or",
            INDENT,
            &format!(
                "0 %, if {} is right, which is not sure",
                f.may_leave.join(" or ")
            ),
        );
    }
    if f.catch_all {
        let said = "for what is too long for the others: of any length, so off the engine; --require-ane leaves it out";
        out += &wrap("  catch-all", INDENT, said);
    }
    if let Some(elsewhere) = f.elsewhere() {
        out += &wrap("  elsewhere", INDENT, &elsewhere);
    }
    if f.refused > 0 {
        out += &wrap(
            "  refused",
            INDENT,
            &format!("{} that nothing else may run", counted(f.refused, "op")),
        );
    }
    if let Some(length) = &f.length {
        out += &wrap("  length", INDENT, &length.describe());
    }
    out += &wrap("  call", INDENT, &call(l));
    let memory = format!(
        "{} of weights and {} of activations a call, {} at most at once; {}",
        bytes(l.weight_bytes),
        bytes(l.activation_bytes),
        bytes(l.peak_bytes),
        match l.load_risk {
            "none" => "small enough to load",
            "possible" => "may be too large to load",
            _ => "is likely too large to load",
        }
    );
    out += &wrap("  memory", INDENT, &memory);
    if l.energy_mj > 0.0 {
        let energy = format!(
            "{} mJ a call on the engine, {} to {}; the CPU and GPU are not counted",
            short(l.energy_mj),
            short(l.low_energy_mj),
            short(l.high_energy_mj)
        );
        out += &wrap("  energy", INDENT, &energy);
    }
    if let Some(reason) = &f.uncut {
        out += &wrap(
            "  cut",
            INDENT,
            &format!("not into programs that load for sure: {reason}"),
        );
    } else if f.chunks.len() > 1 {
        let chunks: Vec<String> = f
            .chunks
            .iter()
            .map(|c| format!("{} up to `{}`", bytes(c.weight_bytes), c.last))
            .collect();
        out += &wrap(
            "  cut",
            INDENT,
            &format!(
                "best into {}: {}",
                counted(chunks.len(), "program"),
                chunks.join(", ")
            ),
        );
    }
    out
}

fn call(l: &LatencyRow) -> String {
    let tokens = l
        .tokens_per_second
        .map(|t| format!(", {} tokens/s", short(t)))
        .unwrap_or_default();
    let dispatches = format!(
        "{} dispatch{}",
        l.dispatches,
        if l.dispatches == 1 { "" } else { "es" }
    );
    format!(
        "{} ms (80 % of calls {} to {}){tokens}, bound by {}; {dispatches}",
        short(l.ms),
        short(l.low_ms),
        short(l.high_ms),
        l.bound
    )
}

fn rule_group(report: &Report, group: &Group<'_>, paint: Paint, detail: Detail) -> String {
    let rule = group.rule;
    let places = if group.places.len() == 1 {
        String::new()
    } else {
        format!(" ({} places)", group.places.len())
    };
    let targets = report.names_of(&group.targets);
    let targets = if targets.is_empty() {
        targets
    } else {
        format!(" [{targets}]")
    };
    // Wrapped before it is painted: colours take no columns.
    let head = wrap(
        "",
        0,
        &format!(
            "{} {} {}{places}{targets}",
            rule.severity, rule.id, rule.title
        ),
    );
    let head = head.replacen(rule.severity, &paint.severity(rule.severity), 1);
    let mut out = format!("\n{}", head.replacen(rule.id, &paint.bold(rule.id), 1));
    let most = if detail.all {
        MOST_PLACES * 2
    } else {
        MOST_PLACES
    };
    for place in group.places.iter().take(most) {
        out += &at(report, group, place);
    }
    if group.places.len() > most {
        out += &format!(
            "  and {} more; --format concise has all\n",
            group.places.len() - most
        );
    }
    if detail.all {
        return out + &explanation(rule);
    }
    let disputed = if rule.disputed.is_some() {
        "; disputed"
    } else {
        ""
    };
    out += &wrap(
        "  effect",
        INDENT,
        &format!("{} ({}{disputed})", effect(rule), rule.evidence),
    );
    out + &wrap("  fix", INDENT, rule.fix)
}

fn at(report: &Report, group: &Group<'_>, place: &Place<'_>) -> String {
    let f = place.finding;
    let at = match (&f.function, &f.op) {
        (Some(function), Some(op)) => format!(
            "{function}: {} `{}`",
            f.kind.unwrap_or("op"),
            shorten(op, 40)
        ),
        (Some(function), None) => function.clone(),
        (None, Some(package)) => package.clone(),
        (None, None) => "the program".to_owned(),
    };
    let of = f
        .place
        .as_ref()
        .map(|p| format!(" of {}", shorten(p, 48)))
        .unwrap_or_default();
    let known = if place.known {
        " (in the baseline)"
    } else {
        ""
    };
    let targets = if place.targets == group.targets {
        String::new()
    } else {
        report.names_of(&place.targets)
    };
    let targets = if targets.is_empty() {
        targets
    } else {
        format!(" [{targets}]")
    };
    wrap(
        "  at",
        INDENT,
        &format!("{at}{of}{known}: {}{targets}", f.message),
    )
}

/// What a rule says, whatever it fired at.
pub fn explanation(rule: &RuleRow) -> String {
    let mut out = wrap("  effect", INDENT, &effect(rule));
    out += &wrap(
        "  evidence",
        INDENT,
        &format!("{}: {}", rule.evidence, rule.source),
    );
    if let Some(disputed) = rule.disputed {
        out += &wrap("  disputed", INDENT, disputed);
    }
    out += &wrap("  why", INDENT, rule.why);
    out += &wrap("  fix", INDENT, rule.fix);
    out
}

fn effect(rule: &RuleRow) -> String {
    match (rule.effect, rule.code) {
        ("op-leaves", _) => "the op runs elsewhere".to_owned(),
        ("program-leaves", _) => "the program runs elsewhere".to_owned(),
        ("compile-fails", code) => with_code("it does not compile", code),
        ("load-fails", code) => with_code("it does not load", code),
        ("run-fails", code) => with_code("a call fails", code),
        ("wrong-result", _) => "a call gives wrong numbers".to_owned(),
        _ => "it is slower than it need be".to_owned(),
    }
}

fn with_code(text: &str, code: Option<&str>) -> String {
    code.map_or_else(|| text.to_owned(), |code| format!("{text}: {code}"))
}

fn contexts(report: &Report) -> String {
    if report.contexts.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\n{:>8} {:>9} {:>18} {:>9}  {}\n",
        "context", "ms", "80 % of calls", "tokens/s", "target"
    );
    for c in &report.contexts {
        let between = format!("{} to {}", short(c.low_ms), short(c.high_ms));
        let tokens = c.tokens_per_second.map(short).unwrap_or_default();
        out += &format!(
            "{:>8} {:>9} {between:>18} {tokens:>9}  {}\n",
            c.context,
            short(c.ms),
            shorten(&c.target, COLUMNS - 50)
        );
    }
    out
}

fn baseline(report: &Report) -> String {
    let Some(b) = &report.baseline else {
        return String::new();
    };
    let are = |n: usize| if n == 1 { "is" } else { "are" };
    let mut out = format!(
        "\nbaseline: {} {} known, {} {} new, {} {} fixed\n",
        counted(b.known, "finding"),
        are(b.known),
        b.new,
        are(b.new),
        b.fixed.len(),
        are(b.fixed.len())
    );
    for f in b.fixed.iter().take(MOST_PLACES * 4) {
        let at =
            f.op.as_deref()
                .or(f.function.as_deref())
                .unwrap_or("the program");
        out += &wrap(
            "  fixed",
            INDENT,
            &format!("{} at {} ({})", f.rule, shorten(at, 48), f.target),
        );
    }
    let left = b.fixed.len().saturating_sub(MOST_PLACES * 4);
    if left > 0 {
        out += &format!("  and {left} more\n");
    }
    out
}

/// `0.801 (0.684-0.937)`: what calls take, and within what 80 % of them do.
pub fn interval(l: &LatencyRow) -> String {
    between(l.ms, l.low_ms, l.high_ms)
}

/// The same of three numbers.
pub fn between(ms: f64, low: f64, high: f64) -> String {
    format!("{} ({}-{})", short(ms), short(low), short(high))
}

/// ` at 512`, the length that a function's figures are of.
pub fn shown_length(f: &FunctionRow) -> String {
    f.length
        .as_ref()
        .map(|l| format!(" at {}", l.text))
        .unwrap_or_default()
}

/// Three digits that count.
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

/// Percent; less than all is never shown as all.
pub fn share(percent: f64) -> String {
    let rounded = format!("{percent:.1}");
    match rounded.as_str() {
        "100.0" if percent < 100.0 => {
            format!("{:.2}", (percent.min(99.99) * 100.0).floor() / 100.0)
        }
        _ => rounded,
    }
}

/// Bytes in the unit that they are best read in.
pub fn bytes(n: f64) -> String {
    // Sizes of absurd programs are larger than any integer; the cast stops at the end of them.
    crate::output::bytes(n.max(0.0) as u64)
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
}
