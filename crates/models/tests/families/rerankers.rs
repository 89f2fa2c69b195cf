//! Rerankers: the tiny ones with changed files.

use std::fs;

use serde_json::{Value, json};
use thane_models::{
    Classifier, ModelError, ScoreActivation, Target, build_classifier, is_classifier,
};

use super::encoders::{files, tiny};
use crate::checkpoint::builder::{Folder, assert_says};

/// A file, and how it changes.
type Edit<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// The files of a folder in `tests/models`, some of them edited or new.
fn edited(name: &str, edits: &[Edit<'_>]) -> Result<Classifier, ModelError> {
    let mut all = Vec::new();
    files(&tiny("..").join(name), "", &mut all);
    for (file, edit) in edits {
        let found = all.iter().position(|(path, _)| path == file);
        let found = found.unwrap_or_else(|| {
            all.push(((*file).to_owned(), b"{}".to_vec()));
            all.len() - 1
        });
        let mut value: Value = serde_json::from_slice(&all[found].1).unwrap();
        edit(&mut value);
        all[found].1 = value.to_string().into_bytes();
    }
    let folder = all
        .into_iter()
        .fold(Folder::new(), |folder, (path, bytes)| {
            folder.with(&path, bytes)
        });
    build_classifier(&folder.open("")?, &Target::Portable)
}

/// A tiny reranker with these keys of a file replaced.
fn changed(name: &str, file: &str, changes: &Value) -> Result<Classifier, ModelError> {
    let set = |value: &mut Value| {
        for (key, change) in changes.as_object().unwrap() {
            value[key] = change.clone();
        }
    };
    edited(&format!("tiny-rerank/{name}"), &[(file, &set)])
}

/// A tiny reranker with these keys of its configuration replaced.
fn classifier(name: &str, changes: &Value) -> Result<Classifier, ModelError> {
    changed(name, "config.json", changes)
}

#[test]
fn scores_are_sigmoids_unless_a_file_says_otherwise() {
    let key = "sbert_ce_default_activation_function";
    // The newer key is read first.
    let newer = json!({"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5"});
    for (changes, expected) in [
        (json!({}), ScoreActivation::Identity),
        (json!({key: null}), ScoreActivation::Sigmoid),
        (
            json!({key: "torch.nn.modules.activation.Sigmoid"}),
            ScoreActivation::Sigmoid,
        ),
        (json!({key: "torch.nn.Tanh"}), ScoreActivation::Tanh),
        (
            json!({"sentence_transformers": newer}),
            ScoreActivation::Sigmoid,
        ),
        (
            json!({"sentence_transformers": {"activation_fn": null}}),
            ScoreActivation::Sigmoid,
        ),
        (
            json!({"sentence_transformers": {}}),
            ScoreActivation::Identity,
        ),
    ] {
        let found = classifier("bert", &changes).unwrap().info.activation;
        assert_eq!(found, expected, "{changes}");
    }
}

#[test]
fn classifiers_that_do_not_fit_their_configuration_are_refused() {
    let key = "sbert_ce_default_activation_function";
    for (name, changes, parts) in [
        (
            "bert",
            json!({key: "torch.nn.ReLU"}),
            [
                "activation_function in config.json",
                "torch.nn.ReLU",
                "Identity",
            ],
        ),
        (
            "bert",
            json!({key: "mine.layers.Identity"}),
            [
                "activation_function in config.json",
                "mine.layers.Identity",
                "torch.nn",
            ],
        ),
        (
            "bert",
            json!({"id2label": {"0": "a", "1": "b", "2": "c"}}),
            ["`classifier.weight`", "[3, 30]", "[1, 30]"],
        ),
        (
            "xlm-roberta",
            json!({"id2label": null}),
            ["`classifier.out_proj.weight`", "[2, 27]", "[1, 27]"],
        ),
        (
            "distilbert",
            json!({"made_up": 1}),
            ["distilbert", "made_up", "may change"],
        ),
    ] {
        match classifier(name, &changes) {
            Ok(_) => panic!("{name}, {changes}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), &parts),
        }
    }
    let model = Folder::new()
        .with(
            "config.json",
            fs::read(tiny("roberta").join("config.json")).unwrap(),
        )
        .with(
            "model.safetensors",
            fs::read(tiny("roberta").join("model.safetensors")).unwrap(),
        );
    let error = build_classifier(&model.open("").unwrap(), &Target::Portable).unwrap_err();
    assert_says(
        &error.to_string(),
        &["`roberta`", "expected a sequence classifier"],
    );
}

/// A model, a file, the keys that are changed there, and what the error says of them.
type Refused = (&'static str, &'static str, &'static str, [&'static str; 2]);

const SCORE: &str = "1_LogitScore/config.json";
const BERT: &str = "sentence_bert_config.json";
const SENTENCE: &str = "config_sentence_transformers.json";

/// What sentence-transformers would compute otherwise, or not at all.
#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    ("qwen3-yes-no", SCORE, r#"{"true_token_id": null}"#, ["true_token_id", SCORE]),
    ("qwen3-yes-no", SCORE, r#"{"true_token_id": 319}"#, ["true_token_id", "one of the 319 tokens"]),
    ("qwen3-yes-no", SCORE, r#"{"false_token_id": 999}"#, ["false_token_id", "one of the 319 tokens"]),
    ("qwen3-yes-no", SCORE, r#"{"module_input_name": "scores"}"#, ["module_input_name", "causal_logits"]),
    ("qwen3-yes-no", SCORE, r#"{"scale": 2}"#, ["`scale`", "may change"]),
    ("qwen3-yes-no", BERT, r#"{"transformer_task": null}"#, ["transformer_task", BERT]),
    ("qwen3-yes-no", BERT, r#"{"transformer_task": "any-to-any"}"#, ["transformer_task", "text-generation"]),
    ("qwen3-labels", BERT, r#"{"transformer_task": "text-generation"}"#,
     ["transformer_task", "sequence-classification"]),
    ("qwen3-labels", BERT, r#"{"module_output_name": "logits"}"#, ["module_output_name", "scores"]),
    ("qwen3-labels", BERT, r#"{"modality_config": {"message": {}}}"#, ["modality_config.text", BERT]),
    ("qwen3-labels", BERT, r#"{"modality_config": {"text": {}, "message": {"format": "xml"}}}"#,
     ["modality_config.message.format", "structured"]),
    ("qwen3-labels", BERT, r#"{"modality_config": {"text": {}, "message": {"method": "generate"}}}"#,
     ["modality_config.message.method", "forward"]),
    ("qwen3-labels", BERT, r#"{"processing_kwargs": {"chat_template": {"restore_suffix": 1}}}"#,
     ["processing_kwargs.chat_template.restore_suffix", "true or false"]),
    ("qwen3-labels", BERT, r#"{"processing_kwargs": {"chat_template": {"max_length": 9}}}"#,
     ["processing_kwargs.chat_template.max_length", "variables of the template"]),
    ("qwen3-labels", SENTENCE, r#"{"default_prompt_name": "made up"}"#,
     ["default_prompt_name", "a name in `prompts`"]),
    ("qwen3-labels", SENTENCE, r#"{"made_up": 1}"#, ["`made_up`", "may change"]),
    ("bert", "config.json", r#"{"architectures": ["BertForCausalLM"]}"#,
     ["architectures", "the logits of yes and no"]),
    ("qwen3-pairs", "config.json", r#"{"architectures": ["Qwen3ForCausalLM", "X"]}"#,
     ["architectures", "correct the key"]),
    ("modernbert", "config.json", r#"{"classifier_pooling": "max"}"#, ["classifier_pooling", "cls or mean"]),
    ("modernbert", "config.json", r#"{"classifier_bias": true}"#, ["head.dense.bias", "missing"]),
    ("modernbert", "config.json", r#"{"classifier_activation": "mine"}"#, ["classifier_activation", "mine"]),
    ("qwen3-pairs", "config.json", r#"{"id2label": {"0": "a", "1": "b"}}"#, ["`score.weight`", "[2, 22]"]),
];

#[test]
fn settings_of_rerankers_that_are_not_computed_are_refused() {
    for (name, file, changes, parts) in REFUSED {
        let changes: Value = serde_json::from_str(changes).unwrap();
        match changed(name, file, &changes) {
            Ok(_) => panic!("{name}, {file}, {changes}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), parts),
        }
    }
}

#[test]
fn modules_of_rerankers_that_are_not_computed_are_refused() {
    let row = |kind: &str| {
        let class = format!("sentence_transformers.base.modules.{kind}");
        json!({"idx": 9, "name": "9", "path": "9_More", "type": class})
    };
    let push =
        |kind: &'static str| move |list: &mut Value| list.as_array_mut().unwrap().push(row(kind));
    let expected = "a LogitScore if that is a language model";
    for (edit, part) in [
        (&push("dense.Dense") as &dyn Fn(&mut Value), expected),
        (&push("normalize.Normalize"), expected),
        (
            &|list: &mut Value| drop(list.as_array_mut().unwrap().remove(0)),
            expected,
        ),
        (
            &|list: &mut Value| list[0]["path"] = json!("0_Transformer"),
            "an empty path",
        ),
        (
            &|list: &mut Value| list[0]["type"] = json!("custom_st.Transformer"),
            "a class of sentence_transformers",
        ),
        (
            &|list: &mut Value| list[1]["type"] = json!("custom_st.LogitScore"),
            "a class of sentence_transformers",
        ),
    ] {
        let error = edited("tiny-rerank/qwen3-yes-no", &[("modules.json", edit)]).unwrap_err();
        assert_says(&error.to_string(), &["modules.json", part]);
    }
}

/// Layers that an encoder cannot have are refused, and not computed as others.
#[test]
fn language_models_with_other_layers_are_refused() {
    let read = |name: &str| -> Value {
        let path = tiny("../tiny-rerank/qwen3-token").join(name);
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let names = ["modules.json", SENTENCE, BERT, SCORE];
    let files = names.map(|name| (name, read(name)));
    for (name, part) in [
        ("lfm2", "convolutions"),
        ("qwen3_moe", "mixtures of experts"),
        ("phi3-long", "depend on the length"),
        ("glm4", "neighboring elements"),
    ] {
        let put = files.each_ref().map(|(name, file)| {
            let put = move |value: &mut Value| *value = file.clone();
            (*name, put)
        });
        let edits = put
            .each_ref()
            .map(|(name, put)| (*name, put as &dyn Fn(&mut Value)));
        let error = edited(&format!("tiny/{name}"), &edits).unwrap_err();
        assert_says(&error.to_string(), &[part, "whole texts at once"]);
    }
}

/// What a folder is, by `modules.json` and the class in the file beside it.
#[test]
fn a_folder_is_a_reranker_by_the_class_that_saved_it() {
    let is_reranker = |name: &str, change: Option<Value>| {
        let mut all = Vec::new();
        files(&tiny("..").join(name), "", &mut all);
        let folder = all
            .into_iter()
            .fold(Folder::new(), |folder, (path, bytes)| {
                let mut bytes = bytes;
                if let (SENTENCE, Some(change)) = (path.as_str(), &change) {
                    bytes = change.to_string().into_bytes();
                }
                folder.with(&path, bytes)
            });
        is_classifier(&folder.open("").unwrap()).unwrap()
    };
    assert!(is_reranker("tiny-rerank/bert", None));
    assert!(is_reranker("tiny-rerank/qwen3-token", None));
    assert!(is_reranker("tiny-rerank/modernbert-saved", None));
    let other = json!({"model_type": "SentenceTransformer"});
    assert!(!is_reranker("tiny-rerank/modernbert-saved", Some(other)));
    assert!(!is_reranker(
        "tiny-rerank/modernbert-saved",
        Some(json!({}))
    ));
    assert!(!is_reranker("tiny-embed/bert-mean", None));
    assert!(!is_reranker("tiny/qwen3", None));
}
