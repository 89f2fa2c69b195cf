//! Programs on the CPU. Errors are fine; panics, results of another type than declared, and hangs
//! are not.

use std::collections::HashMap;

use thane_calls::{AttentionForm, CacheForm, Form, Head, Lookup, Split, Streaming};
use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, Limits, LoadOptions};
use thane_mil::program::{Function, Program};
use thane_mil::types::{DType, Dim, TensorType, Type};
use thane_mil::valid;
use thane_models::checkpoint::{Checkpoint, Source};
use thane_models::{ANEMLL, AneDecoder, NormForm, Options, THANE, build};

use crate::Rng;

/// Small, so that an input takes milliseconds: attention over `n` queries and keys of one element
/// takes n^2 steps.
const LIMITS: Limits = Limits {
    tensor_bytes: 1 << 14,
    state_bytes: 1 << 14,
    batch_bytes: 1 << 15,
    rounds: 8,
    loop_elements: 1 << 20,
    op_elements: 1 << 20,
};

/// What tiny models need.
const MODEL_LIMITS: Limits = Limits {
    tensor_bytes: 1 << 18,
    state_bytes: 1 << 18,
    batch_bytes: 1 << 19,
    rounds: 8,
    loop_elements: 1 << 20,
    op_elements: 1 << 20,
};

/// Runs every function of a program that the validator accepts.
pub fn run(program: &Program, rng: &mut Rng) {
    run_within(program, rng, LIMITS, 3);
}

/// Now and then builds the model of a checkpoint, and now and then runs that: a model takes ten
/// times as long to build as its file to read, and ten times more to run, and most changes of a
/// file are changes of its numbers.
pub fn run_model(checkpoint: &Checkpoint, rng: &mut Rng) {
    // With coverage and checks a layer takes 10 ms to lower, and a file may claim a thousand that
    // it does not have.
    if rng.below(4) != 0 || n_layers(checkpoint) > 32 {
        return;
    }
    let cache = if rng.below(2) == 0 {
        DType::Fp16
    } else {
        DType::Fp32
    };
    let form = Form {
        block: Some(3),
        verify: [2, 3][..rng.below(3)].to_vec(),
        contexts: if rng.below(2) == 0 {
            vec![4]
        } else {
            Vec::new()
        },
        cache: if rng.below(2) == 0 {
            CacheForm::State
        } else {
            CacheForm::Explicit
        },
        lookup: match rng.below(4) {
            0 => Lookup::Host,
            1 => Lookup::HostInt8,
            _ => Lookup::Inside,
        },
        split: if rng.below(2) == 0 {
            Split::Whole
        } else {
            Split::Within(4096)
        },
        head: match rng.below(3) {
            0 => Head::Greatest(rng.below(9)),
            1 => Head::Host(()),
            _ => Head::Logits,
        },
        lanes: (rng.below(4) == 0).then_some(3),
        attention: AttentionForm {
            tile: None,
            streaming: (rng.below(4) == 0).then(|| Streaming {
                sinks: rng.below(3),
                window: 3 + rng.below(3),
                pool: (rng.below(2) == 0).then(|| rng.below(4)),
            }),
            retrieval_heads: Vec::new(),
        },
        ..Form::default()
    };
    let decoder = AneDecoder {
        norm: NormForm::Native,
        interface: if rng.below(4) == 0 { &ANEMLL } else { &THANE },
        ..form.into()
    };
    let ane = (rng.below(3) == 0).then_some(decoder);
    let options = Options {
        context: Some(8),
        cache,
        verify: rng.below(2) == 0,
        top: (rng.below(2) == 0).then(|| rng.below(9)),
        ane,
    };
    let Ok(model) = build(checkpoint, &options) else {
        return;
    };
    // What is stored may be no finite number, and that only.
    if let Err(violations) = valid::check(&model.program) {
        assert!(
            violations.iter().all(|v| v.message.contains("finite")),
            "{violations:?}"
        );
        return;
    }
    if rng.below(8) == 0 {
        run_within(&model.program, rng, MODEL_LIMITS, 1);
    }
}

fn n_layers(checkpoint: &Checkpoint) -> usize {
    let claimed = match &checkpoint.source {
        Source::Gguf(gguf) => gguf
            .metadata
            .iter()
            .find(|(key, _)| key.ends_with(".block_count"))
            .map(|(_, v)| v),
        Source::HuggingFace(folder) => {
            return folder
                .config
                .opt_usize("num_hidden_layers")
                .ok()
                .flatten()
                .unwrap_or(0);
        }
    };
    claimed
        .and_then(|v| usize::try_from(v.as_integer()?).ok())
        .unwrap_or(0)
}

fn run_within(program: &Program, rng: &mut Rng, limits: Limits, n_rounds: usize) {
    for numerics in [
        Numerics::F32,
        Numerics::Fast,
        Numerics::Ane(Effects::default()),
    ] {
        let Ok(executable) = Cpu::new(numerics, 1).load_with(program, &LoadOptions::within(limits))
        else {
            return;
        };
        let Ok(mut instance) = executable.instantiate() else {
            return;
        };
        for round in 0..n_rounds {
            for function in program.functions() {
                fill(instance.as_mut(), function, rng);
                if instance.run(&function.name).is_ok() {
                    check_outputs(instance.as_ref(), function);
                }
            }
            if round == 1 {
                instance.reset();
            }
        }
    }
}

/// Gives every input numbers, in sizes that now and then are 0.
fn fill(instance: &mut dyn Instance, function: &Function, rng: &mut Rng) {
    let mut symbols = HashMap::new();
    for value in function.body().inputs.iter().map(|v| function.value(*v)) {
        let Type::Tensor(ty) = &value.ty else {
            continue;
        };
        let mut size = |dim: &Dim| match dim {
            Dim::Known(n) => *n,
            Dim::Symbol(s) => *symbols
                .entry(*s)
                .or_insert_with(|| [1, 2, 3, 1, 5, 0, 1, 2][rng.below(8)]),
        };
        let shape: Vec<usize> = ty.shape.iter().map(&mut size).collect();
        if let Ok(bytes) = instance.input(&value.name, &shape) {
            fill_bytes(bytes, ty.dtype, rng);
        }
    }
}

fn fill_bytes(bytes: &mut [u8], dtype: DType, rng: &mut Rng) {
    const FLOATS: [f32; 8] = [0.0, 1.0, -2.5, 0.125, f32::NAN, f32::INFINITY, -1e-40, 3e38];
    match dtype {
        DType::Fp32 => {
            for element in bytes.as_chunks_mut::<4>().0 {
                let v = if rng.below(32) == 0 {
                    FLOATS[rng.below(8)]
                } else {
                    rng.below(64) as f32 / 16.0 - 2.0
                };
                *element = v.to_ne_bytes();
            }
        }
        DType::Int32 => {
            for element in bytes.as_chunks_mut::<4>().0 {
                let v = if rng.below(32) == 0 {
                    rng.number() as i32
                } else {
                    rng.below(10) as i32 - 3
                };
                *element = v.to_ne_bytes();
            }
        }
        _ => bytes.iter_mut().for_each(|b| *b = rng.number() as u8),
    }
}

/// What was given back is of the type that the program declares, and whole. A classifier declares
/// labels and dictionaries and gives places and probabilities; they only must be there.
fn check_outputs(instance: &dyn Instance, function: &Function) {
    for value in function.body().outputs.iter().map(|v| function.value(*v)) {
        let view = instance
            .output(&value.name)
            .unwrap_or_else(|e| panic!("{e}"));
        let found = TensorType::new(view.dtype, view.shape.iter().copied());
        assert_eq!(found.byte_len(), Some(view.bytes.len()), "`{}`", value.name);
        match &value.ty {
            Type::Tensor(declared) if !matches!(declared.dtype, DType::String | DType::Int64) => {
                assert!(
                    declared.compatible(&found),
                    "`{}` is {found}, declared {declared}",
                    value.name
                );
            }
            Type::Tensor(_) | Type::Dict(..) => {}
            other => panic!("the output `{}` is of type {other}", value.name),
        }
    }
}
