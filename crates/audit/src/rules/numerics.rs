//! Rules about values that fp16 or the accumulators of the Neural Engine cannot hold.

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType};

use super::query::{
    float, gives_half, int, ints, is_any, is_half, is_runtime, kind, operands, param_shape,
    producer, producers, product_of, scalars, tensor, users, wrap,
};
use super::{core_ml, direct, row};
use crate::rule::Effect::{CompileFails, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Rule};
use crate::target::Evidence;
use crate::view::View;

/// The largest fp16 number.
const FP16_MAX: f32 = 65_504.0;
/// The smallest fp16 number that is not flushed to 0 on the engine.
const FP16_NORMAL: f32 = 6.103_515_6e-5;
/// What a mask or table is read of: its first bytes show how it is filled.
const MAX_READ: usize = 1 << 13;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE102",
        title: "Masks of minus infinity",
        evidence: Evidence::Documented,
        source: "Apple, neural_engine_rules.md and common_issues.md (use -40000 or -1e4); Anemll \
            and CoreML-LLM use -1e4",
        disputed: "CoreML-LLM NU05: minus infinity and -1e4 gave the same bits in the one model \
            that was tried",
        why: "A row of minus infinities makes NaN in a softmax, and fp32 masks beyond -65,504 \
            become minus infinity in fp16.",
        fix: "Fill masks with -1e4 (fp16 holds up to 65,504).",
        check: Check::Op(|v, op| {
            let masks = is_any(
                v,
                op,
                &[
                    "add",
                    "sub",
                    "mul",
                    "select",
                    "maximum",
                    "minimum",
                    "fill",
                    "fill_like",
                ],
            );
            let beyond = v
                .op(op)
                .uses()
                .filter(|_| masks)
                .find(|u| v.f.constant(*u).is_some_and(is_beyond_fp16));
            let in_place = v.op(op).args.iter().flatten().any(
                |a| matches!(a, thane_mil::program::Arg::Literal(l) if masks && is_beyond_fp16(l)),
            );
            (beyond.is_some() || in_place)
                .then(|| "a constant beyond what fp16 holds (65504)".to_owned())
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE103",
        title: "An epsilon that fp16 rounds to 0",
        evidence: Evidence::Inferred,
        source: "IEEE binary16: nothing but 0 below 2^-25; CoreML-LLM NU02: the engine flushes \
            subnormals, 1/sqrt(0) = inf",
        disputed: "normalizations of Core ML may keep their epsilon in fp32; nobody published a \
            test",
        why: "An epsilon of 1e-12 is 0 in fp16, so a row of zeros divides by zero.",
        fix: "Use 1e-5 or larger; the smallest normal fp16 number is 6.1e-5.",
        check: Check::Op(|v, op| {
            let epsilon = float(v, op, "epsilon")?;
            let half = tensor(v, *v.op(op).results.first()?)?.dtype == DType::Fp16;
            // 2^-25 rounds to 0, ties to even.
            (half && epsilon > 0.0 && epsilon <= 2f32.powi(-25))
                .then(|| format!("epsilon {epsilon:e} is 0 in fp16"))
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE104",
        title: "An epsilon that the engine flushes to 0",
        source: "CoreML-LLM NU02, PROBE_GEMMA4_VISION_ANE: subnormals are flushed, vectors came \
            out 1000 times too large",
        disputed: "751K M6 study: M4 and M6 keep fp16 subnormals",
        why: "The engine takes fp16 numbers below 6.1e-5 as 0; an added epsilon of 1e-6 does \
            nothing, and rsqrt(0) is infinite.",
        fix: "Use layer_norm with its own epsilon, divide by the maximum first, or add at least \
            6.1e-5.",
        check: Check::Op(|v, op| {
            let small = scalars(v, v.op(op)).find(|e| *e > 0.0 && *e < FP16_NORMAL)?;
            let root =
                users(v, op).any(|u| is_any(v, u, &["rsqrt", "sqrt", "pow", "inverse", "log"]));
            let half = gives_half(v, op);
            (kind(v, op) == "add" && root && half)
                .then(|| format!("an added epsilon of {small:e} is below 6.1e-5"))
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE105",
        title: "Sums of squares in fp16",
        source: "CoreML-LLM OP14 and NU03 (residuals of 37,000 overflow at layer 19), qwen-ane \
            ANE-REFERENCE; coremltools lowers RMSNorm with the maximum taken out",
        why: "A square overflows fp16 from 256 on, and a sum of n squares from 256/sqrt(n); the \
            norm is then 0.",
        fix: "Divide by the largest magnitude first, or use layer_norm over concat(x, -x). A fixed \
            scale keeps large residuals from overflowing and loses small ones (ANE171).",
        check: Check::Op(|v, op| {
            let of = summed_squares(v, op)?;
            let half = v.dtype(of).is_some_and(is_half);
            let n = reduced_len(v, op).unwrap_or(1);
            (half && !v.is_fixed(of) && n >= 64 && !is_scaled(v, of))
                .then(|| format!("sums {n} squares of `{}` in fp16", v.name(of)))
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE106",
        title: "A sum times zero",
        source: "sbryngelson/ANEForge: mul(reduce_output, 0.0) fails to compile",
        why: "The compiler of the engine fails on a reduction that is multiplied by 0, a way of \
            making zeros.",
        fix: "Make zeros as x - x.",
        check: Check::Op(|v, op| {
            let zero = scalars(v, v.op(op)).any(|n| n == 0.0);
            let reduced = producers(v, v.op(op)).any(|d| d.def.name.starts_with("reduce_"));
            (kind(v, op) == "mul" && zero && reduced).then(|| "a reduction times 0.0".to_owned())
        }),
        ..row(CompileFails(Some("ANECCompile() FAILED")), Error)
    },
    Rule {
        id: "ANE107",
        title: "Deep sums in the accumulators",
        source: "751K M6 study and ANEForge: partial sums are Q15.16 fixed point on M4 and M6, \
            infinite from 32,768 on; output cliff near 32,752 on M1 to M5",
        why: "A partial sum of a product that reaches 32,768 becomes infinite and stays so; with \
            many inputs a mean product of 4 or less is enough.",
        fix: "Scale the input by 1/16 and the output by 16 (exact in fp16 and free), or split the \
            sum.",
        check: Check::Op(|v, op| {
            let p = product_of(v, op)?;
            (p.k >= 8192.0 && p.weights.is_some()).then(|| {
                format!(
                    "sums {} products: {:.1} on average is the most",
                    p.k,
                    32_768.0 / p.k
                )
            })
        }),
        ..row(WrongResult, Note)
    },
    Rule {
        id: "ANE108",
        title: "softplus on the direct route",
        source: "True2456/qwen-ane ANE-REFERENCE, M5 Max, macOS 26 and 27: silently wrong for x \
            above 10.4; anemll-forge, M6, macOS 27: 0 above 11",
        why: "softplus compiles and is wrong above 10.4.",
        fix: "Use relu(x) + log(1 + exp(-abs(x))).",
        check: Check::Kinds(&["softplus"], "`softplus` of more than 10.4 is wrong"),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE109",
        title: "A product of two dequantized tensors",
        source: "cadamcat/llms-on-apple-neural-engine, M5 Pro, macOS 27",
        why: "A multiplication right after two pairs of quantize and dequantize takes the scale of \
            the wrong one.",
        fix: "Multiply before quantizing, or put another op between one of them and the product.",
        check: Check::Op(|v, op| {
            let n = operands(v, op)
                .filter(|(_, u)| v.f.definer(*u).is_some_and(|d| d.def.name == "dequantize"))
                .count();
            (kind(v, op) == "mul" && n == 2)
                .then(|| "multiplies two dequantized tensors".to_owned())
        }),
        ..row(WrongResult, Error)
    },
    Rule {
        id: "ANE110",
        title: "sigmoid of small numbers on the direct route",
        source: "True2456/qwen-ane ANE-REFERENCE, M5 Max: relative error of 4e-2; 751K: silu is \
            off by up to 1e-2; anemll-forge and oxinfer: sigmoid by up to 0.015",
        why: "The table of sigmoid has 33 points from -8 to 8; x * sigmoid(x) of small x is off by \
            4 %.",
        fix: "Use x / (1 + exp(-x)), off by 7e-4, or the form with tanh.",
        check: Check::Op(|v, op| {
            let squashed = ["x", "y"]
                .iter()
                .any(|p| producer(v, op, p).is_some_and(|d| d.def.name == "sigmoid"));
            (kind(v, op) == "mul" && squashed)
                .then(|| "x * sigmoid(x): inexact where x is small".to_owned())
        }),
        ..direct(WrongResult, Note)
    },
    Rule {
        id: "ANE111",
        title: "The logarithm of a softmax",
        source: "coremltools #2728: minus infinity in fp16",
        why: "A probability below 6e-8 is 0 in fp16 and its logarithm minus infinity.",
        fix: "Use x - max - log(sum(exp(x - max))), or give the logits out.",
        check: Check::Op(|v, op| {
            let half = gives_half(v, op);
            let of_softmax = producer(v, op, "x").is_some_and(|d| d.def.name == "softmax");
            let guarded = float(v, op, "epsilon").is_some_and(|e| e >= FP16_NORMAL);
            (kind(v, op) == "log" && of_softmax && half && !guarded)
                .then(|| "log(softmax(x)) in fp16".to_owned())
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE112",
        title: "A softmax by hand without its maximum",
        evidence: Evidence::Documented,
        source: "IEEE binary16: exp(x) is infinite for x above 11.09",
        why: "exp of more than 11.09 is infinite in fp16, and infinite by infinite is NaN.",
        fix: "Use softmax, or subtract the maximum of the row first.",
        check: Check::Op(|v, op| {
            let half = gives_half(v, op);
            let summed = users(v, op).any(|u| kind(v, u) == "reduce_sum");
            let safe = producer(v, op, "x").is_some_and(|d| d.def.name == "sub");
            (kind(v, op) == "exp" && half && summed && !safe)
                .then(|| "exp and its sum without subtracting the maximum".to_owned())
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE113",
        title: "gather_nd of unknown shape on phones",
        source: "CoreML-LLM OP05, PROBE_GEMMA4_VISION_ANE: all zeros (norm 0 against 521) on \
            iPhone, right on a Mac",
        why: "On phones a gather_nd whose result depends on the data gave zeros without an error.",
        fix: "Gather on the host, or with a one-hot matrix of fixed size.",
        check: Check::Op(|v, op| {
            let open = v.op(op).results.iter().any(|r| v.known_shape(*r).is_none());
            (kind(v, op) == "gather_nd"
                && open
                && is_runtime(v, op, "indices")
                && v.target.is_mobile())
            .then(|| "`gather_nd` of a length that only the call knows".to_owned())
        }),
        ..row(WrongResult, Error)
    },
    Rule {
        id: "ANE114",
        title: "Counting in fp16",
        source: "751K M6 study and ANEForge: sums of ones are exact to 2,048",
        why: "fp16 holds whole numbers exactly to 2,048 only; a prefix sum or a sum of ones over a \
            longer axis is rounded.",
        fix: "Count on the host, or in parts of at most 2,048.",
        check: Check::Op(|v, op| {
            let compared = producer(v, op, "x").filter(|d| d.def.name == "cast");
            let truth = compared
                .and_then(|d| d.value_arg("x"))
                .is_some_and(|x| v.dtype(x) == Some(DType::Bool));
            let half = v
                .op(op)
                .value_arg("x")
                .and_then(|x| v.dtype(x))
                .is_some_and(is_half);
            let n = reduced_len(v, op)?;
            (is_any(v, op, &["reduce_sum", "cumsum"]) && truth && half && n > 2048)
                .then(|| format!("counts to {n} in fp16"))
        }),
        ..row(WrongResult, Note)
    },
    Rule {
        id: "ANE169",
        title: "silu near 0",
        source: "anemll-forge (M6, macOS 27) and oxinfer (M5 Max, macOS 26), independently: \
            off by 1e-3 near 0, by 12 % where |x| < 0.5; 751K, M4 and M6: by up to 1e-2",
        why: "The engine reads silu from a table that is coarse near 0, and Core ML turns x * \
            sigmoid(x) into silu. Recurrent layers add the errors up.",
        fix: "Where layers are recurrent, use 0.5 * x * (1 + tanh(x / 2)): off by 0.1 % and no \
            slower.",
        check: Check::Op(|v, op| {
            let half = gives_half(v, op);
            let text = match kind(v, op) {
                "silu" => "`silu`",
                "mul" if is_silu(v, op) => "x * sigmoid(x)",
                _ => return None,
            };
            half.then(|| format!("{text} is off by 12 % where |x| < 0.5"))
        }),
        ..core_ml(WrongResult, Note)
    },
    Rule {
        id: "ANE170",
        title: "softplus by Core ML",
        source: "anemll-forge, M6, macOS 27: 0 above about 11, which turned the decay of \
            gated DeltaNet off in 20 % of heads and tokens",
        why: "The exponential inside overflows fp16, and softplus of more than 11 comes out as 0 \
            instead of x.",
        fix: "Use relu(x) + log(1 + exp(-abs(x))).",
        check: Check::Op(|v, op| {
            let half = gives_half(v, op);
            (kind(v, op) == "softplus" && half)
                .then(|| "`softplus` of more than 11 is 0".to_owned())
        }),
        ..core_ml(WrongResult, Warning)
    },
    Rule {
        id: "ANE171",
        title: "A fixed scale before a sum of squares",
        evidence: Evidence::Inferred,
        source: "anemll-forge, M6, macOS 27, through Core AI: RMSNorm of x / 64 gives 0.70 of the \
            right result for inputs of 0.015",
        disputed: "CoreML-LLM NU03 scales residuals down so that squares do not overflow",
        why: "The engine takes fp16 numbers below 6.1e-5 as 0: squares of x / 64 are lost where x \
            is below 0.5.",
        fix: "Divide by the largest magnitude instead of a constant.",
        check: Check::Op(|v, op| {
            let of = summed_squares(v, op)?;
            let scaled = v.f.definer(of)?;
            let small = |n: f32| match scaled.def.name {
                "mul" => n != 0.0 && n.abs() <= 1.0 / 64.0,
                "real_div" => n.abs() >= 64.0,
                _ => false,
            };
            let by = scalars(v, scaled).find(|n| small(*n))?;
            v.dtype(of).is_some_and(is_half).then(|| {
                format!(
                    "squares of `{}`, scaled down by {}",
                    v.name(of),
                    if by.abs() < 1.0 { 1.0 / by } else { by }
                )
            })
        }),
        ..row(WrongResult, Note)
    },
];

/// Whether a `mul` is of x and sigmoid(x).
fn is_silu(v: &View<'_>, op: OpId) -> bool {
    let (x, y) = (v.op(op).value_arg("x"), v.op(op).value_arg("y"));
    let gate = |gate: Option<ValueId>, of: Option<ValueId>| {
        let made = gate.and_then(|g| v.f.definer(g));
        made.is_some_and(|d| d.def.name == "sigmoid" && d.value_arg("x") == of)
    };
    gate(x, y) || gate(y, x)
}

/// What is squared and summed by an op, if it does so.
fn summed_squares(v: &View<'_>, op: OpId) -> Option<ValueId> {
    let x = v.op(op).value_arg("x")?;
    match kind(v, op) {
        "reduce_sum_square" | "reduce_l2_norm" => Some(x),
        "reduce_mean" | "reduce_sum" => squared(v, x),
        _ => None,
    }
}

/// Whether the first numbers of a constant have one that fp16 does not hold.
fn is_beyond_fp16(literal: &Literal) -> bool {
    let Literal::Tensor(ty, data) = literal else {
        return false;
    };
    let width = ty.dtype.bits() / 8;
    if !matches!(ty.dtype, DType::Fp16 | DType::Fp32) {
        return false;
    }
    let mut head = vec![0; data.byte_len().min(MAX_READ) / width * width];
    if !data.read(0, &mut head) {
        return false;
    }
    let n = head.len() / width;
    let head = Literal::Tensor(TensorType::new(ty.dtype, [n]), Data::owned(head));
    let beyond = |x: &f32| x.is_infinite() || x.abs() > FP16_MAX;
    head.to_floats().is_some_and(|head| head.iter().any(beyond))
}

/// What is squared to give a value, if it is a square.
fn squared(v: &View<'_>, value: ValueId) -> Option<ValueId> {
    let op = v.f.definer(value)?;
    let (x, y) = (op.value_arg("x")?, op.value_arg("y"));
    match op.def.name {
        "square" => Some(x),
        "mul" if y == Some(x) => Some(x),
        "pow" if scalars(v, op).any(|n| n == 2.0) => Some(x),
        _ => None,
    }
}

/// Whether a value was brought into range: divided by its own maximum, or normalized.
fn is_scaled(v: &View<'_>, value: ValueId) -> bool {
    let Some(op) = v.f.definer(value) else {
        return false;
    };
    let by_maximum =
        |d: &Op| d.def.name == "reduce_max" || producers(v, d).any(|e| e.def.name == "reduce_max");
    let divided = matches!(op.def.name, "real_div" | "mul") && producers(v, op).any(by_maximum);
    let bounded = [
        "layer_norm",
        "batch_norm",
        "instance_norm",
        "softmax",
        "tanh",
        "sigmoid",
        "l2_norm",
        "clip",
    ];
    divided || bounded.contains(&op.def.name)
}

/// How many numbers a reduction takes together, if that is known.
pub fn reduced_len(v: &View<'_>, op: OpId) -> Option<usize> {
    let shape = param_shape(v, op, "x")?;
    let axes = ints(v, op, "axes").or_else(|| int(v, op, "axis").map(|a| vec![a]));
    match axes {
        None => shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)),
        Some(axes) => {
            let mut lengths = axes
                .into_iter()
                .filter_map(|a| wrap(a, shape.len()))
                .map(|a| shape[a]);
            lengths.try_fold(1usize, usize::checked_mul)
        }
    }
}
