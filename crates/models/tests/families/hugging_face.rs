//! Hugging Face folders: the tiny checkpoints with changed configurations and tensors.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, print};
use thane_models::{Model, ModelError, Options, families};

use super::{GEMMA, IMAGE, LLAMA, assert_refused, faults, lower};
use crate::checkpoint::builder::Folder;

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models/tiny")
        .join(name)
}

/// The tiny checkpoint with these keys of its configuration replaced; null stands for absent.
fn with_config(name: &str, changes: &Value) -> Folder {
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

fn changed(name: &str, changes: &Value) -> Result<Model, ModelError> {
    lower(&with_config(name, changes), "", &Options::default())
}

/// The tiny checkpoint with the header of its safetensors file edited; `more` zeros are appended to
/// its data.
fn with_header(name: &str, more: usize, edit: impl Fn(&mut Map<String, Value>, usize)) -> Folder {
    let file = fs::read(tiny(name).join("model.safetensors")).unwrap();
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    edit(&mut header, data.len());
    let header = Value::Object(header).to_string();
    let weights = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
        &vec![0; more],
    ]
    .concat();
    with_config(name, &json!({})).with("model.safetensors", weights)
}

fn rename(header: &mut Map<String, Value>, from: &str, to: &str) {
    let entry = header.remove(from).unwrap();
    header.insert(to.to_owned(), entry);
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
fn an_unknown_architecture_lists_those_that_are_known() {
    let model = changed(LLAMA, &json!({"model_type": "qwen9"}));
    assert_refused(
        "qwen9",
        model,
        &[
            "architecture `qwen9` is not supported",
            "llama, gemma3_text, gemma3, qwen3",
        ],
    );
    let bert = changed(LLAMA, &json!({"model_type": "bert"}));
    assert_refused(
        "an encoder",
        bert,
        &["architecture `bert` is an embedding model"],
    );
    let encoders = ["bidirectional_pplx_qwen3", "bert", "modernbert"];
    assert_eq!(
        families::names(),
        [&["llama", "gemma3_text", "gemma3", "qwen3"][..], &encoders].concat()
    );
    assert_refused(
        "no type",
        changed(LLAMA, &json!({"model_type": null})),
        &["\"model_type\" is missing"],
    );
    assert_refused(
        "a number",
        changed(LLAMA, &json!({"model_type": 7})),
        &["\"model_type\"", "is 7", "a string"],
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
            json!({"quantization_config": {"quant_method": "gptq"}, "query_pre_attn_scalar": 256}),
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
        let mut parts = vec!["does not know what these keys mean"];
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
    });
    changed(LLAMA, &notes).unwrap();
}

#[test]
fn rotary_embeddings_that_are_not_computed_are_refused() {
    for kind in ["yarn", "dynamic", "longrope", "su", "proportional"] {
        let new =
            json!({"rope_parameters": {"rope_type": kind, "rope_theta": 700.0, "factor": 4.0}});
        let old = json!({"rope_parameters": null, "rope_theta": 700.0, "rope_scaling": {"type": kind, "factor": 4.0}});
        let full = json!({"rope_parameters": {
            "full_attention": {"rope_type": kind, "rope_theta": 700.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
        }});
        for (name, change) in [(LLAMA, new), (LLAMA, old), (GEMMA, full)] {
            let parts = ["`rope_type`", kind, "default, linear and llama3 are known"];
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
        (
            LLAMA,
            json!({"partial_rotary_factor": 0.5}),
            &["`partial_rotary_factor`", "0.5", "whole heads"][..],
        ),
        (
            LLAMA,
            rope(("partial_rotary_factor", json!(0.25))),
            &["`partial_rotary_factor`", "0.25"],
        ),
        (
            LLAMA,
            json!({"rope_interleaved": true}),
            &["`rope_interleaved`", "true"],
        ),
        (
            LLAMA,
            rope(("rope_theta", json!(0))),
            &["rope_parameters.rope_theta", "above zero"],
        ),
        (LLAMA, per_type, &["`rope_parameters`", "per layer type"]),
        (
            LLAMA,
            json!({"rope_theta": 1.5}),
            &["rope_parameters", "contradict"],
        ),
        (
            GEMMA,
            rope(("rope_type", json!("default"))),
            &["`rope_parameters`", "for each type of layer"],
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
            json!({"hidden_act": "gelu"}),
            &["`hidden_act`", "gelu", "silu"][..],
        ),
        (
            LLAMA,
            json!({"rms_norm_eps": -1e-5}),
            &["`rms_norm_eps`", "above 0"],
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
            json!({"hidden_activation": "gelu"}),
            &["`hidden_activation`", "gelu_pytorch_tanh"],
        ),
        (
            GEMMA,
            json!({"hidden_activation": null, "hidden_act": "silu"}),
            &["`hidden_activation`", "silu"],
        ),
        (
            GEMMA,
            json!({"attn_logit_softcapping": 50.0}),
            &["`attn_logit_softcapping`", "50"],
        ),
        (
            GEMMA,
            json!({"final_logit_softcapping": 30.0}),
            &["`final_logit_softcapping`", "30"],
        ),
        (
            GEMMA,
            json!({"use_bidirectional_attention": true}),
            &["`use_bidirectional_attention`"],
        ),
        (
            GEMMA,
            json!({"query_pre_attn_scalar": 0}),
            &["`query_pre_attn_scalar`", "above 0"],
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
            json!({"layer_types": null, "_sliding_window_pattern": 0}),
            &["`sliding_window_pattern`", "is 0"],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

/// None of these may run a long loop or ask for much memory before it is refused.
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
        // Each is allowed, and their product is not.
        let model = changed(
            name,
            &json!({"num_attention_heads": 1 << 20, "head_dim": 1 << 16}),
        );
        assert_refused(
            "heads",
            model,
            &["number of heads * head size", "68719476736"],
        );
        let model = changed(name, &json!({"head_dim": 1 << 17}));
        assert_refused("a head", model, &["head size", "131072"]);
        // As large as is allowed: what does not fit is the tensors.
        let most = 1 << 24;
        let model = changed(
            name,
            &json!({"hidden_size": most, "intermediate_size": most, "vocab_size": most}),
        );
        assert_refused(
            name,
            model,
            &[
                "`model.embed_tokens.weight` is [149, ",
                "[16777216, 16777216] is due",
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
            .all(|f| f.contains("model.layers.3.") && f.contains("no place")),
        "{found:?}"
    );
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    for (name, change, parts) in [
        (
            LLAMA,
            json!({"num_key_value_heads": 4}),
            &["key-value heads", "4, for 6 heads", "divide"][..],
        ),
        (
            LLAMA,
            json!({"num_key_value_heads": 12}),
            &["key-value heads", "12, for 6 heads"],
        ),
        (
            GEMMA,
            json!({"num_key_value_heads": 3}),
            &["key-value heads", "3, for 4 heads"],
        ),
        (
            LLAMA,
            json!({"head_dim": 9}),
            &["head size", "is 9", "even"],
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
    // Heads that fit one another, but not the tensors.
    let found = faults(changed(
        LLAMA,
        &json!({"num_key_value_heads": 3, "num_hidden_layers": 1}),
    ));
    let due = "`model.layers.0.self_attn.k_proj.bias` is [20], [30] is due";
    assert!(found.contains(&due.to_owned()), "{found:?}");
}

#[test]
fn a_vocabulary_of_another_size_is_refused() {
    let due = ["`model.embed_tokens.weight` is [149, 54], [150, 54] is due"];
    assert_eq!(faults(changed(LLAMA, &json!({"vocab_size": 150}))), due);
}

#[test]
fn missing_extra_and_misshapen_tensors_are_listed_together() {
    let folder = with_header(LLAMA, 8, |header, end| {
        rename(
            header,
            "model.layers.1.mlp.up_proj.bias",
            "model.layers.1.mlp.stray",
        );
        rename(header, "model.norm.weight", "norm.weight");
        header["model.layers.0.input_layernorm.weight"]["shape"] = json!([2, 27]);
        let offsets = [end, end + 8];
        header.insert(
            "position_ids".to_owned(),
            json!({"dtype": "I64", "shape": [1], "data_offsets": offsets}),
        );
    });
    let expected = [
        "`model.layers.0.input_layernorm.weight` is [2, 27], [54] is due",
        "`model.layers.1.mlp.up_proj.bias` [61] is missing",
        "`model.norm.weight` [54] is missing",
        "`model.layers.1.mlp.stray` [61] has no place in this architecture",
        "`norm.weight` [54] has no place in this architecture",
        "`position_ids` [1] has no place in this architecture",
    ];
    assert_eq!(faults(lower(&folder, "", &Options::default())), expected);
    let message = lower(&folder, "", &Options::default())
        .unwrap_err()
        .to_string();
    assert_eq!(
        message,
        format!(
            "the tensors do not fit the configuration:\n  {}",
            expected.join("\n  ")
        )
    );
}

#[test]
fn switches_that_the_tensors_contradict_are_refused() {
    let found = faults(changed(LLAMA, &json!({"attention_bias": false})));
    assert_eq!(found.len(), 8, "{found:?}");
    assert!(
        found
            .iter()
            .all(|f| f.contains("_proj.bias` ") && f.contains("no place")),
        "{found:?}"
    );
    let found = faults(changed(LLAMA, &json!({"tie_word_embeddings": false})));
    assert_eq!(found, ["`lm_head.weight` [149, 54] is missing"]);
    let found = faults(changed(GEMMA, &json!({"attention_bias": true})));
    assert_eq!(found.len(), 16, "{found:?}");
}

/// The head of the file counts where it differs from the embedding, and a note says so; equal
/// numbers are a tied head.
#[test]
fn a_head_beside_tied_embeddings_is_compared_with_them() {
    let is_untied = |model: &Model| {
        let mut blobs = Blobs::default();
        print(&model.program, &mut blobs).contains("lm_head_weight")
    };
    let same = |seed: u8| {
        let (folder, head) = (with_header(LLAMA, 149 * 54 * 4, add_head), 149 * 54 * 4);
        let mut file = fs::read(folder.path("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize + 8;
        let text: Value = serde_json::from_slice(&file[8..header]).unwrap();
        let [from, to] = [0, 1].map(|i| {
            text["model.embed_tokens.weight"]["data_offsets"][i]
                .as_u64()
                .unwrap() as usize
        });
        let table = file[header + from..header + to].to_vec();
        let at = file.len() - head;
        file[at..].copy_from_slice(&table);
        *file.last_mut().unwrap() ^= seed;
        lower(
            &folder.with("model.safetensors", file),
            "",
            &Options::default(),
        )
        .unwrap()
    };
    let (tied, untied) = (same(0), same(1));
    assert!(
        tied.notes.is_empty() && !is_untied(&tied),
        "{:?}",
        tied.notes
    );
    assert!(is_untied(&untied));
    let [note] = untied.notes.as_slice() else {
        panic!("{:?}", untied.notes)
    };
    assert!(note.contains(
        "`lm_head.weight` differs from `model.embed_tokens.weight`: the head of the file is used"
    ));
    assert_eq!(
        difference(&tied.program, &changed(LLAMA, &json!({})).unwrap().program),
        None
    );
}

/// A head of zeros behind the other tensors.
fn add_head(header: &mut Map<String, Value>, end: usize) {
    let offsets = [end, end + 149 * 54 * 4];
    header.insert(
        "lm_head.weight".to_owned(),
        json!({"dtype": "F32", "shape": [149, 54], "data_offsets": offsets}),
    );
}

/// Gemma 3 with eyes, in both spellings of its names: the text model is the same, and tensors of
/// images are left alone.
#[test]
fn the_text_part_of_a_model_that_sees_images_is_taken() {
    let original = lower(&with_config(IMAGE, &json!({})), "", &Options::default()).unwrap();
    let newer = with_header(IMAGE, 0, |header, _| {
        for name in header.keys().cloned().collect::<Vec<_>>() {
            if name != "__metadata__" {
                let rest = name.strip_prefix("language_model.model.");
                rename(
                    header,
                    &name,
                    &rest.map_or(format!("model.{name}"), |r| {
                        format!("model.language_model.{r}")
                    }),
                );
            }
        }
    });
    let newer = lower(&newer, "", &Options::default()).unwrap();
    assert_eq!(newer.info, original.info);
    let text = |model: &Model| print(&model.program, &mut Blobs::default());
    // Constants are named after the tensors of the file.
    assert_eq!(
        text(&newer).replace("model_language_model_", "language_model_model_"),
        text(&original)
    );
    let stray = with_header(IMAGE, 0, |header, _| {
        rename(header, "vision_tower.head.probe", "audio_tower.probe");
        rename(
            header,
            "language_model.model.norm.weight",
            "language_model.model.final.weight",
        );
    });
    assert_eq!(
        faults(lower(&stray, "", &Options::default())),
        [
            "`language_model.model.norm.weight` [40] is missing",
            "`audio_tower.probe` [1, 1, 6] has no place in this architecture",
            "`language_model.model.final.weight` [40] has no place in this architecture",
        ]
    );
    let config = json!({"audio_config": {}});
    assert_refused(
        "another sense",
        lower(&with_config(IMAGE, &config), "", &Options::default()),
        &["audio_config"],
    );
}

#[test]
fn a_weight_that_holds_no_numbers_of_ours_is_refused() {
    // The bytes of 54 F32 as 27 F64, or as 54 I32.
    for (dtype, len) in [("F64", 27), ("I32", 54)] {
        let folder = with_header(LLAMA, 0, |header, _| {
            header["model.norm.weight"]["dtype"] = json!(dtype);
            header["model.norm.weight"]["shape"] = json!([len]);
        });
        let parts = [
            "`model.norm.weight` is ",
            if len == 54 {
                "type I32: F32, F16, BF16"
            } else {
                "[27], [54] is due"
            },
        ];
        assert_refused(dtype, lower(&folder, "", &Options::default()), &parts);
    }
}

#[test]
fn tensors_that_follow_from_others_are_left_alone() {
    let folder = with_header(LLAMA, 5 * 4, |header, end| {
        header.insert(
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            json!({"dtype": "F32", "shape": [5], "data_offsets": [end, end + 20]}),
        );
    });
    let options = Options::default();
    let (found, expected) = (
        lower(&folder, "", &options).unwrap(),
        changed(LLAMA, &json!({})).unwrap(),
    );
    assert_eq!(difference(&found.program, &expected.program), None);
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
            &format!("a context of {asked} "),
            "the model has 512 positions",
            "--context 1 to 512",
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

/// The old spelling of Gemma 3 speaks of the full layers; the sliding ones have 10,000 where it
/// does not name them.
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
