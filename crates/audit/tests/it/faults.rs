//! Rewrites that were once called proven, or within a bound, and moved outputs on inputs that no
//! set had: each must be refused, or hold on those inputs.

use std::collections::HashMap;

use thane_audit::fix::{self, Options};
use thane_audit::target::{Route, Target, Units};
use thane_compile::proof::{Forms, Numbers, Proof, Prover};
use thane_cpu::OpByOp;
use thane_mil::literal::f64_to_f16;
use thane_mil::program::Program;
use thane_mil::types::{DType, Type};
use thane_prove::{ByRunning, Sample, Settings};

use crate::fixes::{on_cpu, program, within};

/// A program that `fix` is run on, and inputs by name.
struct Case {
    name: &'static str,
    signature: &'static str,
    body: &'static str,
    outputs: &'static str,
    inputs: &'static [(&'static str, &'static [f64])],
    /// Whether it is rewritten all the same.
    is_kept: bool,
}

fn main_of(case: &Case) -> Program {
    let Case {
        signature,
        body,
        outputs,
        ..
    } = case;
    program(&format!(
        "program(1.3) {{ func f<ios18>({signature}) {{ {body} }} -> ({outputs}); }}"
    ))
}

/// Inputs of a case; one number stands for all elements.
fn sample(case: &Case, program: &Program) -> Sample {
    let f = &program.functions()[0];
    let mut tensors = HashMap::new();
    for value in &f.body().inputs {
        let Type::Tensor(ty) = &f.value(*value).ty else {
            continue;
        };
        let name = f.value(*value).name.clone();
        let (_, numbers) = case.inputs.iter().find(|(of, _)| *of == name).unwrap();
        let shape = ty.known_shape().unwrap();
        let n: usize = shape.iter().product();
        let bytes = numbers.iter().cycle().take(n).flat_map(|x| match ty.dtype {
            DType::Fp16 => f64_to_f16(*x).to_le_bytes().to_vec(),
            DType::Fp32 => (*x as f32).to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(*x != 0.0)],
            _ => (*x as i32).to_le_bytes().to_vec(),
        });
        tensors.insert(name, (shape, bytes.collect()));
    }
    Sample {
        label: case.name.to_owned(),
        function: None,
        tensors,
    }
}

/// Rewrites a case without its inputs being known, then judges what came out on them.
fn check(case: &Case, max_error: Option<f64>) -> Result<(), String> {
    let before = main_of(case);
    let route = if case.name.contains("direct") {
        Route::Direct
    } else {
        Route::CoreMl
    };
    let target = Target::parse("m4+macos27", Units::default(), route).unwrap();
    let mut prover = max_error.map_or_else(on_cpu, within);
    let (after, report) =
        fix::run(before.clone(), &target, &Options::default(), &mut prover).unwrap();
    let text = report.to_string();
    if text.contains("e30") || text.contains("allow inf") {
        return Err(format!("{}: a bound is absurd:\n{text}", case.name));
    }
    if (report.kept().count() > 0) != case.is_kept {
        return Err(format!(
            "{}: is_kept is {}:\n{text}",
            case.name, case.is_kept
        ));
    }
    let samples = vec![sample(case, &before)];
    let mut judge = ByRunning::new(
        OpByOp::new(2, None),
        Settings {
            max_error,
            samples,
            ..Settings::default()
        },
    );
    let (original, after) = (&before.functions()[0], &after.functions()[0]);
    let numbers = if max_error.is_some() {
        Numbers::Lossy
    } else {
        Numbers::Exact
    };
    let forms = Forms {
        original,
        before: original,
        after,
        is_lossy: max_error.is_some(),
    };
    match judge.prove(&forms, numbers) {
        Proof::Equal(_) | Proof::Lossy { .. } => Ok(()),
        proof => Err(format!("{}: {proof:?}\n{text}", case.name)),
    }
}

fn check_all(cases: &[Case], max_error: Option<f64>) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|c| check(c, max_error).err())
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn proven_rewrites_hold_where_they_were_once_wrong() {
    check_all(PROVEN, None);
}

#[test]
fn lossy_rewrites_stay_within_the_bound_where_they_were_once_beyond_it() {
    check_all(LOSSY, Some(0.001));
}

const PROVEN: &[Case] = &[
    Case {
        name: "gather: index -1 gave 0 instead of 10",
        signature: "tensor<int32, [3]> i",
        body: "tensor<fp16, [5, 2]> t = const()[val = tensor<fp16, [5, 2]>
            ([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])];
            tensor<fp16, [3, 2]> y = gather(x = t, indices = i, axis = int32(0));",
        outputs: "y",
        inputs: &[("i", &[-1.0, 2.0, -5.0])],
        is_kept: true,
    },
    Case {
        name: "mean: 511 times 40000 gave infinity",
        signature: "tensor<fp16, [1, 2, 511, 8]> x",
        body: "tensor<fp16, [1, 2, 1, 8]> y =
            reduce_mean(x = x, axes = tensor<int32, [1]>([2]), keep_dims = bool(true));",
        outputs: "y",
        inputs: &[("x", &[40_000.0])],
        is_kept: true,
    },
    Case {
        name: "sinh: 11.5 gave infinity instead of 49344",
        signature: "tensor<fp16, [1, 64, 1, 4]> x",
        body: "tensor<fp16, [1, 64, 1, 4]> y = sinh(x = x);",
        outputs: "y",
        inputs: &[("x", &[11.5, -11.5, 11.7, 0.5])],
        is_kept: true,
    },
    Case {
        name: "cosh: 11.5 gave infinity instead of 49344",
        signature: "tensor<fp16, [1, 64, 1, 4]> x",
        body: "tensor<fp16, [1, 64, 1, 4]> y = cosh(x = x);",
        outputs: "y",
        inputs: &[("x", &[11.5, -11.5, 11.7, 0.5])],
        is_kept: true,
    },
    Case {
        name: "atanh: roundings allowed 4e301",
        signature: "tensor<fp16, [1, 64, 1, 4]> x",
        body: "tensor<fp16, [1, 64, 1, 4]> y = atanh(x = x);",
        outputs: "y",
        inputs: &[("x", &[0.0, 0.5, -0.99, 1.0])],
        is_kept: true,
    },
    Case {
        name: "product: 300 * 300 * 0.001 gave infinity instead of 90.06",
        signature: "tensor<fp16, [1, 4, 8]> x",
        body: "tensor<fp16, [1, 8]> y =
            reduce_prod(x = x, axes = tensor<int32, [1]>([1]), keep_dims = bool(false));",
        outputs: "y",
        inputs: &[(
            "x",
            &[
                300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0, 300.0,
                300.0, 300.0, 300.0, 300.0, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001,
                1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
            ],
        )],
        is_kept: false,
    },
    Case {
        name: "argmax: with a NaN it gave 8, beyond the end, instead of 3",
        signature: "tensor<fp16, [1, 8]> x",
        body: "tensor<int32, [1, 1]> y =
            reduce_argmax(x = x, axis = int32(1), keep_dims = bool(true));",
        outputs: "y",
        inputs: &[("x", &[0.0, 1.0, 2.0, f64::NAN, 4.0, 5.0, 6.0, 7.0])],
        is_kept: true,
    },
    Case {
        name: "mod: just below a multiple it gave 0 instead of the divisor",
        signature: "tensor<fp16, [1, 8]> x, tensor<fp16, [1, 8]> d",
        body: "tensor<fp16, [1, 8]> y = mod(x = x, y = d);",
        outputs: "y",
        inputs: &[
            ("x", &[63.97]),
            ("d", &[0.9, 0.7, 1.1, 1.3, 0.3, 0.11, 0.13, 0.17]),
        ],
        is_kept: false,
    },
];

const LOSSY: &[Case] = &[
    Case {
        name: "positions: from 1993 on the error was 26 %, tried only up to 3",
        signature: "tensor<int32, [1, 8]> position_ids",
        body: "tensor<fp32, [1, 8]> p = cast(x = position_ids, dtype = string(\"fp32\"));
            tensor<fp32, [1, 8, 1]> q = expand_dims(x = p, axes = tensor<int32, [1]>([2]));
            tensor<fp32, [1, 8, 4]> a = mul(x = q, y = tensor<fp32, [1, 1, 4]>
            ([[[1.0, 0.3162, 0.1, 0.03162]]]));
            tensor<fp32, [1, 8, 4]> c = cos(x = a);
            tensor<fp32, [1, 8, 4]> s = sin(x = a);",
        outputs: "c, s",
        inputs: &[(
            "position_ids",
            &[
                1993.0, 1994.0, 1995.0, 1996.0, 1997.0, 1998.0, 1999.0, 2000.0,
            ],
        )],
        is_kept: false,
    },
    Case {
        name: "time step: sin(999 x) was off by 0.096 and reported as 0",
        signature: "tensor<int32, [1]> t, tensor<fp32, [1, 8]> x",
        body: "tensor<fp32, [1]> f = cast(x = t, dtype = string(\"fp32\"));
            tensor<fp32, [1, 8]> k = mul(x = x, y = f);
            tensor<fp32, [1, 8]> y = sin(x = k);",
        outputs: "y",
        inputs: &[
            ("t", &[999.0]),
            ("x", &[0.1, 0.7, 1.3, -0.9, 1.9, 0.33, -1.7, 0.01]),
        ],
        is_kept: false,
    },
    Case {
        name: "count: (x + n / 100) 16 n gave infinity for n = 3001",
        signature: "tensor<int32, [1]> n, tensor<fp32, [1, 8]> x",
        body: "tensor<fp32, [1]> f = cast(x = n, dtype = string(\"fp32\"));
            tensor<fp32, [1]> q = mul(x = f, y = fp32(0x1.47ae14p-7));
            tensor<fp32, [1, 8]> k = add(x = x, y = q);
            tensor<fp32, [1]> w = mul(x = f, y = fp32(0x1p+4));
            tensor<fp32, [1, 8]> y = mul(x = k, y = w);",
        outputs: "y",
        inputs: &[
            ("n", &[3001.0]),
            ("x", &[0.1, 0.7, 1.3, -0.9, 1.9, 0.33, -1.7, 0.01]),
        ],
        is_kept: true,
    },
    Case {
        name: "channel means: tanh gave 0 instead of -0.98",
        signature: "tensor<fp32, [1, 8, 4, 4]> x",
        body: "tensor<fp32, [1, 8, 4, 4]> d = sub(x = x, y = tensor<fp32, [1, 8, 1, 1]>
            ([[[[101.3]], [[99.2]], [[103.7]], [[98.1]], [[100.6]], [[97.7]], [[102.2]],
            [[100.9]]]]));
            tensor<fp32, [1, 8, 4, 4]> z = mul(x = d, y = fp32(0x1.9p+6));
            tensor<fp32, [1, 8, 4, 4]> y = tanh(x = z);",
        outputs: "y",
        inputs: &[(
            "x",
            &[
                101.277, 101.277, 101.277, 101.277, 101.277, 101.277, 101.277, 101.277, 101.277,
                101.277, 101.277, 101.277, 101.277, 101.277, 101.277, 101.277, 99.177, 99.177,
                99.177, 99.177, 99.177, 99.177, 99.177, 99.177, 99.177, 99.177, 99.177, 99.177,
                99.177, 99.177, 99.177, 99.177,
            ],
        )],
        is_kept: false,
    },
    Case {
        name: "comparison: of numbers 3e-4 apart 1.79 became 0",
        signature: "tensor<fp32, [1, 8]> x, tensor<fp32, [1, 8]> v",
        body: "tensor<bool, [1, 8]> g = greater(x = x, y = v);
            tensor<fp32, [1, 8]> y = select(cond = g, a = x, b = fp32(0x0p+0));",
        outputs: "y",
        inputs: &[("x", &[1.7884, 1.3032]), ("v", &[1.7881, 1.3029])],
        is_kept: true,
    },
    Case {
        name: "mask: of a row that hides all -1e9 became -1e4",
        signature: "tensor<fp32, [2, 8]> x, tensor<bool, [2, 8]> keep",
        body: "tensor<fp32, [2, 8]> m =
            select(cond = keep, a = x, b = fp32(-0x1.dcd65p+29));
            tensor<fp32, [2, 1]> y =
            reduce_max(x = m, axes = tensor<int32, [1]>([1]), keep_dims = bool(true));",
        outputs: "y",
        inputs: &[("x", &[0.5, 0.6, 0.1, -0.2]), ("keep", &[0.0])],
        is_kept: false,
    },
];
