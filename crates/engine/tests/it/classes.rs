//! Tokenizers whose files contradict each other, against `AutoTokenizer` of transformers
//! (`tests/oracle/text_classes.py`).

use crate::data;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use thane_engine::text::class::{Class, Declared};
use thane_engine::text::{Cut, EncodeOptions, Tokenizer, TokenizerConfig, TokenizerFiles};

const GOLDEN: &str = "../../../../tests/models/text-classes.json";
const USUAL: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};
const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

/// The `tokenizer.json` of a row.
fn document(golden: &Value, row: &Value) -> Value {
    let mut document = golden["bases"][row["base"].as_str().unwrap()].clone();
    let changes = row["files"]["tokenizer.json"].as_object();
    for (key, value) in changes.into_iter().flatten() {
        match value {
            Value::Object(keys) if key == "model" => {
                let model = document["model"].as_object_mut().unwrap();
                model.extend(keys.clone());
            }
            value if key == "fillers" => {
                // Tokens that no text has.
                let vocab = document["model"]["vocab"].as_object_mut().unwrap();
                let first = vocab.len() as u64;
                let fillers = first..first + value.as_u64().unwrap();
                vocab.extend(fillers.map(|id| (format!("filler {id}"), json!(id))));
            }
            value => document[key] = value.clone(),
        }
    }
    document
}

fn config(row: &Value, tokenizer: &[u8], n_vocab: usize) -> TokenizerConfig {
    let file = |name: &str| {
        row["files"]
            .get(name)
            .map(|keys| keys.to_string().into_bytes())
    };
    let config = file("tokenizer_config.json");
    let (map, added) = (file("special_tokens_map.json"), file("added_tokens.json"));
    let files = TokenizerFiles {
        tokenizer,
        config: config.as_deref(),
        special_tokens_map: map.as_deref(),
        added_tokens: added.as_deref(),
        model_type: row["model_type"].as_str(),
        class: None,
        version: row["files"]["config.json"]["transformers_version"].as_str(),
    };
    TokenizerConfig::from_files(&files, n_vocab).unwrap()
}

#[test]
fn ids_are_those_of_transformers() {
    let golden: Value = data::json(GOLDEN);
    let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
    let rows = golden["rows"].as_array().unwrap();
    assert!(rows.len() > 150, "{}", rows.len());
    let (mut wrong, mut n_changed) = (Vec::new(), 0);
    for row in rows {
        let json = document(&golden, row).to_string().into_bytes();
        let n_vocab = row["n_tokens"].as_u64().unwrap() as usize;
        let config = config(row, &json, n_vocab);
        // As packages store it.
        let stored = serde_json::to_vec(&config).unwrap();
        let config: TokenizerConfig = serde_json::from_slice(&stored).unwrap();
        let names = json!(config.special_tokens());
        for (key, text) in [
            ("bos_token", config.bos_text()),
            ("eos_token", config.eos_text()),
        ] {
            assert_eq!(names[key].as_str().unwrap_or(""), text, "{key}");
        }
        let mut check = |what: &str, found: Value, expected: &Value| {
            if found != *expected {
                wrong.push(format!(
                    "{} {}, {what}:\n  expected {expected}\n  found    {found}",
                    row["class"], row["label"]
                ));
            }
        };
        check("names", names, &row["names"]);
        let bare = TokenizerConfig {
            settings: None,
            ..config.clone()
        };
        let bare = Tokenizer::from_json(&json, bare).map(|bare| all_ids(&bare, &texts));
        n_changed += usize::from(!bare.is_ok_and(|ids| ids == row["ids"]));
        let tokenizer = match Tokenizer::from_json(&json, config) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                check("error", json!(error.to_string()), &Value::Null);
                continue;
            }
        };
        for (text, expected) in texts.iter().zip(row["ids"].as_array().unwrap()) {
            check(
                text,
                json!(tokenizer.encode(text, USUAL).unwrap()),
                expected,
            );
        }
        let plain = tokenizer.encode(&texts[1], PLAIN).unwrap();
        check(
            "decoded",
            json!(tokenizer.decode(&plain, false)),
            &row["decoded"],
        );
        check("plain", json!(plain), &row["plain"]);
        let first = tokenizer.encode(&texts[0], PLAIN).unwrap();
        let pair = tokenizer.join([&first, &plain], (1000, Cut::End)).unwrap();
        check("pair", json!(pair.tokens), &row["pair"]);
    }
    // The file alone gives other ids.
    assert!(n_changed > 100, "{n_changed}");
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
}

fn all_ids(tokenizer: &Tokenizer, texts: &[String]) -> Value {
    let ids = texts
        .iter()
        .map(|text| tokenizer.encode(text, USUAL).unwrap());
    json!(ids.collect::<Vec<_>>())
}

/// Tokens that the class names and the model has no row for are left out: no text needs them.
#[test]
fn tokens_without_a_row_are_left_out() {
    let golden: Value = data::json(GOLDEN);
    let rows = golden["rows"].as_array().unwrap();
    let is_it = |row: &&Value| row["label"] == "GPT2Tokenizer: prefix space";
    let row = rows.iter().find(is_it).unwrap();
    let mut json = document(&golden, row);
    let added = json["added_tokens"].as_array_mut().unwrap();
    added.retain(|token| token["content"] != "<|endoftext|>");
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let id = vocab.remove("<|endoftext|>").unwrap();
    vocab.insert("other".to_owned(), id);
    let n_vocab = vocab.len();
    let json = json.to_string().into_bytes();
    let tokenizer = Tokenizer::from_json(&json, config(row, &json, n_vocab)).unwrap();
    assert_eq!(tokenizer.eos(), None);
    assert_eq!(tokenizer.id_of("<|endoftext|>"), None);
    // With one more row, it gets that.
    let tokenizer = Tokenizer::from_json(&json, config(row, &json, n_vocab + 1)).unwrap();
    assert_eq!(tokenizer.eos(), u32::try_from(n_vocab).ok());
}

/// The class that transformers chooses for each model type and each class that files name.
#[test]
fn classes_are_those_that_transformers_chooses() {
    let golden: Value = data::json(GOLDEN);
    let choices = golden["choices"].as_object().unwrap();
    assert!(choices.len() > 40, "{}", choices.len());
    for (model, rows) in choices {
        assert!(rows.as_array().unwrap().len() > 20, "{model}");
        for row in rows.as_array().unwrap() {
            let row = row.as_str().unwrap();
            let parts: Vec<&str> = row.split(',').collect();
            let [in_config, in_tokenizer_config, bytes, expected] = parts[..] else {
                panic!("{row}");
            };
            let name = |name: &str| match name {
                "" | "TokenizersBackend" => name.to_owned(),
                name => match name.strip_suffix("TokenizerFast") {
                    Some(_) => name.to_owned(),
                    None => format!("{name}Tokenizer"),
                },
            };
            let (in_config, in_tokenizer_config) = (name(in_config), name(in_tokenizer_config));
            let declared = Declared {
                model_type: Some(model),
                in_config: Some(in_config.as_str()).filter(|name| !name.is_empty()),
                in_tokenizer_config: Some(in_tokenizer_config.as_str())
                    .filter(|name| !name.is_empty()),
                has_code: false,
            };
            let found = Class::of(&declared, || bytes == "bytes");
            let expected = Class::of(
                &Declared {
                    in_config: Some(&name(expected)),
                    ..Declared::default()
                },
                || false,
            );
            assert_eq!(found, expected, "{model}: {row}");
        }
    }
}

/// Classes that make other tokens than the file says are refused where they fit its model.
#[test]
fn classes_that_are_not_made_are_refused() {
    let golden: Value = data::json(GOLDEN);
    let unmade = golden["unmade"].as_object().unwrap();
    assert_eq!(unmade.len(), 29);
    for (name, base) in unmade {
        for (kind, document) in golden["bases"].as_object().unwrap() {
            let json = document.to_string().into_bytes();
            let config = json!({"tokenizer_class": name}).to_string();
            let files = TokenizerFiles {
                tokenizer: &json,
                config: Some(config.as_bytes()),
                special_tokens_map: None,
                added_tokens: None,
                model_type: Some("bert"),
                class: None,
                version: None,
            };
            let found = TokenizerConfig::from_files(&files, 5000);
            let fits = base.as_str().is_none_or(|base| {
                document["model"]["type"] == golden["bases"][base]["model"]["type"]
            });
            match found {
                Ok(_) => assert!(!fits, "{name}, {kind}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(fits && error.contains(name.as_str()), "{kind}: {error}");
                }
            }
        }
    }
}

/// A class that makes its BPE model anew drops the prefix, without which the merges do not fit.
#[test]
fn a_prefix_of_bpe_that_the_class_drops_is_refused() {
    let golden: Value = data::json(GOLDEN);
    let mut json = golden["bases"]["byte-level"].clone();
    json["model"]["merges"] = json!([]);
    json["model"]["continuing_subword_prefix"] = json!("##");
    let json = json.to_string().into_bytes();
    for (class, is_refused) in [("GPT2Tokenizer", true), ("PreTrainedTokenizerFast", false)] {
        let files = TokenizerFiles {
            tokenizer: &json,
            class: Some(class),
            model_type: Some("gpt2"),
            ..TokenizerFiles::default()
        };
        let config = TokenizerConfig::from_files(&files, 5000).unwrap();
        let error = Tokenizer::from_json(&json, config).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        let key = "model.continuing_subword_prefix: expected none";
        assert_eq!(error.contains(key), is_refused, "{class}: {error}");
        assert!(is_refused || error.is_empty(), "{class}: {error}");
    }
}

/// Files that are damaged, or that would take too much memory, are refused by name.
#[test]
fn damaged_settings_are_refused() {
    let golden: Value = data::json(GOLDEN);
    let json = golden["bases"]["wordpiece"].to_string().into_bytes();
    let refusal = |config: Value, added: Value| {
        let (config, added) = (config.to_string(), added.to_string());
        let files = TokenizerFiles {
            tokenizer: &json,
            config: Some(config.as_bytes()),
            added_tokens: Some(added.as_bytes()),
            model_type: Some("bert"),
            ..TokenizerFiles::default()
        };
        let tokenizer = TokenizerConfig::from_files(&files, 1000)
            .and_then(|config| Tokenizer::from_json(&json, config));
        tokenizer
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    let long = "x".repeat(513);
    let decoder = "tokenizer_config.json: added_tokens_decoder: expected";
    let files = "tokenizer_config.json: fast_tokenizer_files: expected tokenizer.json alone, found";
    let rename = "rename the file of the newest version to tokenizer.json, and remove the key";
    for (config, added, message) in [
        (
            json!([]),
            json!({}),
            "tokenizer_config.json: expected a JSON object",
        ),
        (
            json!({}),
            json!([]),
            "added_tokens.json: expected a JSON object",
        ),
        (
            json!({"added_tokens_decoder": {"x": {"content": "a"}}}),
            json!({}),
            &format!("{decoder} token ids as keys, found \"x\""),
        ),
        (
            json!({"added_tokens_decoder": {"7": "a"}}),
            json!({}),
            &format!("{decoder} a token with `content`, found \"a\""),
        ),
        (
            json!({}),
            json!({"<extra>": -1}),
            "added_tokens.json: \"<extra>\": expected a token id, found -1",
        ),
        (
            json!({"extra_special_tokens": [long]}),
            json!({}),
            "tokenizer_config.json: an added token: expected at most 512 bytes, found 513",
        ),
        (
            json!({"cls_token": null}),
            json!({}),
            "cls_token: expected a token of the vocabulary, found 'null'",
        ),
        (
            json!({"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"]}),
            json!({}),
            &format!("{files} [\"tokenizer.json\",\"tokenizer.4.0.0.json\"]: {rename}"),
        ),
        (
            json!({"fast_tokenizer_files": null}),
            json!({}),
            &format!("{files} null: {rename}"),
        ),
        (
            json!({"fast_tokenizer_files": ["tokenizer.json", "vocab.json"]}),
            json!({}),
            "",
        ),
        (json!({}), json!({}), ""),
    ] {
        assert_eq!(refusal(config, added), message);
    }
}

/// The tokenizers of the tiny embedding models, whose files agree as published ones do.
#[test]
fn tokenizers_of_tiny_models_are_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed");
    let mut n = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let model = entry.unwrap().path();
        let read = |name: &str| fs::read(model.join(name)).ok();
        let (Some(json), Some(golden)) = (read("tokenizer.json"), read("golden.json")) else {
            continue;
        };
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        let of_model: Value = serde_json::from_slice(&read("config.json").unwrap()).unwrap();
        let config = read("tokenizer_config.json");
        let map = read("special_tokens_map.json");
        let files = TokenizerFiles {
            tokenizer: &json,
            config: config.as_deref(),
            special_tokens_map: map.as_deref(),
            model_type: of_model["model_type"].as_str(),
            ..TokenizerFiles::default()
        };
        let n_vocab = of_model["vocab_size"].as_u64().unwrap() as usize;
        let config = TokenizerConfig::from_files(&files, n_vocab).unwrap();
        let mut tokenizer = Tokenizer::from_json(&json, config).unwrap();
        let sentence = read("sentence_bert_config.json").unwrap_or(b"{}".to_vec());
        let sentence: Value = serde_json::from_slice(&sentence).unwrap();
        if sentence["do_lower_case"] == true {
            tokenizer.lower_case();
        }
        tokenizer.end_texts().unwrap();
        let most = golden["max_seq_len"].as_u64().unwrap();
        for text in golden["texts"].as_array().unwrap() {
            if text["n_tokens"].as_u64().unwrap() >= most {
                // It may be cut.
                continue;
            }
            let name = text["prompt"]
                .as_str()
                .or(golden["default_prompt"].as_str());
            let prompt = name.and_then(|name| golden["prompts"][name].as_str());
            let (prompt, body) = (prompt.unwrap_or_default(), text["text"].as_str().unwrap());
            let found = tokenizer.encode(&format!("{prompt}{body}"), USUAL).unwrap();
            assert_eq!(
                json!(found),
                text["ids"],
                "{}: {prompt}{body}",
                model.display()
            );
            n += 1;
        }
    }
    assert!(n > 250, "{n}");
}
