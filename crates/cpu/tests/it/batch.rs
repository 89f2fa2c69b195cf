//! Many sequences in one step: each gets what transformers gives it, and what it gets alone.

use std::sync::Arc;

use thane_calls::Form;
use thane_cpu::ane::Effects;
use thane_cpu::{Cpu, Numerics, Profile};
use thane_kernels::Isa;
use thane_mil::backend::{
    Backend, Batch, Executable, Instance, Limits, LoadOptions, RunError, View,
};
use thane_mil::literal::f16_to_f32;
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;
use thane_models::{AneDecoder, Options, build};

use crate::golden::{Golden, folder, ids, names, open, relative_error};

const CONTEXT: usize = 64;

fn program(path: &str, cache: DType, ane: Option<AneDecoder>) -> Program {
    let checkpoint = open(&folder().join(path));
    build(
        &checkpoint,
        &Options {
            verify: false,
            top: None,
            cache,
            context: Some(CONTEXT),
            ane,
        },
    )
    .unwrap()
    .program
}

fn cpu(numerics: Numerics, n_threads: usize) -> Cpu {
    Cpu::new(numerics, n_threads)
}

fn fill(instance: &mut dyn Instance, tokens: &[u32], position: usize) {
    let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_ne_bytes()).collect();
    instance
        .input("input_ids", &[1, tokens.len()])
        .unwrap()
        .copy_from_slice(&bytes);
    instance
        .input("position", &[1])
        .unwrap()
        .copy_from_slice(&(position as i32).to_ne_bytes());
}

fn logits(instance: &dyn Instance) -> Vec<f32> {
    floats(instance, "logits")
}

fn floats(instance: &dyn Instance, name: &str) -> Vec<f32> {
    instance
        .output(name)
        .unwrap()
        .bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|b| f32::from_ne_bytes(*b))
        .collect()
}

/// Instance `idx` has so many tokens behind it and is given so many.
type Call = (usize, usize, usize);

/// Run a function over pieces of one text; the logits of each instance.
fn run(batch: &mut dyn Batch, function: &str, text: &[u32], calls: &[Call]) -> Vec<Vec<f32>> {
    for &(idx, position, n) in calls {
        fill(
            batch.instance_mut(idx).unwrap(),
            &text[position..position + n],
            position,
        );
    }
    let which: Vec<usize> = calls.iter().map(|(idx, ..)| *idx).collect();
    batch.run(function, &which).unwrap();
    calls
        .iter()
        .map(|(idx, ..)| logits(batch.instance(*idx).unwrap()))
        .collect()
}

/// What `n` instances do: prompts of other lengths at once; single tokens; some end; their places
/// are used again, with prompts beside the tokens of the others.
fn schedule(n: usize) -> Vec<(&'static str, Vec<Call>)> {
    let mut lens: Vec<usize> = (0..n).map(|i| 1 + 5 * i % 13).collect();
    let mut calls = vec![("prefill", (0..n).map(|i| (i, 0, lens[i])).collect())];
    for step in 0..12 {
        // The first goes on to the end, others stop one after another.
        let active: Vec<usize> = (0..n).filter(|i| *i == 0 || step < 3 + i % 7).collect();
        calls.push(("decode", active.iter().map(|i| (*i, lens[*i], 1)).collect()));
        active.iter().for_each(|i| lens[*i] += 1);
    }
    let again = |i: usize| {
        if i % 2 == 1 {
            (i, 0, 2 + i % 11)
        } else {
            (i, lens[i], 1)
        }
    };
    let mixed: Vec<Call> = (0..n).rev().map(again).collect();
    mixed
        .iter()
        .for_each(|(i, position, len)| lens[*i] = position + len);
    calls.push(("prefill", mixed));
    calls.push(("decode", (0..n).map(|i| (i, lens[i], 1)).collect()));
    calls
}

/// A backend that knows nothing of batches.
struct Alone(Arc<dyn Executable>);

impl Executable for Alone {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        self.0.instantiate()
    }
}

#[test]
fn every_sequence_gets_the_logits_of_the_reference() {
    for name in &names("tiny") {
        let golden = Golden::read(&folder().join("tiny").join(name).join("golden"));
        let sequence = golden.json["sequences"].as_array().unwrap().last().unwrap();
        let (text, expected) = (ids(&sequence["ids"]), golden.array(&sequence["logits"]));
        let vocab = expected.len() / text.len();
        let program = program(&format!("tiny/{name}"), DType::Fp32, None);
        for (n, n_threads) in [(1, 2), (2, 1), (3, 3), (8, 1), (8, 2), (33, 2)] {
            let executable = cpu(Numerics::F32, n_threads).load(&program).unwrap();
            let mut batches = vec![executable.instantiate_batch(n).unwrap()];
            if n == 3 {
                batches.push(Alone(executable).instantiate_batch(n).unwrap());
            }
            for mut batch in batches {
                assert_eq!(batch.n_instances(), n);
                for (function, calls) in schedule(n) {
                    let found = run(batch.as_mut(), function, &text, &calls);
                    for ((idx, position, len), found) in calls.iter().zip(found) {
                        let end = position + len;
                        let error =
                            relative_error(&found, &expected[(end - 1) * vocab..end * vocab]);
                        assert!(
                            error <= 1e-5,
                            "{name}, {n} sequences, {idx} at {end}: {error:e}"
                        );
                    }
                }
            }
        }
    }
}

/// Products of few rows and of many add up in other orders (1e-6 of a result), which may turn a
/// code of the next product's 8 bits or a number of the cache to its neighbor: 8e-5 of the logits
/// at worst, when this was written; 3.4e-3 where a machine with products of bf16 rounds activations
/// to its 8 bits, and 7.6e-2 where AVX-512 fits the codes of weights to 8 bits for more than eight
/// tokens.
#[test]
fn fast_numerics_give_each_sequence_what_it_gets_alone() {
    let text: Vec<u32> = (0..61).map(|i| (i * i * 7 + i * 3 + 2) % 131).collect();
    let mut worst = 0.0f64;
    for path in [
        "tiny/llama-bf16",
        "tiny/qwen3",
        "tiny/gemma3",
        "tiny-gguf/llama-quantised.gguf",
    ] {
        let program = program(path, DType::Fp16, None);
        let executable = cpu(Numerics::Fast, 2).load(&program).unwrap();
        let bound = match Isa::detect() {
            isa if isa.has_wide_sums() && path.contains("quantised") => 1.5e-1,
            isa if isa.has_bf16() && path.contains("bf16") => 1e-2,
            _ => 1e-3,
        };
        for n in [2, 3, 8, 33] {
            let mut batch = executable.instantiate_batch(n).unwrap();
            let mut alone = Alone(Arc::clone(&executable)).instantiate_batch(n).unwrap();
            for (function, calls) in schedule(n) {
                let found = run(batch.as_mut(), function, &text, &calls);
                let expected = run(alone.as_mut(), function, &text, &calls);
                for ((call, found), expected) in calls.iter().zip(found).zip(expected) {
                    let error = relative_error(&found, &expected);
                    worst = worst.max(error);
                    assert!(
                        error <= bound,
                        "{path}, {n} sequences, {function} of {call:?}: {error:e}"
                    );
                }
            }
        }
    }
    println!("worst relative error of logits, together against alone: {worst:.1e}");
}

/// What is not joined is computed as it is alone, to the bit.
#[test]
fn numbers_of_the_engine_are_those_of_each_alone() {
    let text: Vec<u32> = (0..61).map(|i| (i * 11 + 3) % 149).collect();
    let program = program("tiny/qwen3", DType::Fp16, None);
    let executable = cpu(Numerics::Ane(Effects::default()), 2)
        .load(&program)
        .unwrap();
    let mut batch = executable.instantiate_batch(3).unwrap();
    let mut alone = Alone(executable).instantiate_batch(3).unwrap();
    for (function, calls) in schedule(3) {
        let found = run(batch.as_mut(), function, &text, &calls);
        assert_eq!(
            found,
            run(alone.as_mut(), function, &text, &calls),
            "{function} {calls:?}"
        );
    }
}

#[test]
fn a_program_of_fixed_lengths_runs_too() {
    let engine = Form {
        block: Some(4),
        ..Form::default()
    };
    let program = program("tiny/gemma3", DType::Fp16, Some(engine.into()));
    let executable = cpu(Numerics::F32, 2).load(&program).unwrap();
    let mut batch = executable.instantiate_batch(3).unwrap();
    let mut one = executable.instantiate().unwrap();
    let set = |instance: &mut dyn Instance, token: i32, position: usize| {
        let inputs = [
            ("input_ids", vec![1, 1], vec![token]),
            ("positions", vec![1], vec![position as i32]),
        ];
        let bounds = [("write_begin", position), ("write_end", position + 1)]
            .map(|(name, at)| (name, vec![4], vec![0, 0, at as i32, 0]));
        for (name, shape, values) in inputs.into_iter().chain(bounds) {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
            instance
                .input(name, &shape)
                .unwrap()
                .copy_from_slice(&bytes);
        }
        for name in ["full_mask", "sliding_mask"] {
            instance
                .input(name, &[1, 1, 1, CONTEXT + 1])
                .unwrap()
                .fill(0);
        }
    };
    for (idx, (token, position)) in [(5, 0), (77, 9), (140, 30)].into_iter().enumerate() {
        set(batch.instance_mut(idx).unwrap(), token, position);
    }
    batch.run("decode", &[2, 0, 1]).unwrap();
    for (idx, (token, position)) in [(5, 0), (77, 9), (140, 30)].into_iter().enumerate() {
        one.reset();
        set(one.as_mut(), token, position);
        one.run("decode").unwrap();
        let expected = one.output("logits").unwrap();
        let found = batch.instance(idx).unwrap().output("logits").unwrap();
        assert_eq!(found.shape, expected.shape, "sequence {idx}");
        // Products of one row and of several add up in another order.
        let numbers = |view: View<'_>| -> Vec<f32> {
            let halves = view.bytes.as_chunks().0.iter();
            halves.map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect()
        };
        let (found, expected) = (numbers(found), numbers(expected));
        let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-3 * most;
        assert!(found.iter().zip(&expected).all(is_near), "sequence {idx}");
    }
}

const MIXED: &str = "program(1.3) {
    func main<ios16>(tensor<fp32, [?, 2]> x, tensor<int32, [1]> n, tensor<int32, [?]> rows) {
        tensor<fp32, [3, 2]> w = const()[val = tensor<fp32, [3, 2]>([[1.0, 2.0], [-1.0, 0.5], [3.0, -2.0]])];
        tensor<fp32, [3]> b = const()[val = tensor<fp32, [3]>([0.25, -4.0, 8.0])];
        tensor<fp32, [?, 3]> y = linear(x = x, weight = w, bias = b);
        tensor<fp32, [?, 3]> more = add(x = y, y = b);
        tensor<fp32, [?, 3]> twice = add(x = more, y = y);
        tensor<fp32, [?, 3, 1]> tall = expand_dims(x = twice, axes = tensor<int32, [1]>([2]));
        tensor<fp32, [3, ?, 1]> turned = transpose(x = tall, perm = tensor<int32, [3]>([1, 0, 2]));
        tensor<fp32, [?, 2]> picked = gather(x = w, indices = rows, axis = int32(0));
        tensor<int32, [1]> zero = const()[val = tensor<int32, [1]>([0])];
        tensor<int32, [1]> one = const()[val = tensor<int32, [1]>([1])];
        tensor<int32, [1]> end, tensor<fp32, [?, 3]> grown = while_loop(loop_vars = (zero, twice)) {
            block(tensor<int32, [1]> i, tensor<fp32, [?, 3]> v) {
                tensor<bool, [1]> less = less(x = i, y = n);
                bool goes_on = squeeze(axes = tensor<int32, [1]>([0]), x = less);
            } -> (goes_on);
            block(tensor<int32, [1]> j, tensor<fp32, [?, 3]> u) {
                tensor<int32, [1]> next = add(x = j, y = one);
                tensor<fp32, [?, 3]> sum = add(x = u, y = y);
            } -> (next, sum);
        };
        tensor<fp32, [2, 2]> noise = random_uniform(shape = tensor<int32, [2]>([2, 2]), low = fp32(0.0), high = fp32(1.0));
    } -> (y, turned, picked, grown, noise);
}";

/// Joined values that are outputs, that loops see, that are added to what is no row, and that are
/// turned; numbers that are drawn; none of the tokens of a frame.
#[test]
fn values_come_apart_where_ops_need_them() {
    let program = parse(MIXED, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    valid::check(&program).unwrap();
    let executable = cpu(Numerics::F32, 2)
        .load_with(
            &program,
            &LoadOptions {
                seed: 9,
                ..LoadOptions::default()
            },
        )
        .unwrap();
    let mut batch = executable.instantiate_batch(4).unwrap();
    let mut alone = Alone(executable).instantiate_batch(4).unwrap();
    for round in 0..3 {
        for batch in [&mut batch, &mut alone] {
            for idx in 0..4 {
                let instance = batch.instance_mut(idx).unwrap();
                let n_rows = (idx + round) % 4;
                let x = (0..2 * n_rows).flat_map(|i| (i as f32 * 0.5 - idx as f32).to_ne_bytes());
                instance
                    .input("x", &[n_rows, 2])
                    .unwrap()
                    .copy_from_slice(&x.collect::<Vec<u8>>());
                instance
                    .input("n", &[1])
                    .unwrap()
                    .copy_from_slice(&(idx as i32).to_ne_bytes());
                let rows = (0..idx + 1).flat_map(|i| ((i % 3) as i32).to_ne_bytes());
                instance
                    .input("rows", &[idx + 1])
                    .unwrap()
                    .copy_from_slice(&rows.collect::<Vec<u8>>());
            }
            batch
                .run("main", if round == 1 { &[3, 1] } else { &[0, 1, 2, 3] })
                .unwrap();
        }
        for idx in if round == 1 {
            vec![1, 3]
        } else {
            vec![0, 1, 2, 3]
        } {
            for output in ["y", "turned", "picked", "grown", "noise"] {
                let [found, expected] =
                    [&batch, &alone].map(|b| b.instance(idx).unwrap().output(output).unwrap());
                assert_eq!(found.shape, expected.shape, "{output} of {idx}");
                assert_eq!(
                    found.bytes, expected.bytes,
                    "{output} of {idx} in round {round}"
                );
            }
        }
    }
    let noise = floats(batch.instance(0).unwrap(), "noise");
    assert!(
        noise.iter().all(|v| (0.0..1.0).contains(v)) && noise[0] != noise[1],
        "{noise:?}"
    );
}

/// As many products as for one sequence, and as many operations as for all.
#[test]
fn weights_are_read_once_for_all_sequences() {
    for (path, numerics) in [
        ("tiny/qwen3", Numerics::F32),
        ("tiny-gguf/llama-quantised.gguf", Numerics::Fast),
    ] {
        let program = program(path, DType::Fp16, None);
        let linear = |which: &[usize]| {
            let profile = Arc::new(Profile::default());
            let cpu = cpu(numerics, 2).with_profile(Some(Arc::clone(&profile)));
            let executable = cpu.load(&program).unwrap();
            let mut batch = executable.instantiate_batch(8).unwrap();
            let calls: Vec<Call> = which.iter().map(|idx| (*idx, 0, 1)).collect();
            run(batch.as_mut(), "decode", &[3], &calls);
            let rows = profile.rows();
            let row = |step: &str| rows.iter().find(|row| row.step == step).cloned().unwrap();
            (row("linear"), row("rope, append, attention"))
        };
        let ((one, seen), (all, all_seen)) = (linear(&[5]), linear(&[0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(all.calls, one.calls, "{path}");
        assert_eq!(all.flops, 8.0 * one.flops, "{path}");
        assert!(
            all.bytes < 4.0 * one.bytes,
            "{path}: {} bytes for eight, {} for one",
            all.bytes,
            one.bytes
        );
        assert_eq!(
            (all_seen.calls, all_seen.flops),
            (seen.calls, 8.0 * seen.flops),
            "{path}"
        );
    }
}

#[test]
fn what_cannot_run_is_refused() {
    let program = program("tiny/gemma3", DType::Fp32, None);
    let executable = cpu(Numerics::F32, 2).load(&program).unwrap();
    let alone = Alone(Arc::clone(&executable));
    for mut batch in [
        executable.instantiate_batch(3).unwrap(),
        alone.instantiate_batch(3).unwrap(),
    ] {
        let refused = |batch: &mut dyn Batch, which: &[usize]| {
            batch.run("decode", which).unwrap_err().to_string()
        };
        assert_eq!(
            refused(batch.as_mut(), &[0, 3]),
            "expected a sequence number below 3, found 3"
        );
        assert!(
            refused(batch.as_mut(), &[2, 0, 2])
                .starts_with("sequence 2 is listed twice in one step")
        );
        assert!(refused(batch.as_mut(), &[0, 1]).contains("no input"));
        assert!(batch.instance(3).is_err() && batch.instance_mut(7).is_err());
        batch.run("decode", &[]).unwrap();
        for idx in 0..3 {
            fill(
                batch.instance_mut(idx).unwrap(),
                &[1, 2],
                if idx == 1 { CONTEXT - 1 } else { 4 },
            );
        }
        let error = batch.run("prefill", &[0, 1, 2]).unwrap_err().to_string();
        assert!(
            error.contains("the cache holds 64 tokens, 65 are needed"),
            "{error}"
        );
        // The others can go on.
        batch.run("prefill", &[0, 2]).unwrap();
        assert_eq!(
            logits(batch.instance(0).unwrap()),
            logits(batch.instance(2).unwrap())
        );
    }
    let mut batch = executable.instantiate_batch(2).unwrap();
    (0..2).for_each(|idx| fill(batch.instance_mut(idx).unwrap(), &[1], CONTEXT * idx));
    let error = batch.run("decode", &[0, 1]).unwrap_err().to_string();
    assert!(error.contains("of sequence 1: the cache holds"), "{error}");

    let limits = Limits {
        batch_bytes: 1 << 20,
        ..Limits::default()
    };
    let executable = cpu(Numerics::F32, 1)
        .load_with(&program, &LoadOptions::within(limits))
        .unwrap();
    // Four layers of keys and values of 64 tokens, a head of 14 elements.
    let of_one = 4 * 2 * 64 * 14 * 4;
    assert!(executable.instantiate_batch((1 << 20) / of_one).is_ok());
    let error = executable
        .instantiate_batch(1000)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with(&format!(
            "the states of 1000 sequences take {} bytes",
            1000 * of_one
        )),
        "{error}"
    );
}
