//! Every op of the models in `tests/models` that computes much has a kernel, and the profile adds
//! up.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use thane_cpu::{Cpu, Numerics, Profile, Row};
use thane_mil::backend::Backend;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{EncoderOptions, Options, build, build_encoder};

use crate::golden::{call, embedding_models, folder, names};

/// Each tiny decoder, as a path below the folder of goldens.
fn decoders() -> Vec<String> {
    // Other families have other norms, caps, convolutions, or layers without rotary embedding.
    let fused = |name: &String| {
        ["llama-", "qwen2", "qwen3", "mistral", "gemma3"]
            .iter()
            .any(|family| name.starts_with(family))
            && !["llama-relu", "qwen3_5"]
                .iter()
                .any(|other| name.starts_with(other))
    };
    let folders = names("tiny").into_iter().filter(fused);
    let folders = folders.map(|name| format!("tiny/{name}"));
    let files = names("tiny-gguf")
        .into_iter()
        .filter(fused)
        .map(|name| format!("tiny-gguf/{name}.gguf"));
    folders.chain(files).collect()
}

fn checkpoint(path: PathBuf) -> Checkpoint {
    Checkpoint::open(&path).unwrap()
}

/// What the calls of `run` took, each function by itself.
fn profiled(
    program: &Program,
    numerics: Numerics,
    run: &dyn Fn(&mut dyn thane_mil::backend::Instance),
) -> Vec<Row> {
    let profile = Arc::new(Profile::default());
    let cpu = Cpu::new(numerics, 1).with_profile(Some(Arc::clone(&profile)));
    let mut instance = cpu.load(program).unwrap().instantiate().unwrap();
    let start = Instant::now();
    run(instance.as_mut());
    let rows = profile.rows();
    let sum: f64 = rows.iter().map(|row| row.time.as_secs_f64()).sum();
    assert!(
        sum > 0.0 && sum <= start.elapsed().as_secs_f64(),
        "the steps take no longer than the calls"
    );
    assert!(rows.is_sorted_by(|a, b| a.time >= b.time));
    profile.clear();
    assert!(profile.rows().is_empty());
    rows
}

#[track_caller]
fn has_kernels(name: &str, rows: &[Row], kernels: &[&str]) {
    let slow: Vec<&Row> = rows.iter().filter(|row| row.is_slow).collect();
    assert!(slow.is_empty(), "{name}: {slow:?}");
    for kernel in kernels {
        let row = rows.iter().find(|row| row.step == *kernel && row.is_fused);
        let row = row.unwrap_or_else(|| panic!("{name}: no {kernel} among {rows:?}"));
        assert!(row.calls > 0 && row.bytes > 0.0, "{name}: {row:?}");
    }
}

#[test]
fn language_models_have_kernels_for_all_that_is_heavy() {
    for name in &decoders() {
        let options = Options {
            verify: false,
            top: None,
            cache: DType::Fp16,
            context: Some(64),
            ane: None,
        };
        let program = build(&checkpoint(folder().join(name)), &options)
            .unwrap()
            .program;
        for numerics in [Numerics::F32, Numerics::Fast] {
            let rows = profiled(&program, numerics, &|instance| {
                call(instance, "prefill", &[3, 1, 4, 1, 5, 9, 2], 0);
                call(instance, "decode", &[6], 7);
            });
            for function in ["prefill", "decode"] {
                let of: Vec<Row> = rows
                    .iter()
                    .filter(|row| row.function == function)
                    .cloned()
                    .collect();
                let mlp: &[&str] = if name.contains("_moe") {
                    &["softmax", "experts"]
                } else {
                    &["gated linear"]
                };
                let others = ["linear", "rope, append, attention", "rms norm"];
                has_kernels(
                    &format!("{name}, {function}"),
                    &of,
                    &[&others, mlp].concat(),
                );
            }
            // A window of five tokens.
            if name.contains("gemma3-bf16") {
                continue;
            }
            // In each layer but the last, of which only the seventh token's output is asked for,
            // seven tokens see 1 to 7 keys, and in all layers the next one sees 8.
            let attention = |function: &str| {
                let of = rows.iter().filter(|row| {
                    row.function == function && row.step == "rope, append, attention"
                });
                of.fold((0.0, 0), |(flops, calls), row| {
                    (flops + row.flops, calls + row.calls)
                })
            };
            let ((prefill, n_layers), (decode, _)) = (attention("prefill"), attention("decode"));
            let n_seen = 28 * (n_layers - 1) + 7;
            assert_eq!(
                prefill * 8.0 * n_layers as f64,
                decode * n_seen as f64,
                "{name}"
            );
        }
    }
}

#[test]
fn embedding_models_have_kernels_for_all_that_is_heavy() {
    for name in &embedding_models() {
        let checkpoint = checkpoint(folder().join("tiny-embed").join(name));
        let program = build_encoder(&checkpoint, &EncoderOptions::default())
            .unwrap()
            .program;
        // Weights of floats are multiplied as such, or rounded, as bytes.
        for (numerics, of_bytes) in [(Numerics::Fast, 0.0), (Numerics::Int8, 1.0)] {
            let rows = profiled(&program, numerics, &|instance| {
                let declared = program.function("encode").unwrap();
                let has = |input: &&str| {
                    let mut inputs = declared.body().inputs.iter();
                    inputs.any(|value| declared.value(*value).name == *input)
                };
                let inputs = ["input_ids", "attention_mask", "pooling_mask"];
                for input in inputs.into_iter().filter(has) {
                    let ones = [1i32; 2 * 9].map(i32::to_ne_bytes).concat();
                    instance
                        .input(input, &[2, 9])
                        .unwrap()
                        .copy_from_slice(&ones);
                }
                instance.run("encode").unwrap();
            });
            has_kernels(name, &rows, &["linear", "attention"]);
            let linear = rows.iter().find(|row| row.step == "linear").unwrap();
            assert!(
                linear.flops > 0.0 && linear.flops % 2.0 == 0.0,
                "{name}: {linear:?}"
            );
            assert_eq!(
                linear.byte_ops,
                linear.flops * of_bytes,
                "{name}: {linear:?}"
            );
        }
    }
}
