//! What Qwen3.5 and Gemma 4 read from GGUF files, on small files that the tests write.

use thane_mil::text::{Blobs, print};

use super::assert_refused;
use super::gguf::{F32, HIDDEN, Spec};
use super::gguf_families::{bools, integers};

const ARRAY: u32 = 9;

impl Spec {
    fn tensors(mut self, layer: usize, tensors: &[(&str, &[u64])]) -> Self {
        for (name, dims) in tensors {
            self = self.tensor(&format!("blk.{layer}.{name}"), dims, F32);
        }
        self
    }

    fn without_tensors(mut self, layer: usize, names: &[&str]) -> Self {
        for name in names {
            self = self.without_tensor(&format!("blk.{layer}.{name}.weight"));
        }
        self
    }

    /// A delta net of 2 key heads and 4 value heads of 8 elements, then a layer that attends.
    fn qwen35() -> Self {
        let linear: &[(&str, &[u64])] = &[
            ("attn_qkv.weight", &[HIDDEN, 64]),
            ("attn_gate.weight", &[HIDDEN, 32]),
            ("ssm_alpha.weight", &[HIDDEN, 4]),
            ("ssm_beta.weight", &[HIDDEN, 4]),
            ("ssm_conv1d.weight", &[4, 64]),
            ("ssm_norm.weight", &[8]),
            ("ssm_out.weight", &[32, HIDDEN]),
            ("ssm_a", &[4]),
            ("ssm_dt.bias", &[4]),
        ];
        let spec = Self::new("qwen35")
            .u32("rope.dimension_count", 8)
            .key("rope.dimension_sections", ARRAY, &integers(&[2, 1, 1, 0]))
            .u32("ssm.conv_kernel", 4)
            .u32("ssm.state_size", 8)
            .u32("ssm.group_count", 2)
            .u32("ssm.time_step_rank", 4)
            .u32("ssm.inner_size", 32)
            .u32("full_attention_interval", 2)
            .f32("rope.freq_base", 10_000.0)
            .without_tensors(
                0,
                &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm"],
            )
            .without_tensors(1, &["ffn_norm"])
            .tensors(0, &[("post_attention_norm.weight", &[HIDDEN])])
            .tensors(0, linear);
        spec.attending(1)
    }

    /// Adds the tensors of a layer of Qwen3.5 that attends.
    fn attending(self, layer: usize) -> Self {
        let tensors: &[(&str, &[u64])] = &[
            ("attn_norm.weight", &[HIDDEN]),
            ("post_attention_norm.weight", &[HIDDEN]),
            ("attn_q.weight", &[HIDDEN, 128]),
            ("attn_k.weight", &[HIDDEN, 32]),
            ("attn_v.weight", &[HIDDEN, 32]),
            ("attn_output.weight", &[64, HIDDEN]),
            ("attn_q_norm.weight", &[32]),
            ("attn_k_norm.weight", &[32]),
            ("ffn_gate.weight", &[HIDDEN, 96]),
            ("ffn_up.weight", &[HIDDEN, 96]),
            ("ffn_down.weight", &[96, HIDDEN]),
        ];
        self.tensors(layer, tensors)
    }

    /// A sliding layer, then one with full attention, which has wider heads.
    fn gemma4() -> Self {
        let mut spec = Self::new("gemma4")
            .u32("attention.key_length_swa", 16)
            .u32("attention.value_length_swa", 16)
            .u32("attention.shared_kv_layers", 0)
            .u32("attention.sliding_window", 8)
            .u32("embedding_length_per_layer_input", 0)
            .u32("rope.dimension_count", 32)
            .u32("rope.dimension_count_swa", 16)
            .f32("rope.freq_base", 1e6)
            .f32("rope.freq_base_swa", 1e4)
            .f32("final_logit_softcapping", 30.0)
            .tensor("rope_freqs.weight", &[16], F32)
            .key("attention.sliding_window_pattern", ARRAY, &bools(&[1, 0]))
            .tensors(0, &[("attn_q.weight", &[HIDDEN, 32])])
            .tensors(0, &[("attn_k.weight", &[HIDDEN, 16])])
            .tensors(0, &[("attn_v.weight", &[HIDDEN, 16])])
            .tensors(0, &[("attn_output.weight", &[32, HIDDEN])]);
        for (layer, width) in [(0, 16), (1, 32)] {
            let tensors: &[(&str, &[u64])] = &[
                ("attn_q_norm.weight", &[width]),
                ("attn_k_norm.weight", &[width]),
                ("post_attention_norm.weight", &[HIDDEN]),
                ("post_ffw_norm.weight", &[HIDDEN]),
            ];
            spec = spec.tensors(layer, tensors);
        }
        spec
    }
}

fn text(spec: &Spec) -> String {
    print(&spec.lower().unwrap().program, &mut Blobs::default())
}

/// Layers behind the others that guess several tokens at once are not lowered.
#[test]
fn layers_that_guess_tokens_are_left_out() {
    let guessing: &[(&str, &[u64])] = &[
        ("nextn.eh_proj.weight", &[2 * HIDDEN, HIDDEN]),
        ("nextn.enorm.weight", &[HIDDEN]),
        ("nextn.hnorm.weight", &[HIDDEN]),
    ];
    let spec = Spec::qwen35()
        .u32("block_count", 3)
        .u32("nextn_predict_layers", 1)
        .attending(2)
        .tensors(2, guessing);
    let recurrent = spec
        .clone()
        .key("attention.recurrent_layers", ARRAY, &bools(&[1, 0, 0]));
    let expected = text(&Spec::qwen35());
    assert!(expected.contains("recurrent_memory_0") && !expected.contains("recurrent_memory_1"));
    assert_eq!(text(&spec), expected);
    assert_eq!(text(&recurrent), expected);
}

/// Gemma 4 takes the values of a layer without a projection for them from its keys.
#[test]
fn keys_serve_as_values_where_the_file_has_no_values() {
    let spec = Spec::gemma4();
    let without = spec.clone().without_tensor("blk.1.attn_v.weight");
    assert_ne!(text(&without), text(&spec));
}

/// Without these, llama.cpp computes with defaults that may be those of another model.
#[test]
fn what_the_converter_always_writes_is_required() {
    let cases: [(Spec, &[&str]); 5] = [
        (
            Spec::gemma4()
                .without("final_logit_softcapping")
                .without("rope.freq_base_swa"),
            &[
                "missing: gemma4.final_logit_softcapping, gemma4.rope.freq_base_swa;",
                "convert the model again",
            ],
        ),
        (
            Spec::gemma4().without_tensor("rope_freqs.weight"),
            &["`rope_freqs.weight` [16] is missing"],
        ),
        (
            Spec::qwen35()
                .without("rope.freq_base")
                .without("attention.key_length"),
            &["missing: qwen35.attention.key_length, qwen35.rope.freq_base;"],
        ),
        (
            Spec::qwen35().without("full_attention_interval"),
            &["missing: qwen35.full_attention_interval;"],
        ),
        (
            Spec::gemma4().f32("final_logit_softcapping", -30.0),
            &["gemma4.final_logit_softcapping", "found -30.0"],
        ),
    ];
    for (spec, parts) in cases {
        assert_refused(parts[0], spec.lower(), parts);
    }
    // A cap of 0 is none.
    let uncapped = text(&Spec::gemma4().f32("final_logit_softcapping", 0.0));
    assert!(!uncapped.contains("tanh") && text(&Spec::gemma4()).contains("tanh"));
}

/// A tensor of another shape names the keys that its sizes follow from.
#[test]
fn shapes_name_the_keys_that_they_follow_from() {
    let cases: [(Spec, &[&str]); 3] = [
        (
            Spec::gemma4()
                .u32("attention.key_length_swa", 12)
                .u32("attention.value_length_swa", 12)
                .u32("rope.dimension_count_swa", 12),
            &[
                "`blk.0.attn_q.weight`: expected the shape [24, 64], found [32, 64] (24 is \
                 `gemma4.attention.head_count` * `gemma4.attention.key_length_swa`)",
                "`blk.0.attn_q_norm.weight`: expected the shape [12], found [16] (12 is",
                "or `gemma4.attention.key_length_swa`)",
            ],
        ),
        (
            Spec::gemma4().u32("feed_forward_length", 97),
            &["found [96, 64] (97 is `gemma4.feed_forward_length`)"],
        ),
        (
            Spec::qwen35().u32("ssm.inner_size", 36),
            &[
                "(36 is `qwen35.ssm.inner_size`)",
                "(68 is 2 * `qwen35.ssm.group_count` * `qwen35.ssm.state_size` + \
                 `qwen35.ssm.inner_size`)",
            ],
        ),
    ];
    for (spec, parts) in cases {
        assert_refused(parts[0], spec.lower(), parts);
    }
}

#[test]
fn values_that_hybrids_do_not_compute_are_refused() {
    let sections =
        |values: &[i32]| Spec::qwen35().key("rope.dimension_sections", ARRAY, &integers(values));
    let cases: [(Spec, &[&str]); 11] = [
        (
            sections(&[1, 1, 1, 1]),
            &["qwen35.rope.dimension_sections", "4 rotated pairs"],
        ),
        (
            sections(&[-2, 1, 1, 0]),
            &["qwen35.rope.dimension_sections", "[-2, 1, 1, 0]"],
        ),
        (
            Spec::qwen35().u32("ssm.inner_size", 33),
            &[
                "qwen35.ssm.inner_size",
                "a multiple of `qwen35.ssm.time_step_rank`, 4",
            ],
        ),
        (
            Spec::qwen35().u32("ssm.group_count", 3),
            &["a multiple of `qwen35.ssm.group_count`, 3"],
        ),
        (
            Spec::qwen35().u32("nextn_predict_layers", 2),
            &[
                "nextn_predict_layers",
                "is 2",
                "less than `qwen35.block_count`, 2",
            ],
        ),
        (
            Spec::qwen35().key("attention.recurrent_layers", ARRAY, &bools(&[1])),
            &["recurrent_layers", "a list of 1"],
        ),
        (
            Spec::gemma4().u32("rope.dimension_count_swa", 8),
            &[
                "dimension_count_swa",
                "`gemma4.attention.key_length_swa`, 16",
            ],
        ),
        (
            Spec::gemma4().u32("attention.shared_kv_layers", 1),
            &["shared_kv_layers", "each type"],
        ),
        // A layer whose window slides has values of its own.
        (
            Spec::gemma4().without_tensor("blk.0.attn_v.weight"),
            &["blk.0.attn_v.weight"],
        ),
        // One layer has it, so the other lost it.
        (
            Spec::gemma4().tensors(1, &[("layer_output_scale.weight", &[1])]),
            &["blk.0.layer_output_scale.weight"],
        ),
        (
            Spec::gemma4().u32("expert_count", 4),
            &["gemma4.expert_count"],
        ),
    ];
    for (spec, parts) in cases {
        assert_refused(parts[0], spec.lower(), parts);
    }
}
