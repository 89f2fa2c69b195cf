//! The numbers of the Neural Engine: sums that were measured on it (`tests/oracle/make_ane.py`),
//! rounding over all fp16 numbers, each effect on and off, and where a model loses its numbers.

use std::path::{Path, PathBuf};

use serde_json::Value;
use thane_cpu::ane::{Basis, Cause, Effects, OpReport, Options, Report, compare};
use thane_cpu::{Cpu, Numerics};
use thane_mil::backend::{Backend, Instance, View};
use thane_mil::literal::f16_to_f32;
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::types::DType;
use thane_mil::valid;
use thane_models::checkpoint::Checkpoint;

use crate::golden::{call, folder, ids, with_scaled};

mod conv;
mod half;

fn program(inputs: &str, body: &str) -> Program {
    let text = format!("program(1.3) {{ func main<ios18>({inputs}) {{ {body} }} -> (z); }}");
    let program = parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}: {text}"));
    valid::check(&program).unwrap();
    program
}

fn instance(program: &Program, effects: Effects) -> Box<dyn Instance> {
    Cpu::new(Numerics::Ane(effects), 2)
        .load(program)
        .unwrap()
        .instantiate()
        .unwrap()
}

fn but(names: &[&str]) -> Effects {
    let mut effects = Effects::default();
    names
        .iter()
        .for_each(|name| effects.set(name, false).unwrap());
    effects
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn floats(view: View<'_>) -> Vec<f32> {
    match view.dtype {
        DType::Fp32 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_ne_bytes(*b))
            .collect(),
        DType::Fp16 => view
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f16_to_f32(u16::from_ne_bytes(*b)))
            .collect(),
        other => panic!("{other}"),
    }
}

/// The result `z` of fp32 inputs.
fn run(program: &Program, effects: Effects, inputs: &[(&str, &[usize], &[f32])]) -> Vec<f32> {
    let mut instance = instance(program, effects);
    for (name, shape, values) in inputs {
        instance
            .input(name, shape)
            .unwrap()
            .copy_from_slice(&bytes(values));
    }
    instance.run("main").unwrap();
    floats(instance.output("z").unwrap())
}

/// A case of `sums.json`.
struct Case {
    x: Vec<u16>,
    w: Vec<u16>,
    bias: u16,
    expected: Value,
    name: String,
}

impl Case {
    fn read(kind: &str) -> Vec<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ane/sums.json");
        let json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let halves = |v: &Value| ids(v).into_iter().map(|v| v as u16).collect::<Vec<_>>();
        let case = |c: &Value| Self {
            x: halves(&c["x"]),
            w: halves(&c["w"]),
            bias: c["bias"].as_u64().unwrap() as u16,
            expected: c["expected"].clone(),
            name: c.to_string(),
        };
        json[kind].as_array().unwrap().iter().map(case).collect()
    }

    /// The numbers of fp16 bits, NaN with its own.
    fn values(halves: &[u16]) -> Vec<f32> {
        let nan = |h: u16| {
            f32::from_bits(u32::from(h & 0x8000) << 16 | 0x7f80_0000 | u32::from(h & 0x3ff) << 13)
        };
        halves
            .iter()
            .map(|h| {
                if h & 0x7fff > 0x7c00 {
                    nan(*h)
                } else {
                    f16_to_f32(*h)
                }
            })
            .collect()
    }

    /// As a product with a stored matrix, and where there is no bias, of fp16 tensors and by
    /// attention's other ops.
    fn check(&self, effects: Effects, expected: u16) {
        let n = self.x.len();
        let [x, w] = [&self.x, &self.w].map(|v| Self::values(v));
        let listed = w
            .iter()
            .map(|v| format!("{v:e}"))
            .collect::<Vec<_>>()
            .join(", ");
        let linear = program(
            &format!("tensor<fp32, [1, {n}]> x"),
            &format!(
                "tensor<fp32, [1, {n}]> w = const()[val = tensor<fp32, [1, {n}]>([[{listed}]])];
                 tensor<fp32, [1]> b = const()[val = tensor<fp32, [1]>([{:e}])];
                 tensor<fp32, [1, 1]> z = linear(x = x, weight = w, bias = b);",
                f16_to_f32(self.bias)
            ),
        );
        let mut found = vec![run(&linear, effects, &[("x", &[1, n], &x)])[0]];
        if self.bias & 0x7fff == 0 {
            for (y, flag) in [
                (format!("[{n}, 1]"), "false"),
                (format!("[1, {n}]"), "true"),
            ] {
                let matmul = program(
                    &format!("tensor<fp16, [1, {n}]> x, tensor<fp16, {y}> y"),
                    &format!(
                        "tensor<fp16, [1, 1]> z = matmul(x = x, y = y, transpose_y = bool({flag}));"
                    ),
                );
                let mut instance = instance(&matmul, effects);
                let shape = if flag == "true" { [1, n] } else { [n, 1] };
                for (name, shape, halves) in [("x", [1, n], &self.x), ("y", shape, &self.w)] {
                    let bytes: Vec<u8> = halves.iter().flat_map(|h| h.to_ne_bytes()).collect();
                    instance
                        .input(name, &shape)
                        .unwrap()
                        .copy_from_slice(&bytes);
                }
                instance.run("main").unwrap();
                found.push(floats(instance.output("z").unwrap())[0]);
            }
        }
        let expected = f16_to_f32(expected);
        for found in found {
            // Zeros are those of the model, which has no sign for them.
            let same = found == expected || found.is_nan() && expected.is_nan();
            assert!(
                same,
                "{found}, not {expected}, by {:?}: {}",
                effects, self.name
            );
        }
    }
}

#[test]
fn sums_are_those_that_were_measured() {
    let cases = Case::read("measured");
    assert!(cases.len() > 200);
    for case in &cases {
        case.check(Effects::default(), case.expected.as_u64().unwrap() as u16);
    }
}

#[test]
fn sums_are_those_of_the_model_with_each_effect_off() {
    for case in Case::read("computed") {
        for (off, expected) in case.expected.as_object().unwrap() {
            let effects = match off.as_str() {
                "" => Effects::default(),
                "all" => but(&[
                    "fixed-point-accumulator",
                    "accumulator-overflow",
                    "drop-small-products",
                    "round-half-away",
                    "decode-specials",
                ]),
                name => but(&[name]),
            };
            case.check(effects, expected.as_u64().unwrap() as u16);
        }
    }
}

/// All finite fp16 numbers, and what lies a quarter, a half and three quarters of the way to the
/// next one further from zero.
///
/// Half way, IEEE takes the even one, which `make_ane.py` holds numpy to; the engine the one
/// further from zero.
#[test]
fn results_are_rounded_to_fp16_over_its_whole_range() {
    let halves: Vec<u16> = (0..=u16::MAX).filter(|h| h & 0x7fff < 0x7c00).collect();
    let value = |h: u16| {
        if h & 0x7fff == 0x7c00 {
            65536f32.copysign(f16_to_f32(h))
        } else {
            f16_to_f32(h)
        }
    };
    let n = halves.len();
    // An op whose result is between two numbers: x + y, where fp32 is exact.
    let sum = program(
        &format!("tensor<fp32, [{n}]> x, tensor<fp32, [{n}]> y"),
        &format!("tensor<fp32, [{n}]> z = add(x = x, y = y);"),
    );
    for (quarters, away, even) in [(0, 0, 0), (1, 0, 0), (2, 1, 2), (3, 1, 1)] {
        let x: Vec<f32> = halves.iter().map(|h| f16_to_f32(*h)).collect();
        let y: Vec<f32> = halves
            .iter()
            .map(|h| (value(h + 1) - f16_to_f32(*h)) * 0.25 * quarters as f32)
            .collect();
        // y itself is given in fp16, so it enters rounded: leave out what is not a number of it.
        let exact: Vec<bool> = y
            .iter()
            .map(|y| y.abs() >= 2f32.powi(-24) || *y == 0.0)
            .collect();
        for (effects, up) in [
            (Effects::default(), away),
            (but(&["round-half-away"]), even),
        ] {
            let found = run(&sum, effects, &[("x", &[n], &x), ("y", &[n], &y)]);
            for i in (0..n).filter(|i| exact[*i]) {
                let h = halves[i];
                let up = if up == 2 { h % 2 } else { up };
                let expected = f16_to_f32(h + up);
                assert_eq!(
                    found[i], expected,
                    "{h:#06x} and {quarters} quarters, {effects:?}"
                );
            }
        }
    }
    // What enters is rounded as results are.
    let as_it_is = program(
        &format!("tensor<fp32, [{n}]> x"),
        &format!("tensor<fp32, [{n}]> z = identity(x = x);"),
    );
    for quarters in 0..4 {
        let between =
            |h: &u16| f16_to_f32(*h) + (value(h + 1) - f16_to_f32(*h)) * 0.25 * quarters as f32;
        let x: Vec<f32> = halves.iter().map(between).collect();
        let found = run(&as_it_is, Effects::default(), &[("x", &[n], &x)]);
        let even = run(&as_it_is, but(&["round-half-away"]), &[("x", &[n], &x)]);
        for (i, h) in halves.iter().enumerate() {
            let [nearest, to_even] =
                [h + u16::from(quarters >= 2), h + [0, 0, h % 2, 1][quarters]].map(f16_to_f32);
            assert_eq!(
                (found[i], even[i]),
                (nearest, to_even),
                "{h:#06x} and {quarters} quarters"
            );
        }
        let raw = run(&as_it_is, Effects::NONE, &[("x", &[n], &x)]);
        assert!(raw == x, "without effects nothing is rounded");
    }
}

/// Element-wise sums and products are not limited as sums of products are, and keep subnormal
/// numbers (M6S, `elt_add`, `elt_mul`, `elt_sub` of numerics3_m6.txt).
#[test]
fn elementwise_ops_give_what_was_measured() {
    let (tiny, inf) = (2f32.powi(-24), f32::INFINITY);
    let nan = f32::NAN;
    for (op, cases) in [
        (
            "add",
            vec![
                (2048.0, 1.0, 2050.0),
                (-2048.0, -1.0, -2050.0),
                (4096.0, 2.0, 4100.0),
                (1.0, 2f32.powi(-11), 1.0 + 2f32.powi(-10)),
                (16384.0, 16384.0, 32768.0),
                (65504.0, 0.0, 65504.0),
                (40000.0, 1.0, 40000.0),
                (tiny, 0.0, tiny),
                (nan, 1.0, inf),
                (inf, 1.0, inf),
            ],
        ),
        (
            "mul",
            vec![
                (2f32.powi(-12), 2f32.powi(-12), tiny),
                (256.0, 256.0, inf),
                (200.0, 200.0, 40000.0),
                (nan, 1.0, inf),
            ],
        ),
        (
            "sub",
            vec![
                (4096.0, 2.0, 4094.0),
                (1.0, 2f32.powi(-11), 1.0 - 2f32.powi(-11)),
                (nan, 1.0, inf),
                (inf, 1.0, inf),
            ],
        ),
    ] {
        let program = program(
            "tensor<fp32, [1]> x, tensor<fp32, [1]> y",
            &format!("tensor<fp32, [1]> z = {op}(x = x, y = y);"),
        );
        for (x, y, expected) in cases {
            let found = run(
                &program,
                Effects::default(),
                &[("x", &[1], &[x]), ("y", &[1], &[y])],
            );
            assert_eq!(found, [expected], "{op}({x}, {y})");
        }
    }
}

#[test]
fn each_effect_can_be_switched_off_and_says_where_it_comes_from() {
    for effect in Effects::ALL {
        assert!(
            !effect.doc.is_empty() && effect.source.len() > 20 && effect.basis == Basis::Measured,
            "{}",
            effect.name
        );
        let mut effects = Effects::NONE;
        effect.switch(&mut effects, true);
        assert_eq!(
            effects.on().map(|e| e.name).collect::<Vec<_>>(),
            [effect.name]
        );
        assert_eq!(effect.is_on(&Effects::default()), effect.is_default);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/numerics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page
        .lines()
        .filter(|l| l.starts_with("| `"))
        .map(|l| l.split(" | ").take(2).collect::<Vec<_>>().join(" | "));
    let said = Effects::ALL.iter().map(|e| {
        format!(
            "| `{}` | {}",
            e.name,
            if e.is_default { "on" } else { "off" }
        )
    });
    assert_eq!(rows.collect::<Vec<_>>(), said.collect::<Vec<_>>());
    let error = Effects::default()
        .set("turbo", true)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("there is no effect `turbo`; there are half-precision, round-half-away,"),
        "{error}"
    );
}

#[test]
fn subnormal_numbers_are_flushed_where_that_is_asked_for() {
    let mul = program(
        "tensor<fp32, [3]> x",
        "tensor<fp32, [3]> z = mul(x = x, y = tensor<fp32, [3]>([0.00390625, 0.00390625, 0.00003]));",
    );
    let x = [("x", &[3][..], &[-0.0078125f32, 0.015625, 1024.0][..])];
    // 2^-15 is subnormal, 2^-14 is not; a subnormal constant is nothing at all.
    let constant = f32::from_bits(0x37fc_0000);
    assert_eq!(f16_to_f32(0x01f8 - 1), constant - 2f32.powi(-24));
    assert_eq!(
        run(&mul, Effects::default(), &x)[..2],
        [-(2f32.powi(-15)), 2f32.powi(-14)]
    );
    assert!(run(&mul, Effects::default(), &x)[2] > 0.03);
    let mut flushing = Effects::default();
    flushing.set("flush-subnormals", true).unwrap();
    assert_eq!(run(&mul, flushing, &x), [0.0, 2f32.powi(-14), 0.0]);
    // What enters, too: a root of nothing.
    let root = program(
        "tensor<fp32, [1]> x",
        "tensor<fp32, [1]> z = rsqrt(x = x, epsilon = fp32(0));",
    );
    let x = [("x", &[1][..], &[0.00003f32][..])];
    assert_eq!(run(&root, flushing, &x), [f32::INFINITY]);
    assert!((run(&root, Effects::default(), &x)[0] - 182.5).abs() < 1.0);
}

/// What is published: silu is off by 12 % where |x| < 0.5 and by up to 1.5e-2, sigmoid by 4e-2 of a
/// small result, and softplus is 0 above about 11 (`docs/numerics.md`).
#[test]
fn activations_are_off_as_was_reported() {
    let exact = |op: &str, x: f64| match op {
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "silu" => x / (1.0 + (-x).exp()),
        _ => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    };
    let xs: Vec<f32> = (-320..=320).map(|i| i as f32 / 32.0).collect();
    let n = xs.len();
    let found = |op: &str, effects| {
        let program = program(
            &format!("tensor<fp32, [{n}]> x"),
            &format!("tensor<fp32, [{n}]> z = {op}(x = x);"),
        );
        run(&program, effects, &[("x", &[n], &xs)])
    };
    for (op, effect, least, most) in [
        ("sigmoid", "sigmoid-table", 2e-3, 4e-3),
        ("silu", "silu-table", 1.4e-2, 1.6e-2),
    ] {
        let error = |ys: &[f32], xs: &[f32]| {
            let pairs = ys.iter().zip(xs);
            let errors = pairs.map(|(y, x)| (f64::from(*y) - exact(op, f64::from(*x))).abs());
            errors.fold(0.0, f64::max)
        };
        let table = found(op, Effects::default());
        let worst = error(&table, &xs);
        assert!((least..most).contains(&worst), "{op}: {worst}");
        // Points of the table, and what is beyond it, are right to fp16.
        for (y, x) in table.iter().zip(&xs) {
            if (x * 2.0).fract() == 0.0 || x.abs() >= 8.0 {
                let due = exact(op, f64::from(*x));
                assert!(
                    (f64::from(*y) - due).abs() <= 5e-4 * due.abs().max(1e-4),
                    "{op}({x})"
                );
            }
        }
        assert!(error(&found(op, but(&[effect])), &xs) < 4e-3);
    }
    let quarter = found("silu", Effects::default())[320 + 8];
    let relative = f64::from(quarter) / exact("silu", 0.25) - 1.0;
    assert!((0.1..0.13).contains(&relative), "{relative}");
    let softplus = program(
        "tensor<fp32, [3]> x",
        "tensor<fp32, [3]> z = softplus(x = x);",
    );
    let x = [("x", &[3][..], &[11.0f32, 11.25, 30.0][..])];
    assert_eq!(run(&softplus, Effects::default(), &x), [11.0, 0.0, 0.0]);
    assert_eq!(
        run(&softplus, but(&["softplus-overflow"]), &x),
        [11.0, 11.25, 30.0]
    );
}

#[test]
fn slices_off_the_last_axis_saturate_where_that_is_asked_for() {
    let mut old = Effects::default();
    old.set("slice-saturation", true).unwrap();
    let x = [(
        "x",
        &[2, 3][..],
        &[5000f32, -4094.0, 4096.0, 1.0, -5000.0, 3.0][..],
    )];
    for (begin, end, expected) in [
        (
            "0, 1",
            "2, 3",
            [-4094.0, f32::INFINITY, f32::NEG_INFINITY, 3.0],
        ),
        ("0, 0", "2, 2", [5000.0, -4094.0, 1.0, -5000.0]),
    ] {
        let slice = program(
            "tensor<fp32, [2, 3]> x",
            &format!(
                "tensor<fp32, [2, 2]> z = slice_by_index(x = x, begin = tensor<int32, [2]>([{begin}]), end = tensor<int32, [2]>([{end}]));"
            ),
        );
        assert_eq!(run(&slice, old, &x), expected);
        assert!(
            run(&slice, Effects::default(), &x)
                .iter()
                .all(|v| v.is_finite())
        );
    }
}

/// Scores beyond the accumulator make one key the only one, of which f32 knows nothing.
#[test]
fn attention_is_taken_apart_and_rounded_at_each_step() {
    let types = "tensor<fp32, [1, 2, 4]> q, tensor<fp32, [1, 3, 4]> k, tensor<fp32, [1, 3, 5]> v";
    let attention = program(
        types,
        "tensor<fp32, [1, 2, 5]> z = scaled_dot_product_attention(query = q, key = k, value = v);",
    );
    let q = [1.5, -0.25, 2.0, 0.125, 0.5, 1.0, -1.0, 3.0];
    let k = [
        0.5, 1.0, 0.25, -2.0, 1.0, 0.0, 0.75, 0.5, -1.0, 2.0, 1.0, 0.0625,
    ];
    let v: Vec<f32> = (0..15).map(|i| (i * i % 11) as f32 * 0.375 - 1.0).collect();
    let inputs = |k| {
        [
            ("q", &[1, 2, 4][..], &q[..]),
            ("k", &[1, 3, 4][..], k),
            ("v", &[1, 3, 5][..], &v[..]),
        ]
    };
    let found = run(&attention, Effects::default(), &inputs(&k));
    let exact = run(&attention, Effects::NONE, &inputs(&k));
    // The reference: numpy's formula by hand, each step in f64.
    for t in 0..2 {
        let scores: Vec<f64> = (0..3)
            .map(|j| {
                (0..4)
                    .map(|i| f64::from(q[t * 4 + i] * k[j * 4 + i]))
                    .sum::<f64>()
                    / 2.0
            })
            .collect();
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        for i in 0..5 {
            let z: f64 = (0..3)
                .map(|j| scores[j].exp() / sum * f64::from(v[j * 5 + i]))
                .sum();
            assert!((f64::from(exact[t * 5 + i]) - z).abs() < 1e-6);
            let error = (f64::from(found[t * 5 + i]) - z).abs();
            assert!(error < 4e-3, "{error}");
        }
    }
    assert!(
        found
            .iter()
            .all(|v| f16_to_f32(thane_mil::literal::f64_to_f16(f64::from(*v))) == *v)
    );
    assert_ne!(found, exact);
    let large: Vec<f32> = k.iter().map(|v| v * 30000.0).collect();
    let found = run(&attention, Effects::default(), &inputs(&large));
    // The first query: 0.75 - 0.25 + .. times 30000 with the second key is the largest, and
    // infinite.
    assert_eq!(
        found[..5],
        v[5..10]
            .iter()
            .map(|v| f16_to_f32(thane_mil::literal::f64_to_f16(f64::from(*v))))
            .collect::<Vec<_>>()
    );
}

fn built(path: &Path) -> Program {
    let options = thane_models::Options {
        verify: true,
        top: None,
        cache: DType::Fp16,
        context: Some(64),
        ane: None,
    };
    thane_models::build(&Checkpoint::open(path).unwrap(), &options)
        .unwrap()
        .program
}

fn tiny() -> PathBuf {
    folder().join("tiny/llama-bias")
}

/// The tiny model with the weights of one matrix multiplied by `factor`.
fn scaled(matrix: &str, factor: f32) -> Program {
    built(&with_scaled(&tiny(), matrix, factor))
}

fn compared(program: &Program, options: &Options) -> Report {
    let tokens: Vec<u8> = [3i32, 141, 59, 26, 5]
        .iter()
        .flat_map(|t| t.to_ne_bytes())
        .collect();
    let view = |shape, bytes| View {
        dtype: DType::Int32,
        shape,
        bytes,
    };
    let inputs = [
        ("input_ids", view(&[1, 5], &tokens)),
        ("position", view(&[1], &[0; 4])),
    ];
    compare(program, "verify", &inputs, &[], options).unwrap()
}

#[test]
fn the_layer_whose_weights_overflow_is_named() {
    const MATRIX: &str = "model.layers.1.mlp.down_proj.weight";
    let named = MATRIX.replace('.', "_");
    let of_matrix = |o: &&OpReport| o.tensor.as_deref() == Some(&named);
    let sound = compared(&built(&tiny()), &Options::default());
    assert!(sound.first_overflow.is_none(), "{sound}");
    assert!(sound.first_loss.is_none(), "{sound}");
    let before = sound.ops.iter().find(of_matrix).unwrap();
    let size = before.max_abs_error / before.max_relative_error;
    // Into what fp16 holds and the accumulator does not; then beyond both.
    for (target, cause) in [
        (45_000.0, Cause::Effects(vec!["accumulator-overflow"])),
        (
            2e5,
            Cause::Effects(vec!["half-precision", "accumulator-overflow"]),
        ),
    ] {
        let program = scaled(MATRIX, (target / size) as f32);
        let report = compared(
            &program,
            &Options {
                n_threads: 2,
                ..Options::default()
            },
        );
        let finding = report.first_overflow.as_ref().unwrap();
        let op = report.op(finding);
        assert_eq!(
            (op.name, op.place.as_str(), op.tensor.as_deref()),
            ("linear", "model.layers.1.mlp", Some(named.as_str()))
        );
        assert_eq!(finding.cause, cause);
        assert!(
            (op.expected.abs() - target).abs() < target * 0.6
                && op.found.is_infinite()
                && op.n_overflows > 0,
            "{op}"
        );
        let text = report.to_string();
        assert!(
            text.starts_with("the first that overflows: op `linear` that makes `"),
            "{text}"
        );
        // Nothing before it is out of the ordinary, and what follows is.
        assert!(
            report.ops[..finding.index]
                .iter()
                .all(|o| o.n_overflows == 0)
        );
        assert!(report.ops[finding.index + 1].n_overflows > 0);
        if target < 65504.0 {
            // Then the norm is the first, which squares what fp16 just held.
            let report = compared(
                &program,
                &Options {
                    effects: but(&["accumulator-overflow"]),
                    ..Options::default()
                },
            );
            let finding = report.first_overflow.as_ref().unwrap();
            assert_eq!(
                (report.op(finding).name, report.op(finding).place.as_str()),
                ("mul", "model.norm")
            );
            assert_eq!(finding.cause, Cause::Effects(vec!["half-precision"]));
            assert_eq!(report.ops.iter().find(of_matrix).unwrap().n_overflows, 0);
        }
    }
}

/// A tolerance that the first rounding exceeds names that op and rounding.
#[test]
fn the_first_loss_is_named_with_its_cause() {
    let add = program(
        "tensor<fp32, [4]> x",
        "tensor<fp32, [4]> sum = add(x = x, y = fp32(2048)); tensor<fp32, [4]> z = sub(x = sum, y = fp32(2048));",
    );
    let x = bytes(&[1.0, 3.0, 0.25, -0.5]);
    let inputs = [(
        "x",
        View {
            dtype: DType::Fp32,
            shape: &[4],
            bytes: &x,
        },
    )];
    let report = compare(&add, "main", &inputs, &[], &Options::default()).unwrap();
    assert!(report.first_overflow.is_none());
    // The sum is off by 1 in 2051; what remains of it by 1 in 3, which came with the sum.
    assert!(report.ops[0].max_relative_error < 1e-3);
    let finding = report.first_loss.as_ref().unwrap();
    assert_eq!((finding.index, &finding.cause), (1, &Cause::Inherited));
    let strict = Options {
        tolerance: 1e-4,
        ..Options::default()
    };
    let report = compare(&add, "main", &inputs, &[], &strict).unwrap();
    let finding = report.first_loss.unwrap();
    assert_eq!(
        (finding.index, finding.cause),
        (0, Cause::Effects(vec!["half-precision"]))
    );
    // States and shapes are checked.
    for (inputs, states, message) in [
        (&inputs[..0], &[][..], "no input `x` was given"),
        (&inputs[..], &inputs[..], "the program has no state `x`"),
    ] {
        let error = compare(&add, "main", inputs, states, &strict)
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The whole way of a decoder, its cache included, is close to f32 and not the same.
#[test]
fn a_model_runs_as_a_backend() {
    let program = built(&tiny());
    let mut sure = Cpu::new(Numerics::F32, 1)
        .load(&program)
        .unwrap()
        .instantiate()
        .unwrap();
    let mut ours = instance(&program, Effects::default());
    for (function, tokens, position) in [
        ("prefill", &[3u32, 141, 59][..], 0),
        ("decode", &[26], 3),
        ("verify", &[5, 80], 4),
    ] {
        let [a, b] = [sure.as_mut(), ours.as_mut()].map(|i| call(i, function, tokens, position));
        let error = crate::golden::relative_error(&b, &a);
        assert!(error > 1e-5 && error < 2e-2, "{function}: {error:e}");
    }
}

/// A step of decode is compared from where a prompt left the cache.
#[test]
fn a_comparison_starts_with_the_states_that_it_is_given() {
    let program = built(&tiny());
    let mut sure = Cpu::new(Numerics::F32, 1)
        .load(&program)
        .unwrap()
        .instantiate()
        .unwrap();
    call(sure.as_mut(), "prefill", &[3, 141, 59], 0);
    let f = program.function("decode").unwrap();
    let inputs = f.body().inputs.iter().map(|v| f.value(*v));
    let names: Vec<&str> = inputs
        .filter(|v| v.ty.tensor().is_none())
        .map(|v| v.name.as_str())
        .collect();
    let states: Vec<(&str, View<'_>)> = names
        .iter()
        .map(|name| (*name, sure.state(name).unwrap()))
        .collect();
    assert_eq!(states.len(), 4, "keys and values of two layers");
    let (token, position) = (26i32.to_ne_bytes(), 3i32.to_ne_bytes());
    let view = |shape, bytes| View {
        dtype: DType::Int32,
        shape,
        bytes,
    };
    let inputs = [
        ("input_ids", view(&[1, 1], &token)),
        ("position", view(&[1], &position)),
    ];
    let report = compare(&program, "decode", &inputs, &states, &Options::default()).unwrap();
    assert!(
        report.first_overflow.is_none() && report.first_loss.is_none(),
        "{report}"
    );
    // The same step after nothing is another one: the logits say so.
    let logits = |report: &Report| {
        report
            .ops
            .iter()
            .rfind(|o| o.result == "logits")
            .unwrap()
            .expected
    };
    let alone = compare(&program, "decode", &inputs, &[], &Options::default()).unwrap();
    assert_ne!(logits(&report), logits(&alone));
}
