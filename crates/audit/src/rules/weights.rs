//! Rules about the encodings and total size of weights.

use std::collections::HashSet;
use std::sync::Arc;

use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Op, OpId};
use thane_mil::types::DType;

use super::ROW;
use super::query::{
    int, is_any, is_runtime, kind, param_shape, param_type, product, result_shape, show_bytes,
};
use crate::rule::{Check, Effect, Hit, Rule, Scope, Severity};
use crate::target::{Evidence, Route};
use crate::view::View;

const PER_CHANNEL: &str = "Use one scale for each output channel (scale [O, 1, ..]) or one table \
    for the whole tensor: int4 by channel ran at 1.45 to 1.75 times the speed of fp16 on M5 Pro.";

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE083",
        title: "Block scales inside of a channel",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
        source: "751K M6 study (compile fails, whole model on the CPU: 66 against 52.8 us a \
            layer), M4 and M6; cadamcat/llms-on-apple-neural-engine, M5 Pro; code 14 for \
            StatefulMistral7B-Int4 on M3",
        disputed: Some("ANEForge: A15-class and newer stream blockwise weights"),
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
        ..ROW
    },
    Rule {
        id: "ANE084",
        title: "int4 scales by channel on M1 and M2",
        effect: Effect::Slow,
        severity: Severity::Note,
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
        ..ROW
    },
    Rule {
        id: "ANE085",
        title: "int8 weights on M1",
        effect: Effect::Slow,
        severity: Severity::Note,
        scope: Scope::generations(0, 13),
        source: "sbryngelson/ANEForge, M1: folded to fp16, no gain",
        why: "M1 and A14 unpack int8 weights to fp16 when they load them; they only cost accuracy \
            there.",
        fix: "Use a palette of 6 or 8 bits (one table), which streams compressed from M1 on.",
        check: Check::Op(|v, op| {
            let affine = kind(v, op) == "constexpr_affine_dequantize";
            let byte = is_shift_scale(v, op)
                && param_type(v, op, "data").is_some_and(|t| t.dtype.bits() == 8);
            (affine || byte)
                .then(|| format!("int8 weights are folded to fp16 on {}", v.target.chip.name))
        }),
        ..ROW
    },
    Rule {
        id: "ANE086",
        title: "What int8 weights gain is disputed",
        effect: Effect::Slow,
        severity: Severity::Note,
        scope: Scope::generations(14, u8::MAX),
        source: "751K M6 study: 0.58 of the time of fp16, M6; qwen-ane: 1.4 to 1.9 times faster, \
            M5 Max",
        disputed: Some(
            "ANEForge measured no gain on M5 Pro through e5rt (4096x4096: 0.309 ms both)",
        ),
        why: "Most measurements see int8 weights streamed as stored, one sees them folded to fp16.",
        fix: "Measure on the device; int4 by channel and 4-bit palettes gained in every \
            measurement.",
        check: Check::Op(|v, op| {
            let affine = kind(v, op) == "constexpr_affine_dequantize";
            let byte = is_shift_scale(v, op)
                && param_type(v, op, "data").is_some_and(|t| t.dtype.bits() == 8);
            let shape = result_shape(v, op)?;
            ((affine || byte) && product(&shape) >= 1e6).then(|| {
                "int8 weights: sources disagree whether they are faster than fp16".to_owned()
            })
        }),
        ..ROW
    },
    Rule {
        id: "ANE087",
        title: "A palette for each channel",
        effect: Effect::Slow,
        source: "cadamcat/llms-on-apple-neural-engine, M5 Pro, macOS 27: 0.065 to 0.45 times the \
            speed of fp16",
        disputed: Some(
            "CoreML-LLM ships tables for groups of 32 channels, and 751K measures grouped tables \
             at 0.32 of the time of fp16",
        ),
        why: "One table for each output channel ran 2 to 15 times slower than fp16.",
        fix: "Use one table for the tensor, tables for groups of 16 or 32 channels, or int4 with a \
            scale for each channel.",
        check: Check::Op(|v, op| {
            let (groups, weight) = lut_groups(v, op)?;
            let tables = *groups.first()?;
            (tables > 1 && weight.first() == Some(&tables))
                .then(|| format!("a palette for each of {tables} channels"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE088",
        title: "Palettes for blocks of several axes",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
        source: "751K M6 study; CoreML-LLM Q02: code -14 with a state",
        why: "Tables for rows and blocks of columns at once do not compile for the engine; the \
            model goes to the CPU or GPU, or fails with -14.",
        fix: "Group channels only: one table, or tables along the output channels.",
        check: Check::Op(|v, op| {
            let (groups, _) = lut_groups(v, op)?;
            (groups.iter().filter(|g| **g > 1).count() > 1)
                .then(|| format!("palettes for blocks in a grid of {groups:?}"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE089",
        title: "Palettes of vectors",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
        source: "751K M6 study: does not compile through Core ML, though the hardware table knows \
            vectors up to 4 from M5 on",
        why: "A table whose entries are vectors does not compile for the engine.",
        fix: "Use scalar tables of 4 or 6 bits.",
        check: Check::Op(|v, op| {
            let lut = param_shape(v, op, "lut")?;
            let vector = *lut.last().filter(|_| lut.len() > 2)?;
            (kind(v, op).starts_with("constexpr_lut") && vector > 1)
                .then(|| format!("palette entries are vectors of {vector} numbers"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE090",
        title: "Palettes of int8 entries",
        source: "CoreML-LLM Q04: 73 ops left the engine, 3.4 % slower, cosine 0.83; iPhone 17 Pro",
        why: "With a table of int8 entries that a scale then multiplies (joint compression), the \
            ops that use the weight left the engine.",
        fix: "Keep the entries in fp16.",
        check: Check::Op(|v, op| {
            let heavy = is_any(v, op, &["conv", "linear", "matmul", "conv_transpose"]);
            let codes = v
                .op(op)
                .uses()
                .filter_map(|u| v.f.definer(u))
                .find(|d| is_joint(v, d))?;
            heavy.then(|| {
                format!(
                    "its weight goes through `{}` over a palette of 8-bit entries",
                    codes.def.name
                )
            })
        }),
        ..ROW
    },
    Rule {
        id: "ANE091",
        title: "3-bit palettes before M6 and A19",
        effect: Effect::Slow,
        severity: Severity::Note,
        scope: Scope::generations(0, 17),
        source: "751K M6 study: 3-bit codes are kept as 4-bit before that generation",
        why: "The codes are widened to 4 bits: the accuracy of 3 bits at the speed of 4.",
        fix: "Use 4 bits, or 2.",
        check: Check::Op(|v, op| {
            let codes = param_type(v, op, "indices")?;
            (codes.dtype == DType::Uint3).then(|| "3-bit codes take 4 bits on this chip".to_owned())
        }),
        ..ROW
    },
    Rule {
        id: "ANE092",
        title: "Sparse and palettized at once",
        effect: Effect::Slow,
        source: "CoreML-LLM Q05: 155.8 to 349.6 MB, 11 % slower, cosine 0.449; iPhone 17 Pro",
        why: "Masks and palettes together made the file twice as large and the call slower.",
        fix: "Use one of the two; a mask alone gains from 50 % zeros on (0.56 of the bytes).",
        check: Check::Op(|v, op| {
            is_any(
                v,
                op,
                &[
                    "constexpr_lut_to_sparse",
                    "constexpr_sparse_blockwise_shift_scale",
                ],
            )
            .then(|| format!("`{}`: weights both sparse and palettized", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE093",
        title: "int4 in depthwise convolutions",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
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
        ..ROW
    },
    Rule {
        id: "ANE094",
        title: "More than 2 GB of weights in a function",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
        source: "sbryngelson/ANEForge: about 2 GB of weights baked into one program; CoreML-LLM \
            SZ01: 0 % on the engine at 1.94 GB, Mac",
        disputed: Some("smpanaro/more-ane-transformers noted a cap near 4 GB in the M1 era"),
        why: "Above some 2 GB the compiler of the engine refuses the program and Core ML runs it \
            elsewhere without a word.",
        fix: "Cut the model into chunks of less than 950 MB each, or compress the weights.",
        check: Check::Function(|v| weight_ceiling(v, 1.94e9, f64::INFINITY)),
        ..ROW
    },
    Rule {
        id: "ANE095",
        title: "More than 1 GB of weights in a function on a phone",
        effect: Effect::ProgramLeaves,
        severity: Severity::Error,
        source: "CoreML-LLM SZ01, iPhone 17 Pro: 1.0 to 1.4 GB; 900 MB of int4 run",
        why: "On phones a package above 1.0 to 1.4 GB goes to the GPU without a word, and the app \
            is then killed for its memory.",
        fix: "Cut the model into chunks of less than 950 MB each, or compress the weights.",
        check: Check::Function(|v| {
            if v.target.is_mobile() {
                weight_ceiling(v, 1.0e9, 1.94e9)
            } else {
                Vec::new()
            }
        }),
        ..ROW
    },
    Rule {
        id: "ANE096",
        title: "More than 950 MB of weights in a function",
        effect: Effect::LoadFails(None),
        severity: Severity::Note,
        evidence: Evidence::Folklore,
        source: "ANEMLL's limit for chunks",
        disputed: Some("Programs of 1.2 GB run on M4 Max (CoreML-LLM S0)"),
        why: "ANEMLL cuts models at 950 MB to be safe on every chip.",
        fix: "Cut the model into chunks where a device fails to load it.",
        check: Check::Function(|v| {
            if v.target.is_mobile() {
                Vec::new()
            } else {
                weight_ceiling(v, 0.95e9, 1.94e9)
            }
        }),
        ..ROW
    },
    Rule {
        id: "ANE097",
        title: "Quantized activations on phones",
        effect: Effect::CompileFails(Some("ANECCompile() FAILED")),
        severity: Severity::Error,
        source: "CoreML-LLM OP21: iPhone 17 Pro refuses quantize and dequantize; a Mac compiles \
            them",
        disputed: Some("751K and CAD run W8A8 on M4, M5 Pro and M6 at up to twice the speed"),
        why: "The compiler on the phone rejected programs with quantized activations.",
        fix: "Quantize weights only on phones.",
        check: Check::Op(|v, op| {
            (is_any(v, op, &["quantize", "dequantize"]) && v.target.is_mobile())
                .then(|| format!("`{}` of activations on a phone", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE098",
        title: "Quantized activations over few positions",
        effect: Effect::Slow,
        severity: Severity::Note,
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
        ..ROW
    },
    Rule {
        id: "ANE099",
        title: "Palettes on the direct route",
        effect: Effect::CompileFails(Some("InvalidMILProgram")),
        severity: Severity::Error,
        scope: Scope::ALL.on(Route::Direct).releases(26, u32::MAX),
        source: "mlx-serve (M4 Max, macOS 26), qwen-ane (M5 Max, macOS 26 and 27)",
        disputed: Some("ANEForge compiles palettes through e5rt"),
        why: "MIL text with palettes was refused where it is handed to the engine's own client.",
        fix: "Use int8 or int4 with one scale a channel there, or go through Core ML.",
        check: Check::Op(|v, op| {
            kind(v, op)
                .starts_with("constexpr_lut")
                .then(|| format!("`{}` on the direct route", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE100",
        title: "uint8 codes on the direct route",
        effect: Effect::WrongResult,
        severity: Severity::Error,
        scope: Scope::ALL.on(Route::Direct),
        source: "True2456/qwen-ane, M5 Max, macOS 26 and 27: silent garbage",
        why: "Unsigned codes compile and are read as something else.",
        fix: "Store signed int8, or int4 packed with the low nibble first.",
        check: Check::Op(|v, op| {
            let codes =
                param_type(v, op, "quantized_data").or_else(|| param_type(v, op, "data"))?;
            (kind(v, op).starts_with("constexpr_") && codes.dtype == DType::Uint8)
                .then(|| "uint8 codes on the direct route".to_owned())
        }),
        ..ROW
    },
    Rule {
        id: "ANE101",
        title: "Block scales on the direct route of macOS 26",
        effect: Effect::CompileFails(Some("Couldn't communicate with a helper application")),
        severity: Severity::Error,
        scope: Scope::ALL.on(Route::Direct).releases(26, 26),
        source: "ddalcu/mlx-serve, M4 Max, macOS 26",
        disputed: Some(
            "captured from oMLX as working on M5 Max with macOS 26, and qwen-ane on macOS 27",
        ),
        why: "The compiler service crashed on constexpr_blockwise_shift_scale.",
        fix: "Use constexpr_affine_dequantize with int8 there.",
        check: Check::Op(|v, op| {
            is_shift_scale(v, op).then(|| {
                "`constexpr_blockwise_shift_scale` on the direct route of macOS 26".to_owned()
            })
        }),
        ..ROW
    },
];

fn is_shift_scale(v: &View<'_>, op: OpId) -> bool {
    kind(v, op) == "constexpr_blockwise_shift_scale"
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

/// The grid of tables of a palette, and the shape of what it gives.
fn lut_groups(v: &View<'_>, op: OpId) -> Option<(Vec<usize>, Vec<usize>)> {
    let lut = param_shape(v, op, "lut").filter(|_| kind(v, op).starts_with("constexpr_lut"))?;
    let groups = lut.len().checked_sub(2).filter(|n| *n > 0)?;
    Some((lut[..groups].to_vec(), result_shape(v, op)?))
}

/// Whether a constexpr op scales what a palette of 8-bit entries gives.
fn is_joint(v: &View<'_>, op: &Op) -> bool {
    let codes = op.value_arg("data").and_then(|d| v.f.definer(d));
    let of_palette = codes.is_some_and(|d| d.def.name == "constexpr_lut_to_dense");
    op.def.name == "constexpr_blockwise_shift_scale" && of_palette
}

fn literal_dtype(op: &Op, name: &str) -> Option<DType> {
    match op.arg(name)? {
        Arg::Literal(Literal::Tensor(t, _)) => Some(t.dtype),
        _ => None,
    }
}

fn weight_ceiling(v: &View<'_>, above: f64, up_to: f64) -> Vec<Hit> {
    let n = stored_bytes(v);
    let message = format!("`{}` has {} of weights", v.f.name, show_bytes(n));
    if n > above && n <= up_to {
        vec![Hit { op: None, message }]
    } else {
        Vec::new()
    }
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
                seen.insert(place(data)).then(|| data.byte_len() as f64)
            }
            _ => None,
        })
        .sum()
}

/// Where the bytes of a constant are, and how many.
fn place(data: &Data) -> (usize, usize) {
    let at = match data {
        Data::Bytes(bytes) => bytes.as_slice().as_ptr().addr(),
        Data::Source(source) => Arc::as_ptr(source).addr(),
    };
    (at, data.byte_len())
}
