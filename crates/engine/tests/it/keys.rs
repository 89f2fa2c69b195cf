//! The keys of `tokenizer_config.json`, by the table of `thane-models`.

use serde_json::{Map, Value, json};
use thane_engine::text::TokenizerConfig;
use thane_models::checkpoint::keys::{Class, TOKENIZER};

/// What is read of a file with one key beside two that are read.
fn with(key: &str, value: Value) -> TokenizerConfig {
    let mut file = Map::new();
    file.insert("bos_token".to_owned(), json!("<s>"));
    file.insert("chat_template".to_owned(), json!("x"));
    file.insert(key.to_owned(), value);
    let file = Value::Object(file).to_string();
    TokenizerConfig::from_tokenizer_config(file.as_bytes(), 7).unwrap()
}

#[test]
fn harmless_and_unknown_keys_change_nothing() {
    let usual = with("bos_token", json!("<s>"));
    let harmless = TOKENIZER.keys.iter().filter(|row| row.class != Class::Read);
    let names = harmless.map(|row| row.name).chain(["made_up"]);
    for name in names {
        for value in [
            json!(true),
            json!(3),
            json!("x"),
            json!(["x"]),
            json!({"x": "y"}),
        ] {
            assert_eq!(with(name, value), usual, "{name}");
        }
    }
    // What names a token does not need a row.
    assert_ne!(with("made_up_token", json!("x")), usual);
}
