//! Quantized Hugging Face folders: blocks stay blocks, and what cannot be read is refused by name.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Map, Value, json};
use thane_mil::program::{Op, Program, difference};
use thane_mil::types::DType;
use thane_models::checkpoint::{Checkpoint, CheckpointError};
use thane_models::{AneDecoder, Options, build, check_numbers};

use super::hugging_face::{tiny, with_config};
use crate::checkpoint::builder::{Folder, assert_says};

/// Element types of the codes of all quantized matrices in the program's first function.
fn code_types(program: &Program) -> BTreeMap<DType, usize> {
    let f = &program.functions()[0];
    let mut found = BTreeMap::new();
    for op in f.body().ops.iter().map(|id| f.op(*id)) {
        if op.def.name == "constexpr_blockwise_shift_scale" {
            let data = op.value_arg("data").unwrap();
            *found
                .entry(f.value(data).ty.tensor().unwrap().dtype)
                .or_default() += 1;
        }
    }
    found
}

fn build_tiny(name: &str, options: &Options) -> thane_models::Model {
    build(&Checkpoint::open(&tiny(name)).unwrap(), options).unwrap()
}

#[test]
fn whole_numbers_stay_codes_in_fp32_programs_and_floats_become_numbers() {
    // Two layers of seven matrices; Phi-3 reads parts of two of its four.
    for (name, expected) in [
        ("compressed-int8", Some((DType::Int8, 14))),
        ("compressed-int8-tensor", Some((DType::Int8, 14))),
        ("compressed-int4", Some((DType::Int4, 14))),
        ("compressed-int4-zeros", Some((DType::Int4, 14))),
        ("compressed-packed8", Some((DType::Int8, 14))),
        ("gptq", Some((DType::Uint4, 14))),
        ("awq", Some((DType::Uint4, 14))),
        // Permuted groups and floats have no such form.
        ("gptq-order", None),
        ("compressed-fp8", None),
        ("fp8", None),
    ] {
        let model = build_tiny(name, &Options::default());
        let expected: BTreeMap<_, _> = expected.into_iter().collect();
        assert_eq!(code_types(&model.program), expected, "{name}");
        check_numbers(&model.stored).unwrap();
        let engine = Options {
            ane: Some(AneDecoder::default()),
            ..Options::default()
        };
        let model = build_tiny(name, &engine);
        assert_eq!(code_types(&model.program), BTreeMap::new(), "{name}");
        check_numbers(&model.stored).unwrap();
    }
}

#[test]
fn a_note_says_that_activations_are_not_quantized() {
    for (name, is_noted) in [
        ("compressed-int8", true),
        ("compressed-fp8", true),
        ("fp8", true),
        ("compressed-int4", false),
        ("gptq", false),
        ("awq", false),
    ] {
        let notes = build_tiny(name, &Options::default()).notes;
        assert_eq!(notes.len(), usize::from(is_noted), "{name}: {notes:?}");
        if is_noted {
            assert_says(&notes[0], &["does not quantize activations"]);
        }
    }
}

fn refusal(folder: &Folder) -> String {
    match folder.open("") {
        Err(error @ CheckpointError::Quantization { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("expected an error, found a checkpoint"),
    }
}

/// The checkpoint with these keys of `quantization_config` replaced.
fn with_settings(name: &str, changes: Value) -> Folder {
    let config = fs::read(tiny(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut settings = config["quantization_config"].clone();
    for (key, value) in changes.as_object().unwrap() {
        settings[key] = value.clone();
    }
    with_config(name, &json!({ "quantization_config": settings }))
}

#[test]
fn other_methods_are_refused_by_name() {
    for method in ["bitsandbytes", "hqq", "quanto", "aqlm", "mxfp4", "made_up"] {
        let settings = json!({"quant_method": method, "load_in_4bit": true});
        let folder = with_config("llama-bias", &json!({ "quantization_config": settings }));
        let message = refusal(&folder);
        assert_says(&message, &[method, "not supported", "gptq, awq and fp8"]);
    }
    let settings = json!({"load_in_8bit": true});
    let folder = with_config("llama-bias", &json!({ "quantization_config": settings }));
    assert_says(&refusal(&folder), &["quantized with bitsandbytes"]);
    let settings = json!({"group_size": 64, "bits": 4});
    let folder = with_config("llama-bias", &json!({ "quantization_config": settings }));
    assert_says(&refusal(&folder), &["quantized with MLX"]);
    let folder = with_config("llama-bias", &json!({ "quantization_config": {} }));
    assert_says(&refusal(&folder), &["quantization_config.quant_method"]);
}

#[test]
fn settings_that_are_not_supported_are_refused() {
    let group = |weights: Value| json!({"config_groups": {"group_0": {"weights": weights}}});
    let float4 = json!({"num_bits": 4, "type": "float", "strategy": "group", "group_size": 16});
    let int3 = json!({"num_bits": 3, "type": "int", "strategy": "channel"});
    let odd = json!({"num_bits": 8, "type": "int", "strategy": "attn_head"});
    let half = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 0.5});
    for (name, changes, parts) in [
        ("gptq", json!({"bits": 3}), ["bits", "found 3"]),
        ("gptq", json!({"group_size": 0}), ["group_size", "found 0"]),
        (
            "gptq",
            json!({"checkpoint_format": "marlin"}),
            ["checkpoint_format", "marlin"],
        ),
        (
            "gptq",
            json!({"dynamic": {"+:.*": {"bits": 8}}}),
            ["dynamic", "module"],
        ),
        ("awq", json!({"version": "gemv"}), ["version", "gemv"]),
        (
            "awq",
            json!({"version": null, "format": "gemv"}),
            ["version", "gemv"],
        ),
        ("awq", json!({"backend": "llm-awq"}), ["backend", "llm-awq"]),
        (
            "fp8",
            json!({"expert_dtype": "fp4"}),
            ["expert_dtype", "fp4"],
        ),
        ("awq", json!({"bits": 8}), ["bits", "found 8"]),
        (
            "fp8",
            json!({"weight_block_size": [0, 16]}),
            ["weight_block_size", "[0, 16]"],
        ),
        ("fp8", json!({"scale_fmt": "x"}), ["scale_fmt", "found x"]),
        (
            "compressed-int4",
            json!({"format": "nvfp4-pack-quantized"}),
            ["format", "nvfp4"],
        ),
        (
            "compressed-int4",
            json!({"kv_cache_scheme": {"num_bits": 8}}),
            ["kv_cache_scheme", ""],
        ),
        (
            "compressed-int4",
            json!({"sparsity_config": {"format": "sparse"}}),
            ["sparsity_config", ""],
        ),
        (
            "compressed-int4",
            group(float4),
            ["float of 4", "int weights"],
        ),
        ("compressed-int4", group(int3), ["int of 3", ""]),
        ("compressed-int4", group(odd), ["strategy", "attn_head"]),
        ("compressed-int4", group(half), ["group_size", "0.5"]),
    ] {
        assert_says(&refusal(&with_settings(name, changes)), &parts);
    }
    // A key that is not known could change what the codes mean.
    let folder = with_settings("gptq", json!({"made_up": 1}));
    let error = build(&folder.open("").unwrap(), &Options::default()).unwrap_err();
    assert_says(&error.to_string(), &["quantization_config.made_up"]);
}

/// compressed-tensors does not read zero points of a symmetric scheme.
#[test]
fn zero_points_of_a_symmetric_scheme_are_not_read() {
    let name = "compressed-int4-zeros";
    let config = fs::read(tiny(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut groups = config["quantization_config"]["config_groups"].clone();
    for group in groups.as_object_mut().unwrap().values_mut() {
        group["weights"]["symmetric"] = true.into();
    }
    let folder = with_settings(name, json!({ "config_groups": groups }));
    let symmetric = build(&folder.open("").unwrap(), &Options::default()).unwrap();
    let own = build_tiny(name, &Options::default());
    let [symmetric, own] = [&symmetric, &own].map(|model| {
        let f = &model.program.functions()[0];
        let mut ops = f.all_ops().into_iter().map(|id| f.op(id));
        ops.any(|op| op.def.name == "constexpr_blockwise_shift_scale" && op.arg("offset").is_some())
    });
    assert!(own && !symmetric, "{own}, {symmetric}");
}

/// Modules have the group whose target names them: their name, then a pattern, then a class.
#[test]
fn groups_hold_for_the_modules_that_they_name() {
    let name = "compressed-int8-tensor";
    let config = fs::read(tiny(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let own = config["quantization_config"]["config_groups"]["group_0"].clone();
    let of = |targets: &[&str], symmetric: bool| {
        let mut group = own.clone();
        group["targets"] = targets.into();
        group["weights"]["symmetric"] = symmetric.into();
        group
    };
    let folder = |groups: Value| with_settings(name, json!({ "config_groups": groups }));
    let n_offsets = |groups: Value| {
        let checkpoint = folder(groups).open("").unwrap();
        let model = build(&checkpoint, &Options::default()).unwrap();
        let f = &model.program.functions()[0];
        let ops = f.all_ops().into_iter().map(|id| f.op(id));
        let has_offset = |op: &&Op| {
            op.def.name == "constexpr_blockwise_shift_scale" && op.arg("offset").is_some()
        };
        ops.filter(has_offset).count()
    };
    let (keys, all) = (["re:.*self_attn.k_proj$"], ["Linear"]);
    let n_all = n_offsets(json!({"a": of(&all, false)}));
    let n_keys = n_offsets(json!({"a": of(&all, true), "b": of(&keys, false)}));
    let n_rest = n_offsets(json!({"a": of(&keys, true), "b": of(&all, false)}));
    assert!(n_keys > 0 && n_keys + n_rest == n_all, "{n_keys}, {n_rest}");
    let one = ["model.layers.0.self_attn.k_proj"];
    let groups = json!({"a": of(&keys, true), "b": of(&all, true), "c": of(&one, false)});
    assert_eq!(n_offsets(groups), n_keys / 2);
    // Python's patterns look around, and match from the start of a name.
    let looks = ["re:(?!.*k_proj).*", "re:k_proj"];
    let groups = json!({"a": of(&looks, true), "b": of(&all, false)});
    assert_eq!(n_offsets(groups), n_keys);
    let error = refusal(&folder(json!({"a": of(&keys, true), "b": of(&one, false)})));
    assert_says(&error, &["no target of config_groups names it", "q_proj"]);
    let groups = json!({"a": of(&["re:("], true), "b": of(&all, false)});
    assert_says(&refusal(&folder(groups)), &["targets", "the pattern ("]);
}

/// They are a part of what the weights were trained or corrected for.
#[test]
fn static_scales_of_activations_are_refused() {
    let int4 = json!({"num_bits": 4, "type": "int", "strategy": "channel"});
    let int8 = json!({"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": false});
    let group = json!({"weights": int4, "input_activations": int8});
    for (name, changes, key) in [
        (
            "fp8",
            json!({"activation_scheme": "static"}),
            "activation_scheme",
        ),
        (
            "compressed-int4",
            json!({"config_groups": {"group_0": group}}),
            "input_activations",
        ),
    ] {
        let refused = refusal(&with_settings(name, changes));
        assert_says(&refused, &[key, "found static ones"]);
    }
}

/// `tests/oracle/make_quantization_settings.py` has them of transformers.
#[test]
fn settings_that_transformers_writes_are_read() {
    let all = fs::read(tiny("../quantization-settings.json")).unwrap();
    let all: BTreeMap<String, Value> = serde_json::from_slice(&all).unwrap();
    assert_eq!(all.len(), 3);
    for (name, settings) in all {
        let folder = with_config(&name, &json!({ "quantization_config": settings }));
        let model = build(&folder.open("").unwrap(), &Options::default()).unwrap();
        let expected = build_tiny(&name, &Options::default());
        assert_eq!(
            difference(&model.program, &expected.program),
            None,
            "{name}"
        );
    }
}

/// The settings of the text part count where the whole has none.
#[test]
fn settings_of_the_text_part_are_read() {
    let config = fs::read(tiny("gemma3-image").join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let with = |whole: Value, of_text: Value| {
        let mut text = config["text_config"].clone();
        text["quantization_config"] = of_text;
        let changes = json!({"text_config": text, "quantization_config": whole});
        with_config("gemma3-image", &changes)
    };
    let gptq = || json!({"quant_method": "gptq", "bits": 4, "group_size": 16});
    let message = refusal(&with(Value::Null, json!({"quant_method": "hqq"})));
    assert_says(&message, &["quantized with hqq"]);
    // No matrix of the checkpoint is quantized.
    let folder = with(Value::Null, gptq());
    build(&folder.open("").unwrap(), &Options::default()).unwrap();
    let folder = with(gptq(), gptq());
    let error = build(&folder.open("").unwrap(), &Options::default()).unwrap_err();
    assert_says(&error.to_string(), &["text_config.quantization_config"]);
}

/// AutoGPTQ gives every layer a bias, of zeros where the model has none.
#[test]
fn biases_of_zeros_that_the_model_lacks_are_ignored() {
    let expected = build_tiny("gptq-order", &Options::default());
    let with_bias = |module: &str, byte: u8| {
        let file = fs::read(tiny("gptq-order").join("model.safetensors")).unwrap();
        let (len, rest) = file.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
        let mut header: Map<String, Value> = serde_json::from_slice(header).unwrap();
        let n = header[&format!("{module}.scales")]["shape"][1]
            .as_u64()
            .unwrap() as usize;
        let (start, end) = (data.len(), data.len() + 2 * n);
        let entry = json!({"dtype": "F16", "shape": [n], "data_offsets": [start, end]});
        header.insert(format!("{module}.bias"), entry);
        let header = Value::Object(header).to_string();
        let length = (header.len() as u64).to_le_bytes();
        let bias = vec![byte; 2 * n];
        let weights = [&length[..], header.as_bytes(), data, &bias].concat();
        let folder = with_config("gptq-order", &json!({})).with("model.safetensors", weights);
        build(&folder.open("").unwrap(), &Options::default())
    };
    let model = with_bias(MODULE, 0).unwrap();
    assert_eq!(difference(&model.program, &expected.program), None);
    let error = with_bias(MODULE, 1).err().unwrap().to_string();
    assert_says(&error, &[MODULE, "bias", "does not belong"]);
}

/// The checkpoint with the header of its safetensors file edited.
fn with_header(name: &str, edit: impl Fn(&mut Map<String, Value>)) -> Folder {
    let file = fs::read(tiny(name).join("model.safetensors")).unwrap();
    let (len, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let mut header: Map<String, Value> = serde_json::from_slice(header).unwrap();
    edit(&mut header);
    let header = Value::Object(header).to_string();
    let weights = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat();
    with_config(name, &json!({})).with("model.safetensors", weights)
}

const MODULE: &str = "model.layers.1.mlp.down_proj";

/// Asserts what is said of a parameter that is missing or has another shape of as many bytes.
fn assert_named(name: &str, parameter: &str, shape: Option<Value>, parts: [&str; 2]) {
    let folder = with_header(name, |header| {
        let key = format!("{MODULE}.{parameter}");
        match &shape {
            Some(shape) => header[&key]["shape"] = shape.clone(),
            None => {
                let entry = header.remove(&key).unwrap();
                header.insert("stray".to_owned(), entry);
            }
        }
    });
    assert_says(&refusal(&folder), &parts);
    assert_says(&refusal(&folder), &[MODULE]);
}

#[test]
fn missing_and_misshapen_words_are_named() {
    for (name, parameter, shape, parts) in [
        ("gptq", "scales", None, ["scales` is missing", "gptq"]),
        ("gptq", "qzeros", None, ["qzeros` is missing", "gptq"]),
        (
            "gptq",
            "scales",
            Some(json!([48, 5])),
            ["scales`", "[5, 48]"],
        ),
        ("gptq", "qzeros", Some(json!([6, 5])), ["qzeros`", "[5, 6]"]),
        (
            "gptq",
            "qweight",
            Some(json!([480])),
            ["qweight`", "a matrix"],
        ),
        (
            "gptq-order",
            "g_idx",
            Some(json!([2, 40])),
            ["g_idx`", "[80]"],
        ),
        ("awq", "scales", None, ["scales` is missing", "awq"]),
        (
            "awq",
            "qweight",
            Some(json!([6, 80])),
            ["qzeros`", "[1, 80]"],
        ),
    ] {
        assert_named(name, parameter, shape, parts);
    }
}

#[test]
fn missing_and_misshapen_scales_are_named() {
    for (name, parameter, shape, parts) in [
        (
            "fp8",
            "weight_scale_inv",
            None,
            ["weight_scale_inv` is missing", "fp8"],
        ),
        (
            "fp8",
            "weight_scale_inv",
            Some(json!([4, 2])),
            ["weight_scale_inv`", "[2, 4]"],
        ),
        (
            "compressed-int8",
            "weight_scale",
            None,
            ["weight_scale` is missing", "compressed"],
        ),
        (
            "compressed-int8",
            "weight_scale",
            Some(json!([1, 48])),
            ["weight_scale`", "[48, 1]"],
        ),
        (
            "compressed-int4",
            "weight_shape",
            None,
            ["weight_shape` is missing", "compressed"],
        ),
        (
            "compressed-int4",
            "weight_packed",
            Some(json!([8, 48])),
            ["weight_packed`", "words"],
        ),
        (
            "compressed-int4-zeros",
            "weight_zero_point",
            Some(json!([5, 6])),
            ["zero_point`", "[6, 5]"],
        ),
    ] {
        assert_named(name, parameter, shape, parts);
    }
}

#[test]
fn groups_that_do_not_exist_are_refused() {
    let path = tiny("gptq-order").join("model.safetensors");
    let mut file = fs::read(path).unwrap();
    let start = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize + 8;
    let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
    let at = header[format!("{MODULE}.g_idx")]["data_offsets"][0]
        .as_u64()
        .unwrap();
    let at = start + at as usize;
    for group in [5_i32, -1, i32::MAX] {
        file[at..at + 4].copy_from_slice(&group.to_le_bytes());
        let folder = with_config("gptq-order", &json!({})).with("model.safetensors", &file);
        let expected = format!("found {group} at 0");
        assert_says(&refusal(&folder), &["g_idx`", "groups below 5", &expected]);
    }
}

#[test]
fn plain_eight_bit_floats_are_read_without_settings() {
    let folder = with_header("compressed-fp8", |_| ());
    let config = json!({"quantization_config": null});
    let folder = with_config("compressed-fp8", &config).with(
        "model.safetensors",
        fs::read(folder.path("model.safetensors")).unwrap(),
    );
    let error = build(&folder.open("").unwrap(), &Options::default()).unwrap_err();
    // The matrices are taken; what remains is that the scales have no meaning.
    let message = error.to_string();
    assert_says(&message, &["weight_scale` [54, 1] does not belong"]);
    assert!(!message.contains("expected the type"), "{message}");
}

#[test]
fn files_whose_tensors_contradict_each_other_never_panic() {
    for name in [
        "compressed-int8",
        "compressed-int4-zeros",
        "compressed-fp8",
        "gptq-order",
        "awq",
        "fp8",
    ] {
        let file = fs::read(tiny(name).join("model.safetensors")).unwrap();
        let end = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize + 8;
        let header: Map<String, Value> = serde_json::from_slice(&file[8..end]).unwrap();
        for key in header.keys().filter(|k| k.contains("down_proj")) {
            let shape = header[key]["shape"].as_array().unwrap().clone();
            let n: u64 = shape.iter().map(|d| d.as_u64().unwrap()).product();
            let reversed: Vec<Value> = shape.iter().rev().cloned().collect();
            for shape in [json!(reversed), json!([n]), json!([1, n]), json!([n, 1])] {
                let folder = with_header(name, |header| header[key]["shape"] = shape.clone());
                if let Ok(checkpoint) = folder.open("") {
                    let _ = build(&checkpoint, &Options::default());
                }
            }
        }
    }
}

/// Values by torch: `torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()`.
#[test]
fn eight_bit_floats_are_those_of_torch() {
    const NAME: &str = "model.layers.0.mlp.down_proj.weight";
    // Every code once, in a matrix without scales.
    let values = |dtype: &str| -> Vec<f32> {
        let folder = with_header("compressed-fp8", |header| {
            header[NAME]["dtype"] = json!(dtype);
        });
        let mut file = fs::read(folder.path("model.safetensors")).unwrap();
        let start = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize + 8;
        let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
        let at = start + header[NAME]["data_offsets"][0].as_u64().unwrap() as usize;
        (0..=255).for_each(|code: u8| file[at + usize::from(code)] = code);
        let config = json!({"quantization_config": null});
        let folder = with_config("compressed-fp8", &config).with("model.safetensors", file);
        let checkpoint = folder.open("").unwrap();
        let scaled = checkpoint.tensors[NAME].scaled.as_ref().unwrap();
        let bytes = scaled.values().to_vec();
        let (floats, _) = bytes.as_chunks();
        floats.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let e4m3 = values("F8_E4M3");
    let cases = [
        (0x00, 0.0),
        (0x01, 0.001_953_125),
        (0x07, 0.013_671_875),
        (0x08, 0.015_625),
        (0x38, 1.0),
        (0x7e, 448.0),
        (0xfe, -448.0),
        (0xb9, -1.125),
    ];
    for (code, expected) in cases {
        assert_eq!(e4m3[code], expected, "{code:#x}");
    }
    assert!(e4m3[0x7f].is_nan() && e4m3[0xff].is_nan());
    let e5m2 = values("F8_E5M2");
    let cases = [
        (0x01, 1.525_878_9e-5),
        (0x3c, 1.0),
        (0x7b, 57_344.0),
        (0xc1, -2.5),
    ];
    for (code, expected) in cases {
        assert_eq!(e5m2[code], expected, "{code:#x}");
    }
    assert!(e5m2[0x7c].is_infinite());
}
