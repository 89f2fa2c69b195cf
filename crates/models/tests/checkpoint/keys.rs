//! The tables of keys have a row for every key that the source of transformers and
//! sentence-transformers names, and files are read as their rows say.
//!
//! `tests/oracle/make_keys.py` reads that source.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use thane_models::checkpoint::keys::{self, Class, FileKeys};
use thane_models::{Model, ModelError, Options, build};

use super::builder::{Folder, assert_says};

/// A row of `tests/models/keys.tsv`.
pub struct Row {
    pub key: String,
    /// `known`, or what transformers does with the value.
    pub effect: String,
    pub value: Value,
    /// Names of classes, or of checkpoints in `tests/models`.
    pub of: Vec<String>,
}

/// The rows of a file.
pub fn rows(file: &str) -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/keys.tsv");
    let text = fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let rows = lines.filter(|columns| columns[0] == file).map(|columns| {
        let [_, key, effect, value, of] = columns[..] else {
            panic!("{columns:?}: expected five columns");
        };
        Row {
            key: key.to_owned(),
            effect: effect.to_owned(),
            value: serde_json::from_str(value).unwrap_or_default(),
            of: of.split(' ').map(str::to_owned).collect(),
        }
    });
    let rows: Vec<Row> = rows.collect();
    assert!(!rows.is_empty(), "no rows of {file}");
    rows
}

#[test]
fn every_key_that_the_source_names_has_a_row() {
    for table in [
        &keys::GENERATION,
        &keys::SENTENCE_TRANSFORMERS,
        &keys::SENTENCE_BERT,
        &keys::MODULES,
        &keys::POOLING,
        &keys::DENSE,
        &keys::LAYER_NORM,
        &keys::NORMALIZE,
        &keys::DROPOUT,
        &keys::WEIGHTED_LAYERS,
        &keys::TOKENIZER,
        &keys::SPECIAL_TOKENS,
    ] {
        let known = rows(table.file);
        // The keys of some objects have rows of their own.
        let has_row = |key: &str| {
            let within = format!("{key}.");
            let parts = |name: &str| name.starts_with(&within);
            table.row(key).is_some() || table.keys.iter().any(|row| parts(row.name))
        };
        let keys = known.iter().map(|row| row.key.as_str());
        let missing: Vec<&str> = keys.filter(|key| !has_row(key)).collect();
        assert!(
            missing.is_empty(),
            "{}: no rows for {missing:?}",
            table.file
        );
    }
}

/// What changes tokens or texts in transformers is read or refused.
#[test]
fn keys_of_tokenizers_that_change_tokens_are_not_harmless() {
    for table in [&keys::TOKENIZER, &keys::SPECIAL_TOKENS] {
        for row in rows(table.file) {
            let class = table.row(&row.key).unwrap().class;
            let changes = row.effect == "differs";
            assert!(
                !changes || class != Class::Harmless,
                "{}: `{}` = {} changes what {:?} do",
                table.file,
                row.key,
                row.value,
                row.of
            );
        }
    }
}

/// The tiny chat model with one more file.
fn with_file(name: &str, content: &Value) -> Result<Model, ModelError> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let read = |name: &str| fs::read(models.join(name)).unwrap();
    let folder = Folder::new()
        .with("config.json", read("config.json"))
        .with("model.safetensors", read("model.safetensors"))
        .with(name, content.to_string());
    build(&folder.open("")?, &Options::default())
}

fn names(table: &FileKeys, class: impl Fn(Class) -> bool) -> impl Iterator<Item = &'static str> {
    let rows = table.keys.iter().filter(move |row| class(row.class));
    rows.map(|row| row.name)
}

#[test]
fn keys_of_generation_are_read_noted_or_ignored_as_their_rows_say() {
    let file = keys::GENERATION.file;
    // No key takes an object with a number.
    let wrong = json!({"x": 1});
    for name in names(&keys::GENERATION, |class| class == Class::Read) {
        let error = with_file(file, &json!({ name: wrong })).expect_err(name);
        assert_says(&error.to_string(), &[file, name]);
    }
    for name in names(&keys::GENERATION, |class| class == Class::Harmless) {
        let model = with_file(file, &json!({ name: wrong })).unwrap();
        assert_eq!(model.notes, [""; 0], "{name}");
    }
    for row in keys::GENERATION.keys {
        let Class::Noted(unless) = row.class else {
            continue;
        };
        let model = with_file(file, &json!({ row.name: wrong })).unwrap();
        let expected = format!(
            "{file} asks for {} ({} {wrong}), which is not applied",
            row.note, row.name
        );
        assert_eq!(model.notes, [expected]);
        for nothing in [json!(unless), json!(false), json!([]), Value::Null] {
            let model = with_file(file, &json!({ row.name: nothing })).unwrap();
            assert_eq!(model.notes, [""; 0], "{} {nothing}", row.name);
        }
    }
    let error = with_file(file, &json!({"made_up": 1})).unwrap_err();
    assert_says(&error.to_string(), &[file, "made_up"]);
}

/// An unknown key is an attribute of the tokenizer, which changes nothing.
#[test]
fn keys_of_tokenizers_are_refused_as_their_rows_say() {
    let file = keys::TOKENIZER.file;
    for row in keys::TOKENIZER.keys {
        let found = with_file(file, &json!({ row.name: true }));
        match row.class {
            Class::Refused => {
                assert_says(&found.unwrap_err().to_string(), &[file, row.name, row.note]);
                with_file(file, &json!({ row.name: false })).unwrap();
            }
            _ => assert!(found.is_ok(), "{}", row.name),
        }
    }
    with_file(file, &json!({"made_up": 1})).unwrap();
}
