//! Rules about element types.

use thane_mil::program::{OpId, ValueId};
use thane_mil::types::DType;

use super::query::{is_any, kind, operands, param_shape, small, tensor, tensors};
use super::{ROW, core_ml, direct, row};
use crate::rule::Effect::{CompileFails, Slow, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule};
use crate::target::Evidence;
use crate::view::View;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE046",
        title: "int32 arithmetic",
        source: "751K M6 study, probes with int32, M4, macOS 27; message of Core ML",
        why: "The engine has no int32; every op that reads or writes it runs on the CPU, and each \
            such island in the program costs about 0.25 ms.",
        fix: "Compute positions and indices on the host, pass them in as fp16 masks or int16 \
            indices, or write them as constants.",
        check: Check::Op(|v, op| {
            if is_any(v, op, INDEX_OPS) || kind(v, op) == "cast" {
                return None;
            }
            let value = int32_of(v, op)?;
            Some(format!(
                "Unsupported tensor data type: int32 (`{}`)",
                v.name(value)
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE047",
        title: "Casts to and from int32",
        source: "751K M6 study, probes cast_f16_i32 and cast_i32_f16, M4, macOS 27",
        why: "The engine has no int32, so a conversion to or from it runs on the CPU.",
        fix: "Take and give fp16 or int16 at the edges of the program; convert in the app.",
        check: Check::Op(|v, op| {
            let value = int32_of(v, op)?;
            (kind(v, op) == "cast")
                .then(|| format!("Unsupported tensor data type: int32 (`{}`)", v.name(value)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE048",
        title: "fp32 arithmetic",
        evidence: Evidence::Documented,
        source: "Apple, neural_engine_rules.md and common_issues.md (coreai-models); ANEForge: \
            fp32 passes through casts only",
        disputed: "751K's probe relu_f32 ran on the engine: there only inputs and outputs were \
            fp32, with casts at both ends",
        why: "The engine computes in fp16; an op on fp32 tensors runs on the CPU or GPU.",
        fix: "Convert with fp16 precision: cast inputs to fp16 at the start and outputs back at \
            the end, and keep constants in fp16.",
        check: Check::Op(|v, op| {
            if kind(v, op) == "cast" {
                return None;
            }
            let (value, _) = tensors(v, op).find(|(_, t)| t.dtype == DType::Fp32)?;
            Some(format!(
                "Unsupported tensor data type: fp32 (`{}`)",
                v.name(value)
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE049",
        title: "int8 outputs of the program",
        source: "751K M6 study, probe quantize_i8, M4, macOS 27",
        why: "An op whose result leaves the program as int8 runs on the CPU.",
        fix: "Give fp16 out and quantize in the app.",
        check: Check::Op(|v, op| {
            let out = v
                .op(op)
                .results
                .iter()
                .find(|r| v.is_output(**r) && is_byte(v, **r))?;
            Some(format!(
                "the output `{}` is {}",
                v.name(*out),
                tensor(v, *out)?.dtype
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE050",
        title: "Truth values at the edge of the program",
        source: "sbryngelson/ANEForge: bool is an intermediate type only; 751K M6 study agrees for \
            Core ML",
        why: "The engine has truth values inside a segment only; an op that takes one from the \
            call or gives one out leaves it.",
        fix: "Pass masks as fp16 numbers and compare inside the program.",
        check: Check::Op(|v, op| {
            let is_edge = |value| v.is_input(value) || v.is_output(value);
            let (value, _) =
                tensors(v, op).find(|(value, t)| t.dtype == DType::Bool && is_edge(*value))?;
            Some(format!(
                "Unsupported tensor data type: bool (`{}` is an input or output)",
                v.name(value)
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE051",
        title: "Inputs and outputs that the direct route does not take",
        source: "sbryngelson/ANEForge (e5rt rejects fp32 and int32 inputs and outputs), macOS 26; \
            True2456/qwen-ane rejects an int8 signature",
        disputed: "maderix/ANE: fp32 is taken with casts inside, 37 % slower than fp16",
        why: "Without Core ML around it, nothing converts: tensors of the call are fp16, or 8- and \
            16-bit integers.",
        fix: "Declare inputs and outputs as fp16 and convert in the app.",
        check: Check::Function(|v| {
            let edges = v.f.body().inputs.iter().chain(&v.f.body().outputs);
            let bad = edges.filter_map(|value| tensor(v, *value).map(|t| (value, t.dtype)));
            let taken = [
                DType::Fp16,
                DType::Int8,
                DType::Uint8,
                DType::Int16,
                DType::Uint16,
            ];
            bad.filter(|(_, d)| !taken.contains(d))
                .map(|(value, d)| {
                    Hit::from(format!(
                        "`{}` is {d}, which the direct route does not take",
                        v.name(*value)
                    ))
                })
                .collect()
        }),
        ..direct(CompileFails(None), Error)
    },
    Rule {
        id: "ANE052",
        title: "fp32 inputs and outputs",
        source: "smpanaro/coreml-llm-cli: fp16 arrays backed by IOSurface are not copied; \
            maderix/ANE: fp32 edges 37 % slower on the direct route",
        why: "fp32 arrays are converted and copied at each call, where fp16 arrays backed by an \
            IOSurface are used in place.",
        fix: "Declare inputs and outputs as fp16 (macOS 13, iOS 16) and hand over pixel buffers of \
            OneComponent16Half.",
        check: Check::Function(|v| {
            let edges = v.f.body().inputs.iter().chain(&v.f.body().outputs);
            let is_large = |value: &&ValueId| {
                tensor(v, **value).is_some_and(|t| {
                    t.dtype == DType::Fp32 && t.n_elements().is_none_or(|n| n >= 1 << 16)
                })
            };
            edges
                .filter(is_large)
                .map(|value| {
                    Hit::from(format!(
                        "`{}` is {}: converted and copied at each call",
                        v.name(*value),
                        v.f.value(*value).ty
                    ))
                })
                .collect()
        }),
        ..core_ml(Slow, Note)
    },
    Rule {
        id: "ANE053",
        title: "Indices of 16 bits over longer axes",
        source: "CoreML-LLM NU12: indices off by multiples of 65,536 where the pass add_int16_cast \
            had run",
        why: "An index above 65,535 does not fit 16 bits and comes back reduced by 65,536.",
        fix: "Keep int32 indices for vocabularies above 65,535, or split the axis and compare the \
            parts.",
        check: Check::Op(|v, op| {
            let name = if kind(v, op) == "topk" {
                "output_indices_dtype"
            } else {
                "output_dtype"
            };
            let limit = match small(v, op, name)?.as_str()? {
                "uint16" => 65_536,
                "int16" => 32_768,
                _ => return None,
            };
            let shape = param_shape(v, op, "x")?;
            let axis =
                super::query::wrap(super::query::int(v, op, "axis").unwrap_or(-1), shape.len())?;
            (is_any(v, op, &["topk", "reduce_argmax", "reduce_argmin"]) && shape[axis] > limit)
                .then(|| {
                    format!(
                        "an axis of {} needs indices of more than 16 bits",
                        shape[axis]
                    )
                })
        }),
        ..row(WrongResult, Error)
    },
    Rule {
        id: "ANE054",
        title: "Islands of integer arithmetic",
        evidence: Evidence::Inferred,
        source: "751K M6 study: the segmenter charges 0.125 ms to enter the engine and 0.125 ms \
            for each change; M4, macOS 27",
        why: "Each run of integer ops between ops of the engine makes it stop, hand over to the \
            CPU and start again: about 0.25 ms.",
        fix: "Move the integer arithmetic before the first op of the engine, or to the host.",
        check: Check::Function(integer_islands),
        ..core_ml(Slow, Warning)
    },
];

/// Ops whose integer operands are judged by rules of their own, or are taken: indices of
/// `gather_nd` and `gather_along_axis` (751K: the op runs on the engine, the cast before it does
/// not), positions of `slice_update`, the indices that `topk` gives.
const INDEX_OPS: &[&str] = &[
    "gather",
    "gather_nd",
    "gather_along_axis",
    "slice_update",
    "topk",
    "reduce_argmax",
    "reduce_argmin",
    "argsort",
    "shape",
    "non_zero",
    "non_maximum_suppression",
];

/// Parameters that say sizes or places; rules about them are in `parameters`.
const PLACES: &[&str] = &["begin", "end", "size", "shape", "reps", "pad", "lengths"];

/// A tensor of int32 that an op computes from or gives, whether it is one of its values or of those
/// it selects.
fn int32_of(v: &View<'_>, op: OpId) -> Option<ValueId> {
    let values = operands(v, op)
        .filter(|(name, _)| !PLACES.contains(name))
        .map(|(_, value)| value);
    let results = v.op(op).results.iter().copied().filter(|r| !v.is_fixed(*r));
    let mut data = values.chain(results);
    data.find(|value| tensor(v, *value).is_some_and(|t| t.dtype == DType::Int32))
}

fn is_byte(v: &View<'_>, value: ValueId) -> bool {
    tensor(v, value).is_some_and(|t| matches!(t.dtype, DType::Int8 | DType::Uint8))
}

/// Runs of integer ops after the first product of the function and before the last.
fn integer_islands(v: &View<'_>) -> Vec<Hit> {
    let heavy = |op: &OpId| {
        is_any(
            v,
            *op,
            &["conv", "linear", "matmul", "scaled_dot_product_attention"],
        )
    };
    let ops = &v.f.body().ops;
    let Some((first, last)) = ops
        .iter()
        .position(&heavy)
        .zip(ops.iter().rposition(&heavy))
    else {
        return Vec::new();
    };
    let between = ops[first..=last]
        .iter()
        .filter(|op| !v.op(**op).results.iter().all(|r| v.is_fixed(*r)));
    let mut islands: Vec<(OpId, usize)> = Vec::new();
    let mut inside = false;
    for op in between {
        let integer = int32_of(v, *op).is_some() && kind(v, *op) != "topk";
        match islands.last_mut() {
            Some((_, n)) if integer && inside => *n += 1,
            _ if integer => islands.push((*op, 1)),
            _ => {}
        }
        inside = integer;
    }
    let message = |n: usize| {
        let ops = if n == 1 { "op" } else { "ops" };
        format!(
            "{n} integer {ops} between products: about 0.25 ms to leave the engine and come back"
        )
    };
    islands
        .into_iter()
        .map(|(op, n)| Hit {
            op: Some(op),
            message: message(n),
        })
        .collect()
}
