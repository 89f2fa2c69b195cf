//! Reports are those of the same files on disk, and weights are not read for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use thane_audit::format::{html, json as format};
use thane_audit::report::{Part, Scope, Subject, build};
use thane_audit::target::{Route, Target, Units};
use thane_audit_web::{Host, answer};
use thane_mil::package::{Package, read_source};

use crate::folder::Dropped;

const TARGETS: [&str; 2] = ["m4", "a19+ios26"];

pub fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn entries(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(tests().join(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn bytes_below(path: &Path) -> u64 {
    match path.is_dir() {
        true => fs::read_dir(path)
            .unwrap()
            .map(|entry| bytes_below(&entry.unwrap().path()))
            .sum(),
        false => fs::metadata(path).unwrap().len(),
    }
}

/// What the command reads of a path.
fn subject(path: &Path) -> Option<Subject> {
    let name = path.file_name().unwrap().to_str().unwrap();
    if path.extension().is_some_and(|e| e == "mil") {
        let source = read_source(path).ok()?;
        let part = Part {
            interfaces: source.interfaces,
            ..Part::new(source.program)
        };
        return Some(Subject {
            n_absent: source.n_absent,
            ..Subject::new(name, "text", vec![part])
        });
    }
    Some(Subject {
        disk_bytes: bytes_below(path),
        ..Subject::new(name, "package", vec![Package::open(path).ok()?.into()])
    })
}

#[test]
fn reports_are_those_of_files_on_disk() {
    let target = |name| Target::parse(name, Units::default(), Route::default()).unwrap();
    let targets = TARGETS.map(target);
    let mut n = 0;
    for path in ["audit", "packages", "model-packages"]
        .map(entries)
        .concat()
    {
        let Some(subject) = subject(&path) else {
            assert!(Dropped::new(&path).audit(json!({})).is_err(), "{path:?}");
            continue;
        };
        n += 1;
        let report = build(&subject, &targets, Scope::default());
        let dropped = Dropped::new(&path);
        let answer = dropped.audit(json!({"targets": TARGETS, "page": true}));
        let answer = answer.unwrap();
        assert_eq!(answer.json, format::print(&report).unwrap(), "{path:?}");
        assert_eq!(answer.page, Some(html::print(&report).unwrap()));
    }
    assert!(n > 150, "{n} programs");
}

#[test]
fn weights_are_not_read() {
    let path = tests().join("model-packages/resnet50.mlpackage");
    let weights = path.join("Data/com.apple.CoreML/weights/weight.bin");
    let (all, weights) = (bytes_below(&path), bytes_below(&weights));
    let dropped = Dropped::new(&path);
    dropped.audit(json!({})).unwrap();
    let n_read = dropped.n_read() as u64;
    let most = all - weights + weights / 4;
    assert!(n_read < most, "{n_read} of {all}, {weights} of weights");
    let phases = ["reading the program", "judging", "writing the report"];
    assert_eq!(dropped.phases(), phases);
}

#[test]
fn a_length_and_a_function_are_as_on_the_command_line() {
    let path = tests().join("packages/ranges.mlpackage");
    let stated = Dropped::new(&path).audit(json!({"lengths": [1_000_000_000]}));
    let said = "no function takes a call of length 1000000000, which --length states";
    assert_eq!(stated.unwrap_err(), said);
    let dropped = Dropped::new(&tests().join("packages/multifunction.mlpackage"));
    let error = dropped.audit(json!({"function": "none"})).unwrap_err();
    let said = "multifunction.mlpackage: the program has no function `none`: ask for ";
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn tables_are_those_of_the_program() {
    let host: Arc<dyn Host> = Dropped::new(&tests().join("audit/ANE001.mil"));
    let about = answer(br#"{"ask": "about"}"#, &host).unwrap().json;
    let about: Value = serde_json::from_str(&about).unwrap();
    assert_eq!(about["usual"], Target::usual().name());
    for chip in about["chips"].as_array().unwrap() {
        for release in about["releases"].as_array().unwrap() {
            for system in chip["systems"].as_array().unwrap() {
                let name = |value: &Value| value.as_str().unwrap().to_owned();
                let release = name(&release[name(system)]);
                let target = format!("{}+{release}", name(&chip["name"]));
                let parsed = Target::parse(&target, Units::default(), Route::default());
                assert_eq!(parsed.unwrap().name(), target);
            }
        }
    }
}

#[test]
fn buckets_are_planned_for_times() {
    let host: Arc<dyn Host> = Dropped::new(&tests().join("audit/ANE001.mil"));
    let ask = |change: Value| {
        let mut question = json!({
            "ask": "buckets",
            "histogram": "{\"10\": 100, \"40\": 10, \"600\": 1}",
            "times": [[32, 1.0], [64, 2.0], [512, 16.0]],
            "max_tokens": 512,
        });
        let change = change.as_object().unwrap().clone();
        question.as_object_mut().unwrap().extend(change);
        answer(question.to_string().as_bytes(), &host)
    };
    let plan: Value = serde_json::from_str(&ask(json!({})).unwrap().json).unwrap();
    assert_eq!(plan["truncated"], 1);
    assert_eq!(plan["unlimited"]["buckets"], json!([32, 64, 512]));
    // 100 texts of 1 ms, 10 of 2 ms and one of 16 ms.
    assert_eq!(plan["unlimited"]["ms_per_text"], 136.0 / 111.0);
    for (change, said) in [
        (json!({"histogram": "{\"0\": 1}"}), "the lengths of texts: "),
        (json!({"histogram": "{}"}), "the lengths of texts: "),
        (
            json!({"times": [[32, 1.0]]}),
            "the times: expected at least two",
        ),
        (json!({"align": 0}), "expected a multiple from 1 to 4096"),
        (json!({"count": 65}), "expected a number of buckets from 1"),
        (json!({"other": 1}), "expected a question as JSON"),
    ] {
        let error = ask(change).unwrap_err();
        assert!(error.starts_with(said), "{error}");
    }
}
