//! Random ops: their distributions by moments, their ranges, and which draws are equal.

use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, LoadOptions};
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;

const CPU: Cpu = Cpu::new(Numerics::F32, 1);
const N: usize = 40_000;

fn load(body: &str, outputs: &str, seed: u64) -> Box<dyn Instance> {
    let text = format!(
        "program(1.3) {{ func main<ios16>(tensor<fp32, [2, 3]> x) {{ {body} }} -> ({outputs}); }}"
    );
    let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"));
    valid::check(&program).unwrap();
    CPU.load_with(
        &program,
        &LoadOptions {
            seed,
            ..LoadOptions::default()
        },
    )
    .unwrap()
    .instantiate()
    .unwrap()
}

/// The numbers of an output.
fn numbers(instance: &dyn Instance, name: &str) -> Vec<f64> {
    let view = instance.output(name).unwrap();
    match view.dtype {
        DType::Fp32 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from(f32::from_ne_bytes(*b)))
            .collect(),
        _ => {
            let half =
                |b: &[u8; 2]| f64::from(thane_mil::literal::f16_to_f32(u16::from_ne_bytes(*b)));
            view.bytes.as_chunks().0.iter().map(half).collect()
        }
    }
}

/// What `op` with these arguments gives, as a matrix of 200 rows.
fn draw(dtype: &str, op: &str, args: &str) -> Vec<f64> {
    let shape = "shape = tensor<int32, [2]>([200, 200])";
    let mut instance = load(
        &format!("tensor<{dtype}, [200, 200]> y = {op}({shape}, {args} seed = int32(7));"),
        "y",
        0,
    );
    instance.input("x", &[2, 3]).unwrap();
    instance.run("main").unwrap();
    assert_eq!(instance.output("y").unwrap().shape, [200, 200]);
    let y = numbers(instance.as_ref(), "y");
    assert_eq!(y.len(), N);
    y
}

fn mean(y: &[f64]) -> f64 {
    y.iter().sum::<f64>() / y.len() as f64
}

/// The mean of the k-th powers of what is left of the mean.
fn moment(y: &[f64], k: i32) -> f64 {
    let m = mean(y);
    y.iter().map(|v| (v - m).powi(k)).sum::<f64>() / y.len() as f64
}

/// Within five standard errors, which N numbers miss once in two million draws; seeds are fixed, so
/// the test is too.
#[track_caller]
fn near(found: f64, expected: f64, variance: f64) {
    let most = 5.0 * (variance / N as f64).sqrt();
    assert!(
        (found - expected).abs() <= most,
        "{found}, not {expected} within {most}"
    );
}

#[test]
fn uniform_numbers_fill_their_range() {
    for (dtype, args, low, high) in [
        ("fp32", "", 0.0, 1.0),
        ("fp32", "low = fp32(-3), high = fp32(5),", -3.0, 5.0),
        ("fp16", "low = fp16(-0.25), high = fp16(2),", -0.25, 2.0),
    ] {
        let y = draw(dtype, "random_uniform", args);
        let width: f64 = high - low;
        assert!(y.iter().all(|v| (low..high).contains(v)), "{args}");
        near(mean(&y), (low + high) / 2.0, width.powi(2) / 12.0);
        // Variance of (v - m)^2 is w^4 / 180.
        near(moment(&y, 2), width.powi(2) / 12.0, width.powi(4) / 180.0);
        let least = y.iter().fold(high, |m, v| m.min(*v));
        let most = y.iter().fold(low, |m, v| m.max(*v));
        assert!(
            least - low < width * 1e-3 && high - most < width * 2e-3,
            "{least} to {most}"
        );
        // Neighbors are independent: the mean of their product is that of the numbers, squared.
        let unit: Vec<f64> = y.iter().map(|v| (v - low) / width - 0.5).collect();
        near(
            unit.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / N as f64,
            0.0,
            1.0 / 144.0,
        );
    }
    // A range that is empty, and one of two fp16 numbers.
    assert!(
        draw("fp32", "random_uniform", "low = fp32(2), high = fp32(2),")
            .iter()
            .all(|v| *v == 2.0)
    );
    let y = draw(
        "fp16",
        "random_uniform",
        "low = fp16(-0.000000059604645), high = fp16(0),",
    );
    assert!(y.iter().all(|v| *v < 0.0));
}

#[test]
fn normal_numbers_have_their_moments() {
    for (dtype, args, center, width) in [
        ("fp32", "", 0.0, 1.0),
        ("fp32", "mean = fp32(-3), stddev = fp32(0.5),", -3.0, 0.5),
        ("fp16", "mean = fp16(1.5), stddev = fp16(2),", 1.5, 2.0),
    ] {
        let y = draw(dtype, "random_normal", args);
        let w = |k| f64::powi(width, k);
        near(mean(&y), center, w(2));
        near(moment(&y, 2), w(2), 2.0 * w(4));
        near(moment(&y, 3), 0.0, 15.0 * w(6));
        near(moment(&y, 4), 3.0 * w(4), 96.0 * w(8));
        assert!(y.iter().all(|v| (v - center).abs() < 7.0 * width));
    }
}

#[test]
fn bernoulli_numbers_are_ones_and_zeros() {
    for (dtype, args, prob) in [
        ("fp32", "", 0.5),
        ("fp32", "prob = fp32(0.0625),", 0.0625),
        ("fp16", "prob = fp16(0.75),", 0.75),
        ("fp32", "prob = fp32(0),", 0.0),
        ("fp16", "prob = fp16(1),", 1.0),
    ] {
        let y = draw(dtype, "random_bernoulli", args);
        assert!(y.iter().all(|v| *v == 0.0 || *v == 1.0));
        near(mean(&y), prob, prob * (1.0 - prob));
    }
}

#[test]
fn classes_are_drawn_by_their_probabilities() {
    let probs = [[0.25, 0.0, 0.75], [0.5, 0.375, 0.125]];
    for (mode, dtype) in [
        ("probs", "fp32"),
        ("probs", "fp16"),
        ("logits", "fp32"),
        ("logits", "fp16"),
    ] {
        // -30 stands in for the logarithm of 0: e^-30 is never drawn. Without `mode` they are
        // logits.
        let given = probs.map(|row| {
            row.map(|p: f32| {
                if mode == "probs" {
                    4.0 * p
                } else {
                    p.ln().max(-30.0) + 2.0
                }
            })
        });
        let mode = if mode == "probs" {
            "mode = string(\"probs\"),"
        } else {
            ""
        };
        let body = format!(
            "tensor<{dtype}, [2, 3]> w = cast(x = x, dtype = string(\"{dtype}\"));
             tensor<{dtype}, [2, {N}]> y = random_categorical(x = w, {mode} size = int32({N}), seed = int32(-5));
             tensor<{dtype}, [2, 1]> one = random_categorical(x = w, {mode} seed = int32(11));"
        );
        let mut instance = load(&body, "y, one", 0);
        let bytes: Vec<u8> = given
            .as_flattened()
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        instance
            .input("x", &[2, 3])
            .unwrap()
            .copy_from_slice(&bytes);
        instance.run("main").unwrap();
        let y = numbers(instance.as_ref(), "y");
        for (row, p) in y.chunks(N).zip(probs) {
            for (class, p) in p.into_iter().enumerate() {
                let p = f64::from(p);
                let found = row.iter().filter(|v| **v == class as f64).count() as f64 / N as f64;
                // Logarithms in fp16 are wrong by up to 2^-11 of 4.
                let rounded = if dtype == "fp16" { 2e-3 * p } else { 1e-6 };
                assert!(
                    (found - p).abs() <= 5.0 * (p * (1.0 - p) / N as f64).sqrt() + rounded,
                    "{found}, not {p}"
                );
            }
        }
        assert_eq!(instance.output("one").unwrap().shape, [2, 1]);
        assert!(
            numbers(instance.as_ref(), "one")
                .iter()
                .all(|v| [0.0, 1.0, 2.0].contains(v))
        );
    }
}

#[test]
fn weights_that_are_no_probabilities_are_an_error() {
    for x in [
        [0.5f32, -0.25, 1.0],
        [0.0, 0.0, 0.0],
        [f32::NAN, 1.0, 1.0],
        [f32::INFINITY, 1.0, 1.0],
    ] {
        let mut instance = load(
            "tensor<fp32, [2, 1]> y = random_categorical(x = x, mode = string(\"probs\"));",
            "y",
            0,
        );
        let bytes: Vec<u8> = [[1.0; 3], x]
            .as_flattened()
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        instance
            .input("x", &[2, 3])
            .unwrap()
            .copy_from_slice(&bytes);
        let error = instance.run("main").unwrap_err().to_string();
        assert!(error.contains("no probabilities"), "{error}");
    }
}

/// a, b have no seed, c, d one of their own; the loop draws three times.
const DRAWS: &str = "
    tensor<int32, [1]> shape = const()[val = tensor<int32, [1]>([5])];
    tensor<fp32, [5]> a = random_uniform(shape = shape);
    tensor<fp32, [5]> b = random_uniform(shape = shape, seed = int32(-1));
    tensor<fp32, [5]> c = random_uniform(shape = shape, seed = int32(3));
    tensor<fp32, [5]> d = random_uniform(shape = shape, seed = int32(4));
    int32 zero = const()[val = int32(0)];
    int32 n, tensor<fp32, [5]> sum, tensor<fp32, [5]> e = while_loop(loop_vars = (zero, a, a)) {
        block(int32 i, tensor<fp32, [5]> s, tensor<fp32, [5]> r) { bool more = less(x = i, y = int32(3)); } -> (more);
        block(int32 j, tensor<fp32, [5]> t, tensor<fp32, [5]> u) {
            int32 next = add(x = j, y = int32(1));
            tensor<fp32, [5]> drawn = random_uniform(shape = shape);
            tensor<fp32, [5]> new = add(x = t, y = drawn);
        } -> (next, new, drawn);
    };";

#[test]
fn equal_seeds_draw_equal_numbers_and_others_do_not() {
    let names = ["a", "b", "c", "d", "e", "sum"];
    let run = |instance: &mut dyn Instance| {
        instance.input("x", &[2, 3]).unwrap();
        instance.run("main").unwrap();
        names.map(|name| numbers(instance, name))
    };
    let mut first = load(DRAWS, &names.join(", "), 0);
    let (one, two) = (run(first.as_mut()), run(first.as_mut()));
    // Every draw without a seed is another, and so is each number.
    let mut seen: Vec<f64> = [
        &one[0], &one[1], &one[4], &two[0], &two[1], &two[4], &one[2], &one[3],
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect();
    assert_eq!(
        (&one[2], &one[3]),
        (&two[2], &two[3]),
        "a seed of the program's own"
    );
    seen.sort_by(f64::total_cmp);
    seen.dedup();
    assert_eq!(seen.len(), 8 * 5);
    // Three rounds did not add one draw three times.
    assert!((0..5).all(|i| (one[5][i] - one[0][i] - 3.0 * one[4][i]).abs() > 1e-3));
    first.reset();
    assert_eq!(run(first.as_mut()), one, "after a reset");
    assert_eq!(
        run(load(DRAWS, &names.join(", "), 0).as_mut()),
        one,
        "another instance"
    );
    let other = run(load(DRAWS, &names.join(", "), 1).as_mut());
    assert!(other[0] != one[0] && other[1] != one[1] && other[0] != one[1]);
    assert_eq!(
        other[2], one[2],
        "the caller's seed is for those without one"
    );
}

#[test]
fn shapes_are_known_when_the_program_runs() {
    let body = "tensor<int32, [2]> shape = shape(x = x); tensor<fp32, [?, ?]> y = random_normal(shape = shape);";
    let mut instance = load(body, "y", 0);
    instance.input("x", &[2, 3]).unwrap();
    instance.run("main").unwrap();
    assert_eq!(instance.output("y").unwrap().shape, [2, 3]);
}

#[test]
fn what_is_no_distribution_is_refused() {
    for (op, message) in [
        (
            "random_normal(shape = tensor<int32, [1]>([3]), mean = fp16(1))",
            "of one element type",
        ),
        (
            "random_normal(shape = tensor<int32, [1]>([0]))",
            "expected positive sizes",
        ),
        (
            "random_bernoulli(shape = int32(3))",
            "expected a vector of known length",
        ),
        (
            "random_bernoulli(shape = tensor<int32, [1]>([3]), prob = tensor<fp32, [1]>([1]))",
            "expected a scalar",
        ),
        (
            "random_categorical(x = x, mode = string(\"log\"))",
            "expected `logits` or `probs`, found `log`",
        ),
        (
            "random_categorical(x = x, size = int32(-1))",
            "expected positive sizes",
        ),
    ] {
        let text = format!(
            "program(1.3) {{ func main<ios16>(tensor<fp32, [3]> x) {{ tensor<fp32, [3]> y = {op}; }} -> (y); }}"
        );
        let error = parse(&text, &|_, _, _| None).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
