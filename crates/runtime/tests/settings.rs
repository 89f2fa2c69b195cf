//! Tiny models with some settings of their files changed, against what sentence-transformers
//! computes then (`tests/oracle/make_text_settings.py`).

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tempfile::TempDir;
use thane_cpu::{Cpu, Numerics};
use thane_engine::embed::Watch;
use thane_hub::{Hub, Places};
use thane_models::checkpoint::Checkpoint;
use thane_models::{Target, build_classifier};
use thane_runtime::{Embedder, Model, Prompt, RerankOptions, Tokens};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

fn golden() -> Value {
    serde_json::from_slice(&fs::read(models().join("text-settings.json")).unwrap()).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &copied);
        } else if !path.ends_with("golden.json") {
            fs::copy(&path, &copied).unwrap();
        }
    }
}

/// The model of a row with its files changed.
fn changed(row: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(
        &models().join(row["model"].as_str().unwrap()),
        folder.path(),
    );
    for (name, keys) in row["files"].as_object().unwrap() {
        let path = folder.path().join(name);
        let old =
            fs::read(&path).map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap());
        let new = match keys {
            Value::Object(keys) => {
                let mut new: Map<String, Value> = old.as_object().cloned().unwrap_or_default();
                new.extend(keys.clone());
                new.retain(|_, value| !value.is_null());
                for value in new.values_mut().filter(|value| *value == "<null>") {
                    *value = Value::Null;
                }
                Value::Object(new)
            }
            other => other.clone(),
        };
        fs::write(&path, new.to_string()).unwrap();
    }
    folder
}

fn open(folder: &Path) -> Model {
    let hub = Hub {
        offline: true,
        ..Hub::new(Places::in_folder("no-cache"))
    };
    Model::open(folder.to_str().unwrap(), &hub, &()).unwrap()
}

fn floats(values: &Value) -> Vec<f64> {
    let values = values.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

fn rows<'a>(golden: &'a Value, kind: &str) -> Vec<(String, &'a Value)> {
    let rows = golden["rows"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["model"].as_str().unwrap().starts_with(kind));
    rows.map(|row| (format!("{}, {}", row["model"], row["label"]), row))
        .collect()
}

/// The texts of a row, or else of all rows.
fn texts_of<'a>(golden: &'a Value, row: &'a Value) -> Vec<&'a str> {
    let texts = row.get("texts").unwrap_or(&golden["texts"]);
    let texts = texts.as_array().unwrap().iter();
    texts.map(|text| text.as_str().unwrap()).collect()
}

#[test]
fn rerankers_score_as_the_reference_does() {
    let golden = golden();
    let rows = rows(&golden, "tiny-rerank");
    assert!(rows.len() > 13, "{}", rows.len());
    let backend = Cpu::new(Numerics::F32, 2);
    for (label, row) in rows {
        let folder = changed(row);
        let mut reranker = open(folder.path())
            .reranker(&RerankOptions::default(), &backend, &())
            .unwrap_or_else(|error| panic!("{label}: {error}"));
        let found = reranker
            .rank(row["query"].as_str().unwrap(), &texts_of(&golden, row))
            .unwrap();
        for (key, expected) in [("logit", &row["logits"]), ("score", &row["scores"])] {
            let expected = floats(expected);
            for ranked in &found {
                let value = if key == "logit" {
                    ranked.logit
                } else {
                    ranked.score
                };
                let error = (f64::from(value) - expected[ranked.index]).abs();
                assert!(
                    error < 1e-5,
                    "{label}, text {}, {key}: {error}",
                    ranked.index
                );
            }
        }
    }
}

/// Tokens of pairs, those that are cut, logits and scores, in all folders of `tiny-rerank`.
#[test]
fn pairs_of_tiny_rerankers_are_tokenized_and_scored_as_the_reference_does() {
    let backend = Cpu::new(Numerics::F32, 2);
    let folders = fs::read_dir(models().join("tiny-rerank")).unwrap();
    let folders: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    assert!(folders.len() > 8, "{}", folders.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let golden: Value =
            serde_json::from_slice(&fs::read(folder.join("golden.json")).unwrap()).unwrap();
        let opened = open(&folder);
        assert!(opened.is_reranker().unwrap(), "{name}");
        let mut reranker = opened
            .reranker(&RerankOptions::default(), &backend, &())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(reranker.max_tokens() as u64, golden["max_tokens"], "{name}");
        let query = reranker
            .query(golden["query"].as_str().unwrap(), &|| false)
            .unwrap();
        let texts = golden["texts"].as_array().unwrap();
        let mut pairs = Vec::new();
        for text in texts {
            let label = format!("{name}, {}", text["name"]);
            let said = text["text"].as_str().unwrap();
            let pair = reranker
                .tokenize(&query, said, reranker.cut(), &|| false)
                .unwrap();
            assert_eq!(Value::from(pair.tokens.clone()), text["ids"], "{label}");
            assert_eq!(pair.is_cut, text["cut"], "{label}");
            pairs.push(pair);
        }
        assert!(pairs.iter().any(|pair| pair.is_cut), "{name}");
        let mut watch = Watch {
            interrupted: &|| false,
            progress: &mut |_| {},
        };
        let found = reranker.score(&pairs, &mut watch).unwrap().unwrap();
        for (found, text) in found.iter().zip(texts) {
            for (value, key) in [(found.logit, "logit"), (found.score, "score")] {
                let error = (f64::from(value) - text[key].as_f64().unwrap()).abs();
                assert!(error < 1e-5, "{name}, {}, {key}: {error}", text["name"]);
            }
        }
    }
}

/// Chat templates that a reranker cannot use.
#[test]
fn templates_that_lose_a_text_are_refused() {
    let backend = Cpu::new(Numerics::F32, 1);
    let template = |text: &str| {
        serde_json::json!({
            "model": "tiny-rerank/qwen3-pairs",
            "files": {"tokenizer_config.json": {"chat_template": text}},
        })
    };
    let message = serde_json::json!({"method": "forward", "method_output_name": "logits"});
    let logit = serde_json::json!([
        {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
    ]);
    let without_template = serde_json::json!({
        "model": "tiny-rerank/qwen3-pairs",
        "files": {
            "modules.json": logit,
            "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
            "sentence_bert_config.json": {
                "transformer_task": "sequence-classification",
                "modality_config": {"text": message, "message": message},
            },
        },
    });
    for (row, part) in [
        (
            template("{{ messages[0].content }}"),
            "leaves out \"document\"",
        ),
        (
            template("{{ messages[1].content }}"),
            "leaves out \"query\"",
        ),
        (
            template("{% for m in messages if m.role == 'user' %}x{% endfor %}"),
            "\"query\"",
        ),
        (template("{% if %}"), "the chat template is not valid"),
        (without_template, "found none"),
    ] {
        let folder = changed(&row);
        let made = open(folder.path()).reranker(&RerankOptions::default(), &backend, &());
        let error = made.err().unwrap();
        let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(text.contains(part), "expected {part}, found {text}");
    }
}

#[test]
fn texts_are_cut_and_embedded_as_the_reference_does() {
    let golden = golden();
    let rows = rows(&golden, "tiny-embed");
    assert!(rows.len() > 5, "{}", rows.len());
    let backend = Cpu::new(Numerics::F32, 2);
    for (label, row) in rows {
        let folder = changed(row);
        let mut embedder: Embedder = open(folder.path()).embedder(&backend).unwrap();
        let vectors = row["vectors"].as_array().unwrap();
        let text_encoder = embedder.text();
        let prompt = Prompt::choose(None, &embedder.info).unwrap().text;
        let prefix = text_encoder.prefix(prompt, embedder.max_tokens());
        let prefix = prefix.unwrap();
        for (text, expected) in texts_of(&golden, row).into_iter().zip(vectors) {
            let (tokens, _) = embedder.tokenize(&prefix, text, true).unwrap();
            let Tokens::Text(tokens) = tokens else {
                panic!("{label}: expected the tokens of a text");
            };
            let mut watch = Watch {
                interrupted: &|| false,
                progress: &mut |_| {},
            };
            let found = embedder.engine.texts(&[tokens], &mut watch).unwrap();
            let found = found.unwrap();
            let expected = floats(expected);
            assert_eq!(found.len(), expected.len(), "{label}");
            for (found, expected) in found.iter().zip(&expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-5, "{label}: {error}");
            }
        }
    }
}

/// Settings by which the reference computes something else, or nothing.
#[test]
fn settings_that_are_not_computed_are_refused() {
    let golden = golden();
    let rows = golden["refused"].as_array().unwrap();
    assert!(rows.len() > 5, "{}", rows.len());
    let backend = Cpu::new(Numerics::F32, 2);
    for row in rows {
        let folder = changed(row);
        let model = open(folder.path());
        let error = if row["model"].as_str().unwrap().starts_with("tiny-rerank") {
            let made = model.reranker(&RerankOptions::default(), &backend, &());
            made.err()
        } else {
            model.embedder(&backend).err()
        };
        let error = error.unwrap_or_else(|| panic!("{row}: expected an error"));
        let text = format!("{error}: {:?}", std::error::Error::source(&error));
        let key = row["refused"].as_str().unwrap();
        assert!(text.contains(key), "expected {key}, found {text}");
    }
}

/// Each class of tokenizer gives token types or none, as in transformers.
#[test]
fn classes_of_tokenizers_give_token_types_as_in_transformers() {
    let golden = golden();
    let classes = golden["classes"].as_object().unwrap();
    assert!(classes.len() > 100, "{}", classes.len());
    for (class, expected) in classes {
        let keys = serde_json::json!({
            "model": "tiny-rerank/bert", "files": {"tokenizer_config.json": {"tokenizer_class": class}},
        });
        let folder = changed(&keys);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let built = build_classifier(&checkpoint, &Target::Portable).unwrap();
        assert_eq!(built.info.token_types, *expected, "{class}");
    }
}
