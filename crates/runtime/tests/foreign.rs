//! Bundles of other projects give the tokens and logits of transformers with the same checkpoint,
//! and damaged ones say what is wrong.

// Clippy does not know helpers of tests as tests.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use thane_cpu::{Cpu, Numerics};
use thane_engine::generate::Session;
use thane_engine::sample::{SampleOptions, argmax};
use thane_hub::{Hub, Places};
use thane_mil::package::Package;
use thane_runtime::{
    ForeignBundle, ForeignLayout, LanguageModel, LanguageOptions, Message, Model, RuntimeError,
};

const BUNDLES: [&str; 6] = [
    "anemll-chat",
    "anemll-monolithic",
    "anemll-rotating",
    "coreml-llm-chunks",
    "coreml-llm-merged",
    "coreml-llm-monolithic",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/bundles")
        .join(name)
}

fn read(path: &Path) -> ForeignBundle {
    ForeignLayout::of(path).unwrap().open(path).unwrap()
}

fn opened(path: &Path) -> Result<LanguageModel, RuntimeError> {
    let hub = Hub {
        offline: true,
        ..Hub::new(Places::in_folder("no-cache"))
    };
    Model::open(path.to_str().unwrap(), &hub, &())?.language_model(&LanguageOptions::default(), &())
}

fn session(model: &LanguageModel) -> Session {
    model.session(&Cpu::new(Numerics::F32, 1)).unwrap()
}

/// What transformers answers to a prompt.
struct Golden {
    prompt: String,
    ids: Vec<u32>,
    tokens: Vec<u32>,
    text: String,
    ended: bool,
    /// Logits after each token of prompt and answer but the last.
    logits: Vec<Vec<f32>>,
}

fn goldens(folder: &Path) -> Vec<Golden> {
    let json: Value =
        serde_json::from_slice(&fs::read(folder.join("golden.json")).unwrap()).unwrap();
    let floats = fs::read(folder.join("golden.bin")).unwrap();
    let floats = floats.as_chunks::<4>().0.iter();
    let floats: Vec<f32> = floats.map(|b| f32::from_le_bytes(*b)).collect();
    let ids = |value: &Value| serde_json::from_value(value.clone()).unwrap();
    let golden = |answer: &Value| {
        let place = &answer["logits"];
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let (start, rows) = (number(&place["offset"]), number(&place["shape"][0]));
        let width = number(&place["shape"][1]);
        Golden {
            prompt: answer["prompt"].as_str().unwrap().to_owned(),
            ids: ids(&answer["ids"]),
            tokens: ids(&answer["tokens"]),
            text: answer["text"].as_str().unwrap().to_owned(),
            ended: answer["ended"].as_bool().unwrap(),
            logits: floats[start..start + rows * width]
                .chunks(width)
                .map(<[f32]>::to_vec)
                .collect(),
        }
    };
    json["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(golden)
        .collect()
}

/// Bound of the error of a logit, relative to the largest: products, norms and caches are in fp16.
/// Rounding each weight of the checkpoint of `coreml-llm-chunks` by half a unit of fp16 moves the
/// logits of transformers by up to 0.026.
fn bound(name: &str) -> f32 {
    if name.starts_with("coreml-llm-chunks") || name.starts_with("coreml-llm-merged") {
        0.05
    } else {
        0.02
    }
}

/// The known logits of `found` equal those of transformers; others are minus infinity. `place`
/// begins with the name of the bundle.
fn assert_near(found: &[f32], expected: &[f32], place: &str) {
    let magnitude = |row: &[f32]| row.iter().fold(0f32, |most, x| most.max(x.abs()));
    let (scale, bound) = (magnitude(expected), bound(place));
    assert_eq!(found.len(), expected.len(), "{place}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / scale;
        let is_unknown = *found == f32::NEG_INFINITY;
        assert!(is_unknown || error < bound, "{place}, token {i}: {error}");
    }
    // Two logits may change places if they are closer than the error.
    let (ours, theirs) = (argmax(found).unwrap(), argmax(expected).unwrap());
    let gap = (expected[theirs] - expected[ours]) / scale;
    assert!(
        gap < bound,
        "{place}: token {ours}, expected {theirs}: {gap}"
    );
}

#[test]
fn bundles_answer_as_transformers_does() {
    for name in BUNDLES {
        let model = opened(&folder(name)).unwrap();
        let mut chat = model.generator(&Cpu::new(Numerics::F32, 1)).unwrap();
        for golden in goldens(&folder(name)) {
            chat.max_tokens = Some(golden.tokens.len() + usize::from(golden.ended));
            let question = Message::new("user", &golden.prompt);
            let answer = chat.answer(&[question], |_| {}).unwrap();
            assert_eq!(answer.tokens, golden.tokens, "{name}: {}", golden.prompt);
            assert_eq!(answer.text, golden.text, "{name}");
        }
    }
}

/// Every position of prompt and answer, beyond windows and caches that shift.
#[test]
fn logits_at_every_position_are_those_of_transformers() {
    for name in BUNDLES {
        let model = opened(&folder(name)).unwrap();
        let mut session = session(&model);
        for golden in goldens(&folder(name)) {
            let tokens = [&golden.ids[..], &golden.tokens].concat();
            session.reset();
            for (i, expected) in golden.logits.iter().enumerate() {
                let logits = session.decode(tokens[i]).unwrap();
                assert_near(&logits, expected, &format!("{name}, position {i}"));
            }
        }
    }
}

/// A prompt in blocks and single tokens, whatever the cache held before.
#[test]
fn prefill_gives_what_decode_gives_after_any_history() {
    for name in BUNDLES {
        let model = opened(&folder(name)).unwrap();
        let mut session = session(&model);
        let goldens = goldens(&folder(name));
        let never = || false;
        for golden in goldens.iter().chain(&goldens) {
            let tokens = [&golden.ids[..], &golden.tokens].concat();
            // Lengths below, at and beyond blocks and windows, each after a longer history.
            for n in [golden.logits.len(), 1, 4, 9, 8, 17, golden.ids.len()] {
                let logits = session.feed(&tokens[..n], &never).unwrap().unwrap();
                assert_near(
                    &logits,
                    &golden.logits[n - 1],
                    &format!("{name}, {n} tokens"),
                );
            }
        }
    }
}

#[test]
fn the_function_score_gives_a_row_for_each_token() {
    let model = opened(&folder("anemll-chat")).unwrap();
    let mut session = session(&model);
    let golden = goldens(&folder("anemll-chat")).swap_remove(1);
    let rows = session.verify(&golden.ids).unwrap();
    for (i, row) in rows.chunks(model.info.vocab_size).enumerate() {
        assert_near(row, &golden.logits[i], &format!("row {i}"));
    }
}

#[test]
fn the_context_ends_where_the_bundle_says() {
    let model = opened(&folder("coreml-llm-monolithic")).unwrap();
    let mut session = session(&model);
    for _ in 0..model.info.context {
        session.decode(5).unwrap();
    }
    let error = session.decode(5).unwrap_err().to_string();
    assert!(error.contains("found 41 tokens"), "{error}");
}

#[test]
fn sampling_needs_all_logits() {
    let backend = Cpu::new(Numerics::F32, 1);
    let warm = SampleOptions {
        temperature: 0.7,
        ..SampleOptions::default()
    };
    let greedy = opened(&folder("coreml-llm-chunks")).unwrap();
    let error = greedy.start(&backend, warm.clone(), false).err().unwrap();
    assert!(matches!(error, RuntimeError::GreedyOnly { .. }), "{error}");
    let mut chat = greedy.generator(&backend).unwrap();
    assert!(chat.set_sampling(warm.clone()).is_err());
    opened(&folder("anemll-chat"))
        .unwrap()
        .start(&backend, warm, false)
        .unwrap();
}

#[test]
fn parts_are_named_in_the_order_in_which_they_run() {
    let parts = |name: &str| {
        let bundle = read(&folder(name));
        let parts = bundle.parts.iter().map(|part| part.name.clone());
        (
            parts.collect::<Vec<_>>().join(" "),
            bundle.chain.calls.len(),
        )
    };
    assert_eq!(
        parts("anemll-chat"),
        ("embeddings chunk1 chunk2 head".to_owned(), 2)
    );
    assert_eq!(parts("anemll-rotating").1, 3);
    assert_eq!(parts("anemll-monolithic"), ("model".to_owned(), 2));
    assert_eq!(
        parts("coreml-llm-chunks"),
        ("chunk1 chunk2 chunk3 chunk4".to_owned(), 1)
    );
    assert_eq!(
        parts("coreml-llm-merged"),
        ("chunk1 chunk2 chunk3".to_owned(), 1)
    );
}

/// A copy of a bundle that can be damaged.
struct Copy(TempDir);

impl Copy {
    fn of(name: &str) -> Self {
        let copy = tempfile::tempdir().unwrap();
        copy_tree(&folder(name), copy.path());
        Self(copy)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(file)).unwrap();
        assert!(text.contains(from), "{file} has no `{from}`");
        fs::write(self.path(file), text.replace(from, to)).unwrap();
    }

    fn swap(&self, a: &str, b: &str) {
        fs::rename(self.path(a), self.path("aside")).unwrap();
        fs::rename(self.path(b), self.path(a)).unwrap();
        fs::rename(self.path("aside"), self.path(b)).unwrap();
    }

    fn cut(&self, file: &str, n_bytes: usize) {
        let bytes = fs::read(self.path(file)).unwrap();
        fs::write(self.path(file), &bytes[..bytes.len() - n_bytes]).unwrap();
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
        }
    }
}

type Damage = fn(&Copy);

/// A bundle, what is done to it, and what the error says.
const DAMAGED_ANEMLL: [(&str, Damage, &[&str]); 16] = [
    (
        "anemll-chat",
        |c| fs::remove_dir_all(c.path("llama_lm_head.mlpackage")).unwrap(),
        &["part `head`: expected llama_lm_head.mlmodelc or llama_lm_head.mlpackage, found neither"],
    ),
    (
        "anemll-chat",
        |c| fs::remove_dir_all(c.path("llama_FFN_PF_chunk_02of02.mlpackage")).unwrap(),
        &["part `chunk2`", "llama_FFN_PF_chunk_02of02.mlmodelc"],
    ),
    (
        "anemll-chat",
        |c| {
            c.swap(
                "llama_FFN_PF_chunk_01of02.mlpackage",
                "llama_FFN_PF_chunk_02of02.mlpackage",
            );
        },
        &["expected chunk 1 of 2 to write the layers from 0 on, found [1]"],
    ),
    (
        "anemll-chat",
        |c| {
            c.edit("meta.yaml", "num_chunks: 2", "num_chunks: 1");
            let (old, new) = ("llama_FFN_PF_chunk_01of02", "llama_FFN_PF_chunk_01of01");
            let package = |stem: &str| c.path(&format!("{stem}.mlpackage"));
            fs::rename(package(old), package(new)).unwrap();
        },
        &["`num_chunks`: expected 2 layers in 1 chunks, found 1: layers are missing"],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "context_length: 64", "context_length: 65"),
        &[
            "`causal_mask`: expected room for the context of 65 tokens",
            "found 64",
        ],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "context_length: 64", "context_length: 200"),
        &[
            "the table of angles: expected room for the context of 200 tokens",
            "found 128",
        ],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "batch_size: 8", "batch_size: 16"),
        &[
            "line 15: `batch_size`: expected 8, which `prefill`",
            "found 16",
        ],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "context_length: 64", "context_length: long"),
        &["meta.yaml: line 14: `context_length`: expected a number above 0, found `long`"],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "    context_length: 64\n", ""),
        &["`context_length`: expected this key under `parameters`"],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "version: 0.3.5", "version: 0.4.0"),
        &["line 3: `version`: expected a version up to 0.3, found `0.4.0`"],
    ),
    (
        "anemll-chat",
        |c| c.edit("meta.yaml", "split_lm_head: 4", "twisted: true"),
        &["`twisted`: this key is unknown"],
    ),
    (
        "anemll-chat",
        |c| fs::write(c.path("meta.yaml"), "a: [1\n").unwrap(),
        &["expected YAML"],
    ),
    // The embeddings of another model: rows of another length.
    (
        "anemll-chat",
        |c| {
            replace(
                c,
                "llama_embeddings",
                "anemll-rotating",
                "gemma3_embeddings",
            )
        },
        &[
            "input `hidden_states`: expected fp16 [1, 8, 44]",
            "found fp16 [1, 8, 48]",
        ],
    ),
    (
        "anemll-rotating",
        |c| c.edit("meta.yaml", "[71, 71, 70, 70]", "[71, 71, 70]"),
        &["`lm_head_chunk_sizes`: expected 4 sizes, one for each slice, found 3"],
    ),
    // A head that disagrees with the embedding.
    (
        "anemll-rotating",
        |c| c.edit("meta.yaml", "[71, 71, 70, 70]", "[71, 71, 70, 71]"),
        &[
            "expected the logits of 282 tokens, which the embeddings of",
            "found 283",
        ],
    ),
    (
        "anemll-monolithic",
        |c| {
            c.edit(
                "meta.yaml",
                "monolithic_model: qwen",
                "monolithic_model: other",
            )
        },
        &["part `model`: expected other_monolithic_full.mlmodelc"],
    ),
];

const DAMAGED_COREML_LLM: [(&str, Damage, &[&str]); 14] = [
    (
        "coreml-llm-chunks",
        |c| c.swap("chunk3.mlpackage", "chunk2.mlpackage"),
        &[
            "chunk2.mlpackage",
            "expected an earlier part to give `kv13_k`, found none",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| fs::remove_dir_all(c.path("chunk2.mlpackage")).unwrap(),
        &["part `chunk2`: expected chunk2.mlmodelc or chunk2.mlpackage, found neither"],
    ),
    (
        "coreml-llm-chunks",
        |c| fs::remove_dir_all(c.path("chunk4.mlpackage")).unwrap(),
        &[
            "expected token_id and token_logit, or logits, from the last part",
            "a part is missing",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| {
            c.edit(
                "model_config.json",
                "\"context_length\": 48",
                "\"context_length\": 64",
            )
        },
        &[
            "cos_sliding.npy: shape: expected a row for each of the 64 positions",
            "found 48 rows",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| {
            c.edit(
                "model_config.json",
                "\"context_length\": 48",
                "\"context_length\": 32",
            )
        },
        &[
            "`causal_mask_full`: expected 32 columns, as `context_length`",
            "found 48",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| {
            c.edit(
                "model_config.json",
                "\"sliding_window\": 8",
                "\"sliding_window\": 9",
            )
        },
        &[
            "`causal_mask_sliding`: expected 9 columns, as `sliding_window`",
            "found 8",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| {
            c.edit(
                "model_config.json",
                "\"hidden_size\": 38",
                "\"hidden_size\": 40",
            )
        },
        &["embed_tokens_q8.bin: size: expected 11280 bytes for 282 rows of 40"],
    ),
    (
        "coreml-llm-chunks",
        |c| c.edit("model_config.json", "\"embed_scale\"", "\"embed_scales\""),
        &["model_config.json: `embed_scale`: expected a number, found null"],
    ),
    (
        "coreml-llm-chunks",
        |c| {
            c.edit(
                "model_config.json",
                "\"global_head_dim\": 12",
                "\"global_head_dim\": 8",
            )
        },
        &["cos_full.npy: shape: expected 8 columns, as `global_head_dim`"],
    ),
    (
        "coreml-llm-chunks",
        |c| c.cut("embed_tokens_per_layer_q8.bin", 1),
        &[
            "embed_tokens_per_layer_q8.bin: size: expected 13536 bytes",
            "found 13535",
        ],
    ),
    (
        "coreml-llm-chunks",
        |c| c.cut("sin_full.npy", 2),
        &["sin_full.npy: header: expected 1152 bytes after the header, found 1150"],
    ),
    (
        "coreml-llm-chunks",
        |c| fs::remove_file(c.path("cos_full.npy")).unwrap(),
        &["cos_full.npy: file: expected a table"],
    ),
    // A head that disagrees with the embedding.
    (
        "coreml-llm-monolithic",
        |c| {
            c.edit(
                "model_config.json",
                "\"vocab_size\": 282",
                "\"vocab_size\": 300",
            )
        },
        &[
            "expected a head of 300 tokens, as `vocab_size`",
            "found 282",
        ],
    ),
    (
        "coreml-llm-monolithic",
        |c| {
            c.edit(
                "model_config.json",
                "\"context_length\": 40",
                "\"context_length\": 41",
            )
        },
        &[
            "`causal_mask`: expected 41 columns, as `context_length`",
            "found 40",
        ],
    ),
];

/// Puts a package of another bundle in the place of one.
fn replace(copy: &Copy, stem: &str, other: &str, other_stem: &str) {
    let target = copy.path(&format!("{stem}.mlpackage"));
    fs::remove_dir_all(&target).unwrap();
    copy_tree(
        &folder(other).join(format!("{other_stem}.mlpackage")),
        &target,
    );
}

#[test]
fn damaged_bundles_say_what_is_wrong_and_what_to_do() {
    for (name, damage, expected) in DAMAGED_ANEMLL.iter().chain(&DAMAGED_COREML_LLM) {
        let copy = Copy::of(name);
        damage(&copy);
        let error = opened(copy.0.path()).err().unwrap();
        let text = error.to_string();
        for part in *expected {
            assert!(text.contains(part), "{name}: expected `{part}` in: {text}");
        }
        let RuntimeError::Foreign(fault) = error else {
            panic!("{name}: {text}");
        };
        assert!(!fault.remedy.is_empty(), "{text}");
    }
}

/// A default would be that of another model, and the answer would be wrong without an error.
#[test]
fn keys_that_the_host_computes_with_have_no_default() {
    let sizes = ["num_hidden_layers", "vocab_size", "context_length"];
    let of_chunks = [
        "hidden_size",
        "head_dim",
        "global_head_dim",
        "sliding_window",
        "per_layer_dim",
        "embed_scale",
        "per_layer_embed_scale",
    ];
    for (name, keys) in [
        ("coreml-llm-chunks", [&sizes[..], &of_chunks].concat()),
        ("coreml-llm-merged", [&sizes[..], &of_chunks].concat()),
        ("coreml-llm-monolithic", sizes.to_vec()),
    ] {
        for key in keys {
            let copy = Copy::of(name);
            let path = copy.path("model_config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            config.as_object_mut().unwrap().remove(key).unwrap();
            fs::write(&path, config.to_string()).unwrap();
            let error = opened(copy.0.path()).err().unwrap().to_string();
            let expected = format!("model_config.json: `{key}`: expected a number");
            assert!(error.contains(&expected), "{name}: {error}");
        }
    }
}

/// The names of functions and parts do not depend on whether a part is compiled.
#[test]
fn compiled_models_take_the_place_of_packages() {
    let copy = Copy::of("anemll-chat");
    let (package, compiled) = (
        copy.path("llama_lm_head.mlpackage"),
        copy.path("llama_lm_head.mlmodelc"),
    );
    Package::open(&package)
        .unwrap()
        .write_compiled(&compiled)
        .unwrap();
    fs::remove_dir_all(&package).unwrap();
    let bundle = read(copy.0.path());
    assert_eq!(bundle.parts[3].file(), "llama_lm_head.mlmodelc");
}

/// Without the key that says that blocks are exact, tokens are computed one by one.
#[test]
fn blocks_are_used_only_where_they_are_exact() {
    let copy = Copy::of("anemll-chat");
    copy.edit("meta.yaml", "    prefill_dynamic_slice: true\n", "");
    let bundle = read(copy.0.path());
    assert_eq!(bundle.chain.calls.len(), 1);
    assert!(
        bundle.notes[0].contains("token by token"),
        "{:?}",
        bundle.notes
    );
    let mut chat = opened(copy.0.path())
        .unwrap()
        .generator(&Cpu::new(Numerics::F32, 1))
        .unwrap();
    let golden = goldens(copy.0.path()).swap_remove(0);
    let answer = chat.answer(&[Message::new("user", &golden.prompt)], |_| {});
    assert_eq!(answer.unwrap().tokens, golden.tokens);
}

/// A table that rotates every pair of global attention, as bundles had it whose checkpoint rotates
/// a part of them.
#[test]
fn a_table_that_rotates_too_many_pairs_is_reported() {
    let copy = Copy::of("coreml-llm-chunks");
    let notes = || read(copy.0.path()).notes;
    assert_eq!(notes(), Vec::<String>::new());
    let path = copy.path("cos_full.npy");
    let mut bytes = fs::read(&path).unwrap();
    // The last row: column 5 is of a pair that stays. 0.5 in fp16.
    let at = bytes.len() - 2 * 12 + 2 * 5;
    bytes[at..at + 2].copy_from_slice(&0x3800u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    assert!(
        notes()[0].contains("cos_full.npy rotates 4 of 6 pairs"),
        "{:?}",
        notes()
    );
}
