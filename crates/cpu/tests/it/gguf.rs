//! Tiny GGUF files (`tests/oracle/make_tiny_gguf.py`): twins of the tiny checkpoints, and quantized
//! ones.

use std::path::PathBuf;

use thane_cpu::Numerics;
use thane_mil::backend::Instance;
use thane_mil::program::Program;
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::{DType, TensorType};
use thane_mil::{program, valid};
use thane_models::checkpoint::Checkpoint;
use thane_models::{Model, ModelError, Options, build};

use crate::golden::{Golden, call, folder, ids, names, on_each_isa, relative_error};

/// One of every quantized type.
const QUANTISED: &str = "llama-quantised";
/// Quantized matrices whose rows are those of several.
const JOINED: &str = "phi3-quantised";
/// Quantized matrices of experts.
const EXPERTS: &str = "qwen3_moe-quantised";
/// All of these, which have goldens of their own.
const OWN: [&str; 3] = [QUANTISED, JOINED, EXPERTS];

/// Files with the numbers of the checkpoints of the same names, and so with the same logits.
fn twins() -> Vec<String> {
    let mut names = names("tiny-gguf");
    names.retain(|name| !OWN.contains(&name.as_str()));
    names
}

fn file(name: &str) -> PathBuf {
    folder().join("tiny-gguf").join(format!("{name}.gguf"))
}

fn model(name: &str) -> Model {
    lowered(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn lowered(name: &str) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::open(&file(name)).unwrap();
    build(
        &checkpoint,
        &Options {
            verify: true,
            top: None,
            cache: DType::Fp32,
            context: Some(64),
            ane: None,
        },
    )
}

fn golden(name: &str) -> Golden {
    let stem = if OWN.contains(&name) {
        folder().join("tiny-gguf").join(name)
    } else {
        folder().join("tiny").join(name).join("golden")
    };
    Golden::read(&stem)
}

/// The worst relative error over the sequences of the golden, in one pass and token by token, for
/// each instruction set.
fn worst(program: &Program, golden: &Golden, numerics: Numerics) -> Vec<(&'static str, f64)> {
    let sequences = golden.json["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 3);
    let of_instance = |instance: &mut dyn Instance| {
        let errors = sequences.iter().map(|sequence| {
            let (tokens, expected) = (ids(&sequence["ids"]), golden.array(&sequence["logits"]));
            instance.reset();
            let at_once = call(instance, "verify", &tokens, 0);
            instance.reset();
            // Of few rows are other products, over weights that may be packed for them.
            let one_by_one: Vec<f32> = (0..tokens.len())
                .flat_map(|i| call(instance, "decode", &tokens[i..=i], i))
                .collect();
            relative_error(&at_once, expected).max(relative_error(&one_by_one, expected))
        });
        errors.fold(0.0, f64::max)
    };
    on_each_isa(program, numerics, 2)
        .map(|(isa, mut instance)| (isa, of_instance(instance.as_mut())))
        .collect()
}

#[test]
fn a_twin_gives_the_logits_of_its_checkpoint() {
    let mut faults = Vec::new();
    for name in &twins() {
        let model = match lowered(name) {
            Ok(model) => model,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let errors = worst(&model.program, &golden(name), Numerics::F32);
        let wrong = errors.iter().filter(|(_, error)| *error > 1e-5);
        faults.extend(wrong.map(|(isa, error)| format!("{name}, {isa}: {error:e}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_quantized_type_gives_the_logits_of_its_values() {
    for name in OWN {
        for (isa, error) in worst(&model(name).program, &golden(name), Numerics::F32) {
            assert!(error <= 1e-5, "{name}, {isa}: {error:e}");
        }
    }
}

/// Activations of 8 bits cost 4e-3 a product (`blocks.rs`); through the sharp random attention of
/// two layers, 3.7e-2.
#[test]
fn fast_numerics_stay_near() {
    let model = model(QUANTISED);
    for (isa, fast) in worst(&model.program, &golden(QUANTISED), Numerics::Fast) {
        assert!(fast <= 6e-2, "{isa}: {fast:e}");
        assert!(fast >= 1e-5, "{isa}: {fast:e}: this was not the fast path");
    }
}

#[test]
fn the_files_say_what_their_twins_do() {
    for name in &twins() {
        let twin = Checkpoint::open(&folder().join("tiny").join(name)).unwrap();
        let twin = build(
            &twin,
            &Options {
                context: Some(64),
                ..Options::default()
            },
        )
        .unwrap()
        .info;
        let info = model(name).info;
        let sizes = |info: &thane_models::Info| {
            (
                info.n_layers,
                info.vocab_size,
                info.max_context,
                info.cache_bytes,
            )
        };
        assert_eq!(sizes(&info), sizes(&twin), "{name}");
    }
}

/// The text holds each quantized constant as codes, scales and offsets; a program without the
/// blocks behind them is computed by the plain ops, and gives the same logits.
#[test]
fn the_text_of_a_quantized_program_reads_back_and_runs() {
    let program = model(QUANTISED).program;
    valid::check(&program).unwrap();
    let mut blobs = Blobs::default();
    let text = print(&program, &mut blobs);
    let copy = |_: &str, offset: u64, ty: &TensorType| {
        let data = blobs.get(offset, ty)?;
        Some(thane_mil::data::Data::owned(data.to_vec()))
    };
    let back = parse(&text, &copy).unwrap();
    assert_eq!(program::difference(&program, &back), None);
    for (isa, error) in worst(&back, &golden(QUANTISED), Numerics::F32) {
        assert!(error <= 1e-5, "{isa}: {error:e}");
    }
}
