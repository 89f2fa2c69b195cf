//! Absurd numbers in the configurations of all families are refused, with the key and its bounds.

use std::fs;

use serde_json::{Value, json};

use super::hugging_face::{changed, tiny};

/// Parts of the keys whose numbers the computation multiplies by, divides by or caps with.
const KINDS: [&str; 9] = [
    "_eps",
    "beta",
    "factor",
    "logit_scale",
    "logits_scaling",
    "mscale",
    "multiplier",
    "softcapping",
    "theta",
];

/// A key that Hunyuan ignores, because it has `alpha`.
const IGNORED: &str = "rope_parameters.factor";

/// The dotted keys of numbers in an object.
fn numbers(object: &Value, prefix: &str, keys: &mut Vec<String>) {
    for (key, value) in object.as_object().unwrap() {
        let key = format!("{prefix}{key}");
        match value {
            Value::Number(_) => keys.push(key),
            Value::Object(_) if key != "vision_config" => {
                numbers(value, &format!("{key}."), keys);
            }
            _ => {}
        }
    }
}

/// The change that sets a dotted key.
fn set(config: &Value, key: &str, number: &Value) -> Value {
    let mut config = config.clone();
    let mut at = &mut config;
    for part in key.split('.') {
        at = &mut at[part];
    }
    *at = number.clone();
    let first = key.split('.').next().unwrap();
    json!({first: config[first]})
}

#[test]
fn numbers_beyond_their_bounds_are_refused_in_all_families() {
    let folder = tiny("");
    let mut n_keys = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Ok(text) = fs::read(tiny(&name).join("config.json")) else {
            continue;
        };
        if !tiny(&name).join("model.safetensors").is_file() {
            continue;
        }
        let config: Value = serde_json::from_slice(&text).unwrap();
        let mut keys = Vec::new();
        numbers(&config, "", &mut keys);
        let has_alpha = config["rope_parameters"]["alpha"].is_number();
        keys.retain(|key| KINDS.iter().any(|kind| key.contains(kind)));
        keys.retain(|key| !(has_alpha && key == IGNORED));
        n_keys += keys.len();
        for key in keys {
            for number in [json!(-1), json!(1e30)] {
                let model = changed(&name, &set(&config, &key, &number));
                let last = key.rsplit('.').next().unwrap();
                match model {
                    Ok(_) => panic!("{name}: {key} = {number} is accepted"),
                    Err(error) => assert!(
                        error.to_string().contains(last),
                        "{name}: {key} = {number}: {error}"
                    ),
                }
            }
        }
    }
    assert!(n_keys > 100, "{n_keys}");
}
