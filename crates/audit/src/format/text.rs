//! A report for a terminal: 80 columns, the verdicts first, findings by rule over all targets with
//! the worst first.

use super::chain;
use super::comparison;
use super::rule::{effect, explanation};
use super::sentence::{
    absent_weights, closing, energy, far, inferred, load_risk, loaded, location, sentence,
};
use super::table;
use super::wrap::{COLUMNS, INDENT, item, shorten, shorten_function, wrap};
use crate::number::{counted, predicted_bytes, rounded, share, short, time_unit};
use crate::report::explain::{Overhead, TermsRow};
use crate::report::groups::{FindingPlace, Group, counts, groups};
use crate::report::memory::MemoryRow;
use crate::report::{ChunkRow, FunctionRow, LatencyRow, Report, TargetRow};

/// Places of a rule that are listed; the rest is counted.
const MOST_PLACES: usize = 3;
/// Functions that are described; the rest is counted.
const MOST_FUNCTIONS: usize = 12;

/// What paints words, where the terminal can.
#[derive(Clone, Copy, Debug)]
pub struct Paint(pub bool);

impl Paint {
    /// A severity in its color, at least as wide as the longest.
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
    /// What the time of a call is made of.
    pub latency: bool,
}

/// The whole report.
pub fn print(report: &Report, paint: Paint, detail: Detail) -> String {
    let mut out = subject(report);
    out.push('\n');
    out += &table::print(report);
    for (at, target) in report.targets.iter().enumerate() {
        out += &match detail.all || report.targets.len() == 1 {
            true => one(target, paint, detail),
            false => brief(target, &report.targets[..at], paint),
        };
    }
    let groups = groups(report);
    out += &format!("\n{}\n", counts(&groups));
    groups
        .iter()
        .for_each(|g| out += &rule_group(report, g, paint, detail));
    if !groups.is_empty() && !detail.all {
        out += "\nthane explain RULE says why, and who measured it; -v says it here\n";
    }
    out += &chain::text(report);
    out += &contexts(report);
    out += &report
        .comparison
        .as_ref()
        .map(comparison::text)
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
        out += &item("built", built);
    }
    if let Some(said) = absent_weights(report) {
        out += &item("weights", &said);
    }
    for t in report.targets.iter().filter(|t| t.implied == ["chip"]) {
        let said = format!(
            "{} of {}: the oldest chip here that runs it; --target CHIP+{} names another",
            t.chip, t.release, t.release
        );
        out += &item("implied", &said);
    }
    if let Some(t) = report.targets.first() {
        let ways = if t.route == "direct" {
            "directly on the engine, without Core ML".to_owned()
        } else {
            format!("Core ML, {}", t.units)
        };
        out += &item("way", &ways);
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
    out += &item("on engine", &all);
    if let Some(said) = inferred(t) {
        out += &item("estimated", &said);
    }
    if let Some(answer) = &t.answer {
        out += &item("answer", &answer.text());
    }
    if let Some(said) = loaded(t) {
        out += &item("loaded", &said);
    }
    if detail.all {
        out += &memory_sources(t);
    }
    let most = if detail.all { MOST_FUNCTIONS } else { FEW };
    for f in t.functions.iter().take(most) {
        out += &function(f, paint);
        if detail.latency {
            out += &explained(f);
        }
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

/// The lines below the table for one of several targets; those `before` it were printed.
fn brief(t: &TargetRow, before: &[TargetRow], paint: Paint) -> String {
    let mut out = format!("\n{}: {}\n", paint.bold(&t.target), sentence(t));
    if let Some(same) = before.iter().find(|other| has_same_times(t, other)) {
        let said = format!(
            "those of {}: no figure that is known tells the two chips apart",
            same.short()
        );
        return out + &item("figures", &said);
    }
    if let Some(said) = inferred(t) {
        out += &item("inferred", &said);
    }
    if let Some(answer) = &t.answer {
        out += &item("answer", &answer.text());
    }
    if let Some(said) = t.functions.iter().find_map(|f| far(&f.latency)) {
        out += &item("interval", &said);
    }
    out
}

/// Whether every function takes the same time on both targets, with the same bounds.
fn has_same_times(a: &TargetRow, b: &TargetRow) -> bool {
    let times = |t: &TargetRow| {
        let functions = t.functions.iter().map(|f| &f.latency);
        functions
            .map(|l| [l.ms, l.low_ms, l.high_ms])
            .collect::<Vec<_>>()
    };
    a.chip != b.chip && times(a) == times(b)
}

/// Who says what each way in holds in memory.
fn memory_sources(t: &TargetRow) -> String {
    let several = t.memory.iter().filter(|row| row.functions > 1);
    let source = |row: &MemoryRow| {
        let disputed = row.disputed.map(|d| format!("; disputed: {d}"));
        let said = format!(
            "{}: {}{}",
            row.evidence,
            row.source,
            disputed.unwrap_or_default()
        );
        wrap(&format!("    {}", row.route), INDENT, &said)
    };
    several.map(source).collect()
}

fn function(f: &FunctionRow, paint: Paint) -> String {
    let l = &f.latency;
    let mut out = format!(
        "\n{}\n",
        paint.bold(&format!(
            "function {}",
            shorten_function(&f.name, COLUMNS - 10)
        ))
    );
    let share = format!(
        "{} % of {}, {} % of the operations, {} % of the estimated time; {}",
        share(f.residency),
        counted(f.ops, "op"),
        share(f.residency_of_flops),
        share(f.residency_of_cost),
        counted(f.segments.len(), "segment")
    );
    out += &item("on engine", &share);
    if !f.may_leave.is_empty() && f.ane_ops > 0 {
        out += &item(
            "or",
            &format!(
                "0 %, if {} is right, which is not sure",
                f.may_leave.join(" or ")
            ),
        );
    }
    if f.catch_all {
        let said = "for what is too long for the others: of any length, so off the engine; \
            --require-ane leaves it out";
        out += &item("catch-all", said);
    }
    if let Some(elsewhere) = f.elsewhere() {
        out += &item("elsewhere", &elsewhere);
    }
    for choice in f.choices() {
        out += &item("chosen", &choice);
    }
    if f.refused > 0 {
        out += &item(
            "refused",
            &format!("{} that nothing else may run", counted(f.refused, "op")),
        );
    }
    if let Some(length) = &f.length {
        out += &item("length", &length.describe());
    }
    out += &item("call", &call(l));
    if let Some(said) = far(l) {
        out += &item("interval", &said);
    }
    let memory = format!(
        "{} of weights and {} of activations a call, {} at most at once; {}",
        predicted_bytes(l.weight_bytes),
        predicted_bytes(l.activation_bytes),
        predicted_bytes(l.peak_bytes),
        load_risk(l)
    );
    out += &item("memory", &memory);
    if let Some(said) = energy(l) {
        out += &item("energy", &said);
    }
    out + &cut(f)
}

/// What the time of a call is made of: its parts, then its ops by kind and by layer.
fn explained(f: &FunctionRow) -> String {
    let p = &f.latency.parts;
    let mut out = format!("\n  {:<22} {:>9} {:>6}\n", "a call", "ms", "%");
    let parts = [
        ("products", p.compute_ms),
        ("weights, not hidden", p.weights_ms),
        ("elements", p.elements_ms),
        ("tasks", p.tasks_ms),
        ("activations", p.activations_ms),
        ("dispatch", p.dispatch_ms),
        ("host", p.host_ms),
    ];
    for (name, ms) in parts {
        let of_all = if f.latency.ms > 0.0 {
            ms / f.latency.ms * 100.0
        } else {
            0.0
        };
        out += &format!("  {name:<22} {:>9} {of_all:>6.1}\n", short(ms));
    }
    if p.weights_ms > 0.0 {
        let said = format!(
            "of {} ms of reading, products, elements and tasks hide {}",
            short(f.latency.reading_ms),
            short(f.latency.reading_ms - p.weights_ms)
        );
        out += &item("weights", &said);
    }
    let rest = f.overhead();
    out + &terms_table("ops by kind", &f.explained.kinds, rest)
        + &terms_table("ops by layer", &f.explained.layers, rest)
}

/// Rows of ops, and what the call takes besides them: together the milliseconds of the call.
fn terms_table(title: &str, rows: &[TermsRow], rest: Overhead) -> String {
    let mut out = format!(
        "\n  {title:<16} {:>4} {:>7} {:>8} {:>8} {:>8} {:>7} {:>6} {:>6}\n",
        "n", "ms", "products", "weights", "elements", "traffic", "tasks", "host"
    );
    // Scalars that an op reads take time too, but none that anyone sees.
    let brief = |ms: f64| if ms < 5e-4 { "0".to_owned() } else { short(ms) };
    for row in rows {
        let name = if row.name.is_empty() {
            "(no layer)"
        } else {
            &row.name
        };
        out += &format!(
            "  {:<16} {:>4} {:>7} {:>8} {:>8} {:>8} {:>7} {:>6} {:>6}\n",
            shorten(name, 16),
            row.ops,
            brief(row.ms),
            brief(row.compute_ms),
            brief(row.reading_ms),
            brief(row.elements_ms),
            brief(row.activations_ms),
            brief(row.tasks_ms),
            brief(row.host_ms)
        );
    }
    for (name, ms) in [("(traffic)", rest.traffic), ("(dispatch)", rest.dispatch)] {
        out += &format!("  {name:<16} {:>4} {:>7}\n", "", brief(ms));
    }
    out
}

/// Where to cut a function that may be too large to load.
fn cut(f: &FunctionRow) -> String {
    if let Some(reason) = &f.uncut {
        let said = format!("not into programs that load for sure: {reason}");
        return item("cut", &said);
    }
    if f.chunks.len() < 2 {
        return String::new();
    }
    let one = |c: &ChunkRow| format!("{} up to `{}`", predicted_bytes(c.weight_bytes), c.last);
    let chunks: Vec<String> = f.chunks.iter().map(one).collect();
    let n = counted(chunks.len(), "program");
    item("cut", &format!("best into {n}: {}", chunks.join(", ")))
}

fn call(l: &LatencyRow) -> String {
    let (unit, unit_ms) = time_unit(l.ms);
    let [ms, low, high] = rounded(l.ms / unit_ms, l.low_ms / unit_ms, l.high_ms / unit_ms);
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
        "{ms} {unit} (80 % of calls {low} to {high}){tokens}, bound by {}; {dispatches}",
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
    let targets = report.names_of(&group.targets, &[], [" [", "]"]);
    // Wrapped before it is painted: colors take no columns.
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
    out += &item(
        "effect",
        &format!("{} ({}{disputed})", effect(rule), rule.evidence),
    );
    out + &item("fix", rule.fix)
}

fn at(report: &Report, group: &Group<'_>, place: &FindingPlace<'_>) -> String {
    let f = place.finding;
    let at = location(f, [40, 48]);
    let known = if place.known {
        " (in the baseline)"
    } else {
        ""
    };
    let targets = report.names_of(&place.targets, &group.targets, [" [", "]"]);
    item("at", &format!("{at}{known}: {}{targets}", f.message))
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
        let [ms, low, high] = rounded(c.ms, c.low_ms, c.high_ms);
        let between = format!("{low} to {high}");
        let tokens = c.tokens_per_second.map(short).unwrap_or_default();
        out += &format!(
            "{:>8} {:>9} {between:>18} {tokens:>9}  {}\n",
            c.context,
            ms,
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
    if let Some(other) = &b.other_program {
        let said = format!("the baseline is of another program, {}", shorten(other, 60));
        out += &item("program", &said);
    }
    if !b.missing.is_empty() {
        let only = match b.targets.is_empty() {
            true => "and no other target".to_owned(),
            false => format!("only {}", b.targets.join(", ")),
        };
        let said = format!("the baseline has no {}, {only}", b.missing.join(", "));
        out += &item("targets", &said);
    }
    for f in b.fixed.iter().take(MOST_PLACES * 4) {
        let at =
            f.op.as_deref()
                .or(f.function.as_deref())
                .unwrap_or("the program");
        out += &item(
            "fixed",
            &format!("{} at {} ({})", f.rule, shorten(at, 48), f.target),
        );
    }
    let left = b.fixed.len().saturating_sub(MOST_PLACES * 4);
    if left > 0 {
        out += &format!("  and {left} more\n");
    }
    out
}
