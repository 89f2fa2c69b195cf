//! A report as one page that needs no network: summary, findings with errors first, segments by
//! device, roofline, and a table of ops.
//!
//! Everything except sorting and filtering the table works without scripts. Text from the program
//! goes through [`escape`], or into JSON in which no tag can begin.

use serde_json::{Value, json};

use crate::format::rule::effect;
use crate::format::sentence::{absent_weights, energy, far, inferred, load_risk};
use crate::number::{counted, predicted_bytes, share, short, time_unit};
use crate::report::groups::{FindingPlace, Group, counts, groups};
use crate::report::memory::MemoryRow;
use crate::report::{FunctionRow, Report, TargetRow};

mod figure;
mod layers;

/// The style sheet of every page, as it stands there: for hashes in a Content-Security-Policy.
pub const STYLE: &str = concat!("\n", include_str!("page.css"));
/// The script of every page, as it stands there.
pub const SCRIPT: &str = concat!("\n", include_str!("page.js"));
/// Places of a rule that stand in the page; the table of ops has all.
const MOST_PLACES: usize = 50;
/// Functions that get figures.
const MOST_FUNCTIONS: usize = 40;

/// The report as a page.
pub fn print(report: &Report) -> serde_json::Result<String> {
    let name = escape(&report.subject.name);
    let targets: String = report
        .targets
        .iter()
        .enumerate()
        .map(|(i, t)| target(t, i))
        .collect();
    let data = serde_json::to_string(&data(report))?.replace('<', "\\u003c");
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>Audit of {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#ops\">Skip to the table of ops</a>\n\
         <header><h1>Audit of <code>{name}</code></h1>\n{}{}{LEGEND}</header>\n<main>\n{}{targets}{}</main>\n\
         <footer><p>Predicted by {}, without a device. Times leave out {}.</p></footer>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        about(report),
        summary(report),
        findings(report),
        table_of_ops(),
        escape(report.generator),
        escape(&report.not_covered.join("; ")),
    ))
}

/// Text as HTML shows it, in attributes too.
pub fn escape(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut out, c| {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\'' => out.push_str("&#39;"),
                c => out.push(c),
            }
            out
        })
}

fn about(report: &Report) -> String {
    let weights = absent_weights(report)
        .map(|said| format!("<p class=\"caveat\">Weights: {}.</p>\n", escape(&said)))
        .unwrap_or_default();
    let built = report
        .subject
        .built
        .as_ref()
        .map(|b| format!("<p>Built: {}.</p>\n", escape(b)))
        .unwrap_or_default();
    let failures: String = report
        .failures
        .iter()
        .map(|f| format!("<li>{}</li>", escape(f)))
        .collect();
    let failed = if report.passed {
        String::new()
    } else {
        format!(
            "<div class=\"failed\"><p>Requirements that do not hold:</p><ul>{failures}</ul></div>\n"
        )
    };
    format!("{built}{weights}{failed}")
}

/// A row for each target.
fn summary(report: &Report) -> String {
    const NUMBERS: [&str; 6] = [
        "on engine",
        "ops",
        "errors",
        "warnings",
        "notes",
        "ms (80 % of calls)",
    ];
    let row = |(i, t): (usize, &TargetRow)| {
        let calls = t.functions.iter().map(|f| &f.latency);
        let slowest = calls.max_by(|a, b| a.ms.total_cmp(&b.ms));
        let numbers = [
            format!("{} %", share(t.residency)),
            format!("{} of {}", t.ane_ops, t.ops),
            t.errors.to_string(),
            t.warnings.to_string(),
            t.notes.to_string(),
            slowest.map(|l| l.interval()).unwrap_or_default(),
        ];
        let cells = NUMBERS
            .iter()
            .zip(numbers)
            .map(|(label, text)| format!("<td class=\"n\" data-label=\"{label}\">{text}</td>"));
        format!(
            "<tr><th scope=\"row\"><a href=\"#t{i}\">{}</a></th>\
             <td data-label=\"verdict\"><span class=\"verdict {}\">{}</span></td>{}</tr>\n",
            escape(&t.target),
            t.verdict,
            t.verdict.replace('-', " "),
            cells.collect::<String>()
        )
    };
    let rows: String = report.targets.iter().enumerate().map(row).collect();
    format!(
        "<div class=\"scroll\"><table class=\"summary cards\"><caption>Ops are those that compute: const and constexpr are not \
         counted. ms is a call of the slowest function.{}</caption><thead><tr><th scope=\"col\">target</th>\
         <th scope=\"col\">verdict</th>{}</tr></thead><tbody>\n{rows}</tbody></table></div>\n",
        implied(report),
        NUMBERS
            .map(|n| format!("<th scope=\"col\" class=\"n\">{n}</th>"))
            .concat()
    )
}

fn implied(report: &Report) -> String {
    let chips = report.targets.iter().filter(|t| t.implied == ["chip"]);
    chips
        .map(|t| format!(" {} of {} is implied.", escape(t.chip), escape(t.release)))
        .collect()
}

/// What colors mean.
const LEGEND: &str = "<p class=\"legend\">Devices: <span class=\"swatch ane\">Neural Engine</span> \
     <span class=\"swatch gpu\">GPU</span> <span class=\"swatch cpu\">CPU, or an op with findings</span>. Findings: \
     <span class=\"swatch error\">error: it does not work</span> <span class=\"swatch warning\">warning: it costs</span> \
     <span class=\"swatch note\">note: good to know</span>. Verdicts have the color of what they mean: \
     <span class=\"swatch error\">fails</span> <span class=\"swatch warning\">may fail, or runs elsewhere</span> \
     <span class=\"swatch note\">mostly on the engine</span> <span class=\"swatch ane\">on the engine</span>.</p>\n";

/// What was found, errors first, of all targets together.
fn findings(report: &Report) -> String {
    let groups = groups(report);
    let all: String = groups.iter().map(|group| finding(report, group)).collect();
    format!(
        "<section id=\"findings\"><h2>Findings</h2>\n<p>{}</p>\n{all}</section>\n",
        escape(&counts(&groups))
    )
}

fn target(t: &TargetRow, at: usize) -> String {
    let functions: String = t
        .functions
        .iter()
        .take(MOST_FUNCTIONS)
        .map(|f| function(f, t))
        .collect();
    let left = t.functions.len().saturating_sub(MOST_FUNCTIONS);
    let more = if left > 0 {
        format!(
            "<p>and {}, in the table of ops</p>\n",
            counted(left, "more function")
        )
    } else {
        String::new()
    };
    format!(
        "<section id=\"t{at}\"><h2>{}</h2>\n{}{}{}{functions}{more}</section>\n",
        escape(&t.target),
        t.answer
            .map(|answer| format!("<p>Answer: {}.</p>\n", escape(&answer.text())))
            .unwrap_or_default(),
        inferred(t)
            .map(|said| format!("<p class=\"place\">Estimated: {}.</p>\n", escape(&said)))
            .unwrap_or_default(),
        memory(t)
    )
}

/// What each way in holds in memory, and who says so.
fn memory(t: &TargetRow) -> String {
    let row = |row: &MemoryRow| {
        let disputed = row.disputed.map(|d| format!(" Disputed: {}.", escape(d)));
        format!(
            "<li>{} <span class=\"place\">{}: {}.{}</span></li>\n",
            escape(&row.describe()),
            row.evidence,
            escape(row.source),
            disputed.unwrap_or_default()
        )
    };
    let rows: String = t.memory.iter().map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!("<details><summary>Memory once loaded</summary><ul>\n{rows}</ul></details>\n")
}

fn function(f: &FunctionRow, t: &TargetRow) -> String {
    let l = &f.latency;
    let (unit, unit_ms) = time_unit(l.ms);
    let shown = |ms: f64| short(ms / unit_ms);
    let tokens = l
        .tokens_per_second
        .map(|n| format!("<div><dt>tokens/s</dt><dd>{}</dd></div>", short(n)));
    let facts = [
        (
            "on engine",
            format!("{} % of {}", share(f.residency), counted(f.ops, "op")),
        ),
        (
            "FLOP on engine",
            format!("{} %", share(f.residency_of_flops)),
        ),
        ("call", format!("{} {unit}", shown(l.ms))),
        (
            "80 % of calls",
            format!("{} to {} {unit}", shown(l.low_ms), shown(l.high_ms)),
        ),
        ("bound by", l.bound.to_owned()),
        ("dispatches", l.dispatches.to_string()),
        ("weights read a call", predicted_bytes(l.weight_bytes)),
        ("activations a call", predicted_bytes(l.activation_bytes)),
        ("peak memory", predicted_bytes(l.peak_bytes)),
        ("size", load_risk(l)),
    ];
    let any_length = f.catch_all.then(|| {
        let said = "takes texts that are too long for the others; not required to be on the engine";
        ("role", said.to_owned())
    });
    let energy = energy(l).map(|said| ("energy", said));
    let far = far(l).map(|said| ("interval", said));
    let length = f.length.as_ref().map(|l| ("length", l.describe()));
    let others = f
        .lengths
        .iter()
        .skip(1)
        .map(|l| ("call", format!("at {}: {} ms", l.length.text, short(l.ms))));
    let facts: String = facts
        .iter()
        .cloned()
        .chain(far)
        .chain(energy)
        .chain(any_length)
        .chain(length)
        .chain(others)
        .map(|(k, v)| format!("<div><dt>{k}</dt><dd>{}</dd></div>", escape(&v)))
        .collect();
    format!(
        "<article><h3>function <code>{}</code></h3>\n<dl class=\"facts\">{facts}{}</dl>\n{}{}{}{}</article>\n",
        escape(&f.name),
        tokens.unwrap_or_default(),
        f.elsewhere()
            .into_iter()
            .chain(
                f.choices()
                    .into_iter()
                    .map(|said| format!("Chosen: {said}"))
            )
            .map(|said| format!("<p>{}</p>\n", escape(&said)))
            .collect::<String>(),
        figure::timeline(f),
        layers::bar(f),
        figure::roofline(f, &t.ceilings),
    )
}

fn finding(report: &Report, group: &Group<'_>) -> String {
    let rule = group.rule;
    let places: String = group
        .places
        .iter()
        .take(MOST_PLACES)
        .map(|p| place(report, group, p))
        .collect();
    let left = group.places.len().saturating_sub(MOST_PLACES);
    let more = if left > 0 {
        format!("<li>and {left} more</li>")
    } else {
        String::new()
    };
    let disputed = rule
        .disputed
        .map(|d| format!("<dt>disputed</dt><dd>{}</dd>", escape(d)))
        .unwrap_or_default();
    let open = if rule.severity == "error" {
        " open"
    } else {
        ""
    };
    let targets = report.names_of(&group.targets, &[], [", ", " only"]);
    format!(
        "<details class=\"finding\"{open}><summary><span class=\"severity {0}\">{0}</span> <b>{1}</b> {2} \
         <span class=\"count\">{3}{targets}</span></summary>\n<ul>{places}{more}</ul>\n<dl class=\"rule\"><dt>effect</dt>\
         <dd>{4}</dd><dt>why</dt><dd>{5}</dd><dt>fix</dt><dd>{6}</dd><dt>evidence</dt><dd>{7}: {8}</dd>{disputed}</dl></details>\n",
        rule.severity,
        rule.id,
        escape(rule.title),
        counted(group.places.len(), "place"),
        escape(&effect(rule)),
        escape(rule.why),
        escape(rule.fix),
        rule.evidence,
        escape(rule.source),
    )
}

fn place(report: &Report, group: &Group<'_>, place: &FindingPlace<'_>) -> String {
    let f = place.finding;
    let op =
        f.op.as_ref()
            .map(|op| format!(" <code>{}</code>", escape(op)))
            .unwrap_or_default();
    let kind = f.kind.map(|k| format!(" {k}")).unwrap_or_default();
    let of = f
        .place
        .as_ref()
        .map(|p| format!(" <span class=\"place\">{}</span>", escape(p)))
        .unwrap_or_default();
    let known = if place.known {
        " <span class=\"place\">in the baseline</span>"
    } else {
        ""
    };
    let function = f
        .function
        .as_ref()
        .map_or("the program".to_owned(), |f| escape(f));
    let marks = [" <span class=\"place\">", " only</span>"];
    let targets = report.names_of(&place.targets, &group.targets, marks);
    format!(
        "<li>{function}{kind}{op}{of}{known}{targets}: {}</li>",
        escape(&f.message)
    )
}

/// Controls and an empty table, which the script fills.
fn table_of_ops() -> String {
    let head = |key: &str, name: &str, class: &str| {
        format!(
            "<th scope=\"col\"{class}><button type=\"button\" data-key=\"{key}\">{name}</button></th>"
        )
    };
    let n = " class=\"n\"";
    format!(
        "<section id=\"ops\" tabindex=\"-1\"><h2>Ops</h2>\n<noscript><p>The table of ops needs scripts; everything above does \
         not.</p></noscript>\n<p class=\"place\">A module that ends in ? is guessed from the names of ops.</p>\n<form class=\"controls\" id=\"controls\">\
         <label>function <select id=\"function\"></select></label>\
         <label>runs on <select id=\"backend\"><option value=\"\">anything</option><option value=\"ane\">the engine</option>\
         <option value=\"off\">anything else</option></select></label>\
         <label>with findings only <input type=\"checkbox\" id=\"found\"></label>\
         <label>filter <input type=\"search\" id=\"filter\" placeholder=\"name, op, layer or rule\"></label></form>\n\
         <p id=\"status\" role=\"status\" aria-live=\"polite\"></p>\n<div class=\"scroll\"><table id=\"table\" class=\"cards\"><thead><tr>\
         {}{}{}{}{}{}{}{}{}</tr></thead><tbody></tbody></table></div>\n\
         <button type=\"button\" id=\"more\" hidden>Show 200 more</button></section>\n",
        head("i", "#", n),
        head("name", "result", ""),
        head("kind", "op", ""),
        head("place", "module", ""),
        head("backend", "runs on", ""),
        head("ms", "ms", n),
        head("flops", "MFLOP", n),
        head("bytes", "kB", n),
        head("why", "findings", ""),
    )
}

/// What runs an op, as the page calls it.
fn backend(name: &str) -> &'static str {
    match name {
        "ane" => "Neural Engine",
        "mps_graph" => "GPU",
        "bnns" => "CPU (BNNS)",
        _ => "CPU",
    }
}

/// The ops of every function, a list each.
fn data(report: &Report) -> Value {
    let mut functions = Vec::new();
    for t in &report.targets {
        for f in &t.functions {
            let name = if report.targets.len() > 1 {
                format!("{} - {}", f.name, t.short())
            } else {
                f.name.clone()
            };
            let rows: Vec<Value> = f
                .table
                .iter()
                .map(|op| {
                    let reasons = op
                        .reasons
                        .iter()
                        .map(|r| format!("{}: {}", backend(r.backend), r.message));
                    let why: Vec<String> = op
                        .findings
                        .iter()
                        .map(|r| (*r).to_owned())
                        .chain(reasons)
                        .collect();
                    json!([
                        op.name,
                        op.kind,
                        op.place,
                        backend(op.backend),
                        op.ms,
                        op.flops / 1e6,
                        op.bytes / 1e3,
                        why
                    ])
                })
                .collect();
            functions.push(json!({"name": name, "rows": rows}));
        }
    }
    json!({"functions": functions})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_program_is_markup() {
        assert_eq!(
            escape("<a href=\"x\" title='y'>&"),
            "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;"
        );
    }
}
