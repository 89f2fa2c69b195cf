//! The real models against transformers on the same dequantized weights: logits, greedy tokens,
//! perplexity.
//!
//! They need the files that `scripts/models.sh` fetches, in the folder that THANE_MODELS names;
//! without it they say so and check nothing. They take minutes, which is why they are not among the
//! unit tests; with THANE_TEST_WHOLE they go over every token that the goldens have.

use std::io::Write as _;
use std::iter;
use std::path::PathBuf;

use serde_json::Value;
use thane_cpu::{Cpu, Numerics};
use thane_kernels::Isa;
use thane_mil::backend::Backend;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, Options, build};

use crate::golden::{Golden, call, folder, ids, instance, relative_error};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// The tests of both models run at once: more threads than cores would wait for each other.
const N_THREADS: usize = 1;

/// Whether all prompts, all 64 tokens behind each and all of the text are gone over; a part of them
/// takes a fraction of the time.
fn is_whole() -> bool {
    std::env::var_os("THANE_TEST_WHOLE").is_some()
}

/// The reference's tokens after a prompt that are gone over.
fn greedy(prompt: &Value) -> Vec<u32> {
    let mut tokens = ids(&prompt["greedy"]);
    tokens.truncate(if is_whole() { 64 } else { 8 });
    tokens
}

/// Tokens of one call of `verify`.
const CHUNK: usize = 40;

fn model(file: &str, cache: DType) -> Option<Model> {
    let Some(models) = std::env::var_os("THANE_MODELS") else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: THANE_MODELS does not name a folder with {file}; scripts/models.sh fetches it"
        );
        return None;
    };
    let checkpoint = Checkpoint::open(&PathBuf::from(models).join(file)).unwrap();
    Some(
        build(
            &checkpoint,
            &Options {
                context: Some(2048),
                cache,
                verify: true,
                top: None,
                ane: None,
            },
        )
        .unwrap(),
    )
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap() as u32
}

fn norm(v: &[f32]) -> f64 {
    v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// f32: the logits after each prompt within 1e-4 of the reference, the greedy tokens the same.
/// fast: along these tokens, another choice only where the reference's two best are closer than the
/// logits are off.
fn logits_and_tokens(name: &str, file: &str) {
    let (Some(exact), Some(fast)) = (model(file, DType::Fp32), model(file, DType::Fp16)) else {
        return;
    };
    let mut sure = instance(&exact.program, Numerics::F32, N_THREADS);
    let mut quick = instance(&fast.program, Numerics::Fast, N_THREADS);
    let golden = Golden::read(&folder().join(name));
    let subset = ids(&golden.json["subset_ids"]);
    let (mut n_steps, mut n_others, mut worst, mut worst_fast) = (0, 0, 0.0f64, 0.0f64);
    let every = if is_whole() { 1 } else { 3 };
    for prompt in golden.json["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .step_by(every)
    {
        let label = format!("{name}, {}", prompt["name"]);
        let (tokens, gaps) = (ids(&prompt["ids"]), golden.array(&prompt["gaps"]));
        sure.reset();
        quick.reset();
        let mut at = 0;
        let mut logits = Vec::new();
        for chunk in tokens.chunks(193) {
            logits = call(sure.as_mut(), "prefill", chunk, at);
            at += chunk.len();
        }
        let mut others = call(quick.as_mut(), "prefill", &tokens, 0);
        worst = worst.max(error_of_logits(
            &logits,
            &golden,
            &prompt["logits"],
            &subset,
        ));
        assert!(worst <= 1e-4, "{label}: {worst:e}");
        for (step, expected) in greedy(prompt).into_iter().enumerate() {
            assert_eq!(argmax(&logits), expected, "{label}: step {step}");
            worst_fast = worst_fast.max(relative_error(&others, &logits));
            n_steps += 1;
            if argmax(&others) != expected {
                n_others += 1;
                let error = others
                    .iter()
                    .zip(&logits)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f32::max);
                assert!(
                    gaps[step] < error,
                    "{label}: step {step}: gap {}, error {error}",
                    gaps[step]
                );
            }
            [logits, others] =
                [&mut sure, &mut quick].map(|i| call(i.as_mut(), "decode", &[expected], at));
            at += 1;
        }
    }
    println!(
        "{name}: worst relative error of f32 {worst:.2e}, greedy tokens the same after each prompt"
    );
    println!(
        "{name}, fast: {n_others} of {n_steps} choices differ, worst relative error {worst_fast:.2e}"
    );
}

/// The worst of what the reference says of logits: some of them, the largest, and their norm.
fn error_of_logits(logits: &[f32], golden: &Golden, reference: &Value, subset: &[u32]) -> f64 {
    let pick = |ids: &[u32]| {
        ids.iter()
            .map(|id| logits[*id as usize])
            .collect::<Vec<_>>()
    };
    let error = relative_error(&pick(subset), golden.array(&reference["subset"]));
    let top = relative_error(
        &pick(&ids(&reference["top_ids"])),
        golden.array(&reference["top"]),
    );
    let size = (norm(logits) / reference["norm"].as_f64().unwrap() - 1.0).abs();
    error.max(top).max(size)
}

#[test]
fn smollm2_gives_the_reference_logits_and_tokens() {
    logits_and_tokens("smollm2-135m", SMOLLM2);
}

#[test]
fn gemma3_gives_the_reference_logits_and_tokens() {
    logits_and_tokens("gemma3-270m", GEMMA3);
}

#[test]
fn perplexity_of_smollm2_is_the_reference_s() {
    perplexity("smollm2-135m", SMOLLM2);
}

#[test]
fn perplexity_of_gemma3_is_the_reference_s() {
    perplexity("gemma3-270m", GEMMA3);
}

/// Perplexity of a text: f32 is the reference's, fast is within 1 % of it with every instruction
/// set. A part of the text does for f32, which is to be equal; what rounds is measured by all of
/// it, for of 300 tokens the error of the difference is itself half a hundredth.
fn perplexity(name: &str, file: &str) {
    let golden = Golden::read(&folder().join(format!("{name}.perplexity")));
    let (all, scores) = (ids(&golden.json["ids"]), golden.array(&golden.json["nll"]));
    let n_all = golden.json["context_len"].as_u64().unwrap() as usize;
    let n_f32 = if is_whole() { n_all } else { 300 };
    // The portable form takes a minute.
    let isas = Isa::available()
        .into_iter()
        .filter(|isa| is_whole() || *isa != Isa::Portable || *isa == Isa::detect());
    let fast = isas.map(|isa| (DType::Fp16, Numerics::Fast, isa, n_all, 0.01));
    for (cache, numerics, isa, n, bound) in
        iter::once((DType::Fp32, Numerics::F32, Isa::detect(), n_f32, 1e-4)).chain(fast)
    {
        let Some(model) = model(file, cache) else {
            return;
        };
        let cpu = Cpu::new(numerics, N_THREADS).with_isa(Some(isa));
        let mut instance = cpu.load(&model.program).unwrap().instantiate().unwrap();
        let tokens = &all[..n];
        let mut sum = 0.0;
        for (start, chunk) in (0..).step_by(CHUNK).zip(tokens[..n - 1].chunks(CHUNK)) {
            let logits = call(instance.as_mut(), "verify", chunk, start);
            let rows = logits
                .chunks(model.info.vocab_size)
                .zip(&tokens[start + 1..]);
            sum += rows
                .map(|(row, next)| nll(row, *next as usize))
                .sum::<f64>();
        }
        let due = scores[..n - 1].iter().map(|v| f64::from(*v)).sum::<f64>();
        let [mean, due] = [sum, due].map(|sum| (sum / (n - 1) as f64).exp());
        println!(
            "{name}: perplexity of {n} tokens {due:.4} (transformers), {mean:.4} ({numerics:?}, {})",
            isa.name()
        );
        assert!(
            (mean / due - 1.0).abs() <= bound,
            "{name}, {numerics:?}, {}: {mean} against {due}",
            isa.name()
        );
    }
}

fn nll(logits: &[f32], id: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from((l - max).exp())).sum();
    sum.ln() - f64::from(logits[id] - max)
}
