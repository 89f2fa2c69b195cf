//! Bundles of ANEMLL that `convert` writes: the files and interfaces of one that coremltools wrote,
//! the logits of transformers, the tokens of the portable form.

use std::fs;
use std::path::Path;

use thane_cpu::Numerics;
use thane_cpu::ane::Effects;
use thane_mil::package::Package;
use thane_mil::program::{Function, ValueId};
use thane_runtime::{LanguageModel, LanguageOptions, Model};

use crate::decoder::{BLOCK, BOUND, CONTEXT, compare_tokens, files, model, models, worst};
use crate::fixture::{Home, assert_ends, chat_folder, json, stdout};
use crate::foreign::bundle;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Converts a checkpoint; `more` are flags by words.
fn convert(home: &Home, checkpoint: &Path, out: &Path, more: &str) -> std::process::Output {
    let mut args = vec![
        "convert",
        text(checkpoint),
        "--form",
        "anemll",
        "-o",
        text(out),
    ];
    args.extend(more.split_whitespace());
    home.run(&args)
}

fn open(path: &Path) -> LanguageModel {
    let model = Model::from_files(files(path.to_owned())).unwrap();
    model
        .language_model(&LanguageOptions::default(), &())
        .unwrap()
}

/// Checkpoints and the layers of their chunks. The context is longer than all windows.
const CASES: [(&str, &str); 10] = [
    ("tiny/llama-bias", "1"),
    ("tiny/llama-rope3", "2"),
    ("tiny/llama-head", "0-1,1-2,head"),
    ("tiny/gptq", "1"),
    ("tiny/qwen2", "2"),
    ("tiny/qwen2-yarn", "2"),
    ("tiny/qwen3", "2"),
    ("tiny/qwen3-sliding", "0-1,1-3"),
    ("tiny/gemma3", "3"),
    ("tiny/gemma3-image", "1MB"),
];

/// Prompts are shorter and longer than a block, and end within one.
#[test]
fn logits_and_tokens_are_those_of_the_reference() {
    let home = Home::new();
    for (name, split) in CASES {
        let out = home.path(&name.replace('/', "-"));
        let flags = format!("--context {CONTEXT} --block {BLOCK} --split {split}");
        assert_ends(&convert(&home, &models().join(name), &out, &flags), 0, &[]);
        let written = open(&out);
        for numerics in [Numerics::F32, Numerics::Ane(Effects::default())] {
            let error = worst(name, &written, numerics);
            assert!(error < BOUND, "{name}: {error}");
        }
        let [n_steps, n_ties] = compare_tokens(name, &model(name, "", None), &written);
        assert!(n_ties * 25 < n_steps, "{name}: {n_ties} of {n_steps}");
    }
}

/// A chunk writes the keys of several layers at once.
#[test]
fn chunks_that_changed_places_are_found() {
    let home = Home::new();
    let (out, aside) = (home.path("bundle"), home.path("aside"));
    let flags = "--context 64 --block 8 --split 2";
    let gemma = models().join("tiny/gemma3");
    assert_ends(&convert(&home, &gemma, &out, flags), 0, &[]);
    let chunk = |n: usize| out.join(format!("gemma3_FFN_PF_chunk_{n:02}of02.mlpackage"));
    for (from, to) in [
        (chunk(1), aside.clone()),
        (chunk(2), chunk(1)),
        (aside, chunk(2)),
    ] {
        fs::rename(from, to).unwrap();
    }
    let said = "expected chunk 1 of 2 to write the layers from 0 on, found [2, 3]";
    assert_ends(&home.run(&["check", text(&out)]), 2, &[said]);
}

/// Inputs, states and outputs of a function with their types.
fn ports(f: &Function) -> Vec<String> {
    let port = |v: &ValueId| format!("{} {}", f.value(*v).name, f.value(*v).ty);
    let mut inputs: Vec<String> = f.body().inputs.iter().map(port).collect();
    inputs.sort();
    inputs.extend(f.body().outputs.iter().map(port));
    inputs
}

/// coremltools wrote the other bundle from the same checkpoint, with fewer slices of the head.
#[test]
fn packages_have_the_interfaces_of_a_bundle_that_coremltools_wrote() {
    let (home, theirs) = (Home::new(), bundle("anemll-chat"));
    let ours = home.path("bundle");
    let flags = "--context 64 --block 8 --split 2";
    assert_ends(&convert(&home, &chat_folder(), &ours, flags), 0, &[]);
    for name in [
        "llama_embeddings.mlpackage",
        "llama_FFN_PF_chunk_01of02.mlpackage",
        "llama_FFN_PF_chunk_02of02.mlpackage",
    ] {
        let [ours, theirs] =
            [&ours, Path::new(&theirs)].map(|folder| Package::open(&folder.join(name)).unwrap());
        assert_eq!(ours.default_function, theirs.default_function, "{name}");
        let functions = |package: &Package| {
            let functions = package.program.functions().iter();
            let mut functions: Vec<_> = functions.map(|f| (f.name.clone(), ports(f))).collect();
            functions.sort();
            functions
        };
        assert_eq!(functions(&ours), functions(&theirs), "{name}");
        let shapes = |package: &Package| -> Vec<_> {
            let interface = package.interfaces.get("main");
            let features = interface.into_iter().flat_map(|i| &i.features);
            features
                .map(|(name, feature)| (name.clone(), feature.shape.clone()))
                .collect()
        };
        if name.contains("embeddings") {
            assert_eq!(shapes(&ours), shapes(&theirs), "{name}");
        }
    }
    let head = Package::open(&ours.join("llama_lm_head.mlpackage")).unwrap();
    let widths = [36, 36, 35, 35, 35, 35, 35, 35];
    let outputs = widths.iter().enumerate();
    let outputs = outputs.map(|(i, n)| format!("logits{} tensor<fp16, [1, 1, {n}]>", i + 1));
    let mut expected = vec!["hidden_states tensor<fp16, [1, 1, 48]>".to_owned()];
    expected.extend(outputs);
    assert_eq!(ports(&head.program.functions()[0]), expected);
}

/// `meta.yaml` of the chat model, with the keys and their order of ANEMLL's generator.
const META: &str = "\
model_info:
  name: \"tiny-chat-ctx64\"
  version: 0.3.5
  description: \"tiny-chat for the Neural Engine, converted with Thane\"
  license: \"unknown\"
  author: Thane
  framework: Core ML
  language: Rust
  architecture: llama
  parameters:
    context_length: 64
    batch_size: 8
    lut_embeddings: none
    lut_ffn: none
    lut_lmhead: none
    num_chunks: 2
    model_prefix: llama
    embeddings: llama_embeddings.mlmodelc
    lm_head: llama_lm_head.mlmodelc
    ffn: llama_FFN_PF_chunk_01of02.mlmodelc
    split_lm_head: 8
    vocab_size: 282
    lm_head_chunk_sizes: [36, 36, 35, 35, 35, 35, 35, 35]
    prefill_dynamic_slice: true
";

#[test]
fn the_folder_holds_what_hosts_read() {
    let home = Home::new();
    let out = home.path("bundle");
    let flags = "--context 64 --block 8 --split 2";
    assert_ends(
        &convert(&home, &chat_folder(), &out, flags),
        0,
        &["chunk2_prefill, head", "audit for m4"],
    );
    let mut names: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "config.json",
            "llama_FFN_PF_chunk_01of02.mlpackage",
            "llama_FFN_PF_chunk_02of02.mlpackage",
            "llama_embeddings.mlpackage",
            "llama_lm_head.mlpackage",
            "meta.yaml",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    let meta = fs::read_to_string(out.join("meta.yaml")).unwrap();
    assert_eq!(meta, META);
    let chunk = Package::open(&out.join("llama_FFN_PF_chunk_02of02.mlpackage")).unwrap();
    for (key, value) in [
        ("chunk_no", "2"),
        ("functions", "infer,prefill"),
        ("context_length", "64"),
    ] {
        let key = format!("com.anemll.{key}");
        assert_eq!(chunk.metadata.user_defined[&key], value);
    }
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["tokenizer_class"], "LlamaTokenizer");
    assert_eq!(config["model_type"], "llama");
}

#[test]
fn commands_read_what_is_written() {
    let home = Home::new();
    let out = home.path("bundle");
    let flags = "--context 64 --block 8 --split 2";
    assert_ends(&convert(&home, &chat_folder(), &out, flags), 0, &[]);
    let shown = stdout(&home.run(&["inspect", "--stats", text(&out)]));
    assert!(
        shown.contains("ANEMLL 0.3.5: llama, 2 layers, gives all logits"),
        "{shown}"
    );
    assert_ends(&home.run(&["check", text(&out)]), 0, &[]);
    assert_ends(&home.run(&["audit", text(&out)]), 0, &[]);
    let answer = |model: &Path, more: &[&str]| {
        let prompt = "a prompt that is longer than two blocks";
        let args = ["run", text(model), prompt, "--json", "--temperature", "0"];
        let args = [
            &args[..],
            &["--max-tokens", "12", "--numerics", "f32"],
            more,
        ]
        .concat();
        json(&home.run(&args))["tokens"].clone()
    };
    assert_eq!(
        answer(&out, &[]),
        answer(&chat_folder(), &["--context", "64"])
    );
}

#[test]
fn what_bundles_cannot_have_is_refused() {
    let home = Home::new();
    let out = home.path("bundle");
    let tiny = |name: &str| models().join(name);
    for (checkpoint, flags, said) in [
        (
            tiny("tiny/mistral"),
            "",
            "the architecture `mistral` (expected llama, qwen2,",
        ),
        (
            tiny("tiny-gguf/llama-bias.gguf"),
            "",
            "expected a Hugging Face folder",
        ),
        (
            tiny("tiny/qwen3"),
            "--kv explicit",
            "cannot have an explicit KV cache",
        ),
        (
            tiny("tiny/qwen3"),
            "--lookup host",
            "cannot have tables on the host",
        ),
        (
            tiny("tiny/qwen3"),
            "--verify 4",
            "cannot have the function verify",
        ),
        (
            tiny("tiny/qwen3"),
            "--contexts 32",
            "cannot have shorter contexts",
        ),
        (tiny("tiny/qwen3"), "--split 3", "--split 1 to 2"),
        (
            tiny("tiny/qwen3"),
            "--context 64 --block 65",
            "expected prefill of 1 to 64 tokens",
        ),
        (
            tiny("tiny/qwen3"),
            "--functions infer",
            "holds all functions",
        ),
        (
            tiny("tiny/qwen3"),
            "--min-os macos14",
            "in the opset of ios18",
        ),
        (
            tiny("tiny/qwen3"),
            "--task embed",
            "written for the Neural Engine only",
        ),
    ] {
        assert_ends(&convert(&home, &checkpoint, &out, flags), 2, &[said]);
        assert!(!out.exists(), "{flags}");
    }
    let package = home.path("bundle.mlpackage");
    let output = convert(&home, &tiny("tiny/qwen3"), &package, "");
    assert_ends(
        &output,
        2,
        &["expected a folder as the output", "-o FOLDER"],
    );
}

#[test]
fn a_folder_is_replaced_only_by_force_and_only_if_it_is_a_bundle() {
    let home = Home::new();
    let (out, qwen) = (home.path("bundle"), models().join("tiny/qwen3"));
    assert_ends(
        &convert(&home, &chat_folder(), &out, "--context 64"),
        0,
        &[],
    );
    assert_ends(&convert(&home, &qwen, &out, ""), 2, &["exists already"]);
    assert_ends(&convert(&home, &qwen, &out, "--force --context 64"), 0, &[]);
    assert_eq!(open(&out).info.architecture, "qwen3");
    assert!(!out.join("tokenizer.json").exists());
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let refused = convert(&home, &qwen, &out, "--force");
    assert_ends(&refused, 2, &["exists and is no ANEMLL bundle"]);
    assert_eq!(fs::read(out.join("notes.txt")).unwrap(), b"mine");
}
