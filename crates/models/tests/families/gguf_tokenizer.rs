//! What the `tokenizer.*` keys of a GGUF file change, and which notes they give.

use thane_models::Generation;

use super::gguf::Spec;
use crate::checkpoint::builder::{array, assert_says, string, strings};

const STRING: u32 = 8;
const I32: u32 = 5;
const ARRAY: u32 = 9;
const BOOL: u32 = 7;

/// A file with a tokenizer of five tokens.
fn spec(model: &str, tokens: [&str; 5]) -> Spec {
    let tokens = tokens.map(str::as_bytes);
    let spec = Spec::new("llama").u32("rope.dimension_count", 32);
    text(spec, "tokenizer.ggml.model", model)
        .whole_key("tokenizer.ggml.tokens", ARRAY, &strings(&tokens))
        .whole_key("tokenizer.ggml.token_type", ARRAY, &ints(&[3, 1, 1, 1, 1]))
}

fn text(spec: Spec, key: &str, value: &str) -> Spec {
    spec.whole_key(key, STRING, &string(value.as_bytes()))
}

fn ints(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    array(I32, values.len() as u64, &bytes)
}

#[track_caller]
fn assert_notes(spec: &Spec, expected: &[&[&str]]) {
    let notes = spec.lower().unwrap().notes;
    assert_eq!(notes.len(), expected.len(), "{notes:?}");
    for (note, parts) in notes.iter().zip(expected) {
        assert_says(note, &["model.gguf: "]);
        assert_says(note, parts);
    }
}

#[test]
fn a_missing_name_of_the_pre_tokenizer_is_noted() {
    const PRE: &str = "tokenizer.ggml.pre";
    let noted: &[&[&str]] = &[&[PRE, "llama.cpp's default rule", "convert the model again"]];
    let spec = spec("gpt2", ["a", "b", "c", "d", "e"]);
    assert_notes(&spec, noted);
    for (name, notes) in [("", noted), ("default", noted), ("gpt-2", &[])] {
        assert_notes(&text(spec.clone(), PRE, name), notes);
    }
    assert_notes(&text(spec, "tokenizer.ggml.model", "llama"), &[]);
}

#[test]
fn words_in_capitals_are_noted_if_the_file_does_not_say_whether_texts_are_lowercased() {
    const KEY: &str = "tokenizer.ggml.normalizer.lowercase";
    // U+211D has no lowercase form, and is a word of bert-base-uncased.
    assert_notes(
        &spec("bert", ["[CLS]", "[Unused]", "▁a", "▁\u{211d}", "▁é"]),
        &[],
    );
    let cased = spec("bert", ["[CLS]", "▁a", "▁A", "▁É", "B"]);
    assert_notes(&cased, &[&[KEY, "3 tokens", "\"▁A\"", "convert it again"]]);
    for is_lower in [0, 1] {
        assert_notes(&cased.clone().whole_key(KEY, BOOL, &[is_lower]), &[]);
    }
}

#[test]
fn unknown_keys_are_noted() {
    let spec = text(
        spec("llama", ["a", "b", "c", "d", "e"]),
        "tokenizer.ggml.foo",
        "x",
    );
    let spec = text(spec, "tokenizer.chat_template.rag", "x");
    assert_notes(
        &spec,
        &[&["`tokenizer.ggml.foo` is unknown and not applied"]],
    );
}

/// As in llama.cpp, ids that no token has are left out.
#[test]
fn suppressed_tokens_are_read() {
    let suppressed = |ids: &[i32]| {
        let spec = spec("llama", ["a", "b", "c", "d", "e"]);
        let spec = spec.whole_key("tokenizer.ggml.suppress_tokens", ARRAY, &ints(ids));
        let checkpoint = spec.folder().open("model.gguf").unwrap();
        Generation::of(&checkpoint).unwrap().suppress_tokens
    };
    assert_eq!(suppressed(&[3, -1, 1, 5, 4]), [3, 1, 4]);
    assert_eq!(suppressed(&[]), [0; 0]);
}
