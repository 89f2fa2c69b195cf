//! Which chat template of a model's files counts.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use thane_engine::text::{Message, TemplateError, TemplateInput};
use thane_mil::budget::Budget;
use thane_runtime::{LanguageData, TemplateSource};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// The template of tiny-chat with the `chat_template` and the files of a row.
fn template(row: &Value, tokens: &Value) -> Option<TemplateSource> {
    let from = models().join("tiny-chat");
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let config = fs::read(from.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["chat_template"] = row["chat_template"].clone();
    for (key, token) in tokens.as_object().unwrap() {
        config[key] = token.clone();
    }
    fs::write(
        folder.path().join("tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    for (name, text) in row["files"].as_object().unwrap() {
        fs::write(folder.path().join(name), text.as_str().unwrap()).unwrap();
    }
    let data = LanguageData::from_folder(folder.path(), 282, &Budget::unlimited()).unwrap();
    // As packages store it.
    let stored = serde_json::to_vec(&data.unwrap()).unwrap();
    let stored: LanguageData = serde_json::from_slice(&stored).unwrap();
    stored.template
}

/// Models without a template named `default` are refused with what there is, also those that have
/// one for tools, which transformers takes.
#[test]
fn the_template_is_that_of_transformers() {
    let golden = fs::read(models().join("chat-templates.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let with_tool = TemplateInput {
        tools: vec![golden["tool"].clone()],
        ..TemplateInput::default()
    };
    let mut n_refused = 0;
    for row in golden["rows"].as_array().unwrap() {
        let source = template(row, &golden["tokens"]).unwrap();
        let found = match source.parse() {
            Ok(found) => found,
            Err(TemplateError::NoDefault(_)) if row["alone"].is_null() => {
                n_refused += 1;
                continue;
            }
            Err(error) => panic!("{row}: {error}"),
        };
        for (key, input) in [
            ("alone", &TemplateInput::default()),
            ("with_tool", &with_tool),
        ] {
            let found = found.render_with(&[Message::new("user", "hi")], false, input);
            assert_eq!(row[key], found.unwrap().text.as_str(), "{row}");
        }
    }
    assert_eq!(n_refused, 7);
    let none = json!({"chat_template": null, "files": {}});
    assert!(template(&none, &golden["tokens"]).is_none());
}

#[test]
fn a_model_without_a_default_template_is_refused_with_the_names() {
    let rag = json!({"additional_chat_templates/rag.jinja": "AR"});
    for (templates, files, expected) in [
        (
            json!({"rag": "R", "tool_use": "U"}),
            json!({}),
            "chat_template of tokenizer_config.json: expected a chat template named \"default\", \
             found [\"rag\", \"tool_use\"]: put the one to use into chat_template.jinja, or in a \
             GGUF file under the key tokenizer.chat_template",
        ),
        (json!([]), json!({}), "found none"),
        (
            json!("T"),
            rag,
            "additional_chat_templates: expected a chat template named",
        ),
    ] {
        let row = json!({"chat_template": templates, "files": files});
        let source = template(&row, &json!({})).unwrap();
        let error = source.parse().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// What is searched for the syntax of calls is the template that writes them.
#[test]
fn all_templates_are_searched() {
    let row = json!({"chat_template": {"default": "D", "tool_use": "U"}, "files": {}});
    assert_eq!(template(&row, &json!({})).unwrap().all_text(), "D\nU");
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
