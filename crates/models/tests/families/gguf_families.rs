//! What single families read from GGUF files, on small files that the tests write.

use thane_mil::program::difference;
use thane_mil::text::{Blobs, print};

use super::gguf::{F32, HIDDEN, Q8_0, Spec};
use super::{assert_refused, faults};
use crate::checkpoint::builder::array;

/// The numbers of the value types in GGUF.
const ARRAY: u32 = 9;
const I32: u32 = 5;
const BOOL: u32 = 7;

impl Spec {
    /// With query, key and value as the rows of one matrix, and gate and up projection as those of
    /// another.
    fn phi3() -> Self {
        let mut spec = Self::new("phi3").u32("rope.dimension_count", 32);
        for i in 0..2 {
            for name in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
                spec = spec.without_tensor(&format!("blk.{i}.{name}.weight"));
            }
            spec = spec
                .tensor(&format!("blk.{i}.attn_qkv.weight"), &[HIDDEN, 128], F32)
                .tensor(&format!("blk.{i}.ffn_up.weight"), &[HIDDEN, 192], F32);
        }
        spec
    }

    /// With norms after attention and feed-forward layer, and of query and key heads.
    fn exaone4() -> Self {
        let mut spec = Self::new("exaone4");
        for i in 0..2 {
            spec = spec
                .without_tensor(&format!("blk.{i}.attn_norm.weight"))
                .without_tensor(&format!("blk.{i}.ffn_norm.weight"))
                .tensor(&format!("blk.{i}.attn_q_norm.weight"), &[32], F32)
                .tensor(&format!("blk.{i}.attn_k_norm.weight"), &[32], F32)
                .tensor(
                    &format!("blk.{i}.post_attention_norm.weight"),
                    &[HIDDEN],
                    F32,
                )
                .tensor(&format!("blk.{i}.post_ffw_norm.weight"), &[HIDDEN], F32);
        }
        spec.u32("attention.sliding_window", 8)
    }

    /// With attention in the second layer only.
    fn lfm2() -> Self {
        let mut spec = Self::new("lfm2")
            .key("attention.head_count_kv", ARRAY, &integers(&[0, 1]))
            .u32("shortconv.l_cache", 3)
            .without_tensor("output_norm.weight")
            .tensor("token_embd_norm.weight", &[HIDDEN], F32)
            .tensor("blk.1.attn_q_norm.weight", &[32], F32)
            .tensor("blk.1.attn_k_norm.weight", &[32], F32)
            .tensor("blk.0.shortconv.conv.weight", &[3, HIDDEN], F32)
            .tensor("blk.0.shortconv.in_proj.weight", &[HIDDEN, 192], F32)
            .tensor("blk.0.shortconv.out_proj.weight", &[HIDDEN, HIDDEN], F32);
        for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            spec = spec.without_tensor(&format!("blk.0.{name}.weight"));
        }
        spec
    }

    /// With norms around attention and feed-forward layer, and 4 heads.
    fn gemma2(n_layers: usize) -> Self {
        let mut spec = Self::new("gemma2")
            .u32("block_count", n_layers as u32)
            .u32("attention.head_count", 4)
            .u32("attention.sliding_window", 8)
            .f32("attn_logit_softcapping", 50.0)
            .f32("final_logit_softcapping", 30.0);
        for i in 0..n_layers {
            let tensors: [(&str, &[u64]); 11] = [
                ("attn_norm", &[HIDDEN]),
                ("attn_q", &[HIDDEN, 128]),
                ("attn_k", &[HIDDEN, 32]),
                ("attn_v", &[HIDDEN, 32]),
                ("attn_output", &[128, HIDDEN]),
                ("post_attention_norm", &[HIDDEN]),
                ("ffn_norm", &[HIDDEN]),
                ("ffn_gate", &[HIDDEN, 96]),
                ("ffn_up", &[HIDDEN, 96]),
                ("ffn_down", &[96, HIDDEN]),
                ("post_ffw_norm", &[HIDDEN]),
            ];
            for (name, dims) in tensors {
                spec = spec.tensor(&format!("blk.{i}.{name}.weight"), dims, F32);
            }
        }
        spec
    }

    fn bools(self, name: &str, values: &[u8]) -> Self {
        self.key(name, ARRAY, &bools(values))
    }
}

pub(super) fn bools(values: &[u8]) -> Vec<u8> {
    array(BOOL, values.len() as u64, values)
}

pub(super) fn integers(values: &[i32]) -> Vec<u8> {
    let bytes: Vec<u8> = values.iter().flat_map(|n| n.to_le_bytes()).collect();
    array(I32, values.len() as u64, &bytes)
}

/// Scores are scaled like in llama.cpp: by the head size, except for 27B, which is recognized by
/// its 46 layers and scaled by hidden / heads.
#[test]
fn gemma2_scales_scores_by_the_width_of_its_heads() {
    let text = |n_layers: usize| {
        let program = Spec::gemma2(n_layers).lower().unwrap().program;
        print(&program, &mut Blobs::default())
    };
    // 16^-0.5 and 32^-0.5, spelled like fp32 in MIL text.
    let (of_27b, of_others) = ("0x1p-2", "0x1.6a09e6p-3");
    let (small, large) = (text(2), text(46));
    assert!(small.contains(of_others) && !small.contains(of_27b));
    assert!(large.contains(of_27b) && !large.contains(of_others));
}

const PATTERN: &str = "attention.sliding_window_pattern";

#[test]
fn a_list_or_a_number_says_which_layers_slide() {
    let program = |spec: Spec| spec.lower().unwrap().program;
    let second_is_full = program(Spec::exaone4().bools(PATTERN, &[1, 0]));
    let by_number = program(Spec::exaone4().u32(PATTERN, 2));
    assert_eq!(difference(&second_is_full, &by_number), None);
    let both_slide = program(Spec::exaone4().bools(PATTERN, &[1, 1]));
    assert_eq!(difference(&both_slide, &program(Spec::exaone4())), None);
    assert!(difference(&both_slide, &second_is_full).is_some());
    let short = Spec::exaone4().bools(PATTERN, &[1]).lower();
    let parts = ["`exaone4.attention.sliding_window_pattern`", "a list of 1"];
    assert_refused("one bool", short, &parts);
    let numbers = Spec::exaone4().key(PATTERN, ARRAY, &integers(&[1, 0]));
    let parts = ["exaone4.attention.sliding_window_pattern", "bools"];
    assert_refused("integers", numbers.lower(), &parts);
}

/// Phi-4 says that its window is 0. Every file has the context length before extension.
#[test]
fn a_window_of_zero_is_none() {
    let without = Spec::phi3().lower().unwrap().program;
    let zero = Spec::phi3()
        .u32("attention.sliding_window", 0)
        .u32("rope.scaling.original_context_length", 128);
    let zero = zero.lower().unwrap().program;
    assert_eq!(difference(&zero, &without), None);
    let eight = Spec::phi3().u32("attention.sliding_window", 8);
    assert!(difference(&eight.lower().unwrap().program, &without).is_some());
}

#[test]
fn rows_of_a_quantized_joined_matrix_are_sliced() {
    let mut spec = Spec::phi3();
    for i in 0..2 {
        spec = spec
            .tensor(&format!("blk.{i}.attn_qkv.weight"), &[HIDDEN, 128], Q8_0)
            .tensor(&format!("blk.{i}.ffn_up.weight"), &[HIDDEN, 192], Q8_0);
    }
    spec.lower().unwrap();
    let short = spec.tensor("blk.1.attn_qkv.weight", &[HIDDEN, 96], Q8_0);
    assert_eq!(
        faults(short.lower()),
        ["`blk.1.attn_qkv.weight`: expected the shape [128, 64], found [96, 64]"]
    );
}

#[test]
fn rotary_factors_of_a_wrong_number_are_faults_of_their_tensors() {
    let spec = |long, short| {
        Spec::phi3()
            .u32("rope.scaling.original_context_length", 32)
            .tensor("rope_factors_long.weight", &[long], F32)
            .tensor("rope_factors_short.weight", &[short], F32)
    };
    spec(16, 16).lower().unwrap();
    let expected = [
        "`rope_factors_long.weight`: expected the shape [16], found [8]",
        "`rope_factors_short.weight`: expected the shape [16], found [17]",
    ];
    assert_eq!(faults(spec(8, 17).lower()), expected);
    let missing = spec(16, 16).without_tensor("rope_factors_short.weight");
    let expected = ["`rope_factors_short.weight` [16] is missing"];
    assert_eq!(faults(missing.lower()), expected);
}

#[test]
fn key_heads_say_which_layers_of_lfm2_attend() {
    Spec::lfm2().lower().unwrap();
    let kv = "attention.head_count_kv";
    let short = Spec::lfm2().key(kv, ARRAY, &integers(&[0, 1, 1]));
    let parts = ["`lfm2.attention.head_count_kv`", "a list of 3", "2 layers"];
    assert_refused("three numbers", short.lower(), &parts);
    let both = Spec::lfm2().key(kv, ARRAY, &integers(&[1, 1]));
    let faults = faults(both.lower());
    let missing = "`blk.0.attn_q.weight` [64, 64] is missing".to_owned();
    assert!(faults.contains(&missing), "{faults:?}");
    let taps = Spec::lfm2().without("shortconv.l_cache").lower();
    assert_refused("taps", taps, &["lfm2.shortconv.l_cache", "missing"]);
}

/// What YaRN multiplies cosines by is the key, or follows from the scaling factor.
#[test]
fn yarn_takes_its_factor_from_the_file() {
    let spec = || {
        Spec::new("mistral3")
            .u32("rope.dimension_count", 32)
            .str("rope.scaling.type", "yarn")
            .f32("rope.scaling.factor", 4.0)
            .u32("rope.scaling.original_context_length", 32)
    };
    let program = |spec: Spec| spec.lower().unwrap().program;
    let name = "rope.scaling.yarn_attn_factor";
    let plain = program(spec());
    let same = program(spec().f32(name, 1.0 + 0.1 * 4f32.ln()));
    assert_eq!(difference(&plain, &same), None);
    let one = program(spec().f32(name, 1.0));
    assert!(difference(&plain, &one).is_some());
    let cancelled = program(spec().f32("rope.scaling.yarn_log_multiplier", 1.0));
    assert_eq!(difference(&one, &cancelled), None);
    let scaled = program(spec().f32("attention.temperature_scale", 0.1));
    assert!(difference(&plain, &scaled).is_some());
    let unknown = spec().without("rope.scaling.original_context_length");
    let parts = ["mistral3.rope.scaling.original_context_length", "missing"];
    assert_refused("yarn", unknown.lower(), &parts);
}

/// A dense Hunyuan model may say that it has one expert.
#[test]
fn one_expert_of_hunyuan_is_none() {
    let mut spec = Spec::new("hunyuan-dense");
    for i in 0..2 {
        spec = spec
            .tensor(&format!("blk.{i}.attn_q_norm.weight"), &[32], F32)
            .tensor(&format!("blk.{i}.attn_k_norm.weight"), &[32], F32);
    }
    let one = spec
        .clone()
        .u32("expert_count", 1)
        .u32("expert_used_count", 1);
    one.lower().unwrap();
    let two = spec.u32("expert_count", 2).lower();
    assert_refused("two", two, &["`hunyuan-dense.expert_count`", "2"]);
}
