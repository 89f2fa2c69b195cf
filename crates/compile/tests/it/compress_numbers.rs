//! The numbers that compressed weights stand for, decoded here from their parts: finite, and as far
//! from the weights as is said.

use std::sync::Arc;

use thane_compile::compress::Matrix;
use thane_compile::compress::job::{Job, Memory, Tensor};
use thane_compile::compress::program::{Compression, Settings};
use thane_mil::data::Data;
use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::types::DType;

const SHAPE: [usize; 2] = [16, 64];

fn bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let half = |x: &f32| f64_to_f16((*x).into()).to_le_bytes();
    match dtype {
        DType::Fp16 => numbers.iter().flat_map(half).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn floats(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let half = |b: &[u8; 2]| f16_to_f32(u16::from_le_bytes(*b));
    match dtype {
        DType::Fp16 => bytes.as_chunks().0.iter().map(half).collect(),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect(),
    }
}

fn job(
    dtype: DType,
    text: &str,
    has_scales: bool,
    numbers: &[f32],
    importance: &[f32],
) -> Arc<Job> {
    let tensor = Tensor {
        name: "w".to_owned(),
        dtype,
        matrix: Matrix::new(SHAPE.to_vec(), 0, 1),
        data: Data::owned(bytes(dtype, numbers)),
        importance: importance.into(),
    };
    let store = Arc::new(Memory::default());
    Job::new(tensor, text.parse().unwrap(), has_scales, store)
}

/// The numbers that integers or one palette stand for, products rounded to the type of the tensor.
fn decoded(job: &Job, bits: usize, is_palette: bool) -> Vec<f32> {
    let dtype = job.tensor().dtype;
    let parts = &job.made().unwrap().parts;
    let codes = parts[0].as_slice();
    let code = |i: usize| codes[i * bits / 8] >> (i * bits % 8) & (0xff >> (8 - bits));
    let last = floats(dtype, parts.last().unwrap().as_slice());
    let table = floats(dtype, parts[1].as_slice());
    let [_, inputs] = SHAPE;
    let n_values = SHAPE.iter().product::<usize>();
    let number = |i: usize| {
        // A scale for each row, for each block of a row, or for all.
        let scale = f64::from(last[i * last.len() / n_values]);
        let signed = i64::from(code(i)) - (i64::from(code(i)) >> (bits - 1) << bits);
        let product = match (is_palette, parts.len()) {
            (true, 2) => f64::from(table[usize::from(code(i))]),
            (true, _) => f64::from(table[usize::from(code(i))]) * f64::from(last[i / inputs]),
            _ => signed as f64 * scale,
        };
        match dtype {
            DType::Fp16 => f16_to_f32(f64_to_f16(product)),
            _ => product as f32,
        }
    };
    (0..n_values).map(number).collect()
}

fn square_error(weights: &[f32], decoded: &[f32]) -> f64 {
    let pairs = weights.iter().zip(decoded);
    pairs
        .map(|(w, q)| (f64::from(*w) - f64::from(*q)).powi(2))
        .sum()
}

/// The encodings that [`decoded`] reads: with their bits, whether they are palettes, and whether
/// scales stand beside.
const READ: [(&str, usize, bool, bool); 8] = [
    ("int8", 8, false, false),
    ("int8t", 8, false, false),
    ("int4", 4, false, false),
    ("int4t", 4, false, false),
    ("int4b8", 4, false, false),
    ("pal4", 4, true, false),
    ("pal4", 4, true, true),
    ("pal1", 1, true, true),
];

/// From -1 to 1, without a pattern.
fn noise(i: usize) -> f32 {
    let mixed = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f32 / 8_388_608.0 - 1.0
}

/// A scale times a code is rounded, and may leave fp16 where neither the weight nor the scale does.
#[test]
fn weights_near_the_end_of_fp16_stay_finite() {
    let most = 65504.0f32;
    let n = SHAPE.iter().product::<usize>();
    type Number = fn(usize) -> f32;
    let rows: [Number; 5] = [
        |_| 1.0,
        |_| -1.0,
        |i| if i % 3 == 0 { -1.0 } else { 1.0 },
        noise,
        |i| if i % 64 == 5 { -1.0 } else { 0.001 * noise(i) },
    ];
    for (text, bits, is_palette, has_scales) in READ {
        for (k, row) in rows.iter().enumerate() {
            // One row of two is small.
            let size = |i: usize| {
                if (i / 64).is_multiple_of(2) {
                    most
                } else {
                    3.0
                }
            };
            let number = |i: usize| f16_to_f32(f64_to_f16((row(i) * size(i)).into()));
            let numbers: Vec<f32> = (0..n).map(number).collect();
            let job = job(DType::Fp16, text, has_scales, &numbers, &[]);
            let decoded = decoded(&job, bits, is_palette);
            assert!(
                decoded.iter().all(|x| x.is_finite()),
                "{text} {has_scales} {k}"
            );
            let (error, said) = (square_error(&numbers, &decoded), job.made().unwrap().error);
            let slack = if has_scales {
                1e-2 * error + 1e5
            } else {
                1e-6 * error
            };
            assert!(
                (error - said).abs() <= slack,
                "{text} {k}: {said}, expected {error}"
            );
            // One step of the codes, for rows of one magnitude.
            if text == "int8" && k < 3 {
                let energy = square_error(&numbers, &vec![0.0; n]);
                assert!((error / energy).sqrt() < 0.01, "{k}: {error} {energy}");
            }
        }
    }
}

/// Weights of fp32 keep their size, far from the numbers that fp16 holds too.
#[test]
fn errors_of_fp32_do_not_depend_on_the_size_of_weights() {
    let n = SHAPE.iter().product::<usize>();
    for (text, bits, is_palette, has_scales) in READ {
        let mut relative = Vec::new();
        for exponent in [0, -24, -30, -100, 30, 100] {
            let size = 2f64.powi(exponent) as f32;
            let numbers: Vec<f32> = (0..n).map(|i| noise(i) * size).collect();
            let job = job(DType::Fp32, text, has_scales, &numbers, &[]);
            let made = job.made().unwrap();
            let error = square_error(&numbers, &decoded(&job, bits, is_palette));
            let ratio = made.error / error;
            assert!((ratio - 1.0).abs() < 1e-3, "{text} {exponent}: {ratio}");
            relative.push(made.relative_error());
        }
        let [first, others @ ..] = &relative[..] else {
            panic!("no sizes")
        };
        assert!(*first > 1e-4 && *first < 0.7, "{text}: {first}");
        let is_same = |error: &f64| (error / first - 1.0).abs() < 1e-6;
        assert!(others.iter().all(is_same), "{text}: {relative:?}");
    }
}

/// Sparse weights and vectors of fp32, whose parts [`decoded`] does not read.
#[test]
fn other_encodings_of_fp32_do_not_depend_on_the_size_of_weights() {
    let n = SHAPE.iter().product::<usize>();
    for text in ["sparse50", "2:4", "sparse75+pal4", "1:4+int8", "2x16"] {
        let errors = [0, -30, 100].map(|exponent| {
            let size = 2f64.powi(exponent) as f32;
            let numbers: Vec<f32> = (0..n).map(|i| noise(i) * size).collect();
            let job = job(DType::Fp32, text, false, &numbers, &[]);
            job.made().unwrap().relative_error()
        });
        assert!(errors[0] > 0.01 && errors[0] < 0.9, "{text}: {errors:?}");
        let is_same = |error: &f64| (error / errors[0] - 1.0).abs() < 1e-6;
        assert!(errors.iter().all(is_same), "{text}: {errors:?}");
    }
}

/// Values of a table that holds them all are kept, though fp16 has none of them.
#[test]
fn few_values_of_fp32_are_kept_exactly() {
    let steps = [-3e-9, -1.000_000_1e-9, 0.1e-9, 2.345_678e-9];
    let numbers: Vec<f32> = (0..1024).map(|i| steps[i * 7 % 4]).collect();
    let job = job(DType::Fp32, "pal2", false, &numbers, &[]);
    assert_eq!(job.made().unwrap().error, 0.0);
    assert_eq!(
        floats(DType::Fp32, job.made().unwrap().parts[1].as_slice()),
        steps
    );
}

/// A text that uses no input of a product does not say which errors count.
#[test]
fn inputs_that_are_all_zero_count_alike() {
    let numbers: Vec<f32> = (0..1024).map(noise).collect();
    for (text, has_scales) in [
        ("pal4", false),
        ("pal4", true),
        ("2x16", false),
        ("int4", false),
    ] {
        let parts = |importance: &[f32]| {
            let job = job(DType::Fp16, text, has_scales, &numbers, importance);
            let made = job.made().unwrap().clone();
            made.parts
                .iter()
                .map(|part| part.as_slice().to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(parts(&[0.0; 64]), parts(&[]), "{text} {has_scales}");
    }
}

/// Weights that are stored in fp16 and computed from in fp32 are compressed, and the numbers that
/// they were cast from are gone.
#[test]
fn weights_behind_a_cast_are_compressed() {
    let row = |i: usize| {
        let numbers: Vec<String> = (0..32).map(|k| noise(32 * i + k).to_string()).collect();
        format!("[{}]", numbers.join(", "))
    };
    let rows: Vec<String> = (0..64).map(row).collect();
    let half = format!("tensor<fp16, [64, 32]>([{}])", rows.join(", "));
    let fp32 = "output_dtype = string(\"fp32\")";
    let apart = |name: &str| {
        format!("tensor<fp32, [64, 32]> {name} = constexpr_cast(source_val = h, {fp32});")
    };
    let constant = format!("tensor<fp16, [64, 32]> h = const()[val = {half}];");
    let inside = "tensor<fp32, [64, 32]> w = constexpr_cast()";
    for (opset, weights, last) in [
        ("ios18", format!("{constant} {}", apart("w")), "w"),
        (
            "ios18",
            format!("{constant} {} {}", apart("w"), apart("v")),
            "v",
        ),
        (
            "ios16",
            format!("{inside}[source_val = {half}, {fp32}];"),
            "w",
        ),
    ] {
        let text = format!(
            "program(1.3) {{ func main<{opset}>(tensor<fp32, [1, 32]> x) {{ {weights}
             tensor<fp32, [1, 64]> a = linear(x = x, weight = w);
             tensor<fp32, [1, 64]> b = linear(x = x, weight = {last});
             tensor<fp32, [1, 64]> y = add(x = a, y = b); }} -> (y); }}"
        );
        let program = parse(&text, &|_, _, _| None).unwrap();
        let store = Arc::new(Memory::default());
        let compression = Compression::new(&program, Settings::default(), store).unwrap();
        let (small, report) = compression.apply(&program).unwrap();
        assert_eq!(
            (report.rows.len(), report.left.len()),
            (1, 0),
            "{opset} {last}"
        );
        assert_eq!(report.rows[0].bytes_before, 64 * 32 * 2);
        assert!(report.rows[0].bytes < 2048 && report.rows[0].error < 0.2);
        let names = |program: &Program, name: &str| {
            let f = &program.functions()[0];
            let ops = f.all_ops().into_iter().map(|id| f.op(id).def.name);
            ops.filter(|n| *n == name).count()
        };
        assert_eq!(names(&small, "constexpr_cast"), 0, "{opset} {last}");
        let n_weights = if last == "v" { 2 } else { 1 };
        assert_eq!(
            names(&small, "constexpr_lut_to_dense"),
            n_weights,
            "{opset}"
        );
        // The numbers before took 4,096 bytes.
        let f = &small.functions()[0];
        let sizes = f.all_ops().into_iter().filter_map(|id| {
            let value = f.op(id).results.first()?;
            f.constant(*value)?.ty().tensor()?.byte_len()
        });
        assert!(sizes.max().unwrap_or(0) < 4096, "{opset} {last}");
    }
}
