//! Rules about ranks, axis lengths, and shapes that are not fixed.

use thane_mil::literal::Literal;
use thane_mil::program::{Function, OpId, ValueId};
use thane_mil::types::{Dim, TensorType};

use super::query::{
    bytes, contraction, int, is_weight, kind, param_shape, product_of, show_bytes, tensor, tensors,
    wrap,
};
use super::{ROW, direct, row};
use crate::number::predicted_bytes;
use crate::rule::Effect::{CompileFails, OpLeaves, ProgramLeaves, RunFails, Slow};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule, Scope};
use crate::target::{Evidence, Route};
use crate::view::View;
use crate::work;

/// fp16 numbers in the 64 bytes that a row is padded to.
pub const ROW_LEN: usize = 32;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE055",
        title: "Axes above 65,536",
        scope: Scope::generations(16, u8::MAX),
        source: "751K M6 study, probes relu_w65536 (runs) and relu_c65537 (does not), M4 and M6, \
            macOS 27; Core ML and the engine's compiler agree. CoreML-LLM SZ06, SZ07 and OP20: \
            heads of 1536 and 2304 to 262,144 channels run on the engine, and the softcap behind \
            them does not. anemll-forge, M6, Core AI: a concat of history and block fails at \
            65,544 rows",
        disputed: "qwen-ane, direct route: 62,080 output channels compile on M5 Max, 124,160 do \
            not",
        why: "No axis of a tensor can be longer than 65,536. By Core ML a convolution may make \
            one, such as a head over a large vocabulary, but what takes its result runs \
            elsewhere.",
        fix: "Split the axis: two or more heads of at most 65,536 rows, and a concat on the host.",
        check: Check::Op(|v, op| {
            const MOST: usize = 65_536;
            let is_head = v.target.route == Route::CoreMl
                && kind(v, op) == "conv"
                && is_weight(v, op, "weight");
            let takes_little =
                || param_shape(v, op, "x").is_some_and(|x| x.iter().all(|n| *n <= MOST));
            if is_head && takes_little() {
                None
            } else {
                long_axis(v, op, &|_, _| MOST)
            }
        }),
        ..ROW
    },
    Rule {
        id: "ANE056",
        title: "Axes above 16,384 on M1 to M3 and A14 to A16",
        scope: Scope::generations(0, 15),
        source: "sbryngelson/ANEForge, measured on M1 and M2; ANEMLL splits heads for the same \
            reason",
        why: "Width and height end at 16,384 on these chips, channels at 65,536; a head over \
            32,000 words has to be split.",
        fix: "Split the axis into parts of at most 16,384, or put it on the channel axis of a 1x1 \
            convolution.",
        check: Check::Op(|v, op| {
            let spatial = |at: usize, rank: usize| {
                if at + 2 >= rank && (rank < 3 || at > 0) {
                    16_384
                } else {
                    65_536
                }
            };
            long_axis(v, op, &spatial)
        }),
        ..ROW
    },
    Rule {
        id: "ANE057",
        title: "Ranks above 5",
        source: "sbryngelson/ANEForge and 751K: rank 0 to 5 (\"Rank of the shape parameter must be \
            between 0 and 5\"); CoreML-LLM OP10: a rank-10 view faults on A18 Pro",
        why: "Tensors have at most five axes in a Core ML program and on the engine, between ops \
            too.",
        fix: "Merge axes before splitting others: several reshapes of rank 5 or less, or rearrange \
            on the host.",
        check: Check::Op(|v, op| {
            let (value, ty) = tensors(v, op).find(|(_, t)| t.rank() > 5)?;
            Some(format!(
                "Rank of the shape parameter must be between 0 and 5 (`{}` is {ty})",
                v.name(value)
            ))
        }),
        ..row(OpLeaves, Error)
    },
    Rule {
        id: "ANE058",
        title: "Axes whose length only the call knows",
        source: "sbryngelson/ANEForge (symbolic dimensions do not compile); ExecuTorch's Core ML \
            notes; cadamcat/llms-on-apple-neural-engine; coremltools #2600",
        disputed: "coremltools #1909 (2023, macOS 13) saw a flexible batch run as fast as on the \
            engine",
        why: "Programs of the engine have fixed shapes; an op with an unknown axis runs on the CPU \
            or GPU, ten times slower in one published case.",
        fix: "Make one function for each length (they share weights), and pad to the next.",
        check: Check::Op(|v, op| {
            let (value, ty) =
                tensors(v, op).find(|(_, t)| t.shape.iter().any(|d| d.known().is_none()))?;
            Some(format!(
                "`{}` is {ty}: its shape is not fixed",
                v.name(value)
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE059",
        title: "Ranges of shapes",
        source: "ExecuTorch's Core ML notes (RangeDim: CPU and GPU only); CoreML-LLM SZ15: 969 ms \
            against 101 ms at 512 tokens",
        disputed: "coremltools #1909 (2023, macOS 13) saw a range of batches run as fast as on the \
            engine",
        why: "A function that takes a range of lengths is compiled without the engine.",
        fix: "Write one function for each length, or enumerated shapes, which compile one program \
            each.",
        check: Check::Function(|v| {
            let ranges = flexible(v.f, "RangeDims").is_some_and(has_range);
            let hit = Hit::from(format!("`{}` takes ranges of shapes", v.f.name));
            ranges.then_some(hit).into_iter().collect()
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE060",
        title: "Products over more than 32,768 numbers",
        scope: Scope::generations(16, u8::MAX),
        source: "751K M6 study, probes with matmul_k16384 (runs) and matmul_k40000 (does not), M4, \
            macOS 27: the limit lies between 32,768 and 40,000",
        disputed: "ANEForge gives 65,536 for M4 and newer",
        why: "A matmul can sum over 32,768 at least and fewer than 40,000.",
        fix: "Split the sum: matmuls over parts of the axis, added.",
        check: Check::Op(|v, op| {
            let k = contraction(v, op)?;
            (kind(v, op) == "matmul" && k > 32_768)
                .then(|| format!("matmul sums over {k}, above 32768"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE061",
        title: "Products over more than 16,384 numbers on M1 to M3",
        scope: Scope::generations(0, 15),
        source: "sbryngelson/ANEForge, M1 to M3",
        why: "A matmul sums over at most 16,384 on these chips.",
        fix: "Split the sum: matmuls over parts of the axis, added.",
        check: Check::Op(|v, op| {
            let k = contraction(v, op)?;
            (kind(v, op) == "matmul" && k > 16_384)
                .then(|| format!("matmul sums over {k}, above 16384 on this chip"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE062",
        title: "Rows of inputs and outputs that do not fill 64 bytes, directly",
        source: "electricapp/ane-bridge-rs (M5), qwen-ane (M5 Max), mlx-serve (M4 Max), skyfallsin \
            field guide (M3 Max): four independent reports",
        why: "The last axis of what a call passes must be a multiple of 32 fp16 numbers; else rows \
            come back at another stride, as zeros, or the call ends with status 0x1d.",
        fix: "Pad the last axis to a multiple of 32, put the sequence there, and mask what is not \
            used.",
        check: Check::Function(|v| {
            let edges = v.f.body().inputs.iter().chain(&v.f.body().outputs);
            let last = |value| {
                v.f.value(value)
                    .ty
                    .tensor_or_state()
                    .and_then(|t| t.shape.last()?.known())
            };
            let bad = edges
                .filter_map(|value| last(*value).map(|n| (value, n)))
                .filter(|(_, n)| n % ROW_LEN != 0);
            bad.map(|(value, n)| {
                Hit::from(format!(
                    "the last axis of `{}` is {n}, no multiple of {ROW_LEN}",
                    v.name(*value)
                ))
            })
            .collect()
        }),
        ..direct(RunFails(Some("0x1d")), Error)
    },
    Rule {
        id: "ANE063",
        title: "Short last axes waste memory",
        evidence: Evidence::Documented,
        source: "Apple, neural_engine_rules.md: last axis contiguous, 64-byte aligned, never of \
            size 1 (32 times the memory in fp16); 751K reads the strides in analytics.mil",
        why: "Each row takes at least 64 bytes, so a last axis of 1 takes 32 times the memory and \
            the time to move it.",
        fix: "Lay tensors out as (batch, channels, 1, sequence), with the long axis last.",
        check: Check::Op(|v, op| {
            let result = *v.op(op).results.first().filter(|r| !v.is_fixed(**r))?;
            let ty = tensor(v, result)?;
            let (last, packed) = (ty.shape.last()?.known()?, bytes(ty)?);
            let padded = packed
                * ((last.div_ceil(ROW_LEN).max(1) as f64 * ROW_LEN as f64) / last.max(1) as f64);
            // 1 MB and 4 times: below that, a row's padding is lost among the cost of a call, as it
            // is beside ten times as many bytes of weights, which a product of one position reads.
            let weights = product_of(v, op).map_or(0.0, |product| product.weight_bytes());
            (padded >= 4.0 * packed && padded >= 1e6 && 10.0 * padded >= weights).then(|| {
                format!(
                    "`{}` is {ty}: {} of numbers take {}",
                    v.name(result),
                    show_bytes(packed),
                    show_bytes(padded)
                )
            })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE157",
        title: "A softmax over 32,768 numbers or more on M6 and A19",
        scope: Scope::generations(18, u8::MAX),
        source: "Anemll/anemll-forge, M6, macOS 27.0: one softmax over a history of 32K or 64K \
            does not compile, tiles of 2,048 and 4,096 columns do",
        disputed: "it was measured with Core AI; nobody published the same test with Core ML or on \
            A19",
        why: "The engine's compiler fails at a softmax over so long an axis, and the whole package \
            then runs on the CPU.",
        fix: "Compute the softmax in tiles of 2,048 to 4,096 numbers, with one maximum over all \
            tiles.",
        check: Check::Op(|v, op| {
            let shape = param_shape(v, op, "x")?;
            let n = shape[wrap(int(v, op, "axis").unwrap_or(-1), shape.len())?];
            (kind(v, op) == "softmax" && n >= 32_768)
                .then(|| format!("softmax over {n} numbers: 32768 did not compile"))
        }),
        ..row(CompileFails(Some("ANECCompile() FAILED")), Warning)
    },
    Rule {
        id: "ANE064",
        title: "Products of rank 5",
        evidence: Evidence::Folklore,
        source: "CoreML-LLM OP09: matmuls of rank 5 tend to the CPU, of rank 3 stay on the engine; \
            Mac",
        why: "A batched product over two batch axes was seen on the CPU more often than one over a \
            single batch axis.",
        fix: "Merge the batch axes with a reshape before the product; it is free where the layout \
            allows it.",
        check: Check::Op(|v, op| {
            let rank = tensor(v, *v.op(op).results.first()?)?.rank();
            (kind(v, op) == "matmul" && rank == 5).then(|| "matmul of rank 5".to_owned())
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE065",
        title: "Static gathers on M1 and A14",
        scope: Scope::generations(0, 13),
        source: "sbryngelson/ANEForge: gather in software on M1 (batch 1, depth 1), in hardware \
            from A14-class compilers on",
        why: "The oldest engine has no unit for it and copies element after element.",
        fix: "Use slices and a concat where the indices form runs.",
        check: Check::Kinds(
            &["gather", "gather_nd", "gather_along_axis"],
            "`{op}` is done in software on {chip}",
        ),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE066",
        title: "Resizing and sampling on M1 and A14",
        scope: Scope::generations(0, 13),
        source: "sbryngelson/ANEForge: the texture unit came with M2; M1 falls back to software",
        why: "Interpolation, affine sampling and reflecting pads use a texture unit that this chip \
            lacks.",
        fix: "Resize on the GPU before the call, or use a transposed convolution with constant \
            weights.",
        check: Check::Kinds(
            &[
                "resize",
                "resize_bilinear",
                "resize_nearest_neighbor",
                "upsample_bilinear",
                "upsample_nearest_neighbor",
                "affine",
                "resample",
            ],
            "`{op}` is done in software on {chip}",
        ),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE067",
        title: "Empty axes",
        evidence: Evidence::Inferred,
        source: "751K M6 study: every layer's validator asks for lengths from 1 to the cap of the \
            axis",
        why: "A tensor without elements has no place in a task of the engine, and the time of a call \
            with one says nothing.",
        fix: "Remove the op: what it gives is known without computing it.",
        check: Check::Op(|v, op| {
            let (value, ty) = tensors(v, op).find(|(_, t)| t.shape.contains(&Dim::Known(0)))?;
            Some(format!("`{}` is {ty}, which is empty", v.name(value)))
        }),
        ..row(CompileFails(None), Error)
    },
    Rule {
        id: "ANE173",
        title: "Tensors of 2 GiB or more",
        evidence: Evidence::Inferred,
        source: "Chromium's WebNN on Core ML takes tensors below 2^31 bytes only",
        why: "Core ML addresses the bytes of a tensor by 32 bits with a sign. Predicted times and \
            sizes of such a program say nothing.",
        fix: "Check the shape: an axis may be too long by a mistake. Else compute it in parts.",
        check: Check::Op(|v, op| {
            const MOST: f64 = 2_147_483_648.0;
            let mil = v.op(op);
            let values = mil.uses().chain(mil.results.iter().copied());
            let large = |value: &ValueId| !v.is_constant(*value) && work::bytes(v, *value) >= MOST;
            let value = values
                .filter(|value| v.f.value(*value).ty.tensor().is_some())
                .find(large)?;
            Some(format!(
                "`{}` has {}",
                v.name(value),
                predicted_bytes(work::bytes(v, value))
            ))
        }),
        ..row(CompileFails(None), Error)
    },
];

/// What is said of an axis that is longer than `cap` of its place and the rank allows.
fn long_axis(v: &View<'_>, op: OpId, cap: &dyn Fn(usize, usize) -> usize) -> Option<String> {
    let too_long = |t: &TensorType| {
        let axes = t
            .shape
            .iter()
            .enumerate()
            .filter_map(|(i, d)| d.known().map(|n| (i, n)));
        axes.clone().find(|(i, n)| *n > cap(*i, t.rank()))
    };
    let (value, (axis, n)) = tensors(v, op).find_map(|(value, ty)| Some((value, too_long(ty)?)))?;
    let most = cap(axis, tensor(v, value)?.rank());
    Some(format!(
        "axis {axis} of `{}` is {n}, above {most}",
        v.name(value)
    ))
}

/// What the function says of its flexible shapes under a name.
pub fn flexible<'a>(f: &'a Function, name: &str) -> Option<&'a Literal> {
    let (_, info) = f
        .attributes
        .iter()
        .find(|(key, _)| key == "FlexibleShapeInformation")?;
    let Literal::Tuple(parts) = info else {
        return None;
    };
    parts.iter().find_map(|part| match part {
        Literal::Tuple(pair) if pair.first().and_then(Literal::as_str) == Some(name) => pair.get(1),
        _ => None,
    })
}

/// Whether some axis has a range of more than one length.
pub fn has_range(ranges: &Literal) -> bool {
    match ranges {
        Literal::Dict(_, _, items) => items.iter().any(|(_, v)| has_range(v)),
        Literal::List(_, items) | Literal::Tuple(items) => items.iter().any(has_range),
        Literal::Tensor(..) => ranges
            .to_ints()
            .is_some_and(|ends| matches!(ends[..], [a, b] if a != b)),
        Literal::String(_) => false,
    }
}
