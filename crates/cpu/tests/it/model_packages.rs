//! Packages of whole kinds of models, small, as coremltools converts them from torch
//! (tests/oracle/make_model_packages.py): they give what torch gives, and no op of theirs, nor of a
//! decoder for the Neural Engine, takes elements one by one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_cpu::internals::{self, by_row_names};
use thane_cpu::{Cpu, Numerics, OpRow, Profile};
use thane_kernels::Isa;
use thane_mil::backend::{Backend, Instance};
use thane_mil::opset;
use thane_mil::package::Package;
use thane_mil::program::{Function, Program};
use thane_mil::types::DType;
use thane_models::{AneDecoder, Options, build};

use crate::golden::{folder, open, relative_error};

const MODELS: [&str; 8] = [
    "decoder",
    "distilbert",
    "lstm",
    "mobilenet_v2",
    "resnet50",
    "siglip",
    "unet_block",
    "whisper_encoder",
];

/// Fraction of all bytes that the ops of one kind may move one by one: indices and masks.
const FEW: f64 = 0.01;

fn packages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/model-packages")
}

fn package(name: &str) -> Package {
    Package::open(&packages().join(format!("{name}.mlpackage"))).unwrap()
}

/// What torch had as input or gave as output.
fn torch(package: &Package, name: &str) -> Vec<f32> {
    let known = package.metadata.user_defined.get(&format!("torch.{name}"));
    serde_json::from_str(known.unwrap_or_else(|| panic!("nothing of `{name}`"))).unwrap()
}

/// Sets each input of a function to the numbers that `values` gives by its name and length.
fn fill(instance: &mut dyn Instance, f: &Function, values: &dyn Fn(&str, usize) -> Vec<f32>) {
    for input in f.body().inputs.iter().map(|v| f.value(*v)) {
        let Some(ty) = input.ty.tensor() else {
            continue;
        };
        let shape = ty.known_shape().unwrap();
        let numbers = values(&input.name, shape.iter().product()).into_iter();
        let bytes: Vec<u8> = match ty.dtype {
            DType::Int32 => numbers.flat_map(|v| (v as i32).to_ne_bytes()).collect(),
            DType::Fp32 => numbers.flat_map(f32::to_ne_bytes).collect(),
            DType::Fp16 => numbers
                .flat_map(|v| thane_mil::literal::f64_to_f16(f64::from(v)).to_ne_bytes())
                .collect(),
            other => panic!("{}: {other}", input.name),
        };
        let to = instance.input(&input.name, &shape).unwrap();
        to.copy_from_slice(&bytes);
    }
}

/// How a function is planned.
#[derive(Clone, Copy)]
enum Planned<'a> {
    /// As in its program.
    Whole(&'a Program),
    /// Without kernels for patterns.
    OpByOp,
}

/// The ops of a function, profiled.
fn profiled(
    planned: Planned<'_>,
    f: &Function,
    values: &dyn Fn(&str, usize) -> Vec<f32>,
) -> Vec<OpRow> {
    let profile = Arc::new(Profile::default());
    let cpu = Cpu::new(Numerics::Fast, 1).with_profile(Some(Arc::clone(&profile)));
    let mut instance = match planned {
        Planned::Whole(program) => cpu.load(program).unwrap().instantiate().unwrap(),
        Planned::OpByOp => internals::Planned::new(&cpu, f, None)
            .unwrap()
            .instantiate()
            .unwrap(),
    };
    fill(instance.as_mut(), f, values);
    instance.run(&f.name).unwrap();
    let ops = profile.ops();
    assert!(!ops.is_empty());
    ops
}

/// The kinds of ops that move more than a few bytes one element at a time, or compute much without
/// a kernel, each with its first output; sizes are counted, so that times do not matter.
fn one_by_one(ops: &[OpRow]) -> Vec<String> {
    let total: f64 = ops.iter().map(|op| op.row.bytes).sum();
    let found = ops.iter().filter(|op| {
        let kind = ops.iter().filter(|other| {
            other.row.is_by_element && other.op == op.op && other.row.function == op.row.function
        });
        let bytes: f64 = kind.map(|op| op.row.bytes).sum();
        op.row.is_slow || op.row.is_by_element && bytes > FEW * total
    });
    found.map(|op| format!("{} {}", op.op, op.output)).collect()
}

#[test]
fn no_op_takes_elements_one_by_one() {
    for name in MODELS {
        let package = package(name);
        let f = &package.program.functions()[0];
        let ops = profiled(Planned::Whole(&package.program), f, &|input, _| {
            torch(&package, input)
        });
        let found = one_by_one(&ops);
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[test]
fn no_op_of_a_decoder_for_the_neural_engine_takes_elements_one_by_one() {
    for path in ["tiny/llama-bf16", "tiny/gemma3-bf16"] {
        let options = Options {
            verify: false,
            top: None,
            cache: DType::Fp16,
            context: Some(64),
            ane: Some(AneDecoder::default()),
        };
        let program = build(&open(&folder().join(path)), &options)
            .unwrap()
            .program;
        assert!(program.functions().len() > 1, "{path}");
        for f in program.functions() {
            let tokens = f.body().inputs.iter().map(|v| f.value(*v));
            let tokens = tokens.filter(|v| v.name == "input_ids");
            let tokens: Vec<_> = tokens.filter_map(|v| v.ty.tensor()?.n_elements()).collect();
            // Tokens at the beginning; only the first key is seen.
            let ops = profiled(Planned::Whole(&program), f, &|input, n| match input {
                "write_end" => vec![0.0, 0.0, tokens[0] as f32, 0.0],
                _ if input.contains("mask") => {
                    let mut mask = vec![-1e4; n];
                    mask[0] = 0.0;
                    mask
                }
                _ => vec![0.0; n],
            });
            let found = one_by_one(&ops);
            assert!(found.is_empty(), "{path}, {}: {found:?}", f.name);
        }
    }
}

/// What is not listed counts as one by one: a name that no op has would hide nothing, but tell
/// something wrong.
#[test]
fn ops_that_go_by_rows_are_ops() {
    let names = by_row_names();
    let unknown: Vec<_> = names.iter().filter(|n| opset::find(n).is_none()).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn models_give_what_torch_gives() {
    for name in MODELS {
        let package = package(name);
        let f = &package.program.functions()[0];
        let expected = torch(&package, "output");
        for isa in Isa::available() {
            for numerics in [Numerics::F32, Numerics::Fast] {
                let cpu = Cpu::new(numerics, 2).with_isa(Some(isa));
                let mut instance = cpu.load(&package.program).unwrap().instantiate().unwrap();
                fill(instance.as_mut(), f, &|input, _| torch(&package, input));
                instance.run(&f.name).unwrap();
                let found = instance.output("output").unwrap();
                let found: Vec<f32> = found
                    .bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_ne_bytes(*b))
                    .collect();
                let error = relative_error(&found, &expected);
                // Weights are rounded to fp16.
                assert!(error < 3e-3, "{name}, {}: {error:e}", isa.name());
            }
        }
    }
}

/// Where patterns are not found, ops of every model are.
#[test]
fn ops_without_kernels_are_found() {
    let due = [
        ("decoder", "linear"),
        ("distilbert", "layer_norm"),
        ("lstm", "lstm"),
        ("mobilenet_v2", "conv"),
        ("resnet50", "max_pool"),
        ("siglip", "softmax"),
        ("unet_block", "conv_transpose"),
        ("whisper_encoder", "matmul"),
    ];
    assert_eq!(due.map(|(name, _)| name), MODELS);
    for (name, op) in due {
        let package = package(name);
        let f = &package.program.functions()[0];
        let found = profiled(Planned::OpByOp, f, &|input, _| torch(&package, input));
        let found = one_by_one(&found);
        assert!(found.iter().any(|f| f.starts_with(op)), "{name}: {found:?}");
    }
}

#[test]
fn ops_that_no_kernel_is_for_are_found() {
    let text = "program(1.3) {
        func main<ios18>(tensor<fp32, [2, 3, 5, 7]> x) {
            tensor<fp32, [3, 5]> w = const()[val = tensor<fp32, [3, 5]>([[1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])];
            tensor<fp32, [2, 3, 5, 7]> y = layer_norm(x = x, axes = tensor<int32, [2]>([1, 2]), gamma = w, epsilon = fp32(0x1p-10));
            tensor<fp32, [2, 3, 5, 7]> sums = cumsum(x = y, axis = int32(3));
        } -> (sums);
    }";
    let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
    let f = &program.functions()[0];
    let ops = profiled(Planned::Whole(&program), f, &|_, n| {
        (0..n).map(|i| i as f32).collect()
    });
    let mut found = one_by_one(&ops);
    found.sort();
    assert_eq!(found, ["cumsum sums", "layer_norm y"]);
}
