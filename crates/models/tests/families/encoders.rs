//! Encoders: the tiny embedding checkpoints with changed configurations.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_mil::program::difference;
use thane_models::{Encoder, EncoderOptions, ModelError, Pooling, build_encoder};

use crate::checkpoint::builder::{Folder, assert_says};

pub fn tiny(name: &str) -> PathBuf {
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
            json!({"relative_attention_num_buckets": 17}),
            ["relative_attention_num_buckets", "17", "expected 18"],
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

/// Short texts have other frequencies than long ones, in one program.
#[test]
fn rotations_that_depend_on_the_length_of_a_text_are_refused() {
    let rope = |n: usize| {
        json!({
            "rope_type": "longrope", "rope_theta": 500.0, "factor": 4.0, "short_factor": vec![1.5; n],
            "long_factor": vec![2.5; n], "original_max_position_embeddings": 16,
        })
    };
    let (nomic, bert) = (json!({"rope_parameters": rope(4)}), rope(5));
    let plain = json!({"rope_type": "default", "rope_theta": 700.0});
    let bert = json!({"rope_parameters": {"full_attention": bert, "sliding_attention": plain}});
    for (name, changes) in [("nomic-bert-new", nomic), ("modernbert-mean", bert)] {
        assert_refused(name, &changes, &["depend on the length of a text"]);
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
    let of_distances = buckets(&changed("mpnet", &json!({})).unwrap(), 512);
    for (distance, bucket) in ends {
        let found = of_distances[(distance + 511) as usize];
        assert_eq!(found, bucket, "{distance}");
    }
}

/// The bucket of each distance that texts of up to `n_tokens` have, from the least one on.
fn buckets(model: &Encoder, n_tokens: usize) -> Vec<i64> {
    let f = &model.program.functions()[0];
    let ints = (f.body().ops.iter())
        .filter_map(|op| f.constant(*f.op(*op).results.first()?)?.to_ints())
        .filter(|ints| ints.len() == 2 * n_tokens - 1 && ints.get(n_tokens) == Some(&17));
    let mut ints: Vec<Vec<i64>> = ints.collect();
    assert_eq!(ints.len(), 1);
    ints.remove(0)
}

/// A table of biases with less rows than there are buckets is for texts that do not read others.
#[test]
fn tables_of_few_buckets_take_the_texts_that_the_reference_takes() {
    let path = tiny("../settings.json");
    let golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let golden = golden["mpnet_tokens"].as_object().unwrap();
    assert_eq!(golden.len(), 14);
    let whole = buckets(&changed("mpnet", &json!({})).unwrap(), 512);
    let config = fs::read(tiny("mpnet").join("config.json")).unwrap();
    let file = fs::read(tiny("mpnet").join("model.safetensors")).unwrap();
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    for (rows, n_tokens) in golden {
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        let mut header: Value = serde_json::from_slice(header).unwrap();
        let n_rows: usize = rows.parse().unwrap();
        config["relative_attention_num_buckets"] = json!(n_rows);
        // The other rows are a tensor of the head, which nobody reads.
        let table = "encoder.relative_attention_bias.weight";
        let mut other = header[table].clone();
        let start = other["data_offsets"][0].as_u64().unwrap() as usize;
        let middle = start + n_rows * 3 * 4;
        header[table]["shape"] = json!([n_rows, 3]);
        header[table]["data_offsets"] = json!([start, middle]);
        other["shape"] = json!([40 - n_rows, 3]);
        other["data_offsets"][0] = json!(middle);
        header["lm_head.rest"] = other;
        let header = header.to_string();
        let len = (header.len() as u64).to_le_bytes();
        let folder = Folder::new().with("config.json", config.to_string()).with(
            "model.safetensors",
            [&len, header.as_bytes(), data].concat(),
        );
        let options = EncoderOptions {
            pooling: Some(Pooling::Mean.into()),
            ..EncoderOptions::default()
        };
        let model = build_encoder(&folder.open("").unwrap(), &options).unwrap();
        let n = n_tokens.as_u64().unwrap() as usize;
        assert_eq!(
            (model.info.n_positions, model.info.max_tokens),
            (n, n),
            "{rows}"
        );
        assert_eq!(buckets(&model, n), whole[512 - n..511 + n], "{rows}");
    }
}

/// All files below a folder, by their paths in it.
pub fn files(folder: &Path, within: &str, out: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = format!("{within}{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            files(&entry.path(), &format!("{name}/"), out);
        } else {
            out.push((name, fs::read(entry.path()).unwrap()));
        }
    }
}

/// The tiny checkpoint with one of its files edited, which may be a new one.
fn edited(name: &str, file: &str, edit: impl Fn(&mut Value)) -> Result<Encoder, ModelError> {
    let mut all = Vec::new();
    files(&tiny(name), "", &mut all);
    let found = all.iter().position(|(path, _)| path == file);
    let found = found.unwrap_or_else(|| {
        all.push((file.to_owned(), b"{}".to_vec()));
        all.len() - 1
    });
    let mut value: Value = serde_json::from_slice(&all[found].1).unwrap();
    edit(&mut value);
    all[found].1 = value.to_string().into_bytes();
    let folder = all
        .into_iter()
        .fold(Folder::new(), |folder, (path, bytes)| {
            folder.with(&path, bytes)
        });
    build_encoder(&folder.open("")?, &EncoderOptions::default())
}

const ORDER: &str = "one Transformer, one Pooling, and modules before and behind it";
const LIST: &str = "modules.json";

/// Changes of the list of modules, and what the error says of them.
type Relisted = (fn(&mut Value), &'static [&'static str]);

/// What sentence-transformers would compute otherwise, or not at all.
const RELISTED: &[Relisted] = &[
    (
        |list| drop(list.as_array_mut().unwrap().remove(0)),
        &[LIST, ORDER, "Pooling, Normalize"],
    ),
    (
        |list| list[0]["path"] = json!("0_Transformer"),
        &["path: expected an empty path", "0_Transformer"],
    ),
    (
        |list| list.as_array_mut().unwrap().swap(0, 1),
        &[LIST, ORDER, "Pooling, Transformer, Normalize"],
    ),
    (
        |list| list.as_array_mut().unwrap().swap(1, 2),
        &[
            "2_Normalize",
            "module_input_name",
            "token_embeddings",
            "before the pooling",
        ],
    ),
    (
        |list| {
            list[2] = list[1].clone();
            list[2]["name"] = json!("2");
        },
        &[ORDER, "Transformer, Pooling, Pooling"],
    ),
    (
        |list| list[2]["name"] = list[1]["name"].clone(),
        &["name", "another name for each module"],
    ),
    (
        |list| list[1]["path"] = json!("../1_Pooling"),
        &["path", "a folder inside of the model's folder"],
    ),
    (
        |list| list[1]["type"] = json!("mine.Pooling"),
        &["type", "a class of sentence_transformers", "mine.Pooling"],
    ),
    // Only the class that is known to round vectors is taken without its code.
    (
        |list| list[1]["type"] = json!("mine.Dequantizer"),
        &[
            "type",
            "a class of sentence_transformers",
            "mine.Dequantizer",
        ],
    ),
    (
        |list| list[0]["type"] = json!("custom_st.Transformer"),
        &["a class of sentence_transformers", "custom_st.Transformer"],
    ),
    (
        |list| list[0]["type"] = json!("Transformer"),
        &["a class of sentence_transformers", "found \"Transformer\""],
    ),
    (
        |list| list[0]["type"] = json!("sentence_transformers.models.StaticEmbedding"),
        &["a Transformer first", "StaticEmbedding"],
    ),
    (
        |list| list[0]["type"] = json!("sentence_transformers.models.Router"),
        &["a Transformer first", "several ways", "Router"],
    ),
    (
        |list| list[2]["type"] = json!("sentence_transformers.models.CNN"),
        &[
            "LayerNorm, Normalize, Dropout or WeightedLayerPooling",
            "models.CNN",
        ],
    ),
    (|list| list[1]["gain"] = json!(2), &["`gain` may change"]),
];

#[test]
fn modules_that_are_not_computed_are_refused() {
    for (edit, parts) in RELISTED {
        match edited("bert-mean", LIST, edit) {
            Ok(_) => panic!("{parts:?}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), parts),
        }
    }
}

/// Model, file, keys to set in it, and what the error says of them.
type Refused = (&'static str, &'static str, &'static str, [&'static str; 2]);

/// Keys of the files of modules, and of those that describe the whole.
#[rustfmt::skip]
const REFUSED: &[Refused] = &[
    ("bert-mean", "1_Pooling/config.json",
     r#"{"pooling_mode_cls_token": "yes"}"#,
     ["pooling_mode_cls_token", "a bool"]),
    ("bert-mean", "1_Pooling/config.json",
     r#"{"pooling_mode_made_up": true}"#,
     ["`pooling_mode_made_up`", "may change"]),
    ("bert-mean", "1_Pooling/config.json",
     r#"{"include_prompt": 0}"#,
     ["include_prompt", "a bool"]),
    ("bert-mean", "1_Pooling/config.json",
     r#"{"pooling_mode": "median"}"#,
     ["pooling_mode", "lasttoken"]),
    ("bert-mean", "1_Pooling/config.json",
     r#"{"pooling_mode": ["mean", "mean"]}"#,
     ["pooling_mode", "each once"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"activation_function": "mine.Tanh"}"#,
     ["activation_function", "no other code"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"activation_function": "torch.nn.functional.tanh"}"#,
     ["activation_function", "an activation of torch.nn"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"activation_function": null}"#,
     ["activation_function", "a string"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"module_output_name": "other"}"#,
     ["module_output_name", "behind the pooling"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"scale": 2.0}"#,
     ["`scale`", "may change"]),
    ("bert-steps", "9_Dense/config.json",
     r#"{"in_features": 41}"#,
     ["in_features", "expected 42"]),
    ("bert-steps", "4_LayerNorm/config.json",
     r#"{"dimension": 25}"#,
     ["dimension", "expected 26"]),
    ("bert-steps", "1_Dense/config.json",
     r#"{"module_input_name": null}"#,
     ["module_input_name", "before the pooling"]),
    ("bert-mean", "config_sentence_transformers.json",
     r#"{"truncate_dim": 0}"#,
     ["truncate_dim", "at least one"]),
    ("bert-mean", "config_sentence_transformers.json",
     r#"{"truncate_dim": -1}"#,
     ["truncate_dim", "a whole number"]),
    ("bert-mean", "config_sentence_transformers.json",
     r#"{"model_type": "SparseEncoder"}"#,
     ["model_type", "\"SentenceTransformer\""]),
    ("bert-mean", "config_sentence_transformers.json",
     r#"{"prompts": {"a": 1}}"#,
     ["prompts.a", "a string"]),
    ("bert-mean", "config_sentence_transformers.json",
     r#"{"made_up": 1}"#,
     ["`made_up`", "may change"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"made_up": 1}"#,
     ["`made_up`", "may change"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"transformer_task": "fill-mask"}"#,
     ["transformer_task", "feature-extraction"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}, "message": {}}}"#,
     ["modality_config.message", "not rendered as messages"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}"#,
     ["modality_config.text.method_output_name", "last_hidden_state"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"modality_config": {"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}}"#,
     ["modality_config.text.method_output_name", "last hidden state"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"padding": "max_length"}}, "tokenizer_args": {"padding_side": "left"}}"#,
     ["padding_side", "before a text"]),
    ("distilbert", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"pad_to_multiple_of": 8}}, "processor_kwargs": {"padding_side": "left"}}"#,
     ["padding_side", "before a text"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"padding": "max_length"}}, "tokenizer_args": {"padding_side": "top"}}"#,
     ["tokenizer_args.padding_side", "left or right"]),
    ("bert-prompt", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"padding": "max_length"}}}"#,
     ["include_prompt", "pad_to_multiple_of"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"query_length": 32}"#,
     ["`query_length`", "max_seq_length"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"query_expansion": {"strategy": "fixed", "length": 32}}"#,
     ["`query_expansion`", "ColBERT"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"add_special_tokens": false}}}"#,
     ["`processing_kwargs.text.add_special_tokens`", "may change"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"truncation": false}}}"#,
     ["processing_kwargs.text.truncation", "longest_first"]),
    // A null is not the same as an absent key.
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"truncation": null}}}"#,
     ["processing_kwargs.text.truncation", "found null"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"text": {"add_special_tokens": null}}}"#,
     ["processing_kwargs.text.add_special_tokens", "found null"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"processing_kwargs": {"common": {"max_length": null}}}"#,
     ["processing_kwargs.common.max_length", "found null"]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"tokenizer_args": {"model_max_length": null}}"#,
     ["tokenizer_args.model_max_length", "found null"]),
    ("bert-steps", "10_Normalize/config.json",
     r#"{"module_input_name": null}"#,
     ["module_input_name", "found \"null\""]),
    ("bert-mean", "sentence_bert_config.json",
     r#"{"config_args": {"hidden_act": "relu"}}"#,
     ["`config_args.hidden_act`", "may change"]),
];

#[test]
fn settings_of_sentence_transformers_that_are_not_computed_are_refused() {
    for (name, file, changes, parts) in REFUSED {
        let changes: Value = serde_json::from_str(changes).unwrap();
        match edited(name, file, set(&changes)) {
            Ok(_) => panic!("{file}, {changes}: expected an error, found a model"),
            Err(error) => assert_says(&error.to_string(), &[file, parts[0], parts[1]]),
        }
    }
}

#[test]
fn a_null_leaves_the_prompt_out_of_the_pooling() {
    let file = "1_Pooling/config.json";
    let includes = |edit: fn(&mut Value)| {
        let encoder = edited("bert-prompt", file, edit).unwrap();
        encoder.info.include_prompt
    };
    assert!(!includes(|value| value["include_prompt"] = Value::Null));
    let remove = |value: &mut Value| drop(value.as_object_mut().unwrap().remove("include_prompt"));
    assert!(includes(remove));
}

/// Sets keys of an object.
fn set(changes: &Value) -> impl Fn(&mut Value) {
    |value: &mut Value| {
        for (key, change) in changes.as_object().unwrap() {
            value[key] = change.clone();
        }
    }
}

/// Settings that say what holds anyway, and those that change no number.
#[test]
fn settings_of_sentence_transformers_that_change_nothing_are_accepted() {
    let plain = edited("bert-mean", "modules.json", |_| {}).unwrap();
    let text = json!({"method": "forward", "method_output_name": "last_hidden_state"});
    let listed = json!({"method": "forward", "method_output_name": ["last_hidden_state"]});
    for (file, changes) in [
        // Without any mode, the mean is the pooling.
        (
            "1_Pooling/config.json",
            json!({"pooling_mode_mean_tokens": false}),
        ),
        (
            "1_Pooling/config.json",
            json!({"pooling_mode": "mean", "pooling_mode_cls_token": true}),
        ),
        ("2_Normalize/config.json", json!({})),
        (
            "config_sentence_transformers.json",
            json!({"requirements": {"transformers": ">=99"}}),
        ),
        (
            "config_sentence_transformers.json",
            json!({"model_type": "SentenceTransformer", "truncate_dim": null}),
        ),
        // No more elements than there are.
        (
            "config_sentence_transformers.json",
            json!({"truncate_dim": 42}),
        ),
        (
            "sentence_bert_config.json",
            json!({"unpad_inputs": true, "query_length": null}),
        ),
        (
            "sentence_bert_config.json",
            json!({"modality_config": {"text": text}, "module_output_name": "token_embeddings", "transformer_task": "feature-extraction"}),
        ),
        (
            "sentence_bert_config.json",
            json!({"model_args": {"torch_dtype": "float16"}, "config_args": {}}),
        ),
        (
            "sentence_bert_config.json",
            json!({"modality_config": {"text": listed}, "module_output_name": "token_embeddings"}),
        ),
        (
            "sentence_bert_config.json",
            json!({"processing_kwargs": {"text": {"pad_to_multiple_of": 8}},
                "tokenizer_args": {"padding_side": "right"}}),
        ),
        // A text alone is not padded.
        (
            "sentence_bert_config.json",
            json!({"processing_kwargs": {"text": {"padding": true, "pad_to_multiple_of": 1}},
                "processor_kwargs": {"padding_side": "left"}}),
        ),
        (
            "sentence_bert_config.json",
            json!({"processing_kwargs": {"text": {"padding": "max_length"}, "image": {"size": 3}}}),
        ),
        (
            "sentence_bert_config.json",
            json!({"processing_kwargs": {"common": {"return_tensors": "pt"}}}),
        ),
        (
            "sentence_bert_config.json",
            json!({"model_args": {"dtype": "float16"}, "model_kwargs": {"dtype": "float16"}}),
        ),
    ] {
        let other =
            edited("bert-mean", file, set(&changes)).unwrap_or_else(|e| panic!("{changes}: {e}"));
        assert_eq!(
            difference(&plain.program, &other.program),
            None,
            "{changes}"
        );
        assert_eq!(plain.info, other.info, "{changes}");
    }
}

/// Each file that may say how many tokens a text may have.
#[test]
fn the_most_tokens_of_a_text_are_those_of_the_first_file_that_says_them() {
    let limits = |changes: &Value| {
        let edit = |value: &mut Value| *value = changes.clone();
        edited("bert-mean", "sentence_bert_config.json", edit)
            .unwrap()
            .info
            .max_tokens
    };
    assert_eq!(limits(&json!({"max_seq_length": 64})), 64);
    // What a call of the tokenizer is given counts first, then what the tokenizer is made with.
    let made_with = json!({"max_seq_length": 64, "tokenizer_args": {"model_max_length": 50}});
    assert_eq!(limits(&made_with), 50);
    let called_with =
        json!({"max_seq_length": 64, "processing_kwargs": {"text": {"max_length": 40}}});
    assert_eq!(limits(&called_with), 40);
    // Of tokenizer_config.json, since the first file is empty.
    assert_eq!(limits(&json!({})), 80);
}

/// sentence-transformers takes the arguments of the old name, and loses the others.
#[test]
fn arguments_by_an_old_and_a_new_name_must_be_equal() {
    for (old, new) in [
        ("model_args", "model_kwargs"),
        ("tokenizer_args", "processor_kwargs"),
        ("config_args", "config_kwargs"),
    ] {
        let both = |value: &mut Value| {
            value[old] = json!({});
            value[new] = json!({"trust_remote_code": true});
        };
        let error = edited("bert-mean", "sentence_bert_config.json", both);
        assert_says(
            &error.map(|model| model.info).unwrap_err().to_string(),
            &[old, new, "keep one"],
        );
    }
    let common = |value: &mut Value| value["processing_kwargs"] = json!({"common": {"padding": 1}});
    let error = edited("bert-mean", "sentence_bert_config.json", common);
    assert_says(
        &error.map(|model| model.info).unwrap_err().to_string(),
        &["processing_kwargs.common.padding"],
    );
}

/// `is_causal` makes Qwen3 the model that pplx-embed is, whose vectors are compared with goldens.
#[test]
fn decoders_of_qwen_attend_to_later_tokens_by_is_causal() {
    let both_ways = edited("qwen3-pplx", "config.json", |_| {}).unwrap();
    let found = edited("qwen3-pplx", "config.json", |config| {
        config["model_type"] = json!("qwen3");
        config["is_causal"] = json!(false);
        config["use_bidirectional_attention"] = Value::Null;
    })
    .unwrap();
    assert_eq!(difference(&both_ways.program, &found.program), None);
    let causal = changed("qwen2-embedding", &json!({"is_causal": true})).unwrap();
    let change = json!({"is_causal": false, "auto_map": {"AutoModel": "modeling.Qwen2Model"}});
    let found = changed("qwen2-embedding", &change).unwrap();
    assert!(difference(&causal.program, &found.program).is_some());
    let slides = json!({"is_causal": false, "use_sliding_window": true, "sliding_window": 8,
        "max_window_layers": 0});
    assert_refused(
        "qwen2-embedding",
        &slides,
        &["`is_causal` is false", "sliding window"],
    );
}

/// Old models have another file in place of `sentence_bert_config.json`.
#[test]
fn the_first_file_that_describes_the_transformer_counts() {
    for name in ["sentence_roberta_config.json", "sentence_xlnet_config.json"] {
        let model = edited("bert-steps", name, |value| {
            value["max_seq_length"] = json!(33)
        });
        assert_eq!(model.unwrap().info.max_tokens, 33, "{name}");
        // bert-mean has the first file.
        let model = edited("bert-mean", name, |value| {
            value["max_seq_length"] = json!(33)
        });
        assert_eq!(model.unwrap().info.max_tokens, 64, "{name}");
    }
}

/// sentence-transformers leaves a weighted mean of layers out unless the model gives the hidden
/// states of its layers.
#[test]
fn a_weighted_mean_of_layers_is_refused_where_it_would_count() {
    let with = |shows: bool| {
        let mut all = Vec::new();
        files(&tiny("bert-mean"), "", &mut all);
        for (path, bytes) in &mut all {
            let mut value: Value = match path.as_str() {
                "modules.json" | "config.json" => serde_json::from_slice(bytes).unwrap(),
                _ => continue,
            };
            if path == "config.json" {
                value["output_hidden_states"] = json!(shows);
            } else {
                let kind = "sentence_transformers.models.WeightedLayerPooling";
                let row = json!({"idx": 1, "name": "w", "path": "1_Layers", "type": kind});
                value.as_array_mut().unwrap().insert(1, row);
            }
            *bytes = value.to_string().into_bytes();
        }
        let config =
            json!({"word_embedding_dimension": 42, "layer_start": 1, "num_hidden_layers": 2});
        all.push((
            "1_Layers/config.json".to_owned(),
            config.to_string().into_bytes(),
        ));
        let folder = all
            .into_iter()
            .fold(Folder::new(), |folder, (path, bytes)| {
                folder.with(&path, bytes)
            });
        build_encoder(&folder.open("").unwrap(), &EncoderOptions::default())
    };
    let plain = edited("bert-mean", "modules.json", |_| {}).unwrap();
    assert_eq!(
        difference(&plain.program, &with(false).unwrap().program),
        None
    );
    let error = with(true).unwrap_err().to_string();
    assert_says(
        &error,
        &[
            "1_Layers",
            "output_hidden_states",
            "a weighted mean of layers",
        ],
    );
}
