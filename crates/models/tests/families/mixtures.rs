//! Mixtures of experts: which keys say what they are, and what is refused.

use serde_json::json;
use thane_mil::program::difference;
use thane_models::{AneDecoder, Options};

use super::gguf::{F32, HIDDEN, Q8_0, Spec};
use super::hugging_face::{changed, tiny, with_config};
use super::{assert_refused, faults, lower};
use thane_models::build;
use thane_models::checkpoint::Checkpoint;

const QWEN: &str = "qwen3_moe";

#[test]
fn values_that_are_no_mixture_are_refused() {
    for (name, change, parts) in [
        (
            QWEN,
            json!({"num_experts_per_tok": 6}),
            &["`num_experts_per_tok`", "6", "expected 1 to 5"][..],
        ),
        (
            QWEN,
            json!({"num_experts_per_tok": 0}),
            &["`num_experts_per_tok`", "0"],
        ),
        (
            QWEN,
            json!({"num_experts": 4}),
            &["`num_experts`", "4", "expected 5", "num_local_experts"],
        ),
        (
            QWEN,
            json!({"num_local_experts": 1 << 20}),
            &["`num_local_experts`", "1048576", "expected 1 to 16384"],
        ),
        (
            QWEN,
            json!({"decoder_sparse_step": 0}),
            &["`decoder_sparse_step`", "0"],
        ),
        (
            QWEN,
            json!({"moe_intermediate_size": 0}),
            &["`moe_intermediate_size`", "0"],
        ),
        (
            "mixtral",
            json!({"num_local_experts": 0}),
            &["`num_local_experts`", "0"],
        ),
        (
            "olmoe",
            json!({"clip_qkv": -8.0}),
            &["\"clip_qkv\"", "-8", "from 0.001"],
        ),
        (
            "mixtral",
            json!({"norm_topk_prob": true, "n_group": 2}),
            &["does not support these keys", "norm_topk_prob", "n_group"],
        ),
    ] {
        assert_refused(&format!("{name} {change}"), changed(name, &change), parts);
    }
}

#[test]
fn keys_say_which_layers_are_mixtures() {
    // Layers without experts need the tensors of a feed-forward layer, and have no router.
    for change in [
        json!({"num_local_experts": 0}),
        json!({"mlp_only_layers": [0, 1]}),
        json!({"decoder_sparse_step": 3}),
    ] {
        let faults = faults(changed(QWEN, &change)).join("\n");
        for part in [
            "layers.1.mlp.up_proj.weight` [41, 36] is missing",
            "layers.0.mlp.gate.weight`",
        ] {
            assert!(faults.contains(part), "{change}: {faults}");
        }
    }
    let shares = |normalized: bool| {
        let change = json!({"norm_topk_prob": normalized});
        changed(QWEN, &change).unwrap().program
    };
    assert!(difference(&shares(true), &shares(false)).is_some());
}

/// The number of experts goes by two names.
#[test]
fn both_names_of_the_number_of_experts_are_read() {
    let renamed = json!({"num_local_experts": null, "num_experts": 5});
    let (a, b) = (changed(QWEN, &json!({})), changed(QWEN, &renamed));
    assert_eq!(difference(&a.unwrap().program, &b.unwrap().program), None);
}

#[test]
fn a_missing_expert_is_named() {
    let more = faults(changed(QWEN, &json!({"num_local_experts": 6}))).join("\n");
    for part in [
        "mlp.experts.5.gate_proj.weight` [15, 36] is missing",
        "mlp.gate.weight`",
    ] {
        assert!(more.contains(part), "{more}");
    }
}

#[test]
fn the_form_for_the_neural_engine_is_refused_with_the_reason() {
    let options = Options {
        ane: Some(AneDecoder::default()),
        ..Options::default()
    };
    let refused = lower(&with_config(QWEN, &json!({})), "", &options);
    let parts = [
        "mixtures of experts",
        "the text chooses the weights",
        "portable form",
    ];
    assert_refused("engine", refused, &parts);
    let checkpoint = Checkpoint::open(&tiny("mixtral")).unwrap();
    assert_refused("mixtral", build(&checkpoint, &options), &parts);
}

impl Spec {
    /// With three experts in the second layer, two of which a token uses.
    fn qwen3moe() -> Self {
        let mut spec = Self::new("qwen3moe")
            .u32("expert_count", 3)
            .u32("expert_used_count", 2)
            .u32("expert_feed_forward_length", 32)
            .tensor("blk.1.ffn_gate_inp.weight", &[HIDDEN, 3], F32)
            .tensor("blk.1.ffn_gate_exps.weight", &[HIDDEN, 32, 3], Q8_0)
            .tensor("blk.1.ffn_up_exps.weight", &[HIDDEN, 32, 3], F32)
            .tensor("blk.1.ffn_down_exps.weight", &[32, HIDDEN, 3], Q8_0);
        for name in ["ffn_gate", "ffn_up", "ffn_down"] {
            spec = spec.without_tensor(&format!("blk.1.{name}.weight"));
        }
        spec
    }
}

#[test]
fn gguf_files_say_what_their_experts_are() {
    let spec = Spec::qwen3moe;
    spec().lower().unwrap();
    spec().u32("expert_gating_func", 1).lower().unwrap();
    spec().f32("expert_weights_scale", 1.0).lower().unwrap();
    for (spec, parts) in [
        (
            spec().u32("expert_gating_func", 2),
            &["`qwen3moe.expert_gating_func`", "2", "expected 1"][..],
        ),
        (
            spec().f32("expert_weights_scale", 2.5),
            &["`qwen3moe.expert_weights_scale`", "2.5"],
        ),
        (
            spec().without("expert_used_count"),
            &["`qwen3moe.expert_used_count`", "0", "expected 1 to 3"],
        ),
        (
            spec().u32("expert_group_count", 2),
            &["does not support these keys", "expert_group_count"],
        ),
    ] {
        assert_refused(parts[0], spec.lower(), parts);
    }
    let four = faults(spec().u32("expert_count", 4).lower()).join("\n");
    let part = "`blk.1.ffn_gate_exps.weight`: expected the shape [4, 32, 64], found [3, 32, 64]";
    assert!(four.contains(part), "{four}");
}
