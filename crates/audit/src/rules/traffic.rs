//! Rules about data that is moved without being computed on: layouts, copies, inputs, tails.

use thane_mil::program::{OpId, ValueId};

use super::query::{
    bytes, is_any, is_runtime, is_weight, kind, label, operands, param_shape, param_type, product,
    reaches, show_bytes, tensor, users,
};
use super::{core_ml, direct, row};
use crate::rule::Effect::{RunFails, Slow};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule};
use crate::target::Evidence;
use crate::view::View;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE132",
        title: "Transposes of large tensors",
        source: "sbryngelson/ANEForge: about 60 GB/s; electricapp/ane-bridge-rs: reshapes that \
            keep the layout are free",
        why: "A transpose moves every number through memory, read and written, at about 60 GB/s.",
        fix: "Keep (batch, channels, 1, sequence) throughout, or use the transpose flags of \
            matmul.",
        check: Check::Op(|v, op| {
            let n = param_type(v, op, "x")
                .filter(|_| kind(v, op) == "transpose" && is_runtime(v, op, "x"))
                .as_ref()
                .and_then(bytes)?;
            // 1 MB: 33 us, the least that shows beside a call's 100 us.
            (n >= 1e6).then(|| {
                format!(
                    "transposes {}: about {:.0} us",
                    show_bytes(n),
                    2.0 * n / 60e3
                )
            })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE133",
        title: "Large inputs beside the first",
        source: "751K M6 study, M6: 52 us for each further input of 2 MB",
        why: "Each further input is copied to the engine at each call: about 26 us a megabyte.",
        fix: "Bind one surface to the output of a call and the input of the next, so that a cache \
            is not copied. A state is no such input, but reading and updating it takes time too: \
            for a model, `thane plan` says which of the two is faster.",
        check: Check::Function(|v| {
            let mut sizes: Vec<f64> =
                v.f.body()
                    .inputs
                    .iter()
                    .filter_map(|i| tensor(v, *i).and_then(bytes))
                    .collect();
            sizes.sort_by(f64::total_cmp);
            let further: f64 = sizes.iter().rev().skip(1).sum();
            Hit::when(further >= 2e6, None, || {
                format!(
                    "{} of further inputs: about {:.2} ms a call",
                    show_bytes(further),
                    further * 26e-9
                )
            })
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE134",
        title: "Many inputs and outputs",
        source: "CoreML-LLM RT19, iPhone 17 Pro: 48 wrapped arrays of about 100 us each, 13 to 28 \
            tokens/s after joining them",
        why: "Each array is wrapped, checked and bound by the app at each call: up to 0.1 ms each.",
        fix: "Join caches of all layers into one input and one output. A state is no such input, \
            but reading and updating it takes time too: for a model, `thane plan` says which of \
            the two is faster.",
        check: Check::Function(|v| {
            let n = v.f.body().inputs.len() + v.f.body().outputs.len();
            // 24: half of what the source had, and more than four caches, mask, position and hidden
            // states in and out.
            Hit::when(n > 24, None, || {
                format!("`{}` has {n} inputs and outputs", v.f.name)
            })
        }),
        ..core_ml(Slow, Note)
    },
    Rule {
        id: "ANE135",
        title: "argmax behind the head",
        source: "CoreML-LLM OP03 and OP20: 8 to 9 ops behind the head (softcap, squeeze, \
            expand_dims, argmax) on the CPU",
        why: "The argmax runs on the CPU and pulls the elementwise ops beside it along.",
        fix: "Give the logits out and take the argmax in the app: about 1 ms for 248,000 logits.",
        check: Check::Op(|v, op| {
            if !is_any(v, op, &["reduce_argmax", "topk", "argsort"]) {
                return None;
            }
            let (tail, head) = tail_of_product(v, op)?;
            let ops = if tail == 1 { "op" } else { "ops" };
            Some(format!(
                "{tail} {ops} between the product `{}` and `{}`",
                label(v, head),
                kind(v, op)
            ))
        }),
        ..core_ml(Slow, Warning)
    },
    Rule {
        id: "ANE136",
        title: "Heads that are repeated before a product",
        source: "ExecuTorch keeps repeat_interleave off Core ML (slow); CoreML-LLM OP26: about 3.5 \
            ms a layer at 6,000 tokens",
        disputed: "CoreML-LLM uses it for grouped queries all the same",
        why: "Repeating keys and values for each group of heads writes and reads them again, \
            several times their size.",
        fix: "Put the group on an axis of its own and let matmul broadcast over it.",
        check: Check::Op(|v, op| {
            let copies = is_any(v, op, &["tile", "concat", "stack"]) && copies(v, op) > 1;
            let product = copies
                && reaches(v, op, (5, &VIEWS), &|user, value| {
                    multiplies(v, user, value)
                });
            product.then(|| format!("`{}` repeats what a product then reads", kind(v, op)))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE137",
        title: "tile on the direct route",
        source: "skyfallsin/apple-neural-engine-field-guide, M3 Max, macOS 26.3.1: later calls of \
            the process end with 0x1d; qwen-ane: tile is refused",
        disputed: "ANEForge and 751K see no such thing; mil_spec: the compiler of M4 takes tile, \
            so that it depends on the build",
        why: "After a program with tile, every program of the process failed until it ended.",
        fix: "Use broadcasting ops, or a concat.",
        check: Check::Kinds(&["tile"], "`tile` on the direct route"),
        ..direct(RunFails(Some("0x1d")), Error)
    },
    Rule {
        id: "ANE138",
        title: "Weights that are passed in",
        source: "CoreML-LLM OP24: 27 ms a call for 415 MB of expert weights as inputs, Mac",
        why: "Weights that come with the call are copied each time, at about 15 GB/s, and are not \
            laid out beforehand.",
        fix: "Make a function for each set of weights in one package: 0.69 ms a layer in the same \
            case.",
        check: Check::Op(|v, op| {
            let name = if kind(v, op) == "matmul" {
                "y"
            } else {
                "weight"
            };
            let input = v.op(op).value_arg(name).filter(|w| v.is_input(*w))?;
            let ty = tensor(v, input)?;
            // A matrix: keys and values of attention have batch and head axes.
            let n = bytes(ty).filter(|n| *n >= 1e6 && (kind(v, op) == "conv" || ty.rank() == 2))?;
            is_any(v, op, &["matmul", "conv"])
                .then(|| format!("input `{}` is a weight of {}", v.name(input), show_bytes(n)))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE139",
        title: "Weights that are gathered",
        source: "CoreML-LLM OP24: 46 ms a layer for gathering experts, Mac",
        why: "A gather by computed indices runs on the CPU and copies the chosen matrices.",
        fix: "Make a function for each expert in one package, or multiply by all experts and mask.",
        check: Check::Op(|v, op| {
            let table = param_shape(v, op, "x")
                .filter(|_| is_weight(v, op, "x") && is_runtime(v, op, "indices"))?;
            (kind(v, op) == "gather" && table.len() >= 3 && product(&table) >= 1e6)
                .then(|| format!("gathers from weights of {table:?}"))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE140",
        title: "Elementwise ops over tens of megabytes",
        source: "751K M6 study: 401 us for x * 1.5 over [1,256,256,256] (32 MB), M6",
        why: "Tensors above 2 MB leave the chip between ops that are not fused: 24 to 40 GB/s.",
        fix: "Tile the work, or fold scales and offsets into weights and biases.",
        check: Check::Op(|v, op| {
            let elementwise = [
                "add", "sub", "mul", "real_div", "maximum", "minimum", "relu", "sigmoid", "tanh",
                "silu", "gelu", "exp",
            ];
            let result = *v
                .op(op)
                .results
                .first()
                .filter(|_| is_any(v, op, &elementwise))?;
            let n = tensor(v, result).and_then(bytes)?;
            // 2^25: the size that was measured.
            (n >= 2f64.powi(25)).then(|| format!("`{}` over {}", kind(v, op), show_bytes(n)))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE141",
        title: "A tensor with itself",
        source: "751K M6 study: both operands are read, M6",
        why: "x + x reads x twice.",
        fix: "Use x * 2, which fuses into the op before it.",
        check: Check::Op(|v, op| {
            let (x, y) = (v.op(op).value_arg("x")?, v.op(op).value_arg("y")?);
            (kind(v, op) == "add" && x == y && !v.is_fixed(x))
                .then(|| format!("`{}` is added to itself", v.name(x)))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE142",
        title: "Rotary tables that are gathered",
        evidence: Evidence::Documented,
        source: "Apple, neural_engine_rules.md: pass cosines and sines in as (1, head_dim, 1, S); \
            CoreML-LLM: residency 99.81 to 99.29 %",
        disputed: "CoreML-LLM gathers on purpose: the table is then the same in every function, so \
            that their weights are shared",
        why: "Looking up cosines and sines by position is a gather with run-time indices, which \
            the CPU runs.",
        fix: "Pass the rows for the positions in, or use static slices where the file may grow.",
        check: Check::Op(|v, op| {
            let table = param_shape(v, op, "x")
                .filter(|_| is_weight(v, op, "x") && is_runtime(v, op, "indices"))?;
            let scaled = reaches(v, op, (5, &VIEWS), &|user, _| kind(v, user) == "mul")
                && scales_only(v, op);
            (kind(v, op) == "gather"
                && table.len() == 2
                && table[1] <= 512
                && table[0] >= table[1]
                && scaled)
                .then(|| {
                    format!(
                        "gathers rows of a {}x{} table that scale another tensor",
                        table[0], table[1]
                    )
                })
        }),
        ..row(Slow, Note)
    },
];

/// Elementwise ops and views between an op and the product whose result it takes.
fn tail_of_product(v: &View<'_>, op: OpId) -> Option<(usize, OpId)> {
    let light = [
        "mul",
        "real_div",
        "tanh",
        "add",
        "squeeze",
        "expand_dims",
        "reshape",
        "cast",
        "transpose",
        "softmax",
        "slice_by_index",
    ];
    let mut at = op;
    for n in 0..10 {
        let value = operands(v, at).map(|(_, value)| value).next()?;
        let thane_mil::program::Definition::Result(from, _) = v.f.value(value).definition else {
            return None;
        };
        if is_any(v, from, &["linear", "conv", "matmul"]) {
            return Some((n, from));
        }
        if !is_any(v, from, &light) {
            return None;
        }
        at = from;
    }
    None
}

/// How often an op puts the same tensor side by side.
fn copies(v: &View<'_>, op: OpId) -> usize {
    if kind(v, op) == "tile" {
        let reps = super::query::ints(v, op, "reps").unwrap_or_default();
        return if is_runtime(v, op, "x") {
            reps.into_iter()
                .max()
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(1)
        } else {
            1
        };
    }
    let values: Vec<ValueId> = operands(v, op).map(|(_, value)| value).collect();
    match values.first() {
        Some(first) if values.iter().all(|value| value == first) => values.len(),
        _ => 1,
    }
}

/// Whether an op multiplies matrices one of which is `value`; a mask is none.
fn multiplies(v: &View<'_>, op: OpId, value: ValueId) -> bool {
    let taken = |name: &str| v.op(op).value_arg(name) == Some(value);
    match kind(v, op) {
        "matmul" | "einsum" => true,
        "scaled_dot_product_attention" => taken("key") || taken("value"),
        _ => false,
    }
}

const VIEWS: [&str; 6] = [
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "cast",
    "concat",
];

/// Whether all that takes what an op gives, or a view of it, multiplies activations by it. Rows of
/// a table that are added up or normalized are embeddings.
fn scales_only(v: &View<'_>, op: OpId) -> bool {
    let mut at = op;
    for _ in 0..5 {
        let Some(result) = v.op(at).results.first().copied() else {
            return false;
        };
        let scales =
            |u: OpId| kind(v, u) == "mul" && operands(v, u).any(|(_, other)| other != result);
        if users(v, at).all(scales) {
            return true;
        }
        let mut next = users(v, at);
        match (next.next(), next.next()) {
            (Some(only), None) if is_any(v, only, &VIEWS) => at = only,
            _ => return false,
        }
    }
    false
}
