//! What is computed does not depend on how many threads compute it: every bit of the logits, and so
//! the tokens.

use std::io::Write as _;
use std::path::PathBuf;

use thane_cpu::Numerics;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::{ModelError, Options, build};

use crate::golden::{call, folder, instance, names, open};

/// Each tiny checkpoint, and the file with every quantized type.
fn models() -> Vec<String> {
    let checkpoints = names("tiny").into_iter().map(|name| format!("tiny/{name}"));
    checkpoints
        .chain(["tiny-gguf/llama-quantised.gguf".to_owned()])
        .collect()
}

/// The program of a checkpoint, unless the model has too few positions.
fn program(path: PathBuf, cache: DType) -> Option<Program> {
    let checkpoint = open(&path);
    let model = build(
        &checkpoint,
        &Options {
            verify: false,
            top: None,
            cache,
            context: Some(400),
            ane: None,
        },
    );
    match model {
        Ok(model) => Some(model.program),
        Err(ModelError::Context { .. }) => None,
        Err(other) => panic!("{}: {other}", path.display()),
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap() as u32
}

/// The logits after a prompt and after each of the likeliest tokens behind it, and those tokens.
fn answer(
    program: &Program,
    numerics: Numerics,
    n_threads: usize,
    pieces: &[usize],
) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut instance = instance(program, numerics, n_threads);
    let (mut at, mut logits, mut tokens, mut bits) = (0, Vec::new(), Vec::new(), Vec::new());
    for n in pieces {
        let prompt: Vec<u32> = (at..at + n).map(|i| 3 + (i * i % 41) as u32).collect();
        logits = call(instance.as_mut(), "prefill", &prompt, at);
        at += n;
    }
    for _ in 0..5 {
        bits.push(logits.iter().map(|v| v.to_bits()).collect());
        tokens.push(argmax(&logits));
        logits = call(instance.as_mut(), "decode", &[argmax(&logits)], at);
        at += 1;
    }
    (tokens, bits)
}

/// Prompts beyond 256 tokens: from there on a head's keys are divided among threads.
#[test]
fn one_to_eight_threads_give_the_same_logits() {
    for name in &models() {
        for (cache, numerics) in [
            (DType::Fp32, Numerics::F32),
            (DType::Fp16, Numerics::Fast),
            (DType::Fp16, Numerics::Int8),
        ] {
            let Some(program) = program(folder().join(name), cache) else {
                continue;
            };
            for pieces in [&[9][..], &[290, 7]] {
                let alone = answer(&program, numerics, 1, pieces);
                for n_threads in 2..=8 {
                    let together = answer(&program, numerics, n_threads, pieces);
                    assert_eq!(
                        together.0, alone.0,
                        "{name}, {numerics:?}, {n_threads} threads, {pieces:?}: tokens"
                    );
                    assert!(
                        together == alone,
                        "{name}, {numerics:?}, {n_threads} threads, {pieces:?}: logits"
                    );
                }
            }
        }
    }
}

/// The same of SmolLM2, whose matrices are large enough for every kernel to be divided.
#[test]
fn several_threads_give_the_logits_of_one_of_smollm2() {
    let Some(models) = std::env::var_os("THANE_MODELS") else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: THANE_MODELS does not name a folder with SmolLM2; scripts/models.sh fetches it"
        );
        return;
    };
    let program = program(
        PathBuf::from(models).join("SmolLM2-135M-Instruct.Q4_1.gguf"),
        DType::Fp16,
    )
    .unwrap();
    // Each prompt takes seconds.
    for (numerics, n_prompt, n_threads) in [(Numerics::Fast, 290, 3), (Numerics::F32, 20, 2)] {
        let alone = answer(&program, numerics, 1, &[n_prompt]);
        assert!(
            answer(&program, numerics, n_threads, &[n_prompt]) == alone,
            "{numerics:?}, {n_threads} threads"
        );
    }
}
