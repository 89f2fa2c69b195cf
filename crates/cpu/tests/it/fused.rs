//! `tests/fused/<pattern>.mil`: programs that hold the pattern give with its kernel what they give
//! op by op; those that only look like it (`not_..`) are left to the ops.

use std::path::{Path, PathBuf};

use thane_cpu::internals::{Planned, pattern_names};
use thane_cpu::{Cpu, Numerics};
use thane_kernels::Isa;
use thane_mil::backend::Instance;
use thane_mil::data::Data;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::program::Function;
use thane_mil::text::parse;
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

/// Tokens of calls in a row: one, about a vector's 16, about a block's 64, more than a task of
/// attention has keys.
const LENGTHS: [usize; 6] = [1, 3, 17, 65, 1, 130];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fused")
}

/// Uniform in -1..1, the same for the same seed.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let number = |i: u64| {
        let mixed = (i ^ seed << 32)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32
            - 1.0
    };
    (0..n as u64).map(number).collect()
}

fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::Fp32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::Fp16 => values
            .iter()
            .flat_map(|v| f64_to_f16(f64::from(*v)).to_le_bytes())
            .collect(),
        other => panic!("numbers of {other}"),
    }
}

/// The kernels that a case names, and its functions.
fn case(name: &str) -> (String, Vec<Function>) {
    let path = folder().join(format!("{name}.mil"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let weight = |_: &str, seed: u64, ty: &TensorType| {
        Some(Data::owned(bytes(ty.dtype, &noise(seed, ty.n_elements()?))))
    };
    let program = parse(&text, &weight).unwrap_or_else(|e| panic!("{name}: {e}"));
    valid::check(&program).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    let kernels = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("// kernel: "))
        .unwrap()
        .to_owned();
    (kernels, program.functions().to_vec())
}

fn planned(f: &Function, pattern: Option<&str>, isa: Isa) -> Planned {
    let cpu = Cpu::new(Numerics::F32, 2).with_isa(Some(isa));
    Planned::new(&cpu, f, pattern).unwrap_or_else(|e| panic!("{}: {e}", f.name))
}

/// The bytes of an input: indices below 23, a mask that hides some keys but never the first, else
/// noise.
fn made(name: &str, dtype: DType, shape: &[usize], position: usize, seed: u64) -> Vec<u8> {
    let n: usize = shape.iter().product();
    match (name, dtype) {
        ("position", DType::Int32) => (position as i32).to_le_bytes().to_vec(),
        (_, DType::Int32) => (0..n)
            .flat_map(|i| ((i * 7 + 3) as i32 % 23).to_le_bytes())
            .collect(),
        ("mask", dtype) => {
            let keys = *shape.last().unwrap();
            // Of the first text the end is hidden, as padding is; of the others keys here and
            // there.
            let is_hidden = |i: usize| {
                if i < n / shape[0] {
                    i % keys > keys / 2
                } else {
                    i % keys % 3 == 1
                }
            };
            bytes(
                dtype,
                &(0..n)
                    .map(|i| if is_hidden(i) { -1e4 } else { 0.0 })
                    .collect::<Vec<_>>(),
            )
        }
        _ => bytes(
            dtype,
            &noise(seed, n).iter().map(|v| 3.0 * v).collect::<Vec<_>>(),
        ),
    }
}

fn call(
    instance: &mut dyn Instance,
    f: &Function,
    n_tokens: usize,
    position: usize,
) -> Vec<(String, DType, Vec<f64>)> {
    for (input, seed) in f.body().inputs.iter().zip(100..) {
        let value = f.value(*input);
        let Some(ty) = value.ty.tensor() else {
            continue;
        };
        let shape: Vec<usize> = ty
            .shape
            .iter()
            .map(|d| d.known().unwrap_or(n_tokens))
            .collect();
        let bytes = made(
            &value.name,
            ty.dtype,
            &shape,
            position,
            seed + n_tokens as u64,
        );
        instance
            .input(&value.name, &shape)
            .unwrap()
            .copy_from_slice(&bytes);
    }
    instance
        .run(&f.name)
        .unwrap_or_else(|e| panic!("{}: {e}", f.name));
    let floats = |name: &str| {
        let view = instance.output(name).unwrap();
        let values = match view.dtype {
            DType::Fp16 => view
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f64::from(f16_to_f32(u16::from_le_bytes(*b))))
                .collect(),
            DType::Fp32 => view
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect(),
            DType::Int32 => view
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f64::from(i32::from_le_bytes(*b)))
                .collect(),
            other => panic!("{name} of {other}"),
        };
        (name.to_owned(), view.dtype, values)
    };
    f.body()
        .outputs
        .iter()
        .map(|v| floats(&f.value(*v).name))
        .collect()
}

/// Norm of the difference over the norm of what is due.
fn relative_error(found: &[f64], due: &[f64]) -> f64 {
    assert_eq!(found.len(), due.len());
    let difference: f64 = found.iter().zip(due).map(|(f, d)| (f - d) * (f - d)).sum();
    (difference / due.iter().map(|d| d * d).sum::<f64>()).sqrt()
}

fn agrees(pattern: &str, f: &Function, isa: Isa) {
    let [mut plain, mut fused] =
        [None, Some(pattern)].map(|pattern| planned(f, pattern, isa).instantiate().unwrap());
    let mut position = 0;
    for n_tokens in LENGTHS {
        let due = call(&mut *plain, f, n_tokens, position);
        let found = call(&mut *fused, f, n_tokens, position);
        position += n_tokens;
        for ((name, dtype, due), (_, _, found)) in due.iter().zip(&found) {
            // Sums in another order, and a last place of fp16 that falls to the other side.
            let bound = if *dtype == DType::Fp16 { 5e-4 } else { 2e-6 };
            let error = relative_error(found, due);
            assert!(
                error <= bound,
                "{}, `{name}`, {n_tokens} tokens, {}: {error:e}",
                f.name,
                isa.name()
            );
        }
    }
}

#[test]
fn every_pattern_computes_what_its_ops_do() {
    for name in pattern_names() {
        let (due, functions) = case(name);
        let (mut n_fused, mut n_left) = (0, 0);
        for f in &functions {
            let found = planned(f, Some(name), Isa::detect()).kernels().join(", ");
            if f.name.starts_with("not_") {
                assert_eq!(found, "", "{name}, {}", f.name);
                n_left += 1;
                continue;
            }
            assert_eq!(found, due, "{name}, {}", f.name);
            n_fused += 1;
            Isa::available()
                .into_iter()
                .for_each(|isa| agrees(name, f, isa));
        }
        assert!(
            n_fused > 0 && n_left > 0,
            "{name}: {n_fused} that it is in, {n_left} that look like it"
        );
    }
}

/// Threads share the places of a convolution in parts that do not depend on how many they are.
#[test]
fn convolutions_give_the_same_bits_on_any_number_of_threads() {
    let (_, functions) = case("conv_rows");
    for f in functions.iter().filter(|f| !f.name.starts_with("not_")) {
        let mut results = [1, 2, 3, 4, 9].into_iter().map(|n_threads| {
            let cpu = Cpu::new(Numerics::Fast, n_threads);
            let plan = Planned::new(&cpu, f, Some("conv_rows")).unwrap();
            call(&mut *plan.instantiate().unwrap(), f, 1, 0)
        });
        let first = results.next().unwrap();
        assert!(results.all(|other| other == first), "{}", f.name);
    }
}

/// A filter computes elements of several windows at once.
#[test]
fn filters_keep_what_is_not_finite_in_its_windows() {
    let (_, functions) = case("filter");
    let f = &functions[0];
    let finite = |pattern: Option<&str>| -> Vec<bool> {
        let mut instance = planned(f, pattern, Isa::detect()).instantiate().unwrap();
        let mut x = noise(5, 301);
        (x[100], x[250]) = (f32::INFINITY, f32::NAN);
        let given = bytes(DType::Fp32, &x);
        let input = instance.input("x", &[1, 301, 1]).unwrap();
        input.copy_from_slice(&given);
        instance.run(&f.name).unwrap();
        let y = instance.output("y").unwrap().bytes.as_chunks().0;
        y.iter()
            .map(|b| f32::from_le_bytes(*b).is_finite())
            .collect()
    };
    let due = finite(None);
    assert!(due.contains(&true) && due.contains(&false));
    assert_eq!(finite(Some("filter")), due);
}

#[test]
fn every_case_is_that_of_a_pattern() {
    for entry in folder().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            pattern_names().contains(&name),
            "{}: no pattern of this name",
            path.display()
        );
    }
}
