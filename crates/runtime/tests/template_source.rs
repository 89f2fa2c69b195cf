//! Which chat template of a model's files counts.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use thane_engine::text::Message;
use thane_runtime::{LanguageData, TemplateSource};

/// A template, other files with their content, and the prompt or what an error has.
type Case = (
    &'static str,
    &'static [(&'static str, &'static str)],
    Result<&'static str, &'static str>,
);

/// `chat_template` of tokenizer_config.json, other files, and the prompt that
/// `AutoTokenizer.from_pretrained(folder).apply_chat_template(.., tokenize=False)` of transformers
/// 5.24 printed, or for what it refuses, the place and names that the error has.
const CASES: [Case; 13] = [
    (
        r#"[{"name": "rag", "template": "R"}]"#,
        &[],
        Err("chat_template of tokenizer_config.json: expected"),
    ),
    (
        r#"[{"name": "rag", "template": "R"}, {"name": "tool_use", "template": "U"}]"#,
        &[],
        Err(REMEDY),
    ),
    (
        r#"[{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]"#,
        &[],
        Ok("D"),
    ),
    (r#"{"default": "D", "rag": "R"}"#, &[], Ok("D")),
    (r#"{"rag": "R"}"#, &[], Err(r#"found ["rag"]"#)),
    ("[]", &[], Err("found none")),
    ("null", &[DEFAULT], Ok("AD")),
    ("null", &[DEFAULT, JINJA], Ok("AD")),
    (
        r#""T""#,
        &[RAG],
        Err("additional_chat_templates: expected a chat template named"),
    ),
    (r#""T""#, &[RAG, JINJA], Ok("J")),
    (r#""T""#, &[RAG, DEFAULT], Ok("AD")),
    (r#"[{"name": "rag", "template": "R"}]"#, &[JINJA], Ok("J")),
    (
        r#""{{ pad_token }}{{ image_token }}""#,
        &[],
        Ok("<|im_end|><|im_start|>"),
    ),
];

const REMEDY: &str = r#"named "default", found ["rag", "tool_use"]: put the one to use into chat_"#;
const DEFAULT: (&str, &str) = ("additional_chat_templates/default.jinja", "AD");
const RAG: (&str, &str) = ("additional_chat_templates/rag.jinja", "AR");
const JINJA: (&str, &str) = ("chat_template.jinja", "J");

/// The template of tiny-chat with another `chat_template` and more files.
fn template(chat_template: &str, files: &[(&str, &str)]) -> Option<TemplateSource> {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-chat");
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let config = fs::read(from.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = serde_json::from_str(chat_template).unwrap();
    config["pad_token"] = json!("<|im_end|>");
    config["image_token"] = json!("<|im_start|>");
    let config = ("tokenizer_config.json", &*config.to_string());
    for (name, text) in files.iter().chain([&config]) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let data = LanguageData::from_folder(folder.path(), 282).unwrap();
    // As packages store it.
    let stored = serde_json::to_vec(&data.unwrap()).unwrap();
    let stored: LanguageData = serde_json::from_slice(&stored).unwrap();
    stored.template
}

#[test]
fn the_template_is_that_of_transformers() {
    for (chat_template, files, expected) in CASES {
        let source = template(chat_template, files).unwrap();
        let found = source.parse().map_err(|error| error.to_string());
        let found = found.map(|found| found.render(&[Message::new("user", "hi")], false));
        match (found, expected) {
            (Ok(Ok(found)), Ok(expected)) => assert_eq!(found.text, expected, "{files:?}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, expected) => panic!("{chat_template} {files:?}: {found:?}, {expected:?}"),
        }
    }
    assert!(template("null", &[]).is_none());
}

/// Packages of older versions name two tokens only.
#[test]
fn a_template_of_an_older_package_is_read() {
    let old = json!({"text": "{{ bos_token }}|{{ pad_token }}", "bos": "<s>", "eos": "</s>"});
    let source: TemplateSource = serde_json::from_value(old).unwrap();
    let rendered = source
        .parse()
        .unwrap()
        .render(&[Message::new("user", "hi")], false);
    assert_eq!(rendered.unwrap().text, "<s>|");
}
