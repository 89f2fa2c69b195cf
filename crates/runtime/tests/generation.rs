//! The keys of `generation_config.json`, compared with transformers.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use thane_cpu::{Cpu, Numerics};
use thane_engine::sample::Sampler;
use thane_hub::{Hub, Places};
use thane_mil::types::DType;
use thane_runtime::{
    LanguageOptions, Model, Note, Observer, PackageOptions, RuntimeError, Sampling,
};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

fn open(path: &Path) -> Model {
    let hub = Hub {
        offline: true,
        ..Hub::new(Places::in_folder("no-cache"))
    };
    Model::open(path.to_str().unwrap(), &hub, &()).unwrap()
}

/// A copy of the tiny chat model with a `generation_config.json`, unless it is null, and with more
/// keys in `config.json`.
fn folder_with(generation: &Value, config: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = models().join("tiny-chat");
    for name in [
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let whole = fs::read(from.join("config.json")).unwrap();
    let mut whole: Value = serde_json::from_slice(&whole).unwrap();
    let more = config.as_object().cloned().unwrap_or_default();
    whole.as_object_mut().unwrap().extend(more);
    fs::write(folder.path().join("config.json"), whole.to_string()).unwrap();
    if !generation.is_null() {
        let path = folder.path().join("generation_config.json");
        fs::write(path, generation.to_string()).unwrap();
    }
    folder
}

fn golden() -> Value {
    let text = fs::read(models().join("generation.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Whether the files say how long an answer is at most.
fn has_limit(case: &Value) -> bool {
    let says = |file: &Value| {
        file.get("max_length")
            .or(file.get("max_new_tokens"))
            .is_some()
    };
    says(&case["generation_config"])
        || (case["generation_config"].is_null() && says(&case["config"]))
}

/// A model whose cache is not rounded.
fn exact() -> LanguageOptions {
    LanguageOptions {
        cache: DType::Fp32,
        ..LanguageOptions::default()
    }
}

/// The tokens of an answer of the model at `path` to the prompt of a case.
fn answer(path: &Path, case: &Value, n_tokens: usize) -> Vec<u32> {
    let options = if path.join("Manifest.json").is_file() {
        LanguageOptions::default()
    } else {
        exact()
    };
    let model = open(path).language_model(&options, &()).unwrap();
    let mut chat = model.generator(&Cpu::new(Numerics::F32, 1)).unwrap();
    chat.max_tokens = (!has_limit(case)).then_some(n_tokens);
    let prompt: Vec<u32> = list(&case["prompt"]);
    let mut on_text = |_: &str| ControlFlow::Continue(());
    let answer = chat.generate(&prompt, &|| false, &mut on_text).unwrap();
    answer.tokens
}

#[test]
fn greedy_answers_equal_transformers() {
    let golden = golden();
    let n_tokens = golden["n_tokens"].as_u64().unwrap() as usize;
    let cases = golden["greedy"].as_array().unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let folder = folder_with(&case["generation_config"], &case["config"]);
        let tokens = answer(folder.path(), case, n_tokens);
        let expected: Vec<u32> = list(&case["tokens"]);
        let (file, config) = (&case["generation_config"], &case["config"]);
        assert_eq!(tokens, expected, "{file} {config}");
    }
}

/// A package has the settings of the checkpoint that it was made of.
#[test]
fn packages_keep_the_settings() {
    let golden = golden();
    let n_tokens = golden["n_tokens"].as_u64().unwrap() as usize;
    let cases = golden["greedy"].as_array().unwrap();
    let is_short = |case: &&Value| case["prompt"].as_array().unwrap().len() < 64;
    for case in cases.iter().filter(is_short).step_by(5) {
        let folder = folder_with(&case["generation_config"], &case["config"]);
        let package = folder.path().join("chat.mlpackage");
        let options = LanguageOptions::default();
        let language = open(folder.path()).language_model(&options, &()).unwrap();
        let options = PackageOptions::default();
        language.write(&package, &options, &()).unwrap();
        let recommended = |path: &Path| open(path).recommended_sampling().unwrap();
        assert_eq!(recommended(&package), recommended(folder.path()));
        let expected: Vec<u32> = list(&case["tokens"]);
        let file = &case["generation_config"];
        assert_eq!(answer(&package, case, n_tokens), expected, "{file}");
    }
}

#[test]
fn distributions_equal_transformers() {
    let golden = golden();
    let cases = golden["sampled"].as_array().unwrap();
    assert!(cases.len() >= 15);
    for case in cases {
        let file = &case["generation_config"];
        let folder = folder_with(file, &json!({}));
        let recommended = open(folder.path()).recommended_sampling().unwrap();
        let options = Sampling::default().choose(&recommended, true).options;
        let mut sampler = Sampler::new(options).unwrap();
        let (logits, prompt): (Vec<f32>, Vec<u32>) = (list(&case["logits"]), list(&case["prompt"]));
        // The first choice is that after the prompt.
        sampler.sample(&mut logits.clone(), &prompt).unwrap();
        let history = [prompt, list(&case["answer"])].concat();
        let mut found = sampler.distribution(&mut logits.clone(), &history).unwrap();
        found.sort_by_key(|(id, _)| *id);
        let ids: Vec<u32> = found.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, list::<u32>(&case["ids"]), "{file}");
        for ((id, p), expected) in found.iter().zip(list::<f32>(&case["p"])) {
            // Logits are rounded to f32 by each division.
            let bound = 1e-5 * expected;
            assert!((p - expected).abs() <= bound, "{file}: {id} {p} {expected}");
        }
    }
}

/// The notes on a model.
#[derive(Default)]
struct Notes(std::sync::Mutex<Vec<String>>);

impl Observer for Notes {
    fn note(&self, note: &Note) {
        self.0.lock().unwrap().push(note.to_string());
    }
}

#[test]
fn what_is_not_applied_is_noted() {
    let file = json!({
        "num_beams": 4, "guidance_scale": 1.5, "early_stopping": true, "penalty_alpha": 0,
        "transformers_version": "5.24.0", "max_time": null,
    });
    let folder = folder_with(&file, &json!({}));
    let notes = Notes::default();
    let options = LanguageOptions::default();
    open(folder.path())
        .language_model(&options, &notes)
        .unwrap();
    let notes = notes.0.into_inner().unwrap();
    assert_eq!(
        notes,
        [
            "generation_config.json asks for classifier-free guidance (guidance_scale 1.5), which \
             is not applied",
            "generation_config.json asks for beam search (num_beams 4), which is not applied",
        ]
    );
}

#[test]
fn unknown_keys_and_bad_values_are_errors() {
    let cases = [
        (
            json!({"top_q": 0.5, "temperature": 1.0}),
            "generation_config.json: `top_q` may change the computation; remove it if it does not",
        ),
        (
            json!({"do_sample": true, "top_k": -1}),
            "generation_config.json: key \"top_k\": expected a whole number, found -1",
        ),
        (
            json!({"top_p": 1.5}),
            "generation_config.json: key \"top_p\": expected a number from 0 to 1, found 1.5",
        ),
        (
            json!({"bad_words_ids": [[1], []]}),
            "generation_config.json: key \"bad_words_ids\": expected a list of lists of token \
             ids, none of them empty, found [[1],[]]",
        ),
        (
            json!({"sequence_bias": [[[1], 1e9]]}),
            "generation_config.json: key \"sequence_bias\": expected a list of pairs: token ids, \
             and a number from -10000 to 10000, found [[[1],1000000000.0]]",
        ),
        (
            json!({"exponential_decay_length_penalty": [1]}),
            "generation_config.json: key \"exponential_decay_length_penalty\": expected two \
             numbers: tokens, and a factor above 0, found [1]",
        ),
        (
            json!({"stop_strings": [""]}),
            "generation_config.json: key \"stop_strings\": expected texts that are not empty, \
             found [\"\"]",
        ),
    ];
    for (file, expected) in cases {
        let folder = folder_with(&file, &json!({}));
        let model = open(folder.path());
        let recommended = model.recommended_sampling().err().unwrap();
        let built = model.language_model(&LanguageOptions::default(), &());
        for error in [recommended, built.err().unwrap()] {
            let RuntimeError::Model { source, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(source.to_string(), expected);
        }
    }
}
