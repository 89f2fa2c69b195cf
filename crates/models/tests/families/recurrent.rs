//! Qwen3.5: which keys say what its layers are, and what is refused.

use serde_json::json;
use thane_calls::{CacheForm, Form, Split};
use thane_mil::program::difference;
use thane_mil::types::Type;
use thane_models::Options;

use super::hugging_face::{changed, with_config};
use super::{assert_refused, faults, lower};

const QWEN: &str = "qwen3_5";

#[test]
fn the_program_says_that_its_states_are_recurrent() {
    let model = changed(QWEN, &json!({})).unwrap();
    assert!(model.info.recurrent);
    let f = &model.program.functions()[0];
    let states = f.body().inputs.iter().map(|v| f.value(*v));
    let states = states.filter(|value| matches!(value.ty, Type::State(_)));
    let names: Vec<&str> = states.map(|value| value.name.as_str()).collect();
    let recurrent = |i: usize| {
        [
            format!("recurrent_conv_{i}"),
            format!("recurrent_memory_{i}"),
        ]
    };
    let caches = |i: usize| [format!("k_cache_{i}"), format!("v_cache_{i}")];
    let due = [
        recurrent(0),
        caches(1),
        recurrent(2),
        caches(3),
        recurrent(4),
    ]
    .concat();
    assert_eq!(names, due);
    assert!(!changed("qwen3", &json!({})).unwrap().info.recurrent);
}

#[test]
fn values_that_are_no_delta_net_are_refused() {
    for (change, parts) in [
        (
            json!({"linear_num_value_heads": 5}),
            &[
                "`linear_num_value_heads`",
                "5",
                "a multiple of `linear_num_key_heads`, 2",
            ][..],
        ),
        (
            json!({"linear_conv_kernel_dim": 1}),
            &["`linear_conv_kernel_dim`", "1", "expected 2 or more"],
        ),
        (
            json!({"linear_key_head_dim": 0}),
            &["`linear_key_head_dim`", "0"],
        ),
        (
            json!({"linear_key_head_dim": 16_000_000}),
            &["`2 * linear_num_key_heads * linear_key_head_dim + linear_num_value_heads *"],
        ),
        (
            json!({"layer_types": ["full_attention"]}),
            &["`layer_types`", "1 names", "num_hidden_layers is 5"],
        ),
        (
            json!({"layer_types": ["full_attention", "sliding_attention", "full_attention",
                "full_attention", "full_attention"]}),
            &["`layer_types`", "sliding_attention", "linear_attention"],
        ),
        (
            json!({"attn_output_gate": false}),
            &["`attn_output_gate`", "expected true"],
        ),
        (
            json!({"output_gate_type": "sigmoid"}),
            &["`output_gate_type`", "sigmoid", "expected swish"],
        ),
        (
            json!({"full_attention_interval": 0}),
            &["`full_attention_interval`", "0"],
        ),
    ] {
        assert_refused(&change.to_string(), changed(QWEN, &change), parts);
    }
}

/// Without a list of types, every fourth layer attends.
#[test]
fn the_interval_says_which_layers_attend() {
    let change = json!({"layer_types": null, "full_attention_interval": 2, "num_hidden_layers": 4});
    let missing = faults(changed(QWEN, &change)).join("\n");
    assert!(missing.contains("model.layers.4."), "{missing}");
    assert!(!missing.contains("is missing"), "{missing}");
    let fourth = faults(changed(QWEN, &json!({"layer_types": null}))).join("\n");
    assert!(
        fourth.contains("layers.1.linear_attn.A_log` [6] is missing"),
        "{fourth}"
    );
}

#[test]
fn keys_of_other_programs_change_nothing() {
    let more = json!({"mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false, "attn_output_gate": true,
        "output_gate_type": "swish", "mlp_only_layers": [0], "output_router_logits": true});
    let whole = json!({"language_model_only": true});
    for (name, more) in [(QWEN, more), ("qwen3_5-image", whole)] {
        let (a, b) = (changed(name, &json!({})), changed(name, &more));
        assert_eq!(
            difference(&a.unwrap().program, &b.unwrap().program),
            None,
            "{name}"
        );
    }
}

/// What a function of the form for the Neural Engine takes and gives besides tokens, masks and
/// logits.
fn remembered(name: &str, form: Form) -> Vec<String> {
    let options = Options {
        ane: Some(form.into()),
        ..Options::default()
    };
    let model = lower(&with_config(name, &json!({})), "", &options).unwrap();
    assert!(model.info.recurrent);
    let f = model.program.functions().last().unwrap();
    let values = f.body().inputs.iter().chain(&f.body().outputs);
    let values = values.map(|v| f.value(*v));
    let told = values.map(|value| format!("{}: {}", value.name, value.ty));
    let is_one = |told: &String| told.contains("conv") || told.contains("recurrent");
    told.filter(is_one).collect()
}

/// All parts of all layers are one state, besides the keys and values: functions with three states
/// fail on the Neural Engine.
#[test]
fn what_layers_remember_is_one_state_for_the_neural_engine() {
    // 48 rows of 10 for the memories, and 3 times 10 for 92 channels that end with zeros.
    let state = ["recurrent_cache: state<tensor<fp16, [3, 1, 78, 10]>>"];
    assert_eq!(remembered(QWEN, Form::default()), state);
    let state = ["recurrent_cache: state<tensor<fp16, [3, 1, 3, 36]>>"];
    assert_eq!(remembered("lfm2", Form::default()), state);
    let explicit = Form {
        cache: CacheForm::Explicit,
        split: Split::Ranges {
            layers: vec![0..2, 2..4],
            head: false,
        },
        ..Form::default()
    };
    let ports = [
        "conv_cache_2: tensor<fp16, [1, 1, 3, 36]>",
        "conv_cache_3: tensor<fp16, [1, 1, 3, 36]>",
        "new_conv_cache_2: tensor<fp16, [1, 1, 3, 36]>",
        "new_conv_cache_3: tensor<fp16, [1, 1, 3, 36]>",
    ];
    assert_eq!(remembered("lfm2", explicit), ports);
}

/// Each token of a call has ops of its own.
#[test]
fn calls_of_many_tokens_are_refused_for_the_neural_engine() {
    for (block, verify, part) in [(Some(33), vec![], "prefill"), (None, vec![2, 40], "verify")] {
        let form = Form {
            block,
            verify,
            ..Form::default()
        };
        let options = Options {
            ane: Some(form.into()),
            ..Options::default()
        };
        let refused = lower(&with_config(QWEN, &json!({})), "", &options);
        assert_refused(
            "engine",
            refused,
            &[part, "up to 32 tokens", "ops of their own"],
        );
    }
}
