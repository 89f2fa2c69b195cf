//! Rules about states: how many there are, how wide they are, and which ops stand between reading
//! and writing them.

use thane_mil::program::{OpId, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use super::query::{
    bytes, gives_state, is_any, kind, param_type, producer, producers, show_bytes, tensor, users,
};
use super::recurrence::is_recurrent;
use super::shapes::{flexible, has_range};
use super::{core_ml, direct, row};
use crate::rule::Effect::{CompileFails, LoadFails, ProgramLeaves, RunFails, Slow, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule, Scope};
use crate::target::{Evidence, Route};
use crate::view::View;

/// Bytes that a row of a state is padded to a multiple of.
const ROW_BYTES: usize = 2 * super::ROW_LEN;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE068",
        title: "Three states or more",
        source: "CoreML-LLM ST04, MLSTATE_PATTERN: iPhone 17 Pro, iOS 26; the plan shows 99.8 to \
            100 % on the engine all the same",
        why: "Functions with one or two states run; from three on each call ends with status 0x1d, \
            though the plan looks right.",
        fix: "Pack caches of one shape into one state (layers on an axis), and slice it.",
        check: Check::Function(|v| {
            let n = states(v).len();
            Hit::when(n > 2, None, || {
                format!(
                    "{n} states in `{}`, 2 are the most that were seen to run",
                    v.f.name
                )
            })
        }),
        ..row(RunFails(Some("0x1d")), Error)
    },
    Rule {
        id: "ANE069",
        title: "Two states",
        source: "CoreML-LLM ST03: a cache and a convolution state fail at the call in nine \
            variants, macOS 26.0.1",
        disputed: "CoreML-LLM ST02: two caches run at 31 to 33 tokens/s on iPhone 17 Pro",
        why: "Two states ran for one model and failed at the call for another.",
        fix: "Use one state, or test on the device before shipping.",
        check: Check::Function(|v| {
            Hit::when(states(v).len() == 2, None, || {
                format!("2 states in `{}`: one model runs, another fails", v.f.name)
            })
        }),
        ..row(RunFails(Some("0x1d")), Note)
    },
    Rule {
        id: "ANE070",
        title: "States whose last axis is no multiple of 32",
        source: "coremltools #2631: width 270 fails on the engine only, 256 runs; M4, macOS 15.2; \
            CoreML-LLM SZ08; oxinfer, M5 Max, macOS 26: a last axis of 3 fails at the call",
        disputed: "CoreML-LLM ran heads of other widths after padding them by itself; through e5rt \
            on M4 other widths run in buffers of padded rows (tmc/apple, ANE167)",
        why: "Rows of a state lie 64 bytes apart on the engine, 32 fp16 numbers; other widths fail \
            there, not on the CPU or GPU.",
        fix: "Pad the last axis of the state to a multiple of 32.",
        check: Check::Function(|v| {
            let narrow = |t: &TensorType| {
                t.shape
                    .last()
                    .and_then(|d| d.known())
                    .filter(|n| n % super::ROW_LEN != 0)
            };
            let hits = states(v)
                .into_iter()
                .filter_map(|(value, t)| narrow(t).map(|n| (value, n)));
            hits.map(|(value, n)| {
                Hit::from(format!(
                    "the last axis of state `{}` is {n}, no multiple of 32",
                    v.name(value)
                ))
            })
            .collect()
        }),
        ..row(LoadFails(None), Error)
    },
    Rule {
        id: "ANE071",
        title: "Several functions, and states that are updated at several positions",
        source: "CoreML-LLM ST05 and ST06: iPhone 17 Pro; the same compiles on a Mac",
        disputed: "CoreML-LLM ST06: several functions with one state run to 8 tokens and fail at \
            32",
        why: "On phones the compiler refuses a package of several functions in which one updates \
            two states by more than one position, or one state by more than 8.",
        fix: "Ship prefill as a package of its own with one function.",
        check: Check::Function(|v| {
            let n_states = states(v).len();
            let most = if n_states > 1 { 1 } else { 8 };
            let wide = v.f.all_ops().into_iter().find_map(|op| {
                let n = updated_positions(v, op)?;
                (n > most).then_some((op, n))
            });
            let (op, n) = wide.unzip();
            let fails = v.target.is_mobile() && v.program.functions().len() > 1 && n_states > 0;
            Hit::when(fails && op.is_some(), op, || {
                let states = if n_states == 1 {
                    "1 state".to_owned()
                } else {
                    format!("{n_states} states")
                };
                format!(
                    "{} functions, {states}, {} positions a call; the most that was seen to \
                     compile is {most}",
                    v.program.functions().len(),
                    n.unwrap_or_default()
                )
            })
        }),
        ..row(CompileFails(Some("ANECCompile() FAILED (11)")), Error)
    },
    Rule {
        id: "ANE072",
        title: "States of another type than fp16",
        evidence: Evidence::Documented,
        source: "Apple, Core ML and coremltools documentation of states: fp16 only",
        why: "Core ML keeps states as fp16 arrays.",
        fix: "Declare the state as fp16 and cast around it, or pass the tensor in and out.",
        check: Check::Function(|v| {
            let other = states(v)
                .into_iter()
                .filter(|(_, t)| t.dtype != DType::Fp16);
            other
                .map(|(value, t)| {
                    Hit::from(format!(
                        "state `{}` is {}, not fp16",
                        v.name(value),
                        t.dtype
                    ))
                })
                .collect()
        }),
        ..row(LoadFails(None), Error)
    },
    Rule {
        id: "ANE073",
        title: "A view between reading a state and using it",
        source: "coremltools #2278",
        disputed: "later coremltools rewrite the pattern (pass canonicalize_inplace_pattern)",
        why: "Where a state is transposed or reshaped before its first slice, the package was \
            refused with \"input not found\".",
        fix: "Slice what was read first, then transpose the slice; or store the state in the \
            layout that is used.",
        check: Check::Op(|v, op| {
            let read = kind(v, op) == "transpose" || kind(v, op) == "reshape";
            let of_state = producer(v, op, "x").is_some_and(|p| p.def.name == "read_state");
            let updated =
                users(v, op).any(|u| is_any(v, u, &["slice_update", "coreml_update_state"]));
            (read && of_state && updated)
                .then(|| format!("`{}` between read_state and the update", kind(v, op)))
        }),
        ..row(
            LoadFails(Some("MIL program input not found in Core ML model inputs")),
            Warning,
        )
    },
    Rule {
        id: "ANE074",
        title: "A part of a state as an output",
        source: "CoreML-LLM ST07: iPhone, one model; another form of it compiles on a Mac",
        why: "An output that is a slice of a state ended the compiler with std::bad_cast.",
        fix: "Give out what was computed before it was written, or add 0 to the slice.",
        check: Check::Op(|v, op| {
            let result = *v.op(op).results.first()?;
            let sliced = is_any(v, op, &["slice_by_index", "slice_by_size", "split"]);
            let of_state = producer(v, op, "x").is_some_and(|p| gives_state(p.def.name));
            (sliced && of_state && v.op(op).results.iter().any(|r| v.is_output(*r)))
                .then(|| format!("output `{}` is a part of a state", v.name(result)))
        }),
        ..row(CompileFails(Some("std::bad_cast")), Error)
    },
    Rule {
        id: "ANE075",
        title: "What a state is set to as an output",
        source: "coremltools #2713 (2026): loading crashes, on every compute unit",
        why: "Where one tensor is written to a state and given out too, Core ML crashes when it \
            loads the program.",
        fix: "Give out something computed from it, such as the tensor times 1.",
        check: Check::Op(|v, op| {
            let written = v
                .op(op)
                .value_arg("value")
                .or_else(|| v.op(op).value_arg("data"))?;
            (is_any(v, op, &["coreml_update_state", "write_state"]) && v.is_output(written)).then(
                || {
                    format!(
                        "`{}` is written to a state and is an output",
                        v.name(written)
                    )
                },
            )
        }),
        ..row(LoadFails(Some("segmentation fault")), Error)
    },
    Rule {
        id: "ANE076",
        title: "States in a function of flexible shapes",
        source: "coremltools #2600",
        why: "With a state and a range of lengths in one function, every op was placed on the CPU.",
        fix: "Write one function of fixed length for each length.",
        check: Check::Function(|v| {
            let symbolic =
                |value: &ValueId| tensor(v, *value).is_some_and(|t| t.known_shape().is_none());
            let flexible = flexible(v.f, "RangeDims").is_some_and(has_range)
                || v.f.body().inputs.iter().any(symbolic);
            Hit::when(flexible && !states(v).is_empty(), None, || {
                format!("`{}` has states and inputs of no fixed shape", v.f.name)
            })
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE077",
        title: "Large states cost each call",
        source: "CoreML-LLM ST15: 24.1, 9.4 and 4.9 tokens/s at 1024, 2048 and 4096 positions, \
            Mac; qwen-ane: 7 to 20 GB/s",
        why: "All of a state is read at each call, however little of it is used: 7 to 20 GB/s on \
            M5 Max.",
        fix: "Keep one function for each context length, or use a sliding window where the model \
            has one.",
        check: Check::Function(|v| {
            let n: f64 = states(v).iter().filter_map(|(_, t)| bytes(t)).sum();
            // 16 MB: at 20 GB/s that is the 0.8 ms that a chunk boundary costs at most.
            Hit::when(n >= 16e6, None, || {
                format!(
                    "{} of states are read a call: {:.1} to {:.1} ms",
                    show_bytes(n),
                    n / 20e6,
                    n / 7e6
                )
            })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE078",
        title: "Long updates of a state beside linear layers",
        source: "coremltools #2553, Anemll #27: updates of 16 or 32 positions with 1x1 \
            convolutions load, longer ones with linear do not",
        why: "A function that writes more than 32 positions into a state and has `linear` ops did \
            not load on the engine.",
        fix: "Use 1x1 convolutions in place of linear, or write at most 32 positions a call.",
        check: Check::Function(|v| {
            let mut ops = v.f.body().ops.iter().copied();
            if !ops.clone().any(|op| kind(v, op) == "linear") {
                return Vec::new();
            }
            let long = ops.find_map(|op| {
                updated_positions(v, op)
                    .filter(|n| *n > 32)
                    .map(|n| (op, n))
            });
            let hit = |(op, n)| Hit {
                op: Some(op),
                message: format!("{n} positions are written beside `linear` ops"),
            };
            long.map(hit).into_iter().collect()
        }),
        ..row(LoadFails(None), Warning)
    },
    Rule {
        id: "ANE079",
        title: "States that are shifted by a concat",
        source: "CoreML-LLM ST08, DECODE_STATE_LAYOUTS: with tied embeddings, iPhone and Mac",
        why: "Dropping the oldest position and appending the newest made the plan fail with code \
            -14.",
        fix: "Blend with a mask, state * (1 - m) + new * m, or use slice_update at a position.",
        check: Check::Op(|v, op| {
            let update = is_any(v, op, &["coreml_update_state", "write_state"]);
            let value = v
                .op(op)
                .value_arg("value")
                .or_else(|| v.op(op).value_arg("data"))?;
            let joined = v.f.definer(value).filter(|d| d.def.name == "concat")?;
            let shifted = producers(v, joined).any(|d| {
                let read = d
                    .value_arg("x")
                    .and_then(|x| v.f.definer(x))
                    .is_some_and(|p| p.def.name == "read_state");
                read && d.def.name.starts_with("slice_by")
            });
            (update && shifted)
                .then(|| "the state is written as a concat of its own tail".to_owned())
        }),
        ..row(LoadFails(Some("-14")), Warning)
    },
    Rule {
        id: "ANE080",
        title: "States on engines of the generation of M5",
        scope: Scope::generations(17, 17).on(Route::CoreMl),
        evidence: Evidence::Folklore,
        source: "VoxCPMANE #10 and #15: M5 Max, macOS 26.4.1 and the beta of 27",
        disputed: "others run states on the engines of A19 Pro and M4; the reports are of one app",
        why: "One app's stateful programs failed at the call on M5 Max. A18 and A18 Pro have an \
            engine of the same generation (H17); nobody reported states on them.",
        fix: "Test on the device; passing caches in and out always works.",
        check: Check::Function(|v| {
            Hit::when(!states(v).is_empty(), None, || {
                let chip = v.target.chip;
                let same = if chip.name.starts_with("m5") {
                    String::new()
                } else {
                    format!("; {} has an engine of the same generation", chip.marketing)
                };
                format!(
                    "`{}` has states, and one app's failed on M5 Max{same}",
                    v.f.name
                )
            })
        }),
        ..row(RunFails(Some("E5RT Code=8")), Note)
    },
    Rule {
        id: "ANE081",
        title: "4-bit palettes beside a state",
        source: "coremltools #2716: packages of coremltools 9.0 crash after 100 to 200 calls in a \
            row, those of 8.3 do not",
        why: "A stateful package with 4-bit palettized weights crashed the app after some 150 \
            calls.",
        fix: "Run 500 calls in a row on the device before shipping; 6-bit palettes were not \
            reported.",
        check: Check::Function(|v| {
            let four = |op: &OpId| {
                kind(v, *op) == "constexpr_lut_to_dense"
                    && param_type(v, *op, "indices").is_some_and(|t| t.dtype == DType::Uint4)
            };
            let found = v.f.body().ops.iter().copied().find(four);
            Hit::when(found.is_some() && !states(v).is_empty(), found, || {
                "4-bit palettes in a function with states".to_owned()
            })
        }),
        ..core_ml(RunFails(None), Note)
    },
    Rule {
        id: "ANE082",
        title: "States on the direct route",
        source: "electricapp/ane-bridge-rs docs/MIL-CONSTRAINTS.md, M5, macOS 26.5.2; ANEForge: \
            states cannot be written",
        disputed: "tmc/apple and mil_spec, M4, macOS 26: through e5rt a state is an inout port, \
            stays in place between calls, and 8 layers gave the right numbers",
        why: "State ops are rejected where Core ML is not there to keep the state.",
        fix: "Pass the tensor in and out and bind the same surface to both.",
        check: Check::Kinds(
            &["read_state", "coreml_update_state", "write_state"],
            "`{op}` on the direct route",
        ),
        ..direct(CompileFails(None), Error)
    },
    Rule {
        id: "ANE167",
        title: "Rows of states that do not fill 64 bytes, directly",
        source: "tmc/apple, M4, macOS 26, through e5rt: a state of [1, C, 1, D] takes C * \
            roundup(2 * D, 64) bytes, inputs and outputs are packed",
        disputed: "mil_spec, M4: state sections of compiled programs are dense",
        why: "The engine writes each row of the state at a multiple of 64 bytes. A packed buffer \
            is too short, and what lies behind it is overwritten without an error.",
        fix: "Allocate rows of a multiple of 64 bytes, or make the last axis a multiple of 32.",
        check: Check::Function(|v| {
            let row = |t: &TensorType| Some(t.shape.last()?.known()? * t.dtype.bits() / 8);
            let uneven = |t: &TensorType| row(t).filter(|n| !n.is_multiple_of(ROW_BYTES));
            let hits = states(v)
                .into_iter()
                .filter_map(|(value, t)| uneven(t).map(|n| (value, n)));
            hits.map(|(value, n)| {
                Hit::from(format!(
                    "rows of state `{}` are {n} bytes, {} in its buffer",
                    v.name(value),
                    n.next_multiple_of(ROW_BYTES)
                ))
            })
            .collect()
        }),
        ..direct(WrongResult, Warning)
    },
    Rule {
        id: "ANE168",
        title: "Small numbers in recurrent states",
        source: "anemll-forge (M6, macOS 27) and oxinfer (M5 Max, macOS 26), linear \
            attention: a product of which 61 % are subnormal is off by 20 %",
        why: "The engine takes fp16 numbers below 6.1e-5 as 0, so that a state which decays from \
            call to call loses what is small in it. A program does not show how large its numbers \
            are.",
        fix: "Keep the state scaled up and divide what is read from it: by sqrt(head_dim) in \
            oxinfer; anemll-forge scales queries by 16, values by 64, and epsilon to match.",
        check: Check::Op(|v, op| {
            let update = is_any(v, op, &["coreml_update_state", "write_state"]);
            let args = v.op(op);
            let value = args.value_arg("value").or_else(|| args.value_arg("data"))?;
            let state = args
                .value_arg("state")
                .or_else(|| args.value_arg("input"))?;
            (update && v.dtype(value) == Some(DType::Fp16) && is_recurrent(v, value)).then(|| {
                format!(
                    "state `{}` decays: numbers below 6.1e-5 are lost",
                    v.name(state)
                )
            })
        }),
        ..row(WrongResult, Note)
    },
];

/// The states of a function and what they hold.
fn states<'a>(v: &View<'a>) -> Vec<(ValueId, &'a TensorType)> {
    let inputs = v.f.body().inputs.iter();
    inputs
        .filter_map(|value| match &v.f.value(*value).ty {
            Type::State(t) => Some((*value, t)),
            _ => None,
        })
        .collect()
}

/// How many positions a `slice_update` of a state writes: the length of the one axis that it does
/// not fill.
fn updated_positions(v: &View<'_>, op: OpId) -> Option<usize> {
    if kind(v, op) != "slice_update" {
        return None;
    }
    let reads = producer(v, op, "x").is_some_and(|p| gives_state(p.def.name));
    let (x, update) = (param_type(v, op, "x")?, param_type(v, op, "update")?);
    let partial = x
        .shape
        .iter()
        .zip(&update.shape)
        .rev()
        .find(|(a, b)| a != b)?;
    partial.1.known().filter(|_| reads)
}
