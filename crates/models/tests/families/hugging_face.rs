//! Hugging Face folders: the tiny checkpoints with changed configurations.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thane_mil::program::{Program, difference};
use thane_models::{AneDecoder, Model, ModelError, Options, families};

use super::{GEMMA, LLAMA, assert_refused, faults, lower};
use crate::checkpoint::builder::Folder;

pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny")
        .join(name)
}

/// The tiny checkpoint with these keys of its configuration replaced; null means absent.
pub fn with_config(name: &str, changes: &Value) -> Folder {
    let mut config: Value =
        serde_json::from_slice(&fs::read(tiny(name).join("config.json")).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let weights = fs::read(tiny(name).join("model.safetensors")).unwrap();
    Folder::new()
        .with("config.json", config.to_string())
        .with("model.safetensors", weights)
}

pub fn changed(name: &str, changes: &Value) -> Result<Model, ModelError> {
    lower(&with_config(name, changes), "", &Options::default())
}

#[test]
fn the_checkpoints_are_taken_as_they_are() {
    for name in [LLAMA, GEMMA] {
        let model = changed(name, &json!({})).unwrap();
        assert_eq!(
            (
                model.info.vocab_size,
                model.info.max_context,
                model.info.context
            ),
            (149, 512, 512)
        );
    }
}

#[test]
fn an_unknown_architecture_names_the_nearest_that_are_known() {
    let model = changed(LLAMA, &json!({"model_type": "qwen9"}));
    assert_refused(
        "qwen9",
        model,
        &["architecture `qwen9` is not supported", "qwen2", "qwen3"],
    );
    let bert = changed(LLAMA, &json!({"model_type": "bert"}));
    assert_refused(
        "an encoder",
        bert,
        &["architecture `bert` is an embedding model"],
    );
    for name in ["llama", "gemma3_text", "bidirectional_pplx_qwen3", "gpt2"] {
        assert!(families::names().contains(&name), "{name}");
    }
    assert_refused(
        "no type",
        changed(LLAMA, &json!({"model_type": null})),
        &["\"model_type\" is missing"],
    );
    assert_refused(
        "a number",
        changed(LLAMA, &json!({"model_type": 7})),
        &["\"model_type\"", "found 7", "a string"],
    );
}

#[test]
fn unknown_keys_are_refused_by_name_and_all_at_once() {
    for (name, keys) in [
        (LLAMA, json!({"sliding_window": 4096})),
        (
            LLAMA,
            json!({"num_experts": 8, "num_local_experts": 4, "made_up": {"deep": 1}}),
        ),
        (
            LLAMA,
            json!({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
        ),
        (
            LLAMA,
            json!({"compression_config": {"quant_method": "gptq"}, "query_pre_attn_scalar": 256}),
        ),
        (
            GEMMA,
            json!({"num_experts": 8, "mlp_bias": true, "rope_interleaved": true}),
        ),
        (
            GEMMA,
            json!({"vision_config": {}, "altup_num_inputs": 4, "made_up": false}),
        ),
    ] {
        let model = changed(name, &keys);
        let mut parts = vec!["does not support these keys"];
        parts.extend(keys.as_object().unwrap().keys().map(String::as_str));
        assert_refused(&format!("{name} {keys}"), model, &parts);
    }
    let rope = json!({"rope_type": "linear", "factor": 2.0, "attention_factor": 2.0});
    let nested = json!({"rope_parameters": null, "rope_theta": 700.0, "rope_scaling": rope});
    assert_refused(
        "a nested key",
        changed(LLAMA, &nested),
        &["rope_scaling.attention_factor"],
    );
    let nested = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 700.0, "attention_factor": 2.0}});
    assert_refused(
        "a nested key",
        changed(LLAMA, &nested),
        &["rope_parameters.attention_factor"],
    );
}

#[test]
fn keys_that_are_null_or_say_nothing_of_the_computation_are_taken() {
    let notes = json!({
        "num_experts": null, "sliding_window": null, "use_cache": false, "transformers_version": "9", "eos_token_id": [1, 2],
        "_name_or_path": "x", "torch_dtype": "float64", "unsloth_version": "1", "initializer_range": 7.0,
        "made_up_list": [], "made_up_text": "",
    });
    changed(LLAMA, &notes).unwrap();
}

/// transformers 5 checks the types of these, and has its default only where a key is absent.
#[test]
fn nulls_in_place_of_numbers_are_refused() {
    let config = fs::read(tiny(LLAMA).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut rope = config["rope_parameters"].clone();
    rope["rope_theta"] = Value::Null;
    for (key, value) in [
        ("rms_norm_eps", Value::Null),
        ("hidden_act", Value::Null),
        ("max_position_embeddings", Value::Null),
        ("rope_parameters", rope),
    ] {
        let error = changed(LLAMA, &json!({ key: value })).err();
        let error = format!("{error:?}");
        assert!(error.contains("null"), "{key}: {error}");
    }
}

#[test]
fn rotary_embeddings_that_are_not_computed_are_refused() {
    for kind in ["mrope", "ntk", "xpos"] {
        let new =
            json!({"rope_parameters": {"rope_type": kind, "rope_theta": 700.0, "factor": 4.0}});
        let old = json!({"rope_parameters": null, "rope_theta": 700.0, "rope_scaling": {"type": kind, "factor": 4.0}});
        let full = json!({"rope_parameters": {
            "full_attention": {"rope_type": kind, "rope_theta": 700.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        }});
        for (name, change) in [(LLAMA, new), (LLAMA, old), (GEMMA, full)] {
            let parts = ["`rope_type`", kind, "expected default, linear"];
            assert_refused(&format!("{name} {change}"), changed(name, &change), &parts);
        }
    }
    let rope = |more: (&str, Value)| {
        let mut rope = json!({"rope_type": "default", "rope_theta": 700.0});
        rope[more.0] = more.1;
        json!({"rope_parameters": rope})
    };
    let per_type = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}});
    for (name, change, parts) in [
        // transformers fails, too.
        (
            "llama-rope3",
            json!({"partial_rotary_factor": 0.5}),
            &["`partial_rotary_factor`", "0.5", "whole heads"][..],
        ),
        (
            "stablelm",
            json!({"partial_rotary_factor": null}),
            &["`partial_rotary_factor` is null", "the share is 0.25"],
        ),
        (
            "glm4",
            rope(("partial_rotary_factor", json!(null))),
            &["`rope_parameters.partial_rotary_factor` is null"],
        ),
        (
            "qwen2-dynamic",
            rope(("rope_type", json!("dynamic"))),
            &["\"rope_parameters.factor\" is missing"],
        ),
        (
            LLAMA,
            json!({"rope_interleaved": true}),
            &["`rope_interleaved`", "true"],
        ),
        (
            LLAMA,
            rope(("rope_theta", json!(0))),
            &["rope_parameters.rope_theta", "from 2 to 1e15"],
        ),
        (LLAMA, per_type, &["`rope_parameters`", "per layer type"]),
        (
            LLAMA,
            json!({"rope_theta": 2.5}),
            &["rope_parameters", "contradict"],
        ),
        (
            GEMMA,
            rope(("rope_type", json!("default"))),
            &["`rope_parameters`", "for each layer type"],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

#[test]
fn values_that_a_family_does_not_compute_are_refused() {
    for (name, change, parts) in [
        (
            LLAMA,
            json!({"hidden_act": "snake"}),
            &["`hidden_act`", "snake", "silu"][..],
        ),
        (
            LLAMA,
            json!({"rms_norm_eps": -1e-5}),
            &[
                "\"rms_norm_eps\"",
                "a number from 1e-20 to 1, found -0.00001",
            ],
        ),
        (
            LLAMA,
            json!({"tie_word_embeddings": "yes"}),
            &["tie_word_embeddings", "\"yes\""],
        ),
        (
            LLAMA,
            json!({"hidden_size": null}),
            &["\"hidden_size\" is missing"],
        ),
        (
            LLAMA,
            json!({"hidden_size": 54.5}),
            &["\"hidden_size\"", "54.5", "a whole number"],
        ),
        (
            GEMMA,
            json!({"hidden_activation": "snake"}),
            &["`hidden_activation`", "gelu_pytorch_tanh"],
        ),
        (
            GEMMA,
            json!({"hidden_activation": null, "hidden_act": "snake"}),
            &["\"hidden_activation\"", "found null"],
        ),
        (
            GEMMA,
            json!({"final_logit_softcapping": 0}),
            &["\"final_logit_softcapping\"", "found 0"],
        ),
        (
            GEMMA,
            json!({"use_bidirectional_attention": true}),
            &["`use_bidirectional_attention`"],
        ),
        (
            GEMMA,
            json!({"text_config": {"hidden_size": 44}}),
            &["text_config.num_hidden_layers", "missing"],
        ),
        (
            GEMMA,
            json!({"layer_types": ["full_attention"]}),
            &["`layer_types`", "1 names", "num_hidden_layers is 4"],
        ),
        (
            GEMMA,
            json!({"layer_types": ["full_attention", "chunked_attention", "full_attention", "full_attention"]}),
            &["`layer_types`", "chunked_attention"],
        ),
        (
            GEMMA,
            json!({"layer_types": null, "sliding_window_pattern": 0}),
            &["`sliding_window_pattern`", "is 0"],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

/// Absurd sizes must be rejected before a long loop runs or much memory is allocated.
#[test]
fn absurd_sizes_are_refused() {
    for name in [LLAMA, GEMMA] {
        for key in [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "vocab_size",
            "head_dim",
            "max_position_embeddings",
        ] {
            for size in [0, 1 << 25, 1_000_000_000, 1_000_000_000_000, u64::MAX] {
                let model = changed(name, &json!({key: size}));
                assert_refused(&format!("{name} {key}"), model, &[key, &size.to_string()]);
            }
        }
        let model = changed(name, &json!({"num_hidden_layers": 1025}));
        assert_refused(
            "layers",
            model,
            &["`num_hidden_layers`", "1025", "1 to 1024 layers"],
        );
        // Each size is allowed, but their product is not.
        let model = changed(
            name,
            &json!({"num_attention_heads": 1 << 20, "head_dim": 1 << 16}),
        );
        assert_refused(
            "heads",
            model,
            &["`num_attention_heads * head_dim`", "68719476736"],
        );
        let model = changed(name, &json!({"head_dim": 1 << 17}));
        assert_refused("a head", model, &["`head_dim`", "131072"]);
        // The largest allowed size, which the tensors do not fit.
        let most = 1 << 24;
        let model = changed(
            name,
            &json!({"hidden_size": most, "intermediate_size": most, "vocab_size": most}),
        );
        assert_refused(
            name,
            model,
            &[
                "found [149, ",
                "`model.embed_tokens.weight`: expected the shape [16777216, 16777216]",
            ],
        );
    }
}

#[test]
fn more_layers_than_the_file_has_are_all_listed() {
    let found = faults(changed(
        GEMMA,
        &json!({"num_hidden_layers": 64, "layer_types": null}),
    ));
    assert_eq!(found.len(), 60 * 13);
    assert!(
        found.contains(&"`model.layers.63.mlp.up_proj.weight` [31, 44] is missing".to_owned()),
        "{found:?}"
    );
    let found = faults(changed(
        GEMMA,
        &json!({"num_hidden_layers": 3, "layer_types": null}),
    ));
    assert_eq!(found.len(), 13, "{found:?}");
    assert!(
        found
            .iter()
            .all(|f| f.contains("model.layers.3.") && f.contains("does not belong")),
        "{found:?}"
    );
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    for (name, change, parts) in [
        (
            LLAMA,
            json!({"num_key_value_heads": 4}),
            &[
                "`num_key_value_heads` is 4",
                "`num_attention_heads`, 6",
                "expected a divisor",
            ][..],
        ),
        (
            LLAMA,
            json!({"num_key_value_heads": 12}),
            &["`num_key_value_heads` is 12", "`num_attention_heads`, 6"],
        ),
        (
            GEMMA,
            json!({"num_key_value_heads": 3}),
            &["`num_key_value_heads` is 3", "`num_attention_heads`, 4"],
        ),
        (
            LLAMA,
            json!({"head_dim": 9}),
            &["`head_dim`", "is 9", "even"],
        ),
        (
            LLAMA,
            json!({"head_dim": null, "num_attention_heads": 4}),
            &["`head_dim`", "4 heads", "54"],
        ),
        (
            LLAMA,
            json!({"head_dim": null, "num_attention_heads": 64}),
            &["`head_dim`", "64 heads", "54"],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
    // Heads that fit each other but not the tensors.
    let found = faults(changed(
        LLAMA,
        &json!({"num_key_value_heads": 3, "num_hidden_layers": 1}),
    ));
    let due = "`model.layers.0.self_attn.k_proj.bias`: expected the shape [30], found [20]";
    assert!(found.contains(&due.to_owned()), "{found:?}");
}

#[test]
fn a_vocabulary_of_another_size_is_refused() {
    let due = ["`model.embed_tokens.weight`: expected the shape [150, 54], found [149, 54]"];
    assert_eq!(faults(changed(LLAMA, &json!({"vocab_size": 150}))), due);
}

#[test]
fn a_context_that_the_model_does_not_have_is_refused() {
    let folder = with_config(GEMMA, &json!({}));
    for asked in [0, 513, usize::MAX] {
        let model = lower(
            &folder,
            "",
            &Options {
                context: Some(asked),
                ..Options::default()
            },
        );
        let parts = [
            &format!("found {asked}"),
            "the number of positions of the model",
            "context length from 1 to 512",
        ];
        assert_refused("a context", model, &parts.map(|part: &str| part));
    }
    for asked in [1, 512] {
        let model = lower(
            &folder,
            "",
            &Options {
                context: Some(asked),
                ..Options::default()
            },
        )
        .unwrap();
        assert_eq!(model.info.context, asked);
        // 4 layers, keys and values of one head of 14, fp32.
        assert_eq!(model.info.cache_bytes, asked * 4 * 2 * 14 * 4);
    }
    let long = changed(GEMMA, &json!({"max_position_embeddings": 100_000})).unwrap();
    assert_eq!(
        (long.info.max_context, long.info.context),
        (100_000, Options::DEFAULT_CONTEXT)
    );
}

#[test]
fn functions_are_those_that_are_asked_for() {
    let folder = with_config(GEMMA, &json!({}));
    let options = |top| Options {
        top,
        ..Options::default()
    };
    let names = |options: &Options| -> Vec<String> {
        let model = lower(&folder, "", options).unwrap();
        let functions = model.program.functions().iter();
        functions.map(|f| f.name.clone()).collect()
    };
    assert_eq!(names(&options(None)), ["prefill", "decode"]);
    let all = Options {
        verify: true,
        ..options(Some(5))
    };
    assert_eq!(names(&all), ["prefill", "decode", "decode_top", "verify"]);
    for (asked, n) in [(1, 1), (5, 5), (149, 149), (1 << 40, 149)] {
        let program = lower(&folder, "", &options(Some(asked))).unwrap().program;
        let f = program.function("decode_top").unwrap();
        let outputs = f.body().outputs.iter().map(|v| f.value(*v));
        let outputs: Vec<String> = outputs.map(|v| format!("{} {}", v.name, v.ty)).collect();
        let due = [
            format!("top_logits tensor<fp32, [1, ?, {n}]>"),
            format!("top_tokens tensor<int32, [1, ?, {n}]>"),
        ];
        assert_eq!(outputs, due);
    }
    assert_refused(
        "no logits",
        lower(&folder, "", &options(Some(0))),
        &["`top` is 0", "at least one logit"],
    );
    let engine = Options {
        ane: Some(AneDecoder::default()),
        ..options(Some(1))
    };
    let parts = ["`top` is 1", "all logits of a token"];
    assert_refused("the engine form", lower(&folder, "", &engine), &parts);
}

/// The old spelling of Gemma 3 describes full-attention layers. Sliding-window layers have the base
/// 10,000 if the file does not give one.
#[test]
fn gemma_without_a_local_base_takes_the_default() {
    let old = |more: &Value| {
        let mut change = json!({"rope_parameters": null, "rope_theta": 5000.0});
        change
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        changed(GEMMA, &change).unwrap().program
    };
    let same = |a: &Program, b: &Program| difference(a, b).is_none();
    let implied = old(&json!({}));
    assert!(same(
        &implied,
        &old(&json!({"rope_local_base_freq": 10_000.0}))
    ));
    assert!(!same(
        &implied,
        &old(&json!({"rope_local_base_freq": 5000.0}))
    ));
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let scaled = old(&json!({"rope_scaling": linear}));
    assert!(same(
        &scaled,
        &old(&json!({"rope_scaling": linear, "rope_local_base_freq": 10_000.0}))
    ));
    assert!(!same(&scaled, &implied));
}

/// Values that are no sizes or numbers where a family computes others from them.
#[test]
fn values_that_others_are_computed_from_are_checked() {
    for (name, change, parts) in [
        (
            "qwen2-yarn",
            json!({"rope_theta": 1.0}),
            &["\"rope_theta\"", "from 2 to 1e15, found 1.0"][..],
        ),
        (
            "lfm2",
            json!({"block_ffn_dim_multiplier": 1e6}),
            &["`intermediate_size`", "1 to 16,777,216"],
        ),
        (
            "exaone4",
            json!({"layer_types": null, "sliding_window_pattern": ""}),
            &["`sliding_window_pattern`", "an empty text"],
        ),
        (
            "gemma4",
            json!({"hidden_size_per_layer_input": 16_000_000}),
            &["`hidden_size_per_layer_input * num_hidden_layers`"],
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 5}),
            &["`num_kv_shared_layers`", "less than `num_hidden_layers`"],
        ),
        (
            "gemma4",
            json!({"num_kv_shared_layers": 4}),
            &["`num_kv_shared_layers`", "a layer of each type before"],
        ),
        (
            "phi3-long",
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0],
                "long_factor": [1.0, 2.0, 3.0]}}),
            &["`short_factor`", "1 numbers", "expected 3"],
        ),
        (
            "smollm3",
            json!({"no_rope_layers": [1]}),
            &["`no_rope_layers`", "num_hidden_layers is 4"],
        ),
        (
            "gpt2",
            json!({"add_cross_attention": true}),
            &["`add_cross_attention`"],
        ),
        (
            "ministral3",
            json!({"text_config": {"model_type": "qwen2"}}),
            &["`text_config.model_type` is qwen2", "ministral3, mistral"],
        ),
        (
            "qwen3_5-image",
            json!({"text_config": {"model_type": null}}),
            &[
                "\"text_config.model_type\"",
                "expected \"qwen3_5_text\", or no such key, found null",
            ],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

/// What a change of a key was found to change in transformers and not here.
#[test]
fn settings_that_the_reference_computes_otherwise_are_refused() {
    for (name, change, parts) in [
        (
            "gemma4",
            json!({"use_bidirectional_attention": "some"}),
            &["`use_bidirectional_attention` is some", "null or vision"][..],
        ),
        // Both would be applied in two places or in none.
        (
            "qwen3_5",
            json!({"hidden_act": "relu"}),
            &[
                "`hidden_act` is relu",
                "expected silu, which the convolutions",
            ],
        ),
        (
            "lfm2",
            json!({"hidden_act": "relu"}),
            &["`hidden_act` is relu", "expected silu, which transformers"],
        ),
        (
            "lfm2",
            json!({"layer_types": ["conv", "sliding_attention", "conv", "conv"]}),
            &[
                "`layer_types` is sliding_attention",
                "expected full_attention or conv",
            ],
        ),
        (
            "phi3-long",
            json!({"original_max_position_embeddings": 1}),
            &[
                "\"original_max_position_embeddings\"",
                "an integer above 1, found 1",
            ],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

/// The class of transformers rotates whole heads, as the golden of `llama-relu` shows, whose
/// configuration has the key.
#[test]
fn llama_does_not_read_the_share_of_rotated_elements() {
    let config = fs::read(tiny("llama-relu").join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["partial_rotary_factor"], 0.5);
    assert_eq!(config["rope_parameters"]["partial_rotary_factor"], 0.5);
    let mut rope = config["rope_parameters"].clone();
    rope.as_object_mut()
        .unwrap()
        .remove("partial_rotary_factor");
    let change = json!({"partial_rotary_factor": null, "rope_parameters": rope});
    let [with, without] = [json!({}), change].map(|c| changed("llama-relu", &c).unwrap());
    assert_eq!(difference(&with.program, &without.program), None);
}

/// With dynamic scaling the context of training is the usual one, and the longest is longer.
#[test]
fn dynamic_scaling_gives_a_longer_context_to_those_who_ask() {
    let checkpoint = with_config("qwen2-dynamic", &json!({"max_position_embeddings": 50}));
    let built = |context: Option<usize>| {
        let options = Options {
            context,
            ..Options::default()
        };
        lower(&checkpoint, "", &options)
    };
    let model = built(None).unwrap();
    assert_eq!((model.info.context, model.info.max_context), (50, 100));
    assert_eq!(built(Some(100)).unwrap().info.context, 100);
    assert_refused("101", built(Some(101)), &["101", "100"]);
}

/// Without a share of rotated elements a program still answers fluently, and wrongly.
#[test]
fn gemma4_takes_no_default_for_a_rotary_embedding() {
    type Edit = fn(&mut Value);
    let rope = |edit: Edit| {
        let config = fs::read(tiny("gemma4").join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        edit(&mut config["rope_parameters"]);
        changed(
            "gemma4",
            &json!({"rope_parameters": config["rope_parameters"]}),
        )
    };
    rope(|_| {}).unwrap();
    let cases: [(Edit, &str); 5] = [
        (|rope| *rope = Value::Null, "\"rope_parameters\" is missing"),
        (
            |rope| rope["full_attention"] = Value::Null,
            "\"rope_parameters.full_attention\" is missing",
        ),
        (
            |rope| rope["full_attention"]["rope_type"] = Value::Null,
            "\"rope_parameters.full_attention.rope_type\" is missing",
        ),
        (
            |rope| rope["full_attention"]["rope_theta"] = Value::Null,
            "\"rope_parameters.full_attention.rope_theta\" is missing",
        ),
        (
            |rope| rope["sliding_attention"] = Value::Null,
            "\"rope_parameters.sliding_attention\" is missing",
        ),
    ];
    for (edit, said) in cases {
        assert_refused(said, rope(edit), &[said]);
    }
}

/// The defaults of a class are not those of the class after it.
#[test]
fn a_base_that_is_missing_is_the_default_of_its_class() {
    for (name, theta) in [("cohere-plain", 500_000.0), ("cohere2-plain", 10_000.0)] {
        let of = |rope: Value| {
            changed(name, &json!({"rope_parameters": rope}))
                .unwrap()
                .program
        };
        let implied = of(Value::Null);
        let given = of(json!({"rope_type": "default", "rope_theta": theta}));
        assert_eq!(difference(&implied, &given), None, "{name}");
    }
}
