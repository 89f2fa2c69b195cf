//! The command on the real models, from text to tokens, against the goldens of `tests/models`.
//!
//! Needs the files that `scripts/models.sh` fetches, in the folder that THANE_MODELS names.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;
use thane_cpu::{Cpu, Numerics, Profile, Row};
use thane_engine::generate::Session;
use thane_mil::backend::Backend;
use thane_mil::package::Package;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Options, build};

use crate::bundle::cosine;

const CONTEXT: usize = 2048;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/models")
        .join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn models() -> Option<PathBuf> {
    let models = std::env::var_os("THANE_MODELS").map(PathBuf::from);
    if models.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: THANE_MODELS names no folder; scripts/models.sh makes one"
        );
    }
    models
}

/// The texts, their token ids and the 64 greedy tokens are transformers'; an end token ends `run`,
/// not the reference.
#[test]
fn run_gives_the_reference_tokens_from_text() {
    let Some(models) = models() else { return };
    let texts = golden("prompts");
    for name in ["smollm2-135m", "gemma3-270m"] {
        let golden = golden(name);
        let file = models.join(golden["file"].as_str().unwrap());
        for prompt in ["sky", "japanese", "code"] {
            let find = |list: &Value| {
                list.as_array()
                    .unwrap()
                    .iter()
                    .find(|p| p["name"] == prompt)
                    .unwrap()
                    .clone()
            };
            let expected = find(&golden["prompts"]);
            let is_chat = expected["chat"].as_bool().unwrap();
            let text = find(if texts.is_array() {
                &texts
            } else {
                &texts["prompts"]
            });
            let text = if is_chat {
                text["messages"][0]["content"].clone()
            } else {
                expected["text"].clone()
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_thane"));
            command
                .args(["run", "--json", "--numerics", "f32", "--max-tokens", "64"])
                .args(["--threads", "1"])
                .arg(&file);
            command
                .args(if is_chat { None } else { Some("--raw") })
                .arg(text.as_str().unwrap());
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["prompt_tokens"], expected["ids"], "{name}, {prompt}");
            let tokens = report["tokens"].as_array().unwrap();
            let greedy = expected["greedy"].as_array().unwrap();
            assert_eq!(
                tokens.as_slice(),
                &greedy[..tokens.len()],
                "{name}, {prompt}"
            );
            let reason = if tokens.len() == 64 { "length" } else { "stop" };
            assert_eq!(report["finish_reason"], reason, "{name}, {prompt}");
        }
    }
}

/// The likeliest token after the prompt, and after each that follows.
fn greedy(session: &mut Session, prompt: &[u32], n_tokens: usize) -> Vec<u32> {
    let mut logits = session.feed(prompt, &|| false).unwrap().unwrap();
    let mut tokens = Vec::new();
    loop {
        let likeliest = (0..logits.len())
            .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
            .unwrap() as u32;
        tokens.push(likeliest);
        if tokens.len() == n_tokens {
            return tokens;
        }
        let next = session.decode_greatest(likeliest, Some(1));
        logits = next.unwrap().into_owned();
    }
}

/// `decode_top` does not read the rows of the head that cannot be the best.
#[test]
fn greedy_tokens_do_not_depend_on_what_is_ruled_out() {
    let Some(models) = models() else { return };
    for name in ["smollm2-135m", "gemma3-270m"] {
        let golden = golden(name);
        let checkpoint = Checkpoint::open(&models.join(golden["file"].as_str().unwrap())).unwrap();
        let options = Options {
            context: Some(CONTEXT),
            top: Some(1),
            ..Options::default()
        };
        let model = build(&checkpoint, &options).unwrap();
        let profile = Arc::new(Profile::default());
        let cpu = Cpu::new(Numerics::Fast, 2).with_profile(Some(Arc::clone(&profile)));
        let executable = cpu.load(&model.program).unwrap();
        let session = |top| {
            let instance = executable.instantiate().unwrap();
            Session::new(instance, CONTEXT, model.info.vocab_size).with_top(top)
        };
        let prompt =
            serde_json::from_value::<Vec<u32>>(golden["prompts"][0]["ids"].clone()).unwrap();
        let (mut all, mut best) = (session(None), session(Some(1)));
        // The first tokens are of matrices that are not packed yet, whose sums are rounded in
        // another order.
        greedy(&mut all, &prompt, 4);
        all.reset();
        profile.clear();
        let due = greedy(&mut all, &prompt, 24);
        assert_eq!(greedy(&mut best, &prompt, 24), due, "{name}");
        let rows = profile.rows();
        let is_top = |row: &&Row| row.function == "decode_top" && row.step == "linear, screened";
        let top = rows.iter().find(is_top).unwrap();
        // The head is of Q8_0: 34 bytes for 32 weights, with two operations for each weight.
        let read = top.bytes / (top.flops / 2.0 * 34.0 / 32.0);
        assert!(read < 0.75, "{name}: {read} of the head are read");
        println!("{name}: 24 tokens are the same, with {read:.2} of the head read");
    }
}

/// Those of transformers, which the checkpoints give too (`crates/cpu/tests/it/real.rs`), though
/// the cache of a package is fp16. THANE_TEST_TOKENS says how many of the 64 there are. Takes a
/// minute: every weight is written and read back as fp32.
#[test]
fn packages_give_the_tokens_of_their_checkpoints() {
    let Some(models) = models() else { return };
    let n_tokens = std::env::var("THANE_TEST_TOKENS").map_or(6, |n| n.parse().unwrap());
    // Gemma's package is a gigabyte: with THANE_TEST_WHOLE only.
    let names = ["smollm2-135m", "gemma3-270m"];
    let n_names = if std::env::var_os("THANE_TEST_WHOLE").is_some() {
        2
    } else {
        1
    };
    for name in &names[..n_names] {
        let golden = golden(name);
        let file = models.join(golden["file"].as_str().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.mlpackage");
        let mut convert = Command::new(env!("CARGO_BIN_EXE_thane"));
        convert
            .args([
                "convert",
                "--quiet",
                "--context",
                &CONTEXT.to_string(),
                "-o",
            ])
            .arg(&path)
            .arg(&file);
        assert!(convert.output().unwrap().status.success());
        let (program, _) =
            thane_compile::run(Package::open(&path).unwrap().program, &Default::default()).unwrap();
        let cpu = Cpu::new(Numerics::F32, 1);
        let instance = cpu.load(&program).unwrap().instantiate().unwrap();
        let mut session = Session::new(
            instance,
            CONTEXT,
            golden["vocabulary"].as_u64().unwrap() as usize,
        );
        let prompts = golden["prompts"].as_array().unwrap();
        for prompt in prompts {
            let of = |key: &str| serde_json::from_value::<Vec<u32>>(prompt[key].clone()).unwrap();
            let tokens = greedy(&mut session, &of("ids"), n_tokens);
            assert_eq!(
                tokens,
                of("greedy")[..n_tokens],
                "{name}, {}",
                prompt["name"]
            );
        }
        println!(
            "{name}: {n_tokens} tokens after each of {} prompts are those of the checkpoint",
            prompts.len()
        );
    }
}

/// 300 texts of 1 to 512 tokens with all-MiniLM-L6-v2, against sentence-transformers: from text to
/// vector, alone and in batches, in both numerics.
#[test]
#[expect(clippy::too_many_lines, reason = "most lines are cases")]
fn minilm_gives_the_vectors_of_sentence_transformers() {
    let Some(models) = models() else { return };
    let golden = golden("minilm");
    let read = |name: &str| {
        std::fs::read(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/models")
                .join(name),
        )
        .unwrap()
    };
    let prose = read("perplexity.txt");
    let floats: Vec<f32> = read("minilm.bin")
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    let texts = golden["texts"].as_array().unwrap();
    let lines = texts.iter().map(|t| {
        let text = match t["bytes"].as_array() {
            Some(range) => {
                let [start, end] = [&range[0], &range[1]].map(|v| v.as_u64().unwrap() as usize);
                std::str::from_utf8(&prose[start..end]).unwrap()
            }
            None => t["text"].as_str().unwrap(),
        };
        serde_json::json!({ "text": text }).to_string() + "\n"
    });
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = lines.collect();
    let embed = |n: usize, flags: &[&str]| -> Vec<Vec<f32>> {
        let file = folder.path().join("texts.jsonl");
        std::fs::write(&file, lines[..n].concat()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_thane"));
        command
            .args([
                "embed",
                "--json",
                "--truncate",
                "--max-length",
                "512",
                "--threads",
                "1",
                "--file",
            ])
            .arg(&file)
            .args(flags);
        let output = command
            .arg(models.join(golden["file"].as_str().unwrap()))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_value(
            serde_json::from_slice::<Value>(&output.stdout).unwrap()["embeddings"].take(),
        )
        .unwrap()
    };
    let expected: Vec<&[f32]> = floats.chunks(384).collect();
    let least = |found: &[Vec<f32>]| {
        found
            .iter()
            .zip(&expected)
            .map(|(a, b)| cosine(a, b))
            .fold(1.0, f64::min)
    };
    let batched = embed(texts.len(), &["--numerics", "f32"]);
    assert_eq!(batched.len(), expected.len());
    // A part of them, of all lengths, for the rest.
    let alone = embed(60, &["--numerics", "f32", "--batch-tokens", "1"]);
    let fast = embed(60, &["--numerics", "fast"]);
    let far = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    };
    let apart = batched
        .iter()
        .zip(&alone)
        .map(|(a, b)| far(a, b))
        .fold(0.0, f32::max);
    println!(
        "minilm: least cosine {:.9} (f32), {:.9} (fast); alone and in batches differ by {apart:e}",
        least(&batched),
        least(&fast)
    );
    // What README says of int8, of 8 bits with AVX-512 and of 7 else.
    for set in thane_kernels::Isa::available() {
        let isa = set.name();
        let int8 = least(&embed(60, &["--numerics", "int8", "--isa", isa]));
        println!("minilm: least cosine {int8:.5} (int8, {isa})");
        let bound = if set.has_wide_sums() { 0.998 } else { 0.994 };
        assert!((bound..0.9999).contains(&int8), "{isa}: {int8}");
    }
    assert!(least(&batched) >= 0.99999 && least(&fast) >= 0.9995 && apart <= 1e-6);
}

/// The portable form of this model squares what fp16 cannot hold: the answer is nonsense, and so is
/// the perplexity.
#[test]
fn an_overflow_of_fp16_is_named() {
    let Some(models) = models() else { return };
    let file = models.join(golden("smollm2-135m")["file"].as_str().unwrap());
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/perplexity.txt");
    let answer = [
        "--max-tokens",
        "1",
        "--context",
        "64",
        "What is the capital of France?",
    ]
    .map(str::to_owned);
    let score = [
        "--tokens".to_owned(),
        "8".to_owned(),
        "--file".to_owned(),
        text.to_str().unwrap().to_owned(),
    ];
    for (verb, args) in [("run", &answer[..]), ("perplexity", &score)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thane"));
        let output = command
            .arg(verb)
            .arg(&file)
            .args(args)
            .args(["--numerics", "ane"])
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), &output.stdout[..]),
            (Some(1), &b""[..])
        );
        let said = String::from_utf8_lossy(&output.stderr);
        let lines = [
            "fp16 overflows, so the result means nothing",
            "_input_layernorm_mul",
            "--form ane --kv explicit -o PACKAGE.mlpackage",
        ];
        assert!(
            lines.iter().all(|line| said.contains(line)),
            "{verb}: {said}"
        );
    }
}
