//! `tokenizer.model` without a `tokenizer.json`: the tokens of `AutoTokenizer` of transformers, by
//! which `make_sentencepiece.py` made the answers.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;
use serde_json::{Value, json};
use thane_engine::text::{Cut, EncodeOptions, Tokenizer, TokenizerConfig};
use thane_mil::budget::Budget;
use thane_models::checkpoint::Checkpoint;
use thane_runtime::{LanguageData, TokenizerData};

/// Rows of the embedding: more than pieces, as in published models.
const N_VOCAB: usize = 910;

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn model(name: &str) -> Vec<u8> {
    fs::read(here("data").join(format!("{name}.model"))).unwrap()
}

fn golden() -> Value {
    serde_json::from_slice(&fs::read(here("data/sentencepiece.json")).unwrap()).unwrap()
}

/// What is read from a folder with this vocabulary, these other files and this model type.
fn language(
    model: &[u8],
    files: &Value,
    model_type: &Value,
    n_vocab: usize,
) -> Result<LanguageData, String> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.model"), model).unwrap();
    let config = json!({"model_type": model_type}).to_string();
    fs::write(folder.path().join("config.json"), config).unwrap();
    for (name, content) in files.as_object().into_iter().flatten() {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    let data = LanguageData::from_folder(folder.path(), n_vocab, &Budget::unlimited());
    Ok(data.map_err(|e| e.to_string())?.unwrap())
}

/// The tokenizer and its settings, as packages store them.
fn tokenizer(data: LanguageData) -> Result<(Tokenizer, TokenizerConfig), String> {
    let stored = serde_json::to_vec(&data).unwrap();
    let again: LanguageData = serde_json::from_slice(&stored).unwrap();
    let parts = (data.tokenizer, again.tokenizer);
    let (TokenizerData::Json { tokenizer, .. }, TokenizerData::Json { config, .. }) = parts else {
        panic!("expected a tokenizer.json");
    };
    let made = Tokenizer::from_json(&tokenizer, config.clone()).map_err(|e| e.to_string())?;
    Ok((made, config))
}

fn read(model: &[u8], config: &Value) -> Result<Tokenizer, String> {
    let files = json!({"tokenizer_config.json": config});
    let data = language(model, &files, &json!("llama"), N_VOCAB)?;
    Ok(tokenizer(data)?.0)
}

fn options(add_special: bool) -> EncodeOptions {
    EncodeOptions {
        add_special,
        parse_special: true,
    }
}

/// FNV-1a of token ids.
fn sum(ids: &[u32]) -> String {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let value = bytes.fold(0x811c_9dc5_u32, |value, byte| {
        (value ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{value:08x}")
}

/// The texts whose ids are summed, by the key of the sums.
fn summed_texts() -> [(&'static str, Vec<String>); 2] {
    let lines = fs::read_to_string(here("../../engine/tests/data/mixed.jsonl")).unwrap();
    let lines = lines.split('\n').filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2000);
    let symbols = fs::read(here("data/symbols.json")).unwrap();
    let symbols = serde_json::from_slice(&symbols).unwrap();
    [("lines", lines), ("symbols", symbols)]
}

/// What a row expects and what is found, where they differ.
fn differences(row: &Value, texts: &[String], summed: &[(&str, Vec<String>)]) -> Vec<String> {
    let n_vocab = row["n_tokens"].as_u64().unwrap() as usize;
    let bytes = model(row["model"].as_str().unwrap());
    let made = language(&bytes, &row["files"], &row["model_type"], n_vocab).and_then(tokenizer);
    let (tokenizer, config) = match made {
        Ok(made) => made,
        Err(error) => return vec![error],
    };
    let mut wrong = Vec::new();
    let mut check = |what: &str, found: Value, expected: &Value| {
        if found != *expected {
            wrong.push(format!(
                "{what}:\n  expected {expected}\n  found    {found}"
            ));
        }
    };
    check("names", json!(config.special_tokens()), &row["names"]);
    let encode = |adds, text: &String| tokenizer.encode(text, options(adds)).unwrap();
    for (i, text) in texts.iter().enumerate() {
        check(text, json!(encode(true, text)), &row["ids"][i]);
        check(text, json!(encode(false, text)), &row["plain"][i]);
    }
    let plain = [0, 1].map(|i| encode(false, &texts[i]));
    let decoded = tokenizer.decode(&plain[0], false);
    check("decoded", json!(decoded), &row["decoded"]);
    let pair = tokenizer.join([&plain[0], &plain[1]], (1000, Cut::End));
    check("pair", json!(pair.unwrap().tokens), &row["pair"]);
    for (key, texts) in summed {
        let Some(sums) = row[*key].as_str() else {
            continue;
        };
        assert_eq!(sums.len(), texts.len() * 8);
        for (i, text) in texts.iter().enumerate() {
            let found = json!(sum(&encode(true, text)));
            check(text, found, &json!(sums[i * 8..][..8]));
        }
    }
    wrong
}

#[test]
fn tokens_are_those_of_transformers() {
    let golden = golden();
    let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
    let summed = summed_texts();
    let rows = golden["rows"].as_array().unwrap().iter();
    let rows: Vec<&Value> = rows.filter(|row| row["refused"] != true).collect();
    assert!(rows.len() > 140, "{}", rows.len());
    let mut wrong = Vec::new();
    for row in &rows {
        let found = differences(row, &texts, &summed).into_iter().take(3);
        wrong.extend(found.map(|text| format!("{}, {text}", row["label"])));
    }
    let shown = wrong[..wrong.len().min(30)].join("\n");
    assert!(wrong.is_empty(), "{} differ:\n{shown}", wrong.len());
}

/// A class of another kind of model, and those that are not made here.
#[test]
fn folders_without_a_tokenizer_in_transformers_are_refused() {
    let golden = golden();
    let rows = golden["rows"].as_array().unwrap().iter();
    let mut n = 0;
    for row in rows.filter(|row| row["refused"] == true) {
        let bytes = model(row["model"].as_str().unwrap());
        let data = language(&bytes, &row["files"], &row["model_type"], 5000);
        let error = data.err().unwrap_or_default();
        let file = "tokenizer_config.json: ";
        assert!(error.starts_with(file), "{}: {error}", row["label"]);
        n += 1;
    }
    assert_eq!(n, 6);
}

#[test]
fn the_files_beside_it_say_which_tokens_end_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = here("../../../tests/models/tiny/llama-bias");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(tiny.join(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("tokenizer.model"), model("llama")).unwrap();
    let config = json!({"eos_token": "<|end|>", "added_tokens_decoder": {
        "900": {"content": "<|end|>", "special": true}, "901": {"content": "<tool>"}}});
    let path = folder.path().join("tokenizer_config.json");
    fs::write(path, config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.notes, [""; 0]);
    let data = LanguageData::from_checkpoint(&checkpoint, N_VOCAB, &Budget::unlimited()).unwrap();
    let (tokenizer, _) = tokenizer(data.unwrap()).unwrap();
    // What config.json says ends a text too.
    assert_eq!(tokenizer.end_ids(), [2, 900]);
    let ids = tokenizer.encode("a<tool>b<|end|>", options(true)).unwrap();
    assert!(ids.contains(&901) && ids.ends_with(&[900]), "{ids:?}");
}

/// The messages of a `ModelProto` of the SentencePiece library, by their tags.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerProto>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerProto>,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerProto {
    #[prost(bytes = "vec", tag = "2")]
    charsmap: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(float, tag = "2")]
    score: f32,
    #[prost(int32, tag = "3")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerProto {
    #[prost(int32, tag = "3")]
    model_type: i32,
    #[prost(int32, tag = "40")]
    unk_id: i32,
}

/// A BPE model (2) or a unigram model (1) of these texts, of one kind.
fn of_texts(model_type: i32, texts: &[&str], kind: i32, unk_id: i32) -> Vec<u8> {
    let piece = |text: &&str| PieceProto {
        text: (*text).to_owned(),
        score: -1.0,
        kind,
    };
    let model = ModelProto {
        pieces: texts.iter().map(piece).collect(),
        trainer: Some(TrainerProto { model_type, unk_id }),
        normalizer: None,
    };
    model.encode_to_vec()
}

#[test]
fn what_cannot_be_read_is_refused() {
    let mut cut = model("llama");
    cut.truncate(1000);
    let many: Vec<String> = (0..=N_VOCAB).map(|i| format!("a{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = ["x".repeat(20_000), "x".repeat(15_000)];
    let symbols: Vec<String> = (0..900).map(|i| format!("{i:*>200}")).collect();
    let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
    let not_finite = ModelProto {
        pieces: vec![PieceProto {
            text: "a".to_owned(),
            score: f32::NAN,
            kind: 1,
        }],
        ..ModelProto::default()
    };
    for (bytes, part) in [
        (b"not a model".to_vec(), ": a tokenizer.json of the same"),
        (cut, ": a tokenizer.json of the same"),
        (Vec::new(), "expected pieces, found none: save"),
        (of_texts(2, &many, 1, 0), "at most 910 pieces"),
        (
            of_texts(2, &[long[0].as_str()], 1, 0),
            "a piece: expected at most 16384 bytes, found 20000",
        ),
        (
            of_texts(2, &[long[1].as_str(); 9], 1, 0),
            "the halves of the pieces: expected at most 134217728 bytes, found 2025000000",
        ),
        (
            of_texts(2, &["a", "b", "a"], 1, 0),
            "expected pieces with different texts, found \"a\" as 0 and 2: save",
        ),
        (of_texts(2, &["a", ""], 1, 0), "piece 1: expected a text"),
        (not_finite.encode_to_vec(), "piece 0: expected a text and"),
        (
            of_texts(2, &symbols, 4, 0),
            "the user-defined pieces together: expected at most 131072 bytes",
        ),
        (
            of_texts(1, &["a", "b"], 1, 2),
            "unk_id: expected the id of one of 2 tokens, found 2: save",
        ),
        (
            of_texts(1, &["a", "b"], 1, -1),
            "unk_id: expected the id of one of 2 tokens, found -1: save",
        ),
    ] {
        let error = read(&bytes, &json!({})).err().unwrap();
        let named = error.starts_with("tokenizer.model: ");
        assert!(named && error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_damaged_character_map_and_long_names_are_refused() {
    let long = json!({"added_tokens_decoder": {"5": {"content": "x".repeat(513)}}});
    let error = read(&model("llama"), &long).err().unwrap();
    let expected = "tokenizer_config.json: an added token: expected at most 512 bytes, found 513";
    assert_eq!(error, expected);
    // Fields that a later message repeats replace those of an earlier one.
    let mut damaged = model("unigram");
    let normalizer = Some(NormalizerProto {
        charsmap: b"abc".to_vec(),
    });
    damaged.extend(
        ModelProto {
            normalizer,
            ..ModelProto::default()
        }
        .encode_to_vec(),
    );
    let error = read(&damaged, &json!({"tokenizer_class": "T5Tokenizer"}))
        .err()
        .unwrap();
    assert_eq!(
        error,
        "tokenizer.model: the precompiled_charsmap is damaged"
    );
}

/// 900 symbols with a pattern of 120 KB, which is searched in linear time.
#[test]
fn many_symbols_are_isolated() {
    let symbols: Vec<String> = (0..900).map(|i| format!("{i:x>130}")).collect();
    let mut texts: Vec<&str> = symbols.iter().map(String::as_str).collect();
    texts.insert(0, "\u{2581}");
    let tokenizer = read(&of_texts(2, &texts, 4, 0), &json!({})).unwrap();
    let ids = tokenizer.encode(&texts[1..].concat(), options(true));
    assert_eq!(ids.unwrap(), (0..=900).collect::<Vec<u32>>());
}
