//! Whole models: the program after the pipeline computes what it did before, bit for bit.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thane_compile::{Options, Report, run};
use thane_cpu::Numerics;
use thane_mil::backend::Instance;
use thane_mil::program::{Program, difference};
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, build};

use crate::machine::{Noise, instance};
use crate::{processor_time, rough};

const VERIFY: Options = Options {
    verify: true,
    stop_after: None,
};

const REAL: [&str; 2] = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
];

fn model(path: &Path, cache: DType, context: usize) -> Model {
    let checkpoint = Checkpoint::open(path).unwrap();
    build(
        &checkpoint,
        &thane_models::Options {
            context: Some(context),
            cache,
            verify: true,
            top: None,
            ane: None,
        },
    )
    .unwrap()
}

fn call(instance: &mut dyn Instance, function: &str, tokens: &[u32], position: usize) -> Vec<u8> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_ne_bytes()).collect();
    instance
        .input("input_ids", &[1, tokens.len()])
        .unwrap()
        .copy_from_slice(&bytes);
    instance
        .input("position", &[1])
        .unwrap()
        .copy_from_slice(&(position as i32).to_ne_bytes());
    instance.run(function).unwrap();
    instance.output("logits").unwrap().bytes.to_vec()
}

/// Logits of a prompt in two pieces, some steps of decode, and the last piece again by `verify`.
fn logits(program: &Program, numerics: Numerics, tokens: &[u32], n_decoded: usize) -> Vec<Vec<u8>> {
    let mut instance = instance(program, numerics);
    let n = tokens.len() - n_decoded;
    let mut found = vec![
        call(instance.as_mut(), "prefill", &tokens[..n / 3], 0),
        call(instance.as_mut(), "prefill", &tokens[n / 3..n], n / 3),
    ];
    found.extend((n..tokens.len()).map(|i| call(instance.as_mut(), "decode", &tokens[i..=i], i)));
    found.push(call(instance.as_mut(), "verify", &tokens[n..], n));
    found
}

/// Norm of the difference over the norm of what is expected, over all calls.
fn relative_error(found: &[Vec<u8>], expected: &[Vec<u8>]) -> f64 {
    let floats = |calls: &[Vec<u8>]| -> Vec<f64> {
        let bytes = calls.concat();
        let floats = bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b));
        floats.map(f64::from).collect()
    };
    let (found, expected) = (floats(found), floats(expected));
    let square = |x: f64| x * x;
    let apart = found.iter().zip(&expected).map(|(f, e)| square(f - e));
    let size = expected.iter().map(|e| square(*e));
    (apart.sum::<f64>() / size.sum::<f64>()).sqrt()
}

/// A checkpoint whose scales are single numbers. Made rough, it is not compiled to the same ops.
const WITH_SINGLE_SCALES: &str = "compressed-int8-tensor";

/// Compile a model and the same model made rough; both must come out the same and compute what was
/// computed before.
fn check(
    name: &str,
    model: &Model,
    numerics: Numerics,
    n_tokens: usize,
    n_decoded: usize,
) -> (Program, Report) {
    let (smooth, _) = run(model.program.clone(), &VERIFY).unwrap();
    let rough = rough::roughen(&model.program);
    let (compiled, report) = run(rough.clone(), &VERIFY).unwrap();
    // Passes do not go into nested blocks, and leave the values that these capture.
    let has_loops = name.starts_with("qwen3_5");
    if name != WITH_SINGLE_SCALES && !has_loops {
        assert_eq!(difference(&compiled, &smooth), None, "{name}");
    }
    let n_removed: usize = report
        .functions
        .iter()
        .map(|f| f.n_ops_before - f.n_ops_after)
        .sum();
    let n_applied: usize = report.passes.iter().map(|p| p.n_applied).sum();
    assert_eq!(
        n_removed, n_applied,
        "{name}: each site of these passes is one op less"
    );
    let mut noise = Noise(5);
    let tokens: Vec<u32> = (0..n_tokens)
        .map(|_| noise.next() % model.info.vocab_size as u32)
        .collect();
    let before = logits(&model.program, numerics, &tokens, n_decoded);
    let after = logits(&compiled, numerics, &tokens, n_decoded);
    let apart = relative_error(&after, &before);
    // gpt2-f16 has another scale of scores in each layer.
    if name.starts_with("gemma4") || has_loops || name == "gpt2-f16" {
        // Values are computed by other kernels when the program is smooth.
        assert!(
            apart <= 1e-6 || numerics == Numerics::Fast && apart <= 1e-3,
            "{name}: {apart}"
        );
    } else {
        assert!(
            before == after,
            "{name}, {numerics:?}: the logits differ by {apart}"
        );
    }
    assert!(
        before.windows(2).all(|w| w[0] != w[1]),
        "{name}: calls that should differ do not"
    );
    (rough, report)
}

fn lines(report: &Report) -> String {
    let functions = report.functions.iter().map(ToString::to_string);
    functions
        .chain(report.passes.iter().map(ToString::to_string))
        .collect::<Vec<_>>()
        .join("\n  ")
}

#[test]
fn tiny_models_compute_the_same() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny");
    let folders: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(folders.len() > 5, "expected checkpoints, found {folders:?}");
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy();
        for (cache, numerics) in [(DType::Fp32, Numerics::F32), (DType::Fp16, Numerics::Fast)] {
            let model = model(&folder, cache, 64);
            check(&name, &model, numerics, 41, 5);
        }
    }
}

/// Needs the files that `scripts/models.sh` fetches, in the folder that THANE_MODELS names.
#[test]
fn real_models_compute_the_same_and_compile_at_once() {
    let Some(folder) = std::env::var_os("THANE_MODELS").map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: THANE_MODELS does not name a folder with {}",
            REAL.join(" and ")
        );
        return;
    };
    for name in REAL {
        let read = || model(&folder.join(name), DType::Fp16, 256);
        let (model, reading) = processor_time::of(read);
        let (rough, _) = check(name, &model, Numerics::Fast, 14, 3);
        for (kind, program) in [("as lowered", &model.program), ("made rough", &rough)] {
            let (time, report) = time(program);
            println!("{name}, {kind}: {time:?}\n  {}", lines(&report));
            // What a user does not notice beside the reading of the file.
            assert!(time < reading * 5, "{name}, {kind}: {time:?}, {reading:?}");
        }
    }
}

/// The least processor time of three runs without checks.
fn time(program: &Program) -> (Duration, Report) {
    let options = Options {
        verify: false,
        stop_after: None,
    };
    let once = || {
        let program = program.clone();
        let (done, time) = processor_time::of(|| run(program, &options).unwrap());
        (time, done.1)
    };
    let runs = (0..3).map(|_| once());
    runs.min_by_key(|(time, _)| *time).unwrap()
}
