//! Configurations that leave a key out, or have it twice, are taken as transformers takes them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use thane_mil::program::{Program, difference};
use thane_models::checkpoint::Source;
use thane_models::{Generation, Model, ModelError, Options};

use super::hugging_face::{changed, tiny};
use super::lower;
use crate::checkpoint::builder::{Folder, assert_says};

/// The tiny checkpoint whose configuration lacks the keys `remove` and has the keys `set`.
fn lowered(name: &str, change: &Value) -> Result<Model, ModelError> {
    let text = fs::read(tiny(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    let keys = config.as_object_mut().unwrap();
    for key in change["remove"].as_array().unwrap() {
        keys.remove(key.as_str().unwrap());
    }
    keys.extend(change["set"].as_object().unwrap().clone());
    let weights = fs::read(tiny(name).join("model.safetensors")).unwrap();
    let folder = Folder::new()
        .with("config.json", config.to_string())
        .with("model.safetensors", weights);
    lower(&folder, "", &Options::default())
}

/// Rows whose sizes do not fit the tensors give errors with the shapes that are expected instead.
#[test]
fn keys_that_are_absent_null_or_given_twice_are_read_as_in_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/settings.json");
    let table: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let (mut n_equal, mut n_refused) = (0, 0);
    for row in rows {
        let name = row["checkpoint"].as_str().unwrap();
        let what = format!("{name}: {} without {}", row["set"], row["remove"]);
        let found = lowered(name, row).map(|model| model.program);
        if row["same"].is_null() {
            let message = found.expect_err(&what).to_string();
            let keys: Vec<&str> = row["set"]
                .as_object()
                .unwrap()
                .keys()
                .map(|k| k as _)
                .collect();
            assert_says(&message, &keys);
            n_refused += 1;
            continue;
        }
        let explicit = lowered(name, &row["same"]).map(|model| model.program);
        match (found, explicit) {
            (Ok(found), Ok(explicit)) => {
                assert_eq!(difference(&found, &explicit), None, "{what}");
                n_equal += 1;
            }
            (found, explicit) => assert_eq!(error_of(found), error_of(explicit), "{what}"),
        }
    }
    assert!(n_equal >= 12, "{n_equal}");
    assert!(n_refused >= 10, "{n_refused}");
}

/// What a text part says of generation counts where the whole says nothing.
#[test]
fn generation_is_that_of_the_text_part_where_the_whole_has_none() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/settings.json");
    let table: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let rows = table["generation"].as_array().unwrap();
    for row in rows {
        let (name, key) = (&row["checkpoint"], row["key"].as_str().unwrap());
        let name = name.as_str().unwrap();
        let text = fs::read(tiny(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        config.as_object_mut().unwrap().remove(key);
        if let Some(whole) = row.get("whole") {
            config[key] = whole.clone();
        }
        config["text_config"][key] = row["text"].clone();
        let weights = fs::read(tiny(name).join("model.safetensors")).unwrap();
        let folder = Folder::new()
            .with("config.json", config.to_string())
            .with("model.safetensors", weights);
        let checkpoint = folder.open("").unwrap();
        let Source::HuggingFace(files) = &checkpoint.source else {
            panic!("{name}: expected a folder");
        };
        if key == "eos_token_id" {
            let expected = match &row["value"] {
                Value::Array(ids) => ids.clone(),
                id => vec![id.clone()],
            };
            assert_eq!(
                json!(files.eos_token_ids().unwrap()),
                json!(expected),
                "{row}"
            );
        } else {
            let found = json!(Generation::of(&checkpoint).unwrap());
            assert_eq!(found[key], row["value"], "{row}");
        }
    }
    assert!(rows.len() >= 16, "{}", rows.len());
}

fn error_of(program: Result<Program, ModelError>) -> Option<String> {
    program.err().map(|error| error.to_string())
}

/// What transformers does not read either is no error, but the user is told.
#[test]
fn keys_that_change_nothing_give_notes() {
    let original = "original_max_position_embeddings";
    let dynamic = json!({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 700.0, original: 8});
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": 700.0, "truncate": false});
    for (name, change, note) in [
        (
            "lfm2",
            json!({"rms_norm_eps": 0.5}),
            "config.json: `rms_norm_eps` is not used: the norms of lfm2 have `norm_eps`",
        ),
        (
            "qwen2-dynamic",
            json!({ original: 8 }),
            "config.json: `original_max_position_embeddings` is not used: dynamic scaling does not \
             read it",
        ),
        (
            "qwen2-dynamic",
            json!({ "rope_parameters": dynamic }),
            "config.json: `rope_parameters.original_max_position_embeddings` is not used: dynamic \
             scaling does not read it",
        ),
        (
            "ministral3",
            json!({"layer_types": ["full_attention"]}),
            "config.json: `layer_types` is not used: the layers of this class are all alike",
        ),
        (
            "mistral",
            json!({"partial_rotary_factor": 0.5}),
            "config.json: `partial_rotary_factor` is not used: this family rotates whole heads, as \
             its class in transformers does",
        ),
        (
            "mistral",
            json!({"rope_parameters": {"rope_type": "default", "rope_theta": 700.0,
                "partial_rotary_factor": 0.5}}),
            "config.json: `rope_parameters.partial_rotary_factor` is not used: this family rotates \
             whole heads, as its class in transformers does",
        ),
        (
            "olmo3",
            json!({"rope_parameters": {"full_attention": yarn}}),
            "config.json: `rope_parameters.full_attention.truncate` is not used: a class with a \
             rotary embedding for each layer type does not read it",
        ),
        (
            "olmo3",
            json!({ original: 8 }),
            "config.json: `original_max_position_embeddings` is not used: a class with a rotary \
             embedding for each layer type reads it among the parameters alone",
        ),
        (
            "gemma3",
            json!({"attn_logit_softcapping": 50.0}),
            "config.json: `attn_logit_softcapping` is not used: Gemma 3 normalizes queries and keys \
             instead of capping scores",
        ),
        (
            "gemma3",
            json!({"layer_types": null, "_sliding_window_pattern": 2}),
            "config.json: `_sliding_window_pattern` is not used: transformers reads \
             `sliding_window_pattern`",
        ),
        (
            "olmo3-old",
            json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
            "config.json: `rope_scaling.type` is not used: the class of transformers reads \
             `rope_type` alone, and nothing is scaled",
        ),
        (
            "qwen2",
            json!({"eos_token_id": [2, 97]}),
            "`eos_token_id` 97 ends no answer: the vocabulary has 97 tokens",
        ),
    ] {
        let notes = |change: &Value| changed(name, change).unwrap().notes;
        assert_eq!(notes(&change), [note], "{name} {change}");
        assert_eq!(notes(&json!({})), [""; 0], "{name}");
    }
}

/// transformers takes other values than the file seems to say.
#[test]
fn keys_that_would_replace_others_are_refused() {
    let flat = json!({"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0});
    for (name, change, parts) in [
        (
            "olmo3",
            json!({ "rope_parameters": flat }),
            ["`rope_parameters`", "for each layer type"],
        ),
        (
            "olmo3-old",
            json!({"rope_local_base_freq": 700.0}),
            ["`rope_local_base_freq` is 700", "no such key"],
        ),
        (
            "qwen3_5",
            json!({"rope_scaling": {"rope_type": "default"}}),
            ["rope_scaling", "replace all of `rope_parameters`"],
        ),
        (
            "llama-bias",
            json!({"rope_scaling": {"rope_type": "default", "rope_theta": 7.0},
                "rope_parameters": {"partial_rotary_factor": 0.5}}),
            ["rope_scaling", "replace all of `rope_parameters`"],
        ),
        (
            "qwen2-dynamic",
            json!({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 700.0,
                "alpha": 30.0}}),
            ["rope_parameters.alpha", "does not support"],
        ),
        (
            "gemma3",
            json!({"rope_parameters": null, "rope_theta": 700.0,
                "rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 30.0}}),
            ["rope_scaling.alpha", "does not support"],
        ),
        (
            "qwen3",
            json!({"use_bidirectional_attention": true}),
            ["use_bidirectional_attention", "does not read the key"],
        ),
    ] {
        let error = changed(name, &change).map(|model| model.notes).unwrap_err();
        assert_says(&error.to_string(), &parts);
    }
    let equal = json!({"rope_scaling": {"rope_type": "default", "rope_theta": 700.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}});
    changed("llama-bias", &equal).unwrap();
}
