//! Patterns of `tokenizer.json` cut and replace as Oniguruma does, by what the tokenizers library
//! of Python does (`tests/oracle/make_regexes.py`).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use thane_engine::text::EncodeOptions;
use thane_engine::text::config::TokenizerConfig;
use thane_engine::text::tokenizer::Tokenizer;

/// Words are pieces of a text: where one is cut otherwise, it is unknown.
fn tokenizer<'a>(words: impl IntoIterator<Item = &'a str>, part: &Value) -> (Vec<String>, Vec<u8>) {
    let mut vocab = BTreeMap::from([("\u{1}unknown".to_owned(), 0)]);
    for word in words {
        let id = vocab.len();
        vocab.entry(word.to_owned()).or_insert(id);
    }
    let mut names = vec![String::new(); vocab.len()];
    vocab
        .iter()
        .for_each(|(word, id)| names[*id].clone_from(word));
    let mut file = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "\u{1}unknown"}, "decoder": {"type": "Fuse"},
    });
    let kind = match part["type"] == "Split" {
        true => "pre_tokenizer",
        false => "normalizer",
    };
    file[kind] = part.clone();
    (names, file.to_string().into_bytes())
}

/// The words of a text.
fn words(names: &[String], file: &[u8], text: &str) -> Vec<String> {
    let config = TokenizerConfig {
        n_vocab: names.len(),
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_json(file, config).unwrap();
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let ids = tokenizer.encode(text, options).unwrap();
    ids.iter().map(|id| names[*id as usize].clone()).collect()
}

#[test]
fn patterns_match_as_in_the_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(root.join("../../tests/models/regexes.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let text_of = |value: &Value| value.as_str().unwrap().to_owned();
    let texts: Vec<String> = file["texts"]
        .as_array()
        .unwrap()
        .iter()
        .map(text_of)
        .collect();
    let list =
        |value: &Value| -> Vec<String> { value.as_array().unwrap().iter().map(text_of).collect() };
    let mut n = 0;
    for split in file["splits"].as_array().unwrap() {
        let part = json!({
            "type": "Split", "pattern": {"Regex": split["pattern"]}, "behavior": "Isolated", "invert": false,
        });
        for (text, pieces) in texts.iter().zip(split["pieces"].as_array().unwrap()) {
            let pieces = list(pieces);
            let (names, file) = tokenizer(pieces.iter().map(String::as_str), &part);
            assert_eq!(
                words(&names, &file, text),
                pieces,
                "{} in {text:?}",
                split["pattern"]
            );
            n += 1;
        }
    }
    for replace in file["replaces"].as_array().unwrap() {
        let part = json!({
            "type": "Replace", "pattern": {"Regex": replace["pattern"]}, "content": replace["content"],
        });
        for (text, made) in texts.iter().zip(list(&replace["texts"])) {
            let (names, file) = tokenizer([&*made], &part);
            assert_eq!(
                words(&names, &file, text),
                [made],
                "{} in {text:?}",
                replace["pattern"]
            );
            n += 1;
        }
    }
    assert!(n > 500, "{n} texts");
}
