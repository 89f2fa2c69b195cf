//! Rules about the encodings and total size of weights.

use std::collections::HashSet;

use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, OpId};
use thane_mil::types::DType;

use super::query::{
    int, is_any, is_runtime, kind, param_shape, param_type, product, result_shape, show_bytes,
};
use super::{direct, row};
use crate::rule::Effect::{CompileFails, LoadFails, ProgramLeaves, RunFails, Slow, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule, Scope};
use crate::target::{Evidence, Route};
use crate::view::View;

const PER_CHANNEL: &str = "Use one scale for each output channel (scale [O, 1, ..]) or one table \
    for the whole tensor: int4 by channel ran at 1.45 to 1.75 times the speed of fp16 on M5 Pro.";

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE083",
        title: "Block scales inside of a channel",
        source: "751K M6 study (compile fails, whole model on the CPU: 66 against 52.8 us a \
            layer), M4 and M6; cadamcat/llms-on-apple-neural-engine, M5 Pro; code 14 for \
            StatefulMistral7B-Int4 on M3; oxinfer, M5 Max, macOS 26: int4 in blocks does not \
            compile",
        disputed: "ANEForge: A15-class and newer stream blockwise weights",
        why: "The compiler of the engine takes one scale for each output channel or tensor; with \
            blocks along the input channels it fails, and the whole model runs elsewhere.",
        fix: PER_CHANNEL,
        check: Check::Op(|v, op| {
            let inner = inner_blocks(v, op)?;
            (inner > 1.0).then(|| {
                format!(
                    "ANE only support per-cout/per-tensor quantization ({inner} blocks a channel)"
                )
            })
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE084",
        title: "int4 scales by channel on M1 and M2",
        scope: Scope::generations(0, 14),
        evidence: Evidence::Inferred,
        source: "sbryngelson/ANEForge: folded to fp16 on M1 and M2",
        why: "These engines unpack scaled int4 to fp16 when they load it: the package is smaller, \
            calls are not faster.",
        fix: "Use a palette of 4 bits for the whole tensor, which is streamed as stored on every \
            chip.",
        check: Check::Op(|v, op| {
            let data = param_type(v, op, "data")?;
            (is_shift_scale(v, op) && matches!(data.dtype, DType::Int4 | DType::Uint4)).then(|| {
                format!(
                    "{} weights are folded to fp16 on {}",
                    data.dtype, v.target.chip.name
                )
            })
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE085",
        title: "int8 weights on M1",
        scope: Scope::generations(0, 13),
        source: "sbryngelson/ANEForge, M1: folded to fp16, no gain",
        why: "M1 and A14 unpack int8 weights to fp16 when they load them; they only cost accuracy \
            there.",
        fix: "Use a palette of 6 or 8 bits (one table), which streams compressed from M1 on.",
        check: Check::Op(|v, op| {
            is_int8(v, op)
                .then(|| format!("int8 weights are folded to fp16 on {}", v.target.chip.name))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE086",
        title: "What int8 weights gain is disputed",
        scope: Scope::generations(14, u8::MAX),
        source: "751K M6 study: 0.58 of the time of fp16, M6; qwen-ane: 1.4 to 1.9 times faster, \
            M5 Max; anemll-forge, macOS 27, 4096x4096: 0.47 of the time on M6, 0.52 on M5 Max; \
            a small model on M2 Pro: 1.79 times faster",
        disputed: "ANEForge measured no gain on M5 Pro through e5rt (4096x4096: 0.309 ms both) and \
            at 8 billion weights; stablehlo-coreml #110: on the CPU alone on a Mac of the class of \
            M4",
        why: "Most measurements see int8 weights streamed as stored, one sees them folded to fp16.",
        fix: "Measure on the device; int4 by channel and 4-bit palettes gained in every \
            measurement.",
        check: Check::Op(|v, op| {
            let shape = result_shape(v, op)?;
            (is_int8(v, op) && product(&shape) >= 1e6).then(|| {
                "int8 weights: sources disagree whether they are faster than fp16".to_owned()
            })
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE162",
        title: "int8 weights on M5 with macOS 26",
        scope: Scope::generations(17, 17)
            .on(Route::CoreMl)
            .releases(26, 26),
        source: "oxinfer, M5 Max, macOS 26: language models with int8 weights, one scale for each \
            tensor or channel, compile and give garbage (cosine of the logits 0.75, 0.9992 on the \
            GPU)",
        disputed: "anemll-forge: cosine 1.0 for int8 convolutions on M5 Max with macOS 27.2 and on \
            M6 with macOS 27.0; 751K, ANEForge and cadamcat run int8 on other chips and systems",
        why: "On this chip and system models with int8 weights compiled, ran on the engine and \
            gave wrong logits without an error.",
        fix: "Use palettes there, or compare the logits with those of the GPU on the device.",
        check: Check::Op(|v, op| {
            let wrong = is_int8(v, op) && inner_blocks(v, op).is_none_or(|n| n <= 1.0);
            (wrong && !v.target.is_mobile())
                .then(|| "int8 weights gave wrong results on M5 Max with macOS 26".to_owned())
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE093",
        title: "int4 in depthwise convolutions",
        source: "CoreML-LLM Q10, LFM2_CONVERSION_FINDINGS",
        why: "A linear int4 weight on a depthwise convolution made the plan of the engine fail.",
        fix: "Leave depthwise weights in fp16: they are small.",
        check: Check::Op(|v, op| {
            let groups = int(v, op, "groups")?;
            let weight = super::query::producer(v, op, "weight")
                .filter(|d| d.def.name == "constexpr_blockwise_shift_scale")?;
            let codes = weight
                .value_arg("data")
                .and_then(|d| v.dtype(d))
                .or_else(|| literal_dtype(weight, "data"))?;
            (groups > 1 && matches!(codes, DType::Int4 | DType::Uint4))
                .then(|| format!("{codes} weights in a convolution of {groups} groups"))
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE094",
        title: "More than 2 GB of weights in a function",
        source: "sbryngelson/ANEForge: about 2 GB of weights baked into one program; CoreML-LLM \
            SZ01: 0 % on the engine at 1.94 GB, Mac; ANEForge #45, M5 Pro: 1.5 GB runs, 3.4 GB \
            does not",
        disputed: "smpanaro/more-ane-transformers noted a cap near 4 GB in the M1 era; \
            anemll-forge, M6, macOS 27, through Core AI: 3 GB run, 4 GB compile and do not load",
        why: "Above some 2 GB the compiler of the engine refuses the program and Core ML runs it \
            elsewhere without a word.",
        fix: "Cut the model into chunks of less than 950 MB each, or compress the weights.",
        check: Check::Function(|v| weight_ceiling(v, true, 1.94e9, f64::INFINITY)),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE095",
        title: "More than 1 GB of weights in a function on a phone",
        source: "CoreML-LLM SZ01, iPhone 17 Pro: 1.0 to 1.4 GB; 900 MB of int4 run",
        why: "On phones a package above 1.0 to 1.4 GB goes to the GPU without a word, and the app \
            is then killed for its memory.",
        fix: "Cut the model into chunks of less than 950 MB each, or compress the weights.",
        check: Check::Function(|v| weight_ceiling(v, v.target.is_mobile(), 1.0e9, 1.94e9)),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE096",
        title: "More than 950 MB of weights in a function",
        evidence: Evidence::Folklore,
        source: "ANEMLL's limit for chunks",
        disputed: "Programs of 1.2 GB run on M4 Max (CoreML-LLM S0)",
        why: "ANEMLL cuts models at 950 MB to be safe on every chip.",
        fix: "Cut the model into chunks where a device fails to load it.",
        check: Check::Function(|v| weight_ceiling(v, !v.target.is_mobile(), 0.95e9, 1.94e9)),
        ..row(LoadFails(None), Note)
    },
    Rule {
        id: "ANE166",
        title: "More than 1.1 GB of weights in a function on M6",
        scope: Scope::generations(18, 18).releases(27, 27),
        evidence: Evidence::Inferred,
        source: "anemll-forge, M6, macOS 27.0, through Core AI: chunks of 0.5 to 0.75 GB are \
            stable, 8 layers of 1.1 GB panic the kernel at the load, 12 layers of 1.67 GB load and \
            fail at each call",
        disputed: "the same project ran one entry of 3 GB on the same chip",
        why: "Chunks of a 27B model from 1.1 GB on took the whole Mac down or failed. That \
            was through Core AI; nobody published the same for Core ML.",
        fix: "Cut the model into chunks of at most 750 MB.",
        check: Check::Function(|v| weight_ceiling(v, !v.target.is_mobile(), 1.1e9, f64::INFINITY)),
        ..row(RunFails(Some("kernel panic")), Warning)
    },
    Rule {
        id: "ANE097",
        title: "Quantized activations on phones",
        source: "CoreML-LLM OP21: iPhone 17 Pro refuses quantize and dequantize; a Mac compiles \
            them",
        disputed: "751K and CAD run W8A8 on M4, M5 Pro and M6 at up to twice the speed",
        why: "The compiler on the phone rejected programs with quantized activations.",
        fix: "Quantize weights only on phones.",
        check: Check::Op(|v, op| {
            (is_any(v, op, &["quantize", "dequantize"]) && v.target.is_mobile())
                .then(|| format!("`{}` of activations on a phone", kind(v, op)))
        }),
        ..row(CompileFails(Some("ANECCompile() FAILED")), Error)
    },
    Rule {
        id: "ANE098",
        title: "Quantized activations over few positions",
        source: "True2456/qwen-ane W8A8-PROJECTIONS, M5 Max, macOS 27: 1.64 to 3.67 times faster \
            from 256 positions on, nothing at 128; CAD: 0.86 for one layer",
        why: "Quantizing costs more than it saves where products cover fewer than 256 positions.",
        fix: "Quantize activations of prefill only, and weights of decode.",
        check: Check::Op(|v, op| {
            let shape = result_shape(v, op)?;
            let columns: f64 = product(shape.get(2..).filter(|s| !s.is_empty()).unwrap_or(&shape));
            (kind(v, op) == "quantize" && is_runtime(v, op, "input") && columns < 256.0).then(
                || {
                    format!(
                        "quantized activations over {columns} positions: 256 and more are faster"
                    )
                },
            )
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE099",
        title: "Palettes on the direct route",
        scope: Scope::ALL.on(Route::Direct).releases(26, u32::MAX),
        source: "mlx-serve (M4 Max, macOS 26), qwen-ane (M5 Max, macOS 26 and 27)",
        disputed: "ANEForge compiles palettes through e5rt",
        why: "MIL text with palettes was refused where it is handed to the engine's own client.",
        fix: "Use int8 or int4 with one scale a channel there, or go through Core ML.",
        check: Check::Op(|v, op| {
            kind(v, op)
                .starts_with("constexpr_lut")
                .then(|| format!("`{}` on the direct route", kind(v, op)))
        }),
        ..row(CompileFails(Some("InvalidMILProgram")), Error)
    },
    Rule {
        id: "ANE100",
        title: "uint8 codes on the direct route",
        source: "True2456/qwen-ane, M5 Max, macOS 26 and 27: silent garbage",
        why: "Unsigned codes compile and are read as something else.",
        fix: "Store signed int8, or int4 packed with the low nibble first.",
        check: Check::Op(|v, op| {
            let codes =
                param_type(v, op, "quantized_data").or_else(|| param_type(v, op, "data"))?;
            (kind(v, op).starts_with("constexpr_") && codes.dtype == DType::Uint8)
                .then(|| "uint8 codes on the direct route".to_owned())
        }),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE101",
        title: "Block scales on the direct route of macOS 26",
        scope: Scope::ALL.on(Route::Direct).releases(26, 26),
        source: "ddalcu/mlx-serve, M4 Max, macOS 26",
        disputed: "captured from oMLX as working on M5 Max with macOS 26, and qwen-ane on macOS 27",
        why: "The compiler service crashed on constexpr_blockwise_shift_scale.",
        fix: "Use constexpr_affine_dequantize with int8 there.",
        check: Check::Op(|v, op| {
            is_shift_scale(v, op).then(|| {
                "`constexpr_blockwise_shift_scale` on the direct route of macOS 26".to_owned()
            })
        }),
        ..row(
            CompileFails(Some("Couldn't communicate with a helper application")),
            Error,
        )
    },
];

fn is_shift_scale(v: &View<'_>, op: OpId) -> bool {
    kind(v, op) == "constexpr_blockwise_shift_scale"
}

/// Whether an op makes a weight of codes of 8 bits and scales.
fn is_int8(v: &View<'_>, op: OpId) -> bool {
    let byte = || param_type(v, op, "data").is_some_and(|t| t.dtype.bits() == 8);
    kind(v, op) == "constexpr_affine_dequantize" || is_shift_scale(v, op) && byte()
}

/// Blocks of one output channel of `constexpr_blockwise_shift_scale`.
fn inner_blocks(v: &View<'_>, op: OpId) -> Option<f64> {
    if !is_any(
        v,
        op,
        &[
            "constexpr_blockwise_shift_scale",
            "constexpr_sparse_blockwise_shift_scale",
        ],
    ) {
        return None;
    }
    Some(product(param_shape(v, op, "scale")?.get(1..)?))
}

fn literal_dtype(op: &Op, name: &str) -> Option<DType> {
    match op.arg(name)? {
        Arg::Literal(Literal::Tensor(t, _)) => Some(t.dtype),
        _ => None,
    }
}

/// Where a target `counts`, what is said of a function with so many bytes of weights.
fn weight_ceiling(v: &View<'_>, counts: bool, above: f64, up_to: f64) -> Vec<Hit> {
    let n = stored_bytes(v);
    Hit::when(counts && n > above && n <= up_to, None, || {
        format!("`{}` has {} of weights", v.f.name, show_bytes(n))
    })
}

/// Bytes of the constants of a function, as stored: what two constants share, such as an embedding
/// and a head that is tied to it, is there once.
pub fn stored_bytes(v: &View<'_>) -> f64 {
    let literals =
        v.f.all_ops()
            .into_iter()
            .flat_map(|op| v.op(op).args.iter().flatten());
    let mut seen = HashSet::new();
    literals
        .filter_map(|arg| match arg {
            Arg::Literal(Literal::Tensor(_, data)) => {
                seen.insert(data.id()).then(|| data.byte_len() as f64)
            }
            _ => None,
        })
        .sum()
}
