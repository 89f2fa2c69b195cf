//! `tokenizer.model` without a `tokenizer.json`: the tokens of the SentencePiece library, by which
//! `make_sentencepiece.py` made the files.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_engine::text::{EncodeOptions, Tokenizer};
use thane_models::checkpoint::Checkpoint;
use thane_runtime::LanguageData;

/// Rows of the embedding: more than pieces, as in published models.
const N_VOCAB: usize = 910;

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// The tokenizer of a checkpoint with this vocabulary and this `tokenizer_config.json`.
fn tokenizer(model: &[u8], config: Option<&str>) -> Result<Tokenizer, String> {
    let folder = tempfile::tempdir().unwrap();
    let tiny = here("../../../tests/models/tiny/llama-bias");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(tiny.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("tokenizer.model"), model).unwrap();
    if let Some(config) = config {
        fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let data = LanguageData::from_checkpoint(&checkpoint, N_VOCAB);
    let data = data.map_err(|e| e.to_string())?.unwrap();
    data.tokenizer.into_tokenizer().map_err(|e| e.to_string())
}

fn model(name: &str) -> Vec<u8> {
    fs::read(here("data").join(format!("{name}.model"))).unwrap()
}

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

#[test]
fn two_thousand_lines_have_the_tokens_of_the_library() {
    let answers = fs::read(here("data/sentencepiece.json")).unwrap();
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    let lines = fs::read_to_string(here("../../engine/tests/data/mixed.jsonl")).unwrap();
    let lines: Vec<String> = lines
        .split('\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2000);
    for name in ["llama", "gemma", "user_defined"] {
        let tokenizer = tokenizer(&model(name), None).unwrap();
        let expected: Vec<Vec<u32>> = serde_json::from_value(answers[name]["ids"].clone()).unwrap();
        for (line, expected) in lines.iter().zip(&expected) {
            assert_eq!(
                &tokenizer.encode(line, PLAIN).unwrap(),
                expected,
                "{name}: {line:?}"
            );
        }
        let eos = u32::try_from(answers[name]["eos"].as_u64().unwrap()).unwrap();
        // The second one is the token that config.json names.
        assert_eq!(tokenizer.end_ids(), [eos]);
        assert!(tokenizer.adds_bos());
    }
}

/// User-defined symbols are found after the space that is put before a text, and no other space is
/// put beside them.
#[test]
fn texts_of_user_defined_symbols_have_the_tokens_of_the_library() {
    let rows = fs::read(here("data/user_defined.json")).unwrap();
    let rows: Vec<(String, Vec<u32>)> = serde_json::from_slice(&rows).unwrap();
    let tokenizer = tokenizer(&model("user_defined"), None).unwrap();
    for (text, expected) in &rows {
        assert_eq!(
            &tokenizer.encode(text, PLAIN).unwrap(),
            expected,
            "{text:?}"
        );
    }
    assert_eq!(rows.len(), 1500);
}

#[test]
fn the_files_beside_it_add_tokens_and_say_which_begin_and_end() {
    let config = r#"{"add_bos_token": false, "eos_token": "<|end|>", "added_tokens_decoder": {
        "1": {"content": "<s>", "special": true}, "903": {"content": "<|end|>", "special": true},
        "904": {"content": "<tool>", "special": false}}}"#;
    let tokenizer = tokenizer(&model("llama"), Some(config)).unwrap();
    assert!(!tokenizer.adds_bos());
    // What config.json says ends a text too.
    assert_eq!(tokenizer.end_ids(), [2, 903]);
    let options = EncodeOptions {
        parse_special: true,
        ..PLAIN
    };
    let ids = tokenizer.encode("a<tool>b<|end|>", options).unwrap();
    assert!(ids.contains(&904) && ids.ends_with(&[903]), "{ids:?}");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let added = r#"{"added_tokens_decoder": {"7": {"content": "<odd>"}}}"#;
    let mut cut = model("llama");
    cut.truncate(1000);
    for (bytes, config, part) in [
        (model("unigram"), None, "found a unigram model"),
        (b"not a model".to_vec(), None, "tokenizer.model: "),
        (cut, None, "tokenizer.model: "),
        (Vec::new(), None, "found a unigram model"),
        (model("llama"), Some(added), "adds the token \"<odd>\" as 7"),
    ] {
        let error = tokenizer(&bytes, config).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}
