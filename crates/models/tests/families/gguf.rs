//! Small GGUF files that the tests write, with changed keys and tensors.

use thane_mil::program::difference;
use thane_mil::text::{Blobs, print};
use thane_models::checkpoint::TensorType;
use thane_models::{Model, ModelError, Options};

use super::{assert_refused, faults, lower};
use crate::checkpoint::builder::{Folder, GgufFile, array, string};

/// The numbers of the tensor types in GGUF.
pub(super) const F32: u32 = 0;
const F16: u32 = 1;
pub(super) const Q8_0: u32 = 8;
const I32: u32 = 26;

/// The keys and tensors of a GGUF file, which a test edits.
#[derive(Clone)]
pub(super) struct Spec {
    architecture: &'static str,
    keys: Vec<(String, u32, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32)>,
}

pub(super) const HIDDEN: u64 = 64;
const VOCAB: u64 = 5;

impl Spec {
    /// Two layers, 2 query heads of 32 elements on 1 key head, equal sizes everywhere.
    pub(super) fn new(architecture: &'static str) -> Self {
        let mut spec = Self {
            architecture,
            keys: Vec::new(),
            tensors: Vec::new(),
        }
        .u32("block_count", 2)
        .u32("context_length", 128)
        .u32("embedding_length", HIDDEN as u32)
        .u32("feed_forward_length", 96)
        .u32("attention.head_count", 2)
        .u32("attention.head_count_kv", 1)
        .u32("attention.key_length", 32)
        .u32("attention.value_length", 32)
        .f32("attention.layer_norm_rms_epsilon", 1e-5)
        .tensor("token_embd.weight", &[HIDDEN, VOCAB], F32)
        .tensor("output_norm.weight", &[HIDDEN], F32);
        for i in 0..2 {
            let mut block = |name: &str, dims: &[u64]| {
                spec.tensors
                    .push((format!("blk.{i}.{name}.weight"), dims.to_vec(), F32));
            };
            block("attn_q", &[HIDDEN, 64]);
            block("attn_k", &[HIDDEN, 32]);
            block("attn_v", &[HIDDEN, 32]);
            block("attn_output", &[64, HIDDEN]);
            block("ffn_gate", &[HIDDEN, 96]);
            block("ffn_up", &[HIDDEN, 96]);
            block("ffn_down", &[96, HIDDEN]);
            block("attn_norm", &[HIDDEN]);
            block("ffn_norm", &[HIDDEN]);
            if architecture == "gemma3" {
                block("attn_q_norm", &[32]);
                block("attn_k_norm", &[32]);
                block("post_attention_norm", &[HIDDEN]);
                block("post_ffw_norm", &[HIDDEN]);
            }
        }
        if architecture == "gemma3" {
            spec.u32("attention.sliding_window", 8)
                .f32("rope.freq_base", 1e6)
        } else {
            spec
        }
    }

    fn llama() -> Self {
        Self::new("llama").u32("rope.dimension_count", 32)
    }

    fn gemma() -> Self {
        Self::new("gemma3")
    }

    pub(super) fn key(self, name: &str, type_id: u32, value: &[u8]) -> Self {
        let name = format!("{}.{name}", self.architecture);
        self.whole_key(&name, type_id, value)
    }

    /// A key that does not begin with the architecture.
    pub(super) fn whole_key(mut self, name: &str, type_id: u32, value: &[u8]) -> Self {
        self.keys.retain(|(key, ..)| *key != name);
        self.keys.push((name.to_owned(), type_id, value.to_vec()));
        self
    }

    pub(super) fn u32(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }

    pub(super) fn f32(self, name: &str, value: f32) -> Self {
        self.key(name, 6, &value.to_le_bytes())
    }

    pub(super) fn str(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &string(value.as_bytes()))
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        let name = format!("{}.{name}", self.architecture);
        self.keys.retain(|(key, ..)| *key != name);
        self
    }

    /// Adds a tensor, or replaces the one with this name.
    pub(super) fn tensor(mut self, name: &str, dims: &[u64], type_id: u32) -> Self {
        self.tensors.retain(|(known, ..)| known != name);
        self.tensors.push((name.to_owned(), dims.to_vec(), type_id));
        self
    }

    pub(super) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|(known, ..)| known != name);
        self
    }

    /// The bytes of the file. F32 tensors contain ones, other tensors the bytes 0x3c.
    pub(super) fn folder(&self) -> Folder {
        let mut file = GgufFile::default().entry(
            "general.architecture",
            8,
            &string(self.architecture.as_bytes()),
        );
        for (key, type_id, value) in &self.keys {
            file = file.entry(key, *type_id, value);
        }
        for (name, dims, type_id) in &self.tensors {
            let ty = TensorType::from_gguf(*type_id).unwrap();
            let n = dims.iter().product::<u64>() as usize;
            let bytes = match ty {
                TensorType::F32 => 1f32.to_le_bytes().repeat(n),
                _ => vec![0x3c; ty.byte_len(n).unwrap()],
            };
            file = file.tensor(name, dims, *type_id, &bytes);
        }
        Folder::new().with("model.gguf", file.bytes())
    }

    pub(super) fn lower(&self) -> Result<Model, ModelError> {
        lower(&self.folder(), "model.gguf", &Options::default())
    }
}

#[test]
fn the_files_are_taken_as_they_are() {
    for spec in [Spec::llama(), Spec::gemma()] {
        let info = spec.lower().unwrap().info;
        assert_eq!(info.architecture, spec.architecture);
        assert_eq!(
            (info.n_layers, info.vocab_size, info.max_context),
            (2, 5, 128)
        );
    }
    // Without the sizes that have defaults.
    let short = Spec::llama()
        .without("attention.key_length")
        .without("attention.value_length");
    short.without("rope.dimension_count").lower().unwrap();
}

#[test]
fn an_unknown_architecture_names_the_nearest_that_are_known() {
    let parts = ["architecture `qwen9` is not supported", "qwen2", "qwen3"];
    assert_refused("qwen9", Spec::new("qwen9").lower(), &parts);
    let folder = Folder::new().with("model.gguf", GgufFile::default().bytes());
    assert_refused(
        "none",
        lower(&folder, "model.gguf", &Options::default()),
        &["general.architecture"],
    );
}

#[test]
fn unknown_keys_are_refused_by_name_and_all_at_once() {
    let llama = Spec::llama()
        .u32("attention.sliding_window", 8)
        .f32("rope.scaling.attn_factor", 2.0)
        .u32("made_up", 1);
    let parts = [
        "does not support these keys",
        "llama.attention.sliding_window",
        "llama.rope.scaling.attn_factor",
        "llama.made_up",
    ];
    assert_refused("llama", llama.lower(), &parts);
    let gemma = Spec::gemma()
        .u32("expert_used_count", 8)
        .f32("attention.scale", 2.0);
    assert_refused(
        "gemma",
        gemma.lower(),
        &[
            "does not support these keys",
            "gemma3.expert_used_count",
            "gemma3.attention.scale",
        ],
    );
}

/// A GGUF file that is rejected, and parts of the message.
type Refused = (Spec, &'static [&'static str]);

fn heads_and_rotary_values() -> Vec<Refused> {
    let (llama, gemma) = (Spec::llama, Spec::gemma);
    vec![
        (
            gemma().u32("expert_count", 8),
            &["`gemma3.expert_count`", "8", "mixtures of experts"],
        ),
        (
            llama().u32("rope.dimension_count", 16),
            &["`llama.rope.dimension_count`", "16", "size of a key head"],
        ),
        (
            llama().u32("attention.value_length", 16),
            &["`llama.attention.value_length`", "16"],
        ),
        (
            gemma().u32("rope.dimension_count", 16),
            &["`gemma3.rope.dimension_count`", "16", "size of a key head"],
        ),
        (
            gemma().u32("attention.value_length", 16),
            &["`gemma3.attention.value_length`", "16"],
        ),
        (
            llama().str("rope.scaling.type", "mrope"),
            &["`llama.rope.scaling.type`", "mrope", "none, linear or yarn"],
        ),
        (
            gemma().str("rope.scaling.type", "longrope"),
            &["`gemma3.rope.scaling.type`", "longrope"],
        ),
        (
            llama().str("rope.scaling.type", "linear"),
            &["llama.rope.scaling.factor", "missing"],
        ),
        (
            llama()
                .str("rope.scaling.type", "none")
                .f32("rope.scaling.factor", 4.0),
            &["`llama.rope.scaling.factor`", "4", "the type is none"],
        ),
        (
            llama().f32("rope.scaling.factor", 0.0),
            &[
                "\"llama.rope.scaling.factor\"",
                "from 0.000001 to 1000000, found 0.0",
            ],
        ),
        (
            llama().f32("rope.freq_base", 0.0),
            &["\"llama.rope.freq_base\"", "from 2 to 1e15, found 0.0"],
        ),
        (
            gemma().f32("rope.freq_base_swa", -1.0),
            &[
                "\"gemma3.rope.freq_base_swa\"",
                "from 2 to 1e15, found -1.0",
            ],
        ),
        (
            llama().f32("rope.freq_base", f32::NAN),
            &["llama.rope.freq_base", "NaN"],
        ),
        (
            llama().f32("attention.layer_norm_rms_epsilon", -1.0),
            &[
                "\"llama.attention.layer_norm_rms_epsilon\"",
                "from 1e-20 to 1, found -1.0",
            ],
        ),
    ]
}

fn other_values() -> Vec<Refused> {
    let (llama, gemma) = (Spec::llama, Spec::gemma);
    vec![
        (
            gemma().f32("attn_logit_softcapping", 50.0),
            &["`gemma3.attn_logit_softcapping` is 50", "expected none"],
        ),
        (
            gemma().f32("final_logit_softcapping", 0.0),
            &["\"gemma3.final_logit_softcapping\"", "found 0.0"],
        ),
        (
            gemma().u32("attention.sliding_window_pattern", 0),
            &["sliding_window_pattern`", "is 0"],
        ),
        (
            llama().u32("attention.head_count_kv", 3),
            &[
                "`llama.attention.head_count_kv` is 3",
                "`llama.attention.head_count`, 2",
            ],
        ),
        (
            llama()
                .u32("attention.key_length", 31)
                .u32("attention.value_length", 31)
                .u32("rope.dimension_count", 31),
            &["`llama.attention.key_length` is 31", "even"],
        ),
        (
            llama()
                .without("attention.key_length")
                .u32("attention.head_count", 3),
            &["`llama.attention.key_length`", "3 heads", "64"],
        ),
        (
            llama().without("block_count"),
            &["llama.block_count", "missing"],
        ),
        (
            gemma().without("attention.sliding_window"),
            &["gemma3.attention.sliding_window", "missing"],
        ),
        (
            llama().str("block_count", "two"),
            &["llama.block_count", "string"],
        ),
        // One number for each layer.
        (
            llama().key(
                "attention.head_count_kv",
                9,
                &array(4, 2, &[1, 0, 0, 0, 2, 0, 0, 0]),
            ),
            &["queries of a key head", "2 in one layer and 1 in another"],
        ),
    ]
}

#[test]
fn values_that_a_family_does_not_compute_are_refused() {
    for (spec, parts) in heads_and_rotary_values().into_iter().chain(other_values()) {
        assert_refused(parts[0], spec.lower(), parts);
    }
}

#[test]
fn absurd_sizes_are_refused() {
    for spec in [Spec::llama(), Spec::gemma()] {
        for name in [
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "vocab_size",
        ] {
            for size in [0, 1 << 25, u32::MAX] {
                let parts = [&format!("{}.{name}", spec.architecture), &size.to_string()];
                assert_refused(
                    name,
                    spec.clone().u32(name, size).lower(),
                    &parts.map(String::as_str),
                );
            }
            let wide = spec.clone().key(name, 10, &(1u64 << 40).to_le_bytes());
            assert_refused(name, wide.lower(), &[name, "1099511627776"]);
        }
        let model = spec.clone().u32("block_count", 1025).lower();
        assert_refused(
            "layers",
            model,
            &["block_count`", "1025", "1 to 1024 layers"],
        );
    }
}

#[test]
fn missing_extra_and_misshapen_tensors_are_listed_together_by_the_names_of_the_file() {
    let spec = Spec::gemma()
        .without_tensor("blk.1.post_ffw_norm.weight")
        .without_tensor("blk.0.attn_k.weight")
        .tensor("blk.0.ffn_norm.weight", &[8, 8], F32)
        .tensor("blk.1.attn_q.bias", &[64], F32)
        .tensor("blk.2.attn_q.weight", &[64, 64], F32)
        .tensor("output_norm.weight", &[HIDDEN], I32);
    let expected = [
        "`blk.0.attn_k.weight` [32, 64] is missing",
        "`blk.0.ffn_norm.weight`: expected the shape [64], found [8, 8]",
        "`blk.1.post_ffw_norm.weight` [64] is missing",
        "`output_norm.weight`: expected the type F32, F16, BF16 or a block-quantized type, found \
         I32",
        "`blk.1.attn_q.bias` [64] does not belong to this architecture",
        "`blk.2.attn_q.weight` [64, 64] does not belong to this architecture",
    ];
    assert_eq!(faults(spec.lower()), expected);
}

#[test]
fn a_vocabulary_of_another_size_is_refused() {
    let due = [
        "`token_embd.weight`: expected the shape [6, 64], found [5, 64] (6 is `llama.vocab_size`)",
    ];
    assert_eq!(faults(Spec::llama().u32("vocab_size", 6).lower()), due);
    assert_eq!(
        faults(Spec::llama().without_tensor("token_embd.weight").lower()),
        ["`token_embd.weight` [1, 64] is missing"]
    );
}

#[test]
fn quantized_vectors_are_refused() {
    let spec = Spec::llama().tensor("blk.1.attn_norm.weight", &[HIDDEN], Q8_0);
    let due = [
        "`blk.1.attn_norm.weight`: expected the type F32, F16 or BF16, found Q8_0, which only \
         matrices can have",
    ];
    assert_eq!(faults(spec.lower()), due);
    // A matrix can be quantized.
    Spec::llama()
        .tensor("blk.1.attn_q.weight", &[HIDDEN, 64], Q8_0)
        .lower()
        .unwrap();
}

#[test]
fn rows_that_are_no_whole_blocks_are_refused() {
    let spec = Spec::llama();
    let mut file = GgufFile::default().entry("general.architecture", 8, &string(b"llama"));
    for (key, type_id, value) in &spec.keys {
        file = file.entry(key, *type_id, value);
    }
    let folder = Folder::new().with(
        "model.gguf",
        file.tensor_at("token_embd.weight", &[48, 5], Q8_0, 0)
            .bytes(),
    );
    let parts = ["token_embd.weight", "Q8_0", "rows of 48", "block length 32"];
    assert_refused(
        "blocks",
        lower(&folder, "model.gguf", &Options::default()),
        &parts,
    );
}

/// Llama files may have biases for query, key and value and none for the output.
#[test]
fn biases_are_those_of_the_file() {
    let qkv = |mut spec: Spec| {
        for i in 0..2 {
            for (name, len) in [("q", 64), ("k", 32), ("v", 32)] {
                spec = spec.tensor(&format!("blk.{i}.attn_{name}.bias"), &[len], F32);
            }
        }
        spec
    };
    qkv(Spec::llama()).lower().unwrap();
    let output =
        |spec: Spec, i: usize| spec.tensor(&format!("blk.{i}.attn_output.bias"), &[HIDDEN], F32);
    output(output(qkv(Spec::llama()), 0), 1).lower().unwrap();
    assert_eq!(
        faults(output(qkv(Spec::llama()), 0).lower()),
        ["`blk.1.attn_output.bias` [64] is missing"]
    );
    let one = Spec::llama().tensor("blk.0.attn_q.bias", &[64], F32);
    assert_eq!(faults(one.lower()).len(), 5);
}

#[test]
fn frequency_divisors_are_read_whatever_their_type_or_refused() {
    let plain = Spec::llama().lower().unwrap().program;
    let ones = Spec::llama()
        .tensor("rope_freqs.weight", &[16], F32)
        .lower()
        .unwrap()
        .program;
    assert_eq!(difference(&plain, &ones), None);
    // 0x3c3c is 1.06 in fp16, which is a valid divisor.
    let halves = Spec::llama()
        .tensor("rope_freqs.weight", &[16], F16)
        .lower()
        .unwrap()
        .program;
    assert!(difference(&plain, &halves).is_some());
    let short = Spec::llama().tensor("rope_freqs.weight", &[8], F32);
    assert_eq!(
        faults(short.lower()),
        ["`rope_freqs.weight`: expected the shape [16], found [8]"]
    );
    let quantised = Spec::llama().tensor("rope_freqs.weight", &[32], Q8_0);
    assert_eq!(
        faults(quantised.lower()),
        ["`rope_freqs.weight`: expected the shape [16], found [32]"]
    );
}

#[test]
fn a_factor_without_a_type_is_linear() {
    let lower = |spec: Spec| spec.lower().unwrap().program;
    let bare = lower(Spec::llama().f32("rope.scaling.factor", 4.0));
    let named = lower(
        Spec::llama()
            .f32("rope.scaling.factor", 4.0)
            .str("rope.scaling.type", "linear"),
    );
    let none = lower(
        Spec::llama()
            .f32("rope.scaling.factor", 1.0)
            .str("rope.scaling.type", "none"),
    );
    assert_eq!(difference(&bare, &named), None);
    assert_eq!(difference(&none, &lower(Spec::llama())), None);
    assert!(difference(&bare, &none).is_some());
}

/// Scores are scaled like in llama.cpp: by the head size, except for 27B, which is recognized by
/// its 62 layers and scaled by hidden / heads.
#[test]
fn gemma3_scales_scores_by_the_width_of_its_heads() {
    // 4 heads of 32 for a hidden size of 64. The query is scaled by the factor that
    // `scaled_dot_product_attention` does not apply itself.
    let text = |n_layers: usize| {
        let mut spec = Spec::gemma()
            .u32("block_count", n_layers as u32)
            .u32("attention.head_count", 4);
        let blocks: Vec<_> = spec
            .tensors
            .iter()
            .filter(|(name, ..)| name.starts_with("blk.1."))
            .cloned()
            .collect();
        spec.tensors.retain(|(name, ..)| !name.starts_with("blk."));
        for i in 0..n_layers {
            for (name, dims, type_id) in &blocks {
                let dims = match name.as_str() {
                    "blk.1.attn_q.weight" => vec![HIDDEN, 128],
                    "blk.1.attn_output.weight" => vec![128, HIDDEN],
                    _ => dims.clone(),
                };
                spec.tensors
                    .push((name.replace("blk.1.", &format!("blk.{i}.")), dims, *type_id));
            }
        }
        print(&spec.lower().unwrap().program, &mut Blobs::default())
    };
    // The square root of 32 / 16, spelled like fp32 in MIL text.
    let factor = "0x1.6a09e6p+0";
    let (small, large) = (text(2), text(62));
    assert!(small.contains("scaled_dot_product_attention(") && !small.contains(factor));
    assert!(large.contains(factor));
}

#[test]
fn a_context_that_the_model_does_not_have_is_refused() {
    let folder = Spec::llama().folder();
    for asked in [0, 129] {
        let model = lower(
            &folder,
            "model.gguf",
            &Options {
                context: Some(asked),
                ..Options::default()
            },
        );
        assert_refused(
            "a context",
            model,
            &[&format!("found {asked}"), "context length from 1 to 128"],
        );
    }
}
