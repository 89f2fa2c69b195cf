//! A report as SARIF 2.1.0, which code review bots read: a result for each rule that fired,
//! whatever the number of places and targets. Source: OASIS standard of 27 March 2020, sections
//! 3.13 to 3.52.

use serde_json::{Value, json};
use thane_mil::text::Lines;

use crate::report::groups::{Group, groups};
use crate::report::{FindingRow, Report, RuleRow};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// What results are about.
#[derive(Clone, Copy)]
struct Artifact<'a> {
    uri: &'a str,
    lines: Option<&'a Lines>,
}

/// The report, about a file with this path; of a text with the lines that findings are about.
///
/// Code review bots find a file by a path that is relative to the working folder.
pub fn print(report: &Report, path: &str, lines: Option<&Lines>) -> serde_json::Result<String> {
    let uri = reference(path);
    let artifact = Artifact { uri: &uri, lines };
    let mut text = serde_json::to_string_pretty(&log(report, artifact))?;
    text.push('\n');
    Ok(text)
}

fn log(report: &Report, artifact: Artifact<'_>) -> Value {
    let results: Vec<Value> = groups(report)
        .iter()
        .map(|group| result(report, group, artifact))
        .collect();
    let notifications: Vec<Value> = report
        .failures
        .iter()
        .map(|failure| json!({"level": "error", "message": {"text": failure}}))
        .collect();
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
            "artifacts": [{"location": {"uri": artifact.uri}, "roles": ["analysisTarget"]}],
            "invocations": [{
                "executionSuccessful": true,
                "exitCode": i32::from(!report.passed),
                "toolExecutionNotifications": notifications,
            }],
            "results": results,
        }],
    })
}

fn rule(r: &RuleRow) -> Value {
    let dispute = r
        .disputed
        .map(|d| format!(" Disputed: {d}."))
        .unwrap_or_default();
    let uri = help_uri(r.source);
    let link = uri.as_ref().map(|uri| format!("\n\n[The source]({uri})"));
    let link = link.unwrap_or_default();
    let help = format!(
        "{} {}\n\nEvidence: {}: {}.{dispute}",
        r.why, r.fix, r.evidence, r.source
    );
    let markdown = format!(
        "{}\n\n**Fix.** {}\n\n**Evidence.** {}: {}.{dispute}{link}",
        escaped(r.why),
        escaped(r.fix),
        r.evidence,
        escaped(r.source)
    );
    let mut out = json!({
        "id": r.id,
        "name": identifier(r.title),
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
    });
    if let Some(uri) = uri {
        out["helpUri"] = json!(uri);
    }
    out
}

/// A title as one word: `A cast to fp32` is `ACastToFp32`.
fn identifier(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .flat_map(|word| {
            let first = word.chars().next().map(|c| c.to_ascii_uppercase());
            first.into_iter().chain(word.chars().skip(1))
        })
        .collect()
}

/// Text as Markdown shows it unchanged.
fn escaped(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut out, c| {
            if "\\`*_{}[]<>#|".contains(c) {
                out.push('\\');
            }
            out.push(c);
            out
        })
}

/// A result for each rule that fired, at its first place; others are related ones, as many as a
/// reader looks at.
fn result(report: &Report, group: &Group<'_>, artifact: Artifact<'_>) -> Value {
    const MOST_RELATED: usize = 50;
    let index = report.rules.iter().position(|r| r.id == group.rule.id);
    let first = group.places.first();
    let related = group
        .places
        .iter()
        .skip(1)
        .take(MOST_RELATED)
        .enumerate()
        .map(|(i, place)| {
            let mut location = location(place.finding, artifact);
            location["id"] = json!(i + 1);
            location["message"] = json!({"text": message(place.finding)});
            location
        });
    let targets: Vec<&str> = group
        .targets
        .iter()
        .filter_map(|i| report.targets.get(*i))
        .map(|t| t.target.as_str())
        .collect();
    let n = group.places.len();
    let more = if n > 1 {
        format!(" ({n} places)")
    } else {
        String::new()
    };
    let said = first
        .map(|place| message(place.finding))
        .unwrap_or_default();
    let mut out = json!({
        "ruleId": group.rule.id,
        "ruleIndex": index,
        "level": group.rule.severity,
        "message": {"text": format!("{}{more}: {said}", group.rule.title)},
        "locations": first.map(|place| location(place.finding, artifact)).into_iter().collect::<Vec<_>>(),
        "relatedLocations": related.collect::<Vec<_>>(),
        "occurrenceCount": n,
        "partialFingerprints": {"thane/v2": fingerprint(group)},
        "properties": {"targets": targets, "place": first.and_then(|place| place.finding.place.as_ref())},
    });
    if report.baseline.is_some() {
        let known = group.places.iter().all(|place| place.known);
        out["baselineState"] = json!(if known { "unchanged" } else { "new" });
    }
    out
}

fn message(f: &FindingRow) -> String {
    let place = f
        .place
        .as_ref()
        .map(|p| format!(" ({p})"))
        .unwrap_or_default();
    let at =
        f.op.as_ref()
            .map(|op| format!("`{op}`{place}: "))
            .unwrap_or_default();
    format!("{at}{}", f.message)
}

fn location(f: &FindingRow, artifact: Artifact<'_>) -> Value {
    json!({"physicalLocation": physical(f, artifact), "logicalLocations": logical(f)})
}

/// The file, and the line in it; a package has one, as code scanning shows nothing without a line.
fn physical(f: &FindingRow, artifact: Artifact<'_>) -> Value {
    let mut out = json!({"artifactLocation": {"uri": artifact.uri, "index": 0}});
    // What is about the whole program is shown where the text begins.
    let line = artifact.lines.and_then(|lines| f.line(lines));
    out["region"] = json!({"startLine": line.unwrap_or(1)});
    out
}

fn logical(f: &FindingRow) -> Vec<Value> {
    let named = |name: &str, whole: &str, kind: &str| json!({"name": name, "fullyQualifiedName": whole, "kind": kind});
    let one = |name: &str, kind: &str| named(name, name, kind);
    match (&f.function, &f.op) {
        (Some(function), Some(op)) => vec![
            named(op, &format!("{function}/{op}"), "member"),
            one(function, "function"),
        ],
        (Some(function), None) => vec![one(function, "function")],
        (None, Some(package)) => vec![one(package, "module")],
        (None, None) => vec![one("program", "module")],
    }
}

/// What makes a result the same in the next run: its rule and where it fires first, not its
/// numbers.
fn fingerprint(group: &Group<'_>) -> String {
    let part = |text: Option<&String>| text.cloned().unwrap_or_default();
    let first = group.places.first().map(|place| place.finding);
    format!(
        "{}/{}",
        group.rule.id,
        part(first.and_then(|f| f.function.as_ref()))
    )
}

/// Who says it: the published work that a rule's source begins with. A word of a source, and where
/// that work is, on GitHub or elsewhere.
const WORKS: &[(&str, &str)] = &[
    (
        "751K",
        "751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
    ),
    (
        "M6 study",
        "751K/Apple-Neural-Engine-Microarchitecture-Study-M6",
    ),
    ("ANEForge", "sbryngelson/ANEForge"),
    ("coreml-llm-cli", "smpanaro/coreml-llm-cli"),
    ("CoreML-LLM", "john-rocky/CoreML-LLM"),
    ("pplx-embed", "john-rocky/CoreML-LLM"),
    ("qwen-ane", "True2456/qwen-ane"),
    ("maderix/ANE", "maderix/ANE"),
    ("ane-bridge-rs", "electricapp/ane-bridge-rs"),
    ("field-guide", "skyfallsin/apple-neural-engine-field-guide"),
    ("cadamcat", "cadamcat/llms-on-apple-neural-engine"),
    ("mlx-serve", "ddalcu/mlx-serve"),
    ("more-ane-transformers", "smpanaro/more-ane-transformers"),
    (
        "ane-linux-experiments",
        "joshuaswarren/ane-linux-experiments",
    ),
    ("anemll-profile", "Anemll/anemll-profile"),
    ("anemll-forge", "Anemll/anemll-forge"),
    ("oxinfer", "https://crates.io/crates/oxinfer"),
    ("mil_spec", "https://crates.io/crates/mil_spec"),
    ("tmc/apple", "tmc/apple"),
    ("ANEMLL", "Anemll/Anemll"),
    ("Espresso", "christopherkarani/Espresso"),
    ("ExecuTorch", "pytorch/executorch"),
    ("coremltools", "apple/coremltools"),
    ("Apple", "https://apple.github.io/coremltools/docs-guides/"),
];

/// Where a rule's source can be read.
fn help_uri(source: &str) -> Option<String> {
    let places = WORKS
        .iter()
        .filter_map(|(word, uri)| Some((source.find(word)?, *uri)));
    let (_, uri) = places.min_by_key(|(at, _)| *at)?;
    let is_whole = uri.starts_with("https://");
    Some(if is_whole {
        uri.to_owned()
    } else {
        format!("https://github.com/{uri}")
    })
}

/// A path as a relative reference, or as a `file` URI where it begins at a root.
fn reference(path: &str) -> String {
    let is_on_drive = |path: &str| {
        let drive = path.as_bytes().first().is_some_and(u8::is_ascii_alphabetic);
        drive && path[1..].starts_with(":\\")
    };
    match path {
        _ if path.starts_with('/') => format!("file://{}", uri(path)),
        _ if is_on_drive(path) => {
            let rest = path[2..].replace('\\', "/");
            format!("file:///{}{}", &path[..2], uri(&rest))
        }
        _ => uri(path),
    }
}

/// A path as a URI reference: RFC 3986's characters stay, each other byte is `%XX`. A name of the
/// Hub stays what it is.
fn uri(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        if plain {
            out.push(char::from(byte))
        } else {
            out += &format!("%{byte:02X}")
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_every_rule_says_where_its_source_can_be_read() {
        let without: Vec<&str> = crate::rules::all()
            .filter(|r| help_uri(r.source).is_none())
            .map(|r| r.source)
            .collect();
        assert!(without.len() <= 8, "{without:#?}");
        let study =
            help_uri("751K/Apple-Neural-Engine-Microarchitecture-Study-M6, M4; coremltools");
        assert!(study.is_some_and(|uri| uri.ends_with("Study-M6")));
    }

    #[test]
    fn paths_are_uri_references() {
        assert_eq!(uri("a b/ü#.mil"), "a%20b/%C3%BC%23.mil");
        assert_eq!(uri("hf:org/x@1"), "hf%3Aorg/x%401");
        assert_eq!(reference("/a b/x.mil"), "file:///a%20b/x.mil");
        assert_eq!(reference("C:\\a b\\x.mil"), "file:///C:/a%20b/x.mil");
        assert_eq!(reference("a/x.mil"), "a/x.mil");
    }

    #[test]
    fn names_of_rules_are_words_of_their_own() {
        assert_eq!(identifier("A cast to fp32, or back"), "ACastToFp32OrBack");
        let names: std::collections::HashSet<String> = crate::rules::all()
            .map(|rule| identifier(rule.title))
            .collect();
        assert_eq!(names.len(), crate::rules::all().count());
    }
}
