//! The model card: what a repository says about itself on the Hub.

use std::fmt::Write;

use thane_hub::{Format, Publication};
use thane_runtime::contract::Facts;

use super::collect::About;
use super::speed::Speeds;
use crate::output::{bytes, counted};

/// The facts of a model card.
pub struct Card<'a> {
    /// `org/name`.
    pub repo: &'a str,
    pub list: &'a Publication,
    pub about: &'a About,
    /// The repository of the model on the Hub that the packages were made of.
    pub base_model: Option<&'a str>,
    pub speeds: Option<&'a Speeds>,
    /// Bytes of different files.
    pub unique_bytes: u64,
    /// The public key of the signature, in base64.
    pub key: Option<&'a str>,
}

/// The text of a model card.
pub fn card(card: &Card<'_>) -> String {
    [
        header(card),
        introduction(card),
        packages(card),
        quality(card.about),
        card.speeds.map(speed).unwrap_or_default(),
        here(card),
        swift(card),
    ]
    .concat()
}

/// The metadata that the Hub reads.
fn header(card: &Card<'_>) -> String {
    let mut text = "---\nlibrary_name: coreml\n".to_owned();
    if let Some(license) = &card.list.license {
        text += &license_lines(license);
    }
    if let Some(base) = card.base_model {
        let _ = writeln!(text, "base_model: {}", quoted(base));
    }
    let task = match card.list.task.as_deref() {
        Some("embed") => "pipeline_tag: feature-extraction\n",
        Some("generate") => "pipeline_tag: text-generation\n",
        _ => "",
    };
    text += task;
    text + "tags:\n- coreml\n- apple-neural-engine\n- thane\n---\n\n"
}

/// Licenses that the Hub knows by these names; it refuses others.
const LICENSES: [&str; 38] = [
    "afl-3.0",
    "agpl-3.0",
    "apache-2.0",
    "apple-amlr",
    "apple-ascl",
    "artistic-2.0",
    "bigcode-openrail-m",
    "bigscience-openrail-m",
    "bsd-2-clause",
    "bsd-3-clause",
    "bsl-1.0",
    "cc-by-4.0",
    "cc-by-nc-4.0",
    "cc-by-nc-nd-4.0",
    "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0",
    "cc-by-sa-4.0",
    "cc0-1.0",
    "creativeml-openrail-m",
    "eupl-1.2",
    "gemma",
    "gpl-2.0",
    "gpl-3.0",
    "isc",
    "lgpl-2.1",
    "lgpl-3.0",
    "llama2",
    "llama3",
    "llama3.1",
    "llama3.2",
    "llama3.3",
    "llama4",
    "mit",
    "mpl-2.0",
    "openrail",
    "unlicense",
    "wtfpl",
    "zlib",
];

/// The license as the Hub takes it: one that it does not know has the name `other`.
fn license_lines(license: &str) -> String {
    let lower = license.to_lowercase();
    if LICENSES.contains(&lower.as_str()) {
        return format!("license: {lower}\n");
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    let name: String = lower
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .collect();
    format!("license: other\nlicense_name: {}\n", quoted(&name))
}

/// A string of YAML: JSON is one.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn introduction(card: &Card<'_>) -> String {
    let name = card.repo.rsplit('/').next().unwrap_or(card.repo);
    let what = match &card.about.facts {
        Some(Facts::Embed(facts)) => format!(
            "An embedding model ({}, {}, vectors of {}, texts of at most {})",
            facts.architecture,
            counted(facts.layers, "layer"),
            facts.dimensions,
            counted(facts.max_tokens, "token"),
        ),
        Some(Facts::Generate(facts)) => format!(
            "A language model ({}, {}, context of {})",
            facts.architecture,
            counted(facts.layers, "layer"),
            counted(facts.context, "token"),
        ),
        None => "A model".to_owned(),
    };
    let base = card.base_model.map_or_else(String::new, |base| {
        format!(" made of [{base}](https://huggingface.co/{base})")
    });
    let base = match (&card.about.source, base.is_empty()) {
        (Some(source), true) => format!(" made of `{source}`"),
        _ => base,
    };
    let generator = &card.list.generator;
    format!("# {name}\n\n{what} as Core ML packages{base}, published by {generator}.\n\n")
}

fn packages(card: &Card<'_>) -> String {
    let list = card.list;
    let mut text =
        "## Files\n\n| package | tokens | forms | bytes |\n|---|---|---|---|\n".to_owned();
    for package in &list.packages {
        let forms: Vec<String> = package.forms.values().map(|f| format!("`{f}`")).collect();
        let folder = package.forms.values().next().map_or("", String::as_str);
        let below = |path: &str| path.starts_with(&format!("{folder}/"));
        let files = list.files.iter().filter(|file| below(&file.path));
        let size: u64 = files.map(|file| file.bytes).sum();
        let tokens = package.tokens.map_or("any".to_owned(), |n| n.to_string());
        let tokens = match list.task.as_deref() {
            Some("embed") => tokens,
            _ => "-".to_owned(),
        };
        let (name, forms) = (&package.name, forms.join(", "));
        let _ = writeln!(text, "| {name} | {tokens} | {forms} | {} |", bytes(size));
    }
    let all: u64 = list.files.iter().map(|file| file.bytes).sum();
    let _ = writeln!(
        text,
        "\n{} in {}; files with the same bytes are stored and downloaded once, which leaves {}. \
         `thane.json` lists every file with its size and sha256.{}\n",
        bytes(all),
        counted(list.files.len(), "file"),
        bytes(card.unique_bytes),
        card.key.map_or_else(String::new, |key| format!(
            " `thane.json.sig` is its signature by the ed25519 key `{key}`."
        )),
    );
    if let Some(license) = &list.license {
        let _ = writeln!(text, "License of the model: {license}.\n");
    }
    text
}

/// The recorded quality in a line.
fn quality(about: &About) -> String {
    let Some(quality) = &about.quality else {
        return String::new();
    };
    let measures = quality.measures.iter().map(|(name, measure)| {
        format!(
            "{name} {:.5} ({:.5} to {:.5})",
            measure.value, measure.low, measure.high
        )
    });
    let measures: Vec<String> = measures.collect();
    format!(
        "## Quality\n\nAgainst `{}`, measured by {} with {} numerics on {}: {}.\n\n",
        quality.reference,
        quality.generator,
        quality.numerics,
        counted(quality.samples, "sample"),
        measures.join(", ")
    )
}

fn speed(speeds: &Speeds) -> String {
    let head = speeds.chips.join(" | ");
    let line = "---|".repeat(speeds.chips.len());
    let mut text = format!(
        "## Predicted speed\n\nPredicted by a model of Apple's chips, with Core ML on {}; nothing \
         was measured on a device.\n\n| | {head} |\n|---|{line}\n",
        speeds.systems.join(" and ")
    );
    for (name, figures) in &speeds.rows {
        let _ = writeln!(text, "| {name} | {} |", figures.join(" | "));
    }
    let verdicts: Vec<&str> = speeds.verdicts.clone();
    let same = verdicts.windows(2).all(|pair| pair[0] == pair[1]);
    text += "\nThe audit's verdict: ";
    let by_chip = speeds.chips.iter().zip(&verdicts);
    let said: Vec<String> = by_chip
        .map(|(chip, said)| format!("{chip}: {said}"))
        .collect();
    let said = match verdicts.first() {
        Some(first) if same => format!("{first}, on each of these chips"),
        _ => said.join("; "),
    };
    let _ = write!(text, "{said}.");
    for (id, title) in &speeds.rules {
        let _ = write!(text, "\n- {id}: {title}");
    }
    text + "\n\n"
}

/// How to run the model with Thane.
fn here(card: &Card<'_>) -> String {
    let repo = card.repo;
    let run = match card.list.task.as_deref() {
        Some("embed") => format!("thane embed hf:{repo} --similarity \"a text\" \"another\""),
        _ => format!("thane run hf:{repo} \"Why is the sky blue?\""),
    };
    let lengths: Vec<String> = card
        .list
        .packages
        .iter()
        .filter_map(|p| p.tokens)
        .map(|n| n.to_string())
        .collect();
    let part = match lengths.first() {
        Some(first) if lengths.len() > 1 => {
            format!("thane pull hf:{repo} --buckets {first}   # one length only\n")
        }
        _ => String::new(),
    };
    let key = card.key.map_or_else(String::new, |key| {
        format!("thane pull hf:{repo} --require-signature {key}\n")
    });
    format!("## Run it on any machine\n\n```sh\n{run}\n{part}{key}```\n\n")
}

fn swift(card: &Card<'_>) -> String {
    let forms = card.list.packages.iter().map(|package| &package.forms);
    let mut compiled = forms
        .clone()
        .filter_map(|forms| forms.get(&Format::Mlmodelc));
    let mut packages = forms.filter_map(|forms| forms.get(&Format::Mlpackage));
    let load = match (compiled.next(), packages.next()) {
        (Some(folder), _) => format!("let url = folder.appending(path: \"{folder}\")\n"),
        (None, Some(folder)) => format!(
            "let package = folder.appending(path: \"{folder}\")\n\
             let url = try await MLModel.compileModel(at: package)\n"
        ),
        (None, None) => return String::new(),
    };
    let inputs = match card.about.inputs.is_empty() {
        true => String::new(),
        false => format!("// takes {}\n", card.about.inputs.join(", ")),
    };
    format!(
        "## Run it in Swift\n\n```swift\nimport CoreML\n\nlet configuration = \
         MLModelConfiguration()\nconfiguration.computeUnits = .cpuAndNeuralEngine\n{load}let model \
         = try await MLModel.load(contentsOf: url, configuration: configuration)\n{inputs}```\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licenses_are_those_of_the_hub_or_others() {
        for (license, lines) in [
            ("Apache-2.0", "license: apache-2.0\n"),
            ("gemma", "license: gemma\n"),
            (
                "My \"own\": 1",
                "license: other\nlicense_name: \"my--own---1\"\n",
            ),
        ] {
            assert_eq!(license_lines(license), lines);
        }
    }
}
