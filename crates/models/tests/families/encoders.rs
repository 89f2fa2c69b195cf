//! Encoders: the tiny embedding checkpoints with changed configurations.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_mil::program::difference;
use thane_models::{
    Classifier, Encoder, EncoderOptions, ModelError, Pooling, Target, build_classifier,
    build_encoder,
};

use crate::checkpoint::builder::{Folder, assert_says};

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny-embed")
        .join(name)
}

/// The tiny checkpoint with these keys of its configuration replaced; null means absent.
fn changed(name: &str, changes: &Value) -> Result<Encoder, ModelError> {
    let mut config: Value =
        serde_json::from_slice(&fs::read(tiny(name).join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let weights = fs::read(tiny(name).join("model.safetensors")).unwrap();
    let folder = Folder::new()
        .with("config.json", config.to_string())
        .with("model.safetensors", weights);
    let options = EncoderOptions {
        pooling: Some(Pooling::Mean.into()),
        ..EncoderOptions::default()
    };
    build_encoder(&folder.open("")?, &options)
}

fn assert_refused(name: &str, changes: &Value, parts: &[&str]) {
    match changed(name, changes) {
        Ok(_) => panic!("{name}, {changes}: expected an error, found a model"),
        Err(error) => assert_says(&error.to_string(), parts),
    }
}

#[test]
fn descendants_of_roberta_are_one_program() {
    let roberta = changed("roberta", &json!({})).unwrap();
    for name in ["xlm-roberta", "camembert"] {
        let other = changed("roberta", &json!({"model_type": name})).unwrap();
        assert_eq!(difference(&roberta.program, &other.program), None, "{name}");
        assert_eq!(other.info.architecture, name);
    }
    // The first row of the table is for position 2.
    assert_eq!(roberta.info.n_positions, 512);
    // What the files of RoBERTa leave out is 1.
    let other = changed("roberta", &json!({"pad_token_id": null})).unwrap();
    assert_eq!(difference(&roberta.program, &other.program), None);
    let other = changed("roberta", &json!({"pad_token_id": 3})).unwrap();
    assert!(difference(&roberta.program, &other.program).is_some());
}

#[test]
fn both_spellings_of_nomic_bert_are_one_computation() {
    for name in ["nomic-bert", "nomic-bert-new"] {
        let model = changed(name, &json!({})).unwrap();
        assert_eq!(model.info.n_positions, 90, "{name}");
    }
    let keys = json!({"rope_parameters": null, "rope_theta": 220.0});
    let [old, new] = [&keys, &json!({})].map(|keys| changed("nomic-bert-new", keys).unwrap());
    assert_eq!(difference(&old.program, &new.program), None);
}

#[test]
fn unknown_keys_are_refused_by_name() {
    for name in [
        "bert-mean",
        "roberta",
        "distilbert",
        "mpnet",
        "nomic-bert",
        "nomic-bert-new",
    ] {
        let keys = json!({"moe_every_n_layers": 2, "made_up": 1});
        assert_refused(
            name,
            &keys,
            &[
                "may change the computation",
                "moe_every_n_layers",
                "made_up",
            ],
        );
    }
}

#[test]
fn values_that_would_change_the_computation_are_refused() {
    let one_of = "expected one of gelu, ";
    for (name, changes, parts) in [
        (
            "bert-mean",
            json!({"hidden_act": "xielu"}),
            ["hidden_act", "xielu", one_of],
        ),
        (
            "bert-mean",
            json!({"is_decoder": true}),
            ["is_decoder", "true", "encoders"],
        ),
        (
            "roberta",
            json!({"position_embedding_type": "relative_key"}),
            ["position_embedding_type", "relative_key", "absolute"],
        ),
        (
            "roberta",
            json!({"pad_token_id": 513}),
            ["max_position_embeddings", "514", "more than 514"],
        ),
        (
            "distilbert",
            json!({"activation": "prelu"}),
            ["activation", "prelu", one_of],
        ),
        (
            "distilbert",
            json!({"n_heads": 5}),
            ["5 heads", "36", "divide"],
        ),
        (
            "mpnet",
            json!({"relative_attention_num_buckets": 16}),
            ["relative_attention_num_buckets", "16", "expected 32"],
        ),
    ] {
        assert_refused(name, &changes, &parts);
    }
}

#[test]
fn forms_of_nomic_bert_that_are_not_computed_are_refused() {
    for (name, changes, parts) in [
        (
            "nomic-bert",
            json!({"prenorm": true}),
            ["prenorm", "true", "expected false"],
        ),
        (
            "nomic-bert",
            json!({"use_rms_norm": true}),
            ["use_rms_norm", "true", "false"],
        ),
        (
            "nomic-bert",
            json!({"causal": true}),
            ["causal", "true", "expected false"],
        ),
        (
            "nomic-bert",
            json!({"activation_function": "gelu"}),
            ["activation_function", "gelu", "expected swiglu"],
        ),
        (
            "nomic-bert",
            json!({"rotary_emb_fraction": 0.5}),
            ["rotary_emb_fraction", "0.5", "whole heads"],
        ),
        (
            "nomic-bert",
            json!({"rotary_scaling_factor": 2}),
            ["rotary_scaling_factor", "2", "not scaled"],
        ),
        (
            "nomic-bert",
            json!({"rotary_emb_interleaved": true}),
            ["rotary_emb_interleaved", "true", "expected false"],
        ),
        (
            "nomic-bert-new",
            json!({"head_dim": 4}),
            ["head_dim", "4", "expected 8"],
        ),
        (
            "nomic-bert-new",
            json!({"rope_parameters": {"rope_type": "mrope", "factor": 2.0}}),
            ["rope_type", "mrope", "expected default"],
        ),
    ] {
        assert_refused(name, &changes, &parts);
    }
}

#[test]
fn rotations_that_the_reference_does_not_compute_are_refused() {
    for (name, changes, parts) in [
        (
            "nomic-bert-new",
            json!({"partial_rotary_factor": 0.5}),
            ["partial_rotary_factor", "0.5", "whole heads"],
        ),
        (
            "modernbert-mean",
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
            [
                "rope_parameters",
                "the same for all layers",
                "each layer type",
            ],
        ),
        (
            "modernbert-mean",
            json!({"rope_theta": 500.0}),
            [
                "rope_parameters",
                "the same for all layers",
                "each layer type",
            ],
        ),
        (
            "modernbert-mean",
            json!({"rope_local_base_freq": 7.0}),
            [
                "rope_parameters",
                "keys of another family",
                "each layer type",
            ],
        ),
    ] {
        assert_refused(name, &changes, &parts);
    }
}

#[test]
fn keys_that_the_computation_needs_are_missed_by_name() {
    for (name, key) in [
        ("roberta", "max_position_embeddings"),
        ("distilbert", "dim"),
        ("mpnet", "num_hidden_layers"),
        ("nomic-bert", "rotary_emb_base"),
        ("nomic-bert", "qkv_proj_bias"),
    ] {
        assert_refused(name, &json!({key: null}), &[key, "missing"]);
    }
}

/// Sizes that contradict the tensors are listed with both shapes.
#[test]
fn sizes_that_contradict_the_tensors_are_refused() {
    for (name, changes, part) in [
        (
            "roberta",
            json!({"type_vocab_size": 2}),
            "expected the shape [2, 33], found [1, 33]",
        ),
        (
            "mpnet",
            json!({"max_position_embeddings": 512}),
            "expected the shape [512, 21]",
        ),
        (
            "nomic-bert",
            json!({"mlp_fc1_bias": true, "mlp_fc2_bias": true}),
            "fc11.bias` [47]",
        ),
        (
            "nomic-bert",
            json!({"qkv_proj_bias": true}),
            "Wqkv.bias` [108] is missing",
        ),
    ] {
        assert_refused(name, &changes, &["do not fit the configuration", part]);
    }
}

/// A tiny reranker with these keys of its configuration replaced.
fn classifier(name: &str, changes: &Value) -> Result<Classifier, ModelError> {
    let folder = tiny("../tiny-rerank").join(name);
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let folder = Folder::new()
        .with("config.json", config.to_string())
        .with("model.safetensors", read("model.safetensors"));
    build_classifier(&folder.open("")?, &Target::Portable)
}

#[test]
fn scores_are_sigmoids_unless_a_file_says_otherwise() {
    let key = "sbert_ce_default_activation_function";
    let is_sigmoid = |changes: Value| classifier("bert", &changes).unwrap().info.sigmoid;
    assert!(!is_sigmoid(json!({})));
    assert!(is_sigmoid(json!({key: null})));
    assert!(is_sigmoid(
        json!({key: "torch.nn.modules.activation.Sigmoid"})
    ));
    // The newer key is read first.
    let newer = json!({"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5"});
    assert!(is_sigmoid(json!({"sentence_transformers": newer})));
}

#[test]
fn classifiers_that_do_not_fit_their_configuration_are_refused() {
    let key = "sbert_ce_default_activation_function";
    for (name, changes, parts) in [
        (
            "bert",
            json!({key: "torch.nn.Tanh"}),
            ["activation_fn", "torch.nn.Tanh", "Identity"],
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

/// The tiny GGUF file with the bytes of one value replaced.
fn gguf(name: &str, key: &str, value: &[u8]) -> Result<Encoder, ModelError> {
    let file = tiny("../tiny-embed-gguf").join(format!("{name}.gguf"));
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.windows(key.len()).position(|w| w == key.as_bytes());
    // The type of the value is between the key and the value.
    let start = at.unwrap() + key.len() + 4;
    bytes[start..start + value.len()].copy_from_slice(value);
    let folder = Folder::new().with("model.gguf", bytes);
    build_encoder(&folder.open("model.gguf")?, &EncoderOptions::default())
}

#[test]
fn gguf_files_that_are_not_those_of_embedding_models_are_refused() {
    let number = |n: u32| n.to_le_bytes();
    for (key, value, parts) in [
        (
            "bert.pooling_type",
            &number(4)[..],
            ["bert.pooling_type", "4", "reranker"],
        ),
        (
            "bert.pooling_type",
            &number(0),
            ["the pooling", "is unknown", "choose mean"],
        ),
        (
            "bert.attention.causal",
            &[1],
            ["bert.attention.causal", "true", "expected false"],
        ),
        (
            "bert.block_count",
            &number(4),
            ["do not fit", "blk.3.attn_q.weight", "missing"],
        ),
        (
            "bert.context_length",
            &number(60),
            ["position_embd.weight", "[60, 35]", "[70, 35]"],
        ),
    ] {
        match gguf("bert-cls", key, value) {
            Ok(_) => panic!("{key}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), &parts),
        }
    }
}

/// Source: `relative_position_bucket` of MPNet in transformers 5.24, at the ends of all buckets.
#[test]
fn buckets_are_those_of_the_reference() {
    let ends = [
        (0, 0),
        (-1, 1),
        (-7, 7),
        (-8, 8),
        (-11, 8),
        (-12, 9),
        (-15, 9),
        (-16, 10),
        (-22, 10),
        (-23, 11),
        (-31, 11),
        (-32, 12),
        (-45, 12),
        (-46, 13),
        (-63, 13),
        (-64, 14),
        (-90, 14),
        (-91, 15),
        (-511, 15),
        (1, 17),
        (7, 23),
        (8, 24),
        (16, 26),
        (64, 30),
        (127, 31),
        (128, 31),
        (511, 31),
    ];
    let model = changed("mpnet", &json!({})).unwrap();
    let f = &model.program.functions()[0];
    // From the distance -511 on, the longest that 512 positions have.
    let of_distances: Vec<Vec<i64>> = (f.body().ops.iter())
        .filter_map(|op| f.constant(*f.op(*op).results.first()?)?.to_ints())
        .filter(|ints| ints.len() == 1023)
        .collect();
    assert_eq!(of_distances.len(), 1);
    for (distance, bucket) in ends {
        let found = of_distances[0][(distance + 511) as usize];
        assert_eq!(found, bucket, "{distance}");
    }
}

/// The tiny checkpoint with one of the files of sentence-transformers edited.
fn edited(name: &str, file: &str, edit: impl Fn(&mut Value)) -> Result<Encoder, ModelError> {
    let mut folder = Folder::new();
    for part in [
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ] {
        let Ok(mut bytes) = fs::read(tiny(name).join(part)) else {
            continue;
        };
        if part == file {
            let mut value: Value = serde_json::from_slice(&bytes).unwrap();
            edit(&mut value);
            bytes = value.to_string().into_bytes();
        }
        folder = folder.with(part, bytes);
    }
    build_encoder(&folder.open("")?, &EncoderOptions::default())
}

/// What sentence-transformers would compute otherwise, or not at all.
#[test]
fn modules_that_are_not_computed_are_refused() {
    const ORDER: &str = "one Transformer, one Pooling, Dense layers and Normalize, in this order";
    type Edit = fn(&mut Value);
    let pooling = "1_Pooling/config.json";
    let cases: [(&str, &str, Edit, &[&str]); 10] = [
        (
            "bert-mean",
            "modules.json",
            |list| drop(list.as_array_mut().unwrap().remove(0)),
            &[ORDER, "Pooling, Normalize"],
        ),
        (
            "bert-mean",
            "modules.json",
            |list| list[0]["path"] = json!("0_Transformer"),
            &["path: expected an empty path", "0_Transformer"],
        ),
        (
            "bert-mean",
            "modules.json",
            |list| list.as_array_mut().unwrap().swap(0, 1),
            &["modules.json", ORDER, "Pooling, Transformer, Normalize"],
        ),
        (
            "bert-mean",
            "modules.json",
            |list| list.as_array_mut().unwrap().swap(1, 2),
            &[ORDER, "Transformer, Normalize, Pooling"],
        ),
        (
            "bert-mean",
            "modules.json",
            |list| list[2] = list[1].clone(),
            &[ORDER, "Transformer, Pooling, Pooling"],
        ),
        (
            "bert-weighted",
            "modules.json",
            |list| list[2]["type"] = json!("sentence_transformers.models.WeightedLayerPooling"),
            &["expected Transformer, Pooling, Dense or Normalize"],
        ),
        (
            "bert-mean",
            pooling,
            |config| config["pooling_mode_cls_token"] = json!("yes"),
            &["pooling_mode_cls_token: expected true or false"],
        ),
        (
            "bert-mean",
            pooling,
            |config| config["pooling_mode_made_up"] = json!(true),
            &["pooling_mode_made_up: expected false, because the mode is not known"],
        ),
        (
            "bert-mean",
            pooling,
            |config| config["include_prompt"] = json!(0),
            &["include_prompt: expected true or false"],
        ),
        (
            "bert-mean",
            pooling,
            |config| config["pooling_mode_mean_tokens"] = json!(false),
            &["pooling_mode: expected at least one mode"],
        ),
    ];
    edited("bert-mean", "", |_| {}).unwrap();
    for (name, file, edit, parts) in cases {
        match edited(name, file, edit) {
            Ok(_) => panic!("{name}, {parts:?}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), parts),
        }
    }
}
