//! Rules about ops that the Neural Engine has, with parameters that it does not support.

use thane_mil::program::{OpId, ValueId};

use super::query::{
    float, int, ints, is_any, is_runtime, kind, operands, param_shape, param_type, producer,
};
use super::{ROW, direct, row};
use crate::rule::Effect::{CompileFails, Slow, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Rule, Scope};
use crate::target::Evidence;
use crate::view::View;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE026",
        title: "Slices that begin where only the call knows",
        source: "751K M6 study, probe slice_dyn, M4, macOS 27",
        disputed: "ANEForge's bridge compiles a dynamic slice from A14 on, of width 4 only",
        why: "The engine's programs read at fixed places; a begin, end or size that is computed \
            takes the slice to the CPU.",
        fix: "Slice at a constant, multiply by a mask that the host makes, or slice before the \
            call.",
        check: Check::Op(|v, op| {
            let bounds = ["begin", "end", "size"]
                .into_iter()
                .find(|p| is_runtime(v, op, p))?;
            is_any(v, op, &["slice_by_index", "slice_by_size"])
                .then(|| format!("`{bounds}` of `{}` is known at run time only", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE027",
        title: "Sizes that only the call knows",
        evidence: Evidence::Inferred,
        source: "751K M6 study: static shapes only; ANEForge: symbolic dimensions parse and do not \
            compile",
        why: "How long the result is depends on a value of the call, and the engine runs fixed \
            shapes only.",
        fix: "Write the shape, repetitions or padding as a constant, in one function for each \
            length.",
        check: Check::Op(|v, op| {
            let sizes: &[(&str, &str)] = &[
                ("reshape", "shape"),
                ("tile", "reps"),
                ("pad", "pad"),
                ("resize", "shape"),
                ("fill", "shape"),
            ];
            let (_, param) = sizes
                .iter()
                .find(|(k, p)| *k == kind(v, op) && is_runtime(v, op, p))?;
            Some(format!(
                "`{param}` of `{}` is known at run time only",
                kind(v, op)
            ))
        }),
        ..ROW
    },
    Rule {
        id: "ANE028",
        title: "slice_update outside of a state",
        source: "anemll-profile, message of Core ML; CoreML-LLM ST01 for the form that works",
        disputed: "mil_lint: the plan of SmolLM2 has updates of states on the CPU too; mil_spec \
            and tmc/apple, M4 through e5rt: updates of states run in place",
        why: "Core ML writes slices on the engine only between reading a state and writing it \
            back.",
        fix: "Update a state with it, or blend: x * (1 - m) + update * m with a mask from the \
            host.",
        check: Check::Op(|v, op| {
            (kind(v, op) == "slice_update" && !is_state_update(v, op))
                .then(|| "Cannot support standalone slice_update".to_owned())
        }),
        ..ROW
    },
    Rule {
        id: "ANE029",
        title: "Padding with a number other than 0",
        evidence: Evidence::Inferred,
        source: "751K M6 study and anemll-profile: message in Core ML's binaries; no probe \
            published",
        why: "The engine pads with zeros, by reflection or by repetition; another constant is \
            refused.",
        fix: "Pad with 0 and add the constant times a mask, or shift: pad(x - c) + c.",
        check: Check::Op(|v, op| {
            let constant = int_or_constant(v, op)?;
            (kind(v, op) == "pad" && constant != 0.0).then(|| {
                format!(
                    "Constnt Pad fill mode with non-zero values is not supported on ANE \
                     (constant_val = {constant})"
                )
            })
        }),
        ..ROW
    },
    Rule {
        id: "ANE030",
        title: "Wide convolution kernels",
        source: "751K M6 study, probes conv_k1x15 (runs) and conv_k1x24 (does not), M4, macOS 27; \
                 electricapp/ane-bridge-rs: direct compiles fail from width 16, M5",
        why: "A kernel can be 15 wide; 16 by 16 is the one wider form that is accepted.",
        fix: "Split the kernel along its width and add the parts, or put the long axis on the \
            height, which may be 31.",
        check: Check::Op(|v, op| {
            let (h, w) = kernel(v, op)?;
            (w > 15 && (h, w) != (16, 16)).then(|| format!("kernel {h}x{w}: width {w} is above 15"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE031",
        title: "Kernel width on M1 and A14",
        scope: Scope::generations(0, 13),
        source: "sbryngelson/ANEForge, M1, direct compiles",
        why: "The oldest engine takes kernels up to 13 wide.",
        fix: "Split the kernel along its width and add the parts.",
        check: Check::Op(|v, op| {
            let (h, w) = kernel(v, op)?;
            (w > 13 && w <= 15)
                .then(|| format!("kernel {h}x{w}: width {w} is above 13 on this chip"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE032",
        title: "High convolution kernels",
        source: "751K M6 study, probes conv_k31x1 (runs) and conv_k64x1 (does not), M4, macOS 27",
        why: "A kernel can be 31 high; between 32 and 63 nobody has tried.",
        fix: "Split the kernel along its height and add the parts.",
        check: Check::Op(|v, op| {
            let (h, w) = kernel(v, op)?;
            (h > 31).then(|| format!("kernel {h}x{w}: height {h} is above 31"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE033",
        title: "16x16 kernels take minutes to compile",
        source: "751K M6 study, probe conv_k16, M4, macOS 27: 212 to 229 s and 11.7 GB of memory",
        why: "The kernel is accepted, but unrolled by the compiler: 212 to 229 s and 11.7 GB at \
            the first load, on every update of the system.",
        fix: "Use space_to_depth and a smaller kernel (a 16x16 patch embedding is a reshape and a \
            1x1 convolution).",
        check: Check::Op(|v, op| {
            (kernel(v, op)? == (16, 16))
                .then(|| "16x16 kernel: about 220 s and 11.7 GB to compile".to_owned())
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE034",
        title: "max_pool windows wider than 8",
        source: "751K M6 study, probes max_pool_k7 and k9x1 (run), k1x9 and k13 to k15 (do not), \
            M4, macOS 27",
        why: "The engine takes maxima over windows up to 8 wide; the height may be more.",
        fix: "Pool twice (two windows of 7 make one of 13), or put the long axis on the height.",
        check: Check::Op(|v, op| {
            let window = ints(v, op, "kernel_sizes")?;
            let width = *window.last()?;
            (kind(v, op) == "max_pool" && width > 8)
                .then(|| format!("max_pool window {window:?}: width {width} is above 8"))
        }),
        ..ROW
    },
    Rule {
        id: "ANE035",
        title: "Pooling windows above 31 on the direct route",
        source: "sbryngelson/ANEForge op catalog: windows up to 29 to 31, by chip",
        why: "The engine's compiler refuses larger windows.",
        fix: "Pool twice, or take the mean of a whole axis with reduce_mean.",
        check: Check::Op(|v, op| {
            let window = ints(v, op, "kernel_sizes")?;
            window
                .iter()
                .any(|w| *w > 31)
                .then(|| format!("pooling window {window:?} is above 31"))
        }),
        ..direct(CompileFails(None), Error)
    },
    Rule {
        id: "ANE036",
        title: "Strides with factors other than 2 and 3",
        evidence: Evidence::Documented,
        source: "Apple, neural_engine_rules.md (coreai-models)",
        why: "The engine steps by 2 and 3; Apple asks for strides that factor into those.",
        fix: "Use a stride of 2, 3, 4, 6 or 8, or slice after a convolution of stride 1.",
        check: Check::Op(|v, op| {
            let strides = ints(v, op, "strides")?;
            let odd = strides.iter().find(|s| !only_2_and_3(**s))?;
            is_any(v, op, &["conv", "conv_transpose"])
                .then(|| format!("stride {odd} has a factor other than 2 and 3"))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE037",
        title: "local_response_norm over more than 15 channels, directly",
        source: "sbryngelson/ANEForge op catalog: bridge to C = 15",
        why: "The form that compiles directly takes 15 channels at most.",
        fix: "Write it as square, avg_pool over channels, pow and real_div.",
        check: Check::Op(|v, op| {
            let channels = *param_shape(v, op, "x")?.get(1)?;
            (kind(v, op) == "local_response_norm" && channels > 15)
                .then(|| format!("local_response_norm over {channels} channels: 15 are the most"))
        }),
        ..direct(CompileFails(None), Error)
    },
    Rule {
        id: "ANE038",
        title: "Convolutions whose weights come with the call, directly",
        source: "skyfallsin/apple-neural-engine-field-guide, M3 Max, macOS 26.3.1: the weight \
            input is ignored without an error",
        disputed: "ANEForge: works at batch 1; qwen-ane: works on M5 Max; 751K: Core ML accepts it \
            on M4",
        why: "The weights of a convolution are laid out when it is compiled; a weight that is an \
            input was seen to be ignored.",
        fix: "Use matmul for products of two activations.",
        check: Check::Op(|v, op| {
            (kind(v, op) == "conv" && is_runtime(v, op, "weight"))
                .then(|| "the weight of this `conv` is no constant".to_owned())
        }),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE039",
        title: "pow with a constant tensor as exponent, directly",
        source: "True2456/qwen-ane, M5 Max, macOS 27",
        why: "The direct route takes a scalar or a run-time tensor as exponent, no constant \
            tensor.",
        fix: "Use a scalar, or exp(y * log(x)).",
        check: Check::Op(|v, op| {
            let exponent = param_type(v, op, "y")?;
            (kind(v, op) == "pow" && exponent.rank() > 0 && !is_runtime(v, op, "y"))
                .then(|| format!("the exponent is a constant {exponent}"))
        }),
        ..direct(CompileFails(Some("InvalidMILProgram")), Error)
    },
    Rule {
        id: "ANE040",
        title: "Constants of rank 4 in elementwise ops, directly",
        source: "True2456/qwen-ane, M5 Max, macOS 27",
        why: "Constants of rank 4 pass as weights of a convolution and not as operands of add or \
            mul.",
        fix: "Fold them into a bias or a 1x1 convolution by channel, or pass them in.",
        check: Check::Op(|v, op| {
            let elementwise = is_any(
                v,
                op,
                &["add", "sub", "mul", "real_div", "maximum", "minimum"],
            );
            let constant = ["x", "y"]
                .into_iter()
                .filter(|p| !is_runtime(v, op, p))
                .find_map(|p| param_type(v, op, p))?;
            (elementwise && constant.rank() == 4)
                .then(|| format!("`{}` with a constant {constant}", kind(v, op)))
        }),
        ..direct(CompileFails(Some("InvalidMILProgram")), Error)
    },
    Rule {
        id: "ANE041",
        title: "Convolutions over 32,000 input channels, directly",
        source: "christopherkarani/Espresso and Orion: 32,000 input channels are rejected, 32,000 \
            output channels are not",
        why: "A convolution that sums over that many channels did not compile, where one that \
            makes as many did.",
        fix: "Use matmul, or split the input channels and add.",
        check: Check::Op(|v, op| {
            let channels = *param_shape(v, op, "weight")?.get(1)?;
            (kind(v, op) == "conv" && channels >= 32_000)
                .then(|| format!("{channels} input channels: 32000 did not compile"))
        }),
        ..direct(CompileFails(Some("ANECCompile() FAILED")), Error)
    },
    Rule {
        id: "ANE042",
        title: "Masks of fused attention, directly",
        source: "maderix/ANE and christopherkarani/Espresso, M4 and M3 Max, macOS 15 and 26: the \
            mask is ignored",
        disputed: "ANEForge and 751K run attention with an additive mask; ANEForge: masks that \
            differ by head are misapplied",
        why: "Attention in one op compiled and took no notice of its mask, so that every position \
            saw all others.",
        fix: "Write it as matmul, add, softmax and matmul.",
        check: Check::Op(|v, op| {
            let masked = v.op(op).arg("attn_mask").is_some();
            (kind(v, op) == "scaled_dot_product_attention" && masked)
                .then(|| "`attn_mask` may be ignored".to_owned())
        }),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE043",
        title: "Depthwise convolutions over a row",
        source: "CoreML-LLM OP11: groups = channels = 1024 with kernel 1x3 on the CPU, iPhone 17 \
            Pro and Mac",
        disputed: "751K: depthwise convolutions run on the engine (probe conv_g64, M4); CoreML-LLM \
            OP12: so does a form with mul and reduce_sum",
        why: "Ten such ops of one model were placed on the CPU; others were not.",
        fix: "Write a short depthwise row as shifted multiplications and additions where a plan \
            shows it on the CPU.",
        check: Check::Op(|v, op| {
            let channels = *param_shape(v, op, "x")?.get(1)?;
            let (h, w) = kernel(v, op)?;
            let depthwise =
                kind(v, op) == "conv" && int(v, op, "groups") == i64::try_from(channels).ok();
            (depthwise && channels >= 1024 && h == 1 && w > 1)
                .then(|| format!("depthwise convolution of {channels} channels, kernel {h}x{w}"))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE044",
        title: "Slices off the first column on M1 to M3",
        scope: Scope::generations(0, 15),
        source: "sbryngelson/ANEForge, M1, M1 Max and M2 Pro (values above 4094 become infinite; \
            M4 and later are exact); listed for M1 to M3",
        why: "A slice that begins inside the last axis is cut by a unit that turns magnitudes \
            above 4094 into infinity.",
        fix: "Slice along another axis: transpose so that the sliced axis is not the last, or use \
            split.",
        check: Check::Op(|v, op| {
            let last = begins_inside(v, op)?;
            is_any(v, op, &["slice_by_index", "slice_by_size"])
                .then(|| format!("the slice begins at {last} of the last axis"))
        }),
        ..row(WrongResult, Warning)
    },
    Rule {
        id: "ANE045",
        title: "Joined slices on M1 and M2",
        scope: Scope::generations(0, 14),
        source: "sbryngelson/ANEForge, M1 and M2: wrong elements",
        why: "Joining more than two slices that begin inside the last axis gave wrong elements.",
        fix: "Use split and join its parts, or slice along another axis.",
        check: Check::Op(|v, op| {
            let shifted = |value: ValueId| {
                let of = v.maker(value).filter(|of| kind(v, *of) == "slice_by_index");
                of.is_some_and(|of| begins_inside(v, of).is_some())
            };
            let n = operands(v, op).filter(|(_, value)| shifted(*value)).count();
            (kind(v, op) == "concat" && n > 2)
                .then(|| format!("joins {n} slices that begin inside the last axis"))
        }),
        ..row(WrongResult, Error)
    },
];

/// Whether an op updates what was read from a state and is written back.
fn is_state_update(v: &View<'_>, op: OpId) -> bool {
    let states = ["read_state", "coreml_update_state", "slice_update"];
    let reads = producer(v, op, "x").is_some_and(|p| states.contains(&p.def.name));
    let users = v.op(op).results.first().map_or(&[][..], |r| v.users(*r));
    reads
        && users.iter().any(|u| {
            is_any(
                v,
                *u,
                &["coreml_update_state", "write_state", "slice_update"],
            )
        })
}

fn int_or_constant(v: &View<'_>, op: OpId) -> Option<f32> {
    let mode = super::query::small(v, op, "mode").and_then(|m| m.as_str());
    mode.is_none_or(|m| m == "constant")
        .then(|| float(v, op, "constant_val"))
        .flatten()
}

/// Height and width of the kernel of a `conv`; that of a row is 1 high, and depths are left out.
pub fn kernel(v: &View<'_>, op: OpId) -> Option<(usize, usize)> {
    if kind(v, op) != "conv" {
        return None;
    }
    match param_shape(v, op, "weight")?.get(2..)? {
        [w] => Some((1, *w)),
        [.., h, w] => Some((*h, *w)),
        [] => None,
    }
}

fn only_2_and_3(stride: i64) -> bool {
    let mut rest = stride.max(1);
    while rest % 2 == 0 {
        rest /= 2;
    }
    while rest % 3 == 0 {
        rest /= 3;
    }
    rest == 1
}

/// Where a slice begins along the last axis, if that is not the first place.
fn begins_inside(v: &View<'_>, op: OpId) -> Option<i64> {
    let begin = *ints(v, op, "begin")?.last()?;
    let masked = ints(v, op, "begin_mask").and_then(|m| m.last().copied()) == Some(1);
    Some(begin).filter(|begin| *begin != 0 && !masked)
}
