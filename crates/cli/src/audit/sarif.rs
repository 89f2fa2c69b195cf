//! A report as SARIF 2.1.0, which code review bots read. Source: OASIS standard of 27 March 2020, sections 3.13 to 3.52.

use serde_json::{Value, json};
use thane_mil::text::Lines;

use super::report::{FindingRow, Report, RuleRow, TargetRow};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// The report; of a text with the lines that findings are about.
pub fn print(report: &Report, lines: Option<&Lines>) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(&log(report, lines))?;
    text.push('\n');
    Ok(text)
}

fn log(report: &Report, lines: Option<&Lines>) -> Value {
    let results: Vec<Value> = report.targets.iter().flat_map(|t| results(report, t, lines)).collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "thane",
                "version": env!("CARGO_PKG_VERSION"),
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": report.rules.iter().map(rule).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "artifacts": [{"location": {"uri": uri(&report.subject.name)}}],
            "invocations": [{
                "executionSuccessful": true,
                "exitCode": i32::from(!report.passed),
            }],
            "results": results,
        }],
    })
}

fn rule(r: &RuleRow) -> Value {
    let dispute = r.disputed.map(|d| format!(" Disputed: {d}.")).unwrap_or_default();
    let help = format!("{} {}\n\nEvidence: {}: {}.{dispute}", r.why, r.fix, r.evidence, r.source);
    let markdown = format!(
        "{}\n\n**Fix.** {}\n\n**Evidence.** {}: {}.{dispute}",
        escaped(r.why),
        escaped(r.fix),
        r.evidence,
        escaped(r.source)
    );
    json!({
        "id": r.id,
        "name": r.id,
        "shortDescription": {"text": r.title},
        "fullDescription": {"text": r.why},
        "help": {"text": help, "markdown": markdown},
        "defaultConfiguration": {"level": r.severity},
        "properties": {
            "effect": r.effect,
            "code": r.code,
            "evidence": r.evidence,
            "disputed": r.disputed.is_some(),
            "tags": ["ane", r.effect, r.evidence],
        },
    })
}

/// Text as Markdown shows it unchanged.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if "\\`*_{}[]<>#|".contains(c) {
            out.push('\\');
        }
        out.push(c);
        out
    })
}

fn results(report: &Report, target: &TargetRow, lines: Option<&Lines>) -> Vec<Value> {
    let index = |id: &str| report.rules.iter().position(|r| r.id == id);
    let result = |f: &FindingRow| {
        let place = f.place.as_ref().map(|p| format!(" ({p})")).unwrap_or_default();
        let at = f.op.as_ref().map(|op| format!("`{op}`{place}: ")).unwrap_or_default();
        let mut out = json!({
            "ruleId": f.rule,
            "level": f.severity,
            "message": {"text": format!("{at}{}", f.message)},
            "locations": [{
                "physicalLocation": physical(report, f, lines),
                "logicalLocations": logical(f),
            }],
            "partialFingerprints": {"thane/v1": fingerprint(target, f)},
            "properties": {"target": target.target, "place": f.place},
        });
        if let (Some(index), Some(object)) = (index(f.rule), out.as_object_mut()) {
            object.insert("ruleIndex".to_owned(), json!(index));
            if report.baseline.is_some() {
                object.insert("baselineState".to_owned(), json!(if f.known { "unchanged" } else { "new" }));
            }
        }
        out
    };
    target.findings.iter().map(result).collect()
}

/// The file, and the line in it where there are lines.
fn physical(report: &Report, f: &FindingRow, lines: Option<&Lines>) -> Value {
    let mut out = json!({"artifactLocation": {"uri": uri(&report.subject.name), "index": 0}});
    let line = lines.zip(f.function.as_ref()).and_then(|(lines, function)| match &f.op {
        Some(op) => lines.value(function, op).or_else(|| lines.function(function)),
        None => lines.function(function),
    });
    if let (Some(line), Some(object)) = (line, out.as_object_mut()) {
        object.insert("region".to_owned(), json!({"startLine": line}));
    }
    out
}

fn logical(f: &FindingRow) -> Vec<Value> {
    match (&f.function, &f.op) {
        (Some(function), Some(op)) => vec![
            json!({"name": op, "fullyQualifiedName": format!("{function}/{op}"), "kind": "member"}),
            json!({"name": function, "fullyQualifiedName": function, "kind": "function"}),
        ],
        (Some(function), None) => vec![json!({"name": function, "fullyQualifiedName": function, "kind": "function"})],
        (None, Some(package)) => vec![json!({"name": package, "fullyQualifiedName": package, "kind": "module"})],
        (None, None) => vec![json!({"name": "program", "fullyQualifiedName": "program", "kind": "module"})],
    }
}

/// What makes a finding the same in the next run: not its numbers.
fn fingerprint(target: &TargetRow, f: &FindingRow) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}/{}/{}", target.target, f.rule, part(&f.function), part(&f.op))
}

/// A path as a URI reference: RFC 3986's characters stay, each other byte is `%XX`. A name of the Hub stays what it is.
fn uri(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        if plain { out.push(char::from(byte)) } else { out += &format!("%{byte:02X}") }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_uri_references() {
        assert_eq!(uri("a b/ü#.mil"), "a%20b/%C3%BC%23.mil");
        assert_eq!(uri("hf:org/x@1"), "hf%3Aorg/x%401");
    }
}
