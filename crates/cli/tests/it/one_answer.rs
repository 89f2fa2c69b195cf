//! One answer to one question: `plan`, `audit` of a checkpoint, `convert` and `audit` of what it
//! wrote say the same of a program on every chip, to the last digit.

use std::path::{Path, PathBuf};

use serde_json::{Value, json as object};
use thane_audit::target::CHIPS;

use crate::decoder::models;
use crate::fixture::{Home, assert_ends, chat_folder, json};

/// What verbs must agree about, on each target.
fn figures(of: &Value, loaded: &Value) -> Value {
    let keys = ["target", "answer", "verdict", "ane_ops", "ops"];
    let row = keys.map(|key| of[key].clone());
    object!([row, loaded])
}

fn of_plan(report: &Value) -> Vec<Value> {
    let targets = report["targets"].as_array().unwrap().iter();
    let row = |target: &Value| {
        let mut chosen = target["chosen"].clone();
        chosen["target"] = target["target"].clone();
        figures(&chosen, &chosen["loaded_bytes"])
    };
    targets.map(row).collect()
}

fn of_audit(report: &Value) -> Vec<Value> {
    let targets = report["targets"].as_array().unwrap().iter();
    let row = |target: &Value| {
        let mut rows = target["memory"].as_array().unwrap().iter();
        let own = rows.find(|row| row["route"] == target["route"]);
        let loaded = own.map_or(Value::Null, |row| row["bytes"].clone());
        figures(target, &loaded)
    };
    targets.map(row).collect()
}

/// What each layer takes in each function, which an audit of a checkpoint and one of its package
/// say alike.
fn layers_of(report: &Value) -> Vec<Value> {
    let targets = report["targets"].as_array().unwrap().iter();
    let functions = targets.flat_map(|target| target["functions"].as_array().unwrap());
    functions
        .map(|f| object!([f["name"], f["explained"]["layers"]]))
        .collect()
}

fn of_convert(report: &Value) -> Vec<Value> {
    let audits = report["audits"].as_array().unwrap().iter();
    let row = |audit: &Value| figures(audit, &audit["loaded_bytes"]);
    audits.map(row).collect()
}

/// Runs the four verbs and compares them. `plan` is left out where a flag says the form.
fn compare(home: &Home, model: &Path, flags: &[&str], out: &Path) {
    let run = |verb: &str, more: &[&str]| {
        let fixed = [verb, model.to_str().unwrap(), "--json"];
        let args = [&fixed[..], flags, more].concat();
        let output = home.run(&args);
        assert_ends(&output, 0, &[]);
        json(&output)
    };
    let context = ["--context", "64"];
    let name = format!("{} {}", model.display(), flags.join(" "));
    let out = out.to_str().unwrap();
    let more = ["--force", "-o", out];
    let written = of_convert(&run("convert", &[&context[..], &more].concat()));
    assert!(!written.is_empty(), "{name}");
    // The package remembers its targets.
    let read = home.run(&["audit", out, "--json"]);
    assert_ends(&read, 0, &[]);
    let package = json(&read);
    assert_eq!(written, of_audit(&package), "{name}: the package");
    let audited = run("audit", &context);
    assert_eq!(written, of_audit(&audited), "{name}: the checkpoint");
    let layers = layers_of(&audited).into_iter().zip(layers_of(&package));
    for (of_checkpoint, of_package) in layers {
        assert_eq!(of_checkpoint, of_package, "{name}: layers");
    }
    if !flags.contains(&"--form") {
        let planned = of_plan(&run("plan", &context));
        assert_eq!(written, planned, "{name}: the plan");
    }
}

fn chips() -> String {
    let names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
    names.join(",")
}

#[test]
fn every_chip_has_one_answer_in_each_form() {
    let home = Home::new();
    let chips = chips();
    let forms: [&[&str]; 9] = [
        &[],
        &["--form", "portable"],
        // A divisor is an op where the program looks up tokens. Which one a model needs depends on
        // weights, which only `convert` reads.
        &[
            "--form",
            "ane",
            "--kv",
            "state",
            "--lookup",
            "inside",
            "--residual-divisor",
            "2",
        ],
        &["--kv", "state", "--contexts", "16", "--block", "8"],
        &["--kv", "explicit", "--head", "host", "--verify", "2,4"],
        &["--lookup", "host-int8", "--head", "top5"],
        &["--kv", "explicit", "--lanes", "2", "--head", "logits"],
        &["--kv", "explicit", "--attention-window", "16"],
        &["--split", "2", "--head", "argmax"],
    ];
    for flags in forms {
        let out = match flags.contains(&"--split") {
            true => "x",
            false => "x.mlpackage",
        };
        let out = home.path(out);
        let flags = [&["--target", &chips], flags].concat();
        compare(&home, &chat_folder(), &flags, &out);
    }
}

#[test]
fn every_encoding_has_one_answer() {
    let home = Home::new();
    let chips = chips();
    let encodings: [&[&str]; 4] = [
        &["--compress", "pal4"],
        &["--compress", "auto"],
        &[
            "--compress",
            "pal6",
            "--scale",
            "behind",
            "--kv",
            "explicit",
            "--head",
            "host",
        ],
        &["--compress", "pal4g8", "--form", "ane", "--lookup", "host"],
    ];
    for flags in encodings {
        let flags = [&["--target", &chips], flags].concat();
        compare(&home, &chat_folder(), &flags, &home.path("x.mlpackage"));
    }
    let kinds: [(&str, &str, &[&str]); 4] = [
        ("lfm2", "m4", &["int8"]),
        ("gemma3", "m6", &["pal4"]),
        ("qwen3_5", "a19", &["auto"]),
        // The portable form keeps codes that a file has: this one has none.
        ("qwen2", &chips, &["sparse50", "--form", "portable"]),
    ];
    for (kind, target, encoding) in kinds {
        let model: PathBuf = models().join("tiny").join(kind);
        let flags = [&["--target", target, "--compress"], encoding].concat();
        compare(&home, &model, &flags, &home.path("x.mlpackage"));
    }
}

#[test]
fn every_kind_of_layer_has_one_answer() {
    let home = Home::new();
    let kinds: [(&str, &str); 5] = [
        ("lfm2", "m4"),
        ("qwen3_5", "a19"),
        ("gemma3", "ios18"),
        ("gpt2", "macos26"),
        ("phi3", "a17-pro,m1"),
    ];
    for (kind, target) in kinds {
        let model: PathBuf = models().join("tiny").join(kind);
        compare(
            &home,
            &model,
            &["--target", target],
            &home.path("x.mlpackage"),
        );
    }
}

#[test]
fn buckets_and_audits_price_an_encoder_alike() {
    let home = Home::new();
    let counts = home.path("counts.json");
    std::fs::write(&counts, r#"{"24": 1, "48": 1}"#).unwrap();
    let counts = counts.to_str().unwrap();
    for kind in ["bert-mean", "modernbert-mean", "qwen3-embedding"] {
        let model = crate::embed::model(kind);
        let run = |verb: &str, flags: &[&str]| {
            let fixed = [
                verb,
                model.to_str().unwrap(),
                "--json",
                "--target",
                "m4-max",
            ];
            let output = home.run(&[&fixed[..], flags].concat());
            assert_ends(&output, 0, &[]);
            json(&output)
        };
        let plans = run("buckets", &["--histogram", counts, "--align", "8"]);
        let found = plans["unlimited"]["ms_per_text"].as_f64().unwrap();
        let audit = run("audit", &["--buckets", "24,48", "--no-flexible"]);
        let functions = audit["targets"][0]["functions"].as_array().unwrap();
        let ms = |f: &Value| f["latency"]["ms"].as_f64().unwrap();
        let mean = functions.iter().map(ms).sum::<f64>() / 2.0;
        assert_eq!(functions.len(), 2, "{kind}");
        assert!((found - mean).abs() < 1e-12, "{kind}: {found}, not {mean}");
    }
}
