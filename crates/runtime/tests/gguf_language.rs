//! The chat templates and the control tokens of a GGUF file.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use thane_engine::text::{EncodeOptions, Message, TemplateError, TemplateInput};
use thane_mil::budget::Budget;
use thane_models::checkpoint::Checkpoint;
use thane_runtime::LanguageData;

fn golden(path: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    serde_json::from_slice(&fs::read(root.join(path)).unwrap()).unwrap()
}

/// The keys of a GGUF file without tensors.
#[derive(Default)]
struct Keys {
    n: u64,
    bytes: Vec<u8>,
}

const I32: u32 = 5;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Keys {
    fn key(mut self, name: &str, ty: u32, value: &[u8]) -> Self {
        self.n += 1;
        self.bytes.extend(string(name));
        self.bytes.extend(ty.to_le_bytes());
        self.bytes.extend(value);
        self
    }

    fn text(self, name: &str, value: &str) -> Self {
        self.key(name, STRING, &string(value))
    }

    fn list(self, name: &str, ty: u32, rows: &[Vec<u8>]) -> Self {
        let n = (rows.len() as u64).to_le_bytes();
        let value = [&ty.to_le_bytes()[..], &n, &rows.concat()].concat();
        self.key(name, ARRAY, &value)
    }

    /// A SentencePiece vocabulary.
    fn vocabulary(self, tokens: &[String], types: &[i32]) -> Self {
        let texts: Vec<_> = tokens.iter().map(|token| string(token)).collect();
        let types: Vec<_> = types.iter().map(|ty| ty.to_le_bytes().to_vec()).collect();
        let scores: Vec<_> = (0..tokens.len())
            .map(|id| (-(id as f32)).to_le_bytes().to_vec())
            .collect();
        self.text("tokenizer.ggml.model", "llama")
            .list("tokenizer.ggml.tokens", STRING, &texts)
            .list("tokenizer.ggml.token_type", I32, &types)
            .list("tokenizer.ggml.scores", F32, &scores)
            .key("tokenizer.ggml.unknown_token_id", 4, &0u32.to_le_bytes())
    }

    /// What a package stores of the language of such a file.
    fn language(&self, n_vocab: usize) -> LanguageData {
        let folder = TempDir::new().unwrap();
        let path: PathBuf = folder.path().join("model.gguf");
        let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
        fs::write(
            &path,
            [&head, &self.n.to_le_bytes()[..], &self.bytes].concat(),
        )
        .unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let data =
            LanguageData::from_checkpoint(&checkpoint, n_vocab, &Budget::unlimited()).unwrap();
        let stored = serde_json::to_vec(&data.unwrap()).unwrap();
        serde_json::from_slice(&stored).unwrap()
    }
}

fn small() -> Keys {
    let tokens = ["<unk>", "<|im_end|>", "a"].map(str::to_owned);
    Keys::default().vocabulary(&tokens, &[2, 3, 1])
}

/// The keys of named templates are those of the gguf package, and what counts is what transformers
/// takes, except that llama.cpp takes a template for tools for all messages if it is the only one.
#[test]
fn named_templates_count_as_in_transformers_and_llama_cpp() {
    let golden = golden("tests/models/chat-templates.json");
    let with_tool = TemplateInput {
        tools: vec![golden["tool"].clone()],
        ..TemplateInput::default()
    };
    let mut n_compared = 0;
    for row in golden["rows"].as_array().unwrap() {
        let text = row["chat_template"].to_string();
        if row["files"] != json!({}) || text.contains("pad_token") {
            continue;
        }
        let named: Vec<(String, Value)> = match &row["chat_template"] {
            Value::Array(rows) => rows
                .iter()
                .map(|row| {
                    (
                        row["name"].as_str().unwrap().to_owned(),
                        row["template"].clone(),
                    )
                })
                .collect(),
            Value::Object(map) => map.clone().into_iter().collect(),
            one => vec![("default".to_owned(), one.clone())],
        };
        let mut keys = small();
        for (name, template) in &named {
            let key = match name.as_str() {
                "default" => "tokenizer.chat_template".to_owned(),
                name => format!("tokenizer.chat_template.{name}"),
            };
            keys = keys.text(&key, template.as_str().unwrap());
        }
        let Some(source) = keys.language(3).template else {
            assert!(named.is_empty(), "{row}");
            continue;
        };
        n_compared += 1;
        let parsed = match source.parse() {
            Err(TemplateError::NoDefault(found)) if row["with_tool"].is_null() => {
                assert_eq!(found.names, ["rag"]);
                continue;
            }
            parsed => parsed.unwrap(),
        };
        let tools = if row["alone"].is_null() {
            "with_tool"
        } else {
            "alone"
        };
        for (key, input) in [
            (tools, &TemplateInput::default()),
            ("with_tool", &with_tool),
        ] {
            let found = parsed.render_with(&[Message::new("user", "hi")], false, input);
            assert_eq!(row[key], found.unwrap().text.as_str(), "{row}");
        }
    }
    assert_eq!(n_compared, 7);
}

/// A token that only the template for tools writes ends a turn.
#[test]
fn the_template_for_tools_is_searched_for_ends_of_turns() {
    let keys = small()
        .text("tokenizer.chat_template", "{{ 'a' }}")
        .text("tokenizer.chat_template.tool_use", "{{ '<|im_end|>' }}");
    let tokenizer = keys
        .language(3)
        .into_language(&Budget::unlimited())
        .unwrap()
        .tokenizer;
    assert_eq!(tokenizer.end_ids(), [1]);
    let keys = small().text("tokenizer.chat_template", "{{ 'a' }}");
    let tokenizer = keys
        .language(3)
        .into_language(&Budget::unlimited())
        .unwrap()
        .tokenizer;
    assert_eq!(tokenizer.end_ids(), [0; 0]);
    // llama.cpp ends answers with tokens for infilling.
    let keys = small().key("tokenizer.ggml.fim_pad_token_id", 4, &2u32.to_le_bytes());
    let tokenizer = keys
        .language(3)
        .into_language(&Budget::unlimited())
        .unwrap()
        .tokenizer;
    assert_eq!(tokenizer.end_ids(), [2]);
}

/// llama.cpp has the ids: `tests/oracle/make_gguf_text.py`.
#[test]
fn control_tokens_of_phi_3_take_the_white_space_behind_them() {
    let golden = &golden("crates/engine/tests/data/gguf_text.json")["phi3"];
    let tokens: Vec<String> = serde_json::from_value(golden["tokens"].clone()).unwrap();
    let types: Vec<i32> = serde_json::from_value(golden["token_types"].clone()).unwrap();
    let texts: Vec<String> = serde_json::from_value(golden["texts"].clone()).unwrap();
    let options = EncodeOptions {
        add_special: false,
        parse_special: true,
    };
    for (name, ids) in golden["ids"].as_object().unwrap() {
        let keys = Keys::default().text("general.name", name);
        let data = keys.vocabulary(&tokens, &types).language(tokens.len());
        let tokenizer = data.into_language(&Budget::unlimited()).unwrap().tokenizer;
        for (text, ids) in texts.iter().zip(ids.as_array().unwrap()) {
            let found = tokenizer.encode(text, options).unwrap();
            assert_eq!(json!(found), *ids, "{name}: {text:?}");
        }
    }
}
