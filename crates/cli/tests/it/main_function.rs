//! Packages with one function call it `main`, as the utilities of coremltools require, and are run
//! by the names of their contracts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_mil::package::Package;
use thane_mil::program::Program;
use thane_runtime::{WrittenTables, items, read_contents};

use crate::fixture::{Home, assert_ends, chat_folder, json};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The chat model in the form for the Neural Engine, with a context of 64.
fn converted(home: &Home, name: &str, flags: &[&str]) -> PathBuf {
    let (checkpoint, out) = (chat_folder(), home.path(name));
    let fixed = ["convert", text(&checkpoint), "--form", "ane"];
    let sizes = ["--context", "64", "-o", text(&out)];
    assert_ends(&home.run(&[&fixed[..], &sizes, flags].concat()), 0, &[]);
    out
}

/// The names in the package, and in its contract.
fn names(home: &Home, package: &Path) -> (Vec<String>, Vec<String>) {
    let report = json(&home.run(&["inspect", "--json", text(package)]));
    let name = |function: &Value| function["name"].as_str().unwrap().to_owned();
    let own = report["functions"].as_array().unwrap().iter().map(name);
    let contract = std::fs::read(package.join("Data/ai.thane/contract.json")).unwrap();
    let contract: Value = serde_json::from_slice(&contract).unwrap();
    let kept = contract["functions"].as_object().unwrap().keys().cloned();
    (own.collect(), kept.collect())
}

/// The tokens of an answer.
fn answer(home: &Home, model: &Path) -> Value {
    let args = ["run", text(model), "hello", "--max-tokens", "12", "--json"];
    let answer = json(&home.run(&[&args[..], &["--numerics", "f32"]].concat()));
    assert!(answer["tokens"].as_array().unwrap().len() > 3, "{answer}");
    answer["tokens"].clone()
}

#[test]
fn the_only_function_of_a_package_is_main() {
    let home = Home::new();
    let both = converted(&home, "both.mlpackage", &["--block", "8"]);
    let (mut own, kept) = names(&home, &both);
    own.sort();
    assert_eq!((own.len(), &kept), (2, &own), "several keep their names");
    let flags = ["--block", "8", "--functions", "decode"];
    let one = converted(&home, "one.mlpackage", &flags);
    let expected = (vec!["main".to_owned()], vec!["decode".to_owned()]);
    assert_eq!(names(&home, &one), expected);
    assert_ends(&home.run(&["check", text(&one)]), 0, &[]);
    let due = answer(&home, &both);
    assert_eq!(answer(&home, &one), due);

    let older = home.path("older.mlpackage");
    write_with_name_of_contract(&one, &older, "decode");
    let expected = (expected.1.clone(), expected.1);
    assert_eq!(names(&home, &older), expected);
    assert_ends(&home.run(&["check", text(&older)]), 0, &[]);
    assert_eq!(answer(&home, &older), due, "as earlier versions named it");
}

/// A package as earlier versions wrote it: the only function has the name of the contract.
fn write_with_name_of_contract(from: &Path, to: &Path, name: &str) {
    let package = Package::open(from).unwrap();
    let contents = read_contents(from, &package.program).unwrap().unwrap();
    let mut function = package.program.functions()[0].clone();
    name.clone_into(&mut function.name);
    let interfaces = package.interfaces.into_values();
    let older = Package {
        metadata: package.metadata,
        interfaces: interfaces.map(|i| (name.to_owned(), i)).collect(),
        ..Package::new(Program::new(vec![function]))
    };
    let language = contents.language.as_ref();
    let tables = WrittenTables {
        files: &[],
        shared: contents.shared_rows,
    };
    let items = items(contents.contract, language, None, tables, None).unwrap();
    older.write(to, &items).unwrap();
}

/// Functions of all packages are one program, in which their names must differ.
#[test]
fn chunks_with_one_function_each_are_told_apart() {
    let home = Home::new();
    let direct = ["--direct", "--head", "logits"];
    let whole = converted(&home, "whole.mlpackage", &direct);
    let cut = converted(&home, "cut", &[&direct[..], &["--split", "2"]].concat());
    for chunk in ["chunk1", "chunk2"] {
        let package = cut.join(format!("{chunk}.mlpackage"));
        let expected = (vec!["main".to_owned()], vec!["prefill".to_owned()]);
        assert_eq!(names(&home, &package), expected);
    }
    assert_ends(&home.run(&["check", text(&cut)]), 0, &[]);
    assert_eq!(answer(&home, &cut), answer(&home, &whole));
    let audit = ["audit", "--json", "--target", "m4", text(&cut)];
    let audit = json(&home.run(&audit));
    let chains = audit["chains"].as_array().unwrap();
    assert!(!chains.is_empty(), "the calls are found: {audit}");
}

/// An embedding model of one length has one function too.
#[test]
fn an_embedding_model_of_one_length_has_main() {
    let home = Home::new();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed");
    let model = models.join("bert-mean");
    let mut vectors = BTreeMap::new();
    for (name, flags) in [("one", &["--no-flexible"][..]), ("two", &[])] {
        let out = home.path(name).with_extension("mlpackage");
        let fixed = [
            "convert",
            text(&model),
            "--task",
            "embed",
            "--buckets",
            "16",
        ];
        let args = [&fixed[..], &["-o", text(&out)], flags].concat();
        assert_ends(&home.run(&args), 0, &[]);
        let functions = if name == "one" {
            vec!["main"]
        } else {
            vec!["encode", "encode_16"]
        };
        let (mut own, _) = names(&home, &out);
        own.sort();
        assert_eq!(own, functions);
        assert_ends(&home.run(&["verify", text(&out)]), 0, &[]);
        let args = ["embed", "--json", "--format", "float", text(&out), "a cat"];
        vectors.insert(name, json(&home.run(&args))["embeddings"].clone());
    }
    assert!(vectors["one"].is_array() && vectors["one"] == vectors["two"]);
}
