//! Rules about ops that the Neural Engine has no unit or lowering for.

use thane_mil::pattern;
use thane_mil::pattern::Pattern;
use thane_mil::program::{OpId, ValueId};

use super::query::{int, is_any, is_runtime, kind, label, operands, param_type, reaches, wrap};
use super::{ROW, core_ml, direct, row};
use crate::rule::Effect::{CompileFails, OpLeaves, ProgramLeaves, Slow};
use crate::rule::Severity::{Error, Warning};
use crate::rule::{Check, Rule, Scope};
use crate::target::{Evidence, Route};
use crate::view::View;

const M6S_PLAN: &str = "751K/Apple-Neural-Engine-Microarchitecture-Study-M6, single-op probes with \
    MLComputePlan, M4, macOS 27";
const UNSUPPORTED: &str = "`{op}` is not supported on the Neural Engine";
const INDICES: &str = "Unsupported tensor data type: int32 (indices of `{op}`)";

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE001",
        title: "Trigonometric and hyperbolic functions beyond sin, cos, tanh and atan",
        source: M6S_PLAN,
        why: "The engine approximates functions by tables of 33 points; for tan, asin, acos, sinh, \
            cosh and atanh none is used, and the op runs on the CPU or GPU.",
        fix: "Write it with functions that have a table: tan = sin/cos, sinh = (exp(x) - \
            exp(-x))/2, atanh = (log(1+x) - log(1-x))/2, or compute it on the host.",
        check: Check::Kinds(
            &["tan", "asin", "acos", "sinh", "cosh", "atanh"],
            "`{op}` has no approximation table on the Neural Engine",
        ),
        ..ROW
    },
    Rule {
        id: "ANE002",
        title: "sin and cos on engines before M3 and A16",
        scope: Scope::generations(0, 14),
        source: "sbryngelson/ANEForge op catalog (direct compiles), M1 and M2: N, M3 to M5: Y",
        why: "The tables for sine and cosine came with the engine of M3 and A16; older ones do not \
            compile the op.",
        fix: "Pass sines and cosines in as inputs (rotary embeddings need one row a position), or \
            target M3 and newer.",
        check: Check::Kinds(&["sin", "cos"], "`{op}` is not on this generation ({chip})"),
        ..ROW
    },
    Rule {
        id: "ANE003",
        title: "mod",
        source: M6S_PLAN,
        why: "The engine has no remainder.",
        fix: "Use x - floor(x / y) * y: `floor`, `real_div`, `mul` and `sub` all run on the \
            engine.",
        check: Check::Kinds(&["mod"], UNSUPPORTED),
        ..ROW
    },
    Rule {
        id: "ANE004",
        title: "reduce_prod",
        source: M6S_PLAN,
        why: "Reductions of the engine are sums, means, minima, maxima and norms; there is no \
            product.",
        fix: "For positive numbers use exp(reduce_sum(log(x))); for a few factors multiply slices.",
        check: Check::Kinds(&["reduce_prod"], UNSUPPORTED),
        ..ROW
    },
    Rule {
        id: "ANE005",
        title: "argmax and argmin",
        source: "751K M6 study, probes reduce_argmax_c and argmax_flat, M4, macOS 27; CoreML-LLM \
            OP03, iOS 18",
        disputed: "ANEForge compiles argmax directly on every chip, and argmin from M3 on; Core ML \
            still gives it to the CPU",
        why: "Indices come out as int32, which the engine does not have, so the op and the small \
            ops beside it run on the CPU.",
        fix: "Give the logits out and take the argmax on the host (1 ms for 248k fp16 logits with \
            NEON), or keep reduce_max and compare on the engine.",
        check: Check::Kinds(&["reduce_argmax", "reduce_argmin"], INDICES),
        ..core_ml(OpLeaves, Warning)
    },
    Rule {
        id: "ANE006",
        title: "argsort",
        source: M6S_PLAN,
        disputed: "ANEForge lists a sort that compiles directly from A14 on",
        why: "Core ML's compiler has a sort for the engine but gives it no `argsort`; its result \
            is int32.",
        fix: "Sort on the host, or use reduce_max where only the best is needed.",
        check: Check::Kinds(&["argsort"], INDICES),
        ..ROW
    },
    Rule {
        id: "ANE007",
        title: "cumsum",
        source: "751K M6 study, probe cumsum_w, M4, macOS 27; CoreML-LLM OP06",
        disputed: "ANEForge's catalog contradicts itself on cumsum",
        why: "The engine has no prefix sum.",
        fix: "Multiply by a constant triangle of ones: matmul(x, triu(ones)); up to lengths of \
            some thousands that is cheap.",
        check: Check::Kinds(&["cumsum"], UNSUPPORTED),
        ..ROW
    },
    Rule {
        id: "ANE008",
        title: "Ops that make masks and ranges: one_hot, band_part, range_1d",
        source: M6S_PLAN,
        why: "Core ML builds these tensors on the CPU; range_1d is not on the GPU either.",
        fix: "Make them before the call: a constant where the length is fixed, an input where it \
            is not.",
        check: Check::Kinds(&["one_hot", "band_part", "range_1d"], UNSUPPORTED),
        ..ROW
    },
    Rule {
        id: "ANE009",
        title: "non_zero",
        source: M6S_PLAN,
        why: "How many results there are depends on the data; the engine runs fixed shapes only, \
            and so does the GPU path.",
        fix: "Keep all positions and multiply by a mask.",
        check: Check::Kinds(&["non_zero"], "`non_zero` runs on the CPU only"),
        ..ROW
    },
    Rule {
        id: "ANE010",
        title: "Random numbers",
        source: M6S_PLAN,
        why: "The engine computes the same for the same inputs; there is no generator.",
        fix: "Draw the noise on the host and pass it in.",
        check: Check::Op(|v, op| {
            kind(v, op)
                .starts_with("random_")
                .then(|| format!("`{}` is not supported on the Neural Engine", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE011",
        title: "sliding_windows",
        source: M6S_PLAN,
        why: "Core ML has this op on the CPU only.",
        fix: "Take the windows by static slices and a concat, or use a convolution, which reads \
            windows itself.",
        check: Check::Kinds(
            &["sliding_windows"],
            "`sliding_windows` runs on the CPU only",
        ),
        ..ROW
    },
    Rule {
        id: "ANE012",
        title: "crop_resize",
        source: M6S_PLAN,
        disputed: "ANEForge lists crop_resize as compiling directly from A14 on",
        why: "Core ML runs crops at run-time boxes on the CPU only, not on the GPU either.",
        fix: "Crop on the host, or use `resample` with coordinates, which runs on the engine.",
        check: Check::Kinds(&["crop_resize"], "`crop_resize` runs on the CPU only"),
        ..ROW
    },
    Rule {
        id: "ANE013",
        title: "scatter, scatter_nd, scatter_along_axis",
        source: M6S_PLAN,
        why: "The engine writes whole tensors; it has no write at computed places.",
        fix: "Blend with a mask: y = x * (1 - m) + update * m, with the mask made on the host.",
        check: Check::Kinds(
            &["scatter", "scatter_nd", "scatter_along_axis"],
            UNSUPPORTED,
        ),
        ..ROW
    },
    Rule {
        id: "ANE014",
        title: "gather by indices that only the call knows",
        source: "751K M6 study, probe embedding / gather_dyn, M4, macOS 27; CoreML-LLM OP04",
        why: "Core ML refuses indices that are computed or passed in; token embeddings are the \
            usual case.",
        fix: "Look rows up on the host and pass the vectors in, or multiply a one-hot matrix made \
            on the host by the table.",
        check: Check::Op(|v, op| {
            (kind(v, op) == "gather" && is_runtime(v, op, "indices"))
                .then(|| "Unsupported gather index type".to_owned())
        }),
        ..ROW
    },
    Rule {
        id: "ANE015",
        title: "lstm, gru and rnn",
        source: "751K M6 study, probes gru and rnn, M4, macOS 27; a maintainer in coremltools \
            #1780",
        why: "Recurrent ops run on the CPU; two of them leave a model only 13 to 21 % of its time \
            on the engine (EasyOCR).",
        fix: "Unroll a short sequence into linear and elementwise ops, or use a convolutional or \
            attention layer.",
        check: Check::Kinds(&["lstm", "gru", "rnn"], UNSUPPORTED),
        ..ROW
    },
    Rule {
        id: "ANE016",
        title: "cond and while_loop",
        source: "coremltools #2004; CoreML-LLM OP08",
        why: "The engine runs a fixed sequence; a branch or a loop is taken by the CPU.",
        fix: "Unroll the loop when converting, compute both branches and select, or split the \
            program into functions.",
        check: Check::Kinds(
            &["cond", "while_loop"],
            "`{op}` is control flow, which the Neural Engine does not have",
        ),
        ..ROW
    },
    Rule {
        id: "ANE017",
        title: "Control flow takes the whole function along",
        source: "CoreML-LLM OP08; coremltools #2004",
        disputed: "751K's model of the segmenter would keep ops outside of the loop on the engine; \
            nobody published such a plan",
        why: "With a loop or a branch in it, the whole graph was seen to lose its placement, not \
            only the loop.",
        fix: "Unroll it when converting; several calls of a smaller function cost 0.1 to 0.2 ms \
            each.",
        check: Check::Function(|v| {
            let control =
                v.f.body()
                    .ops
                    .iter()
                    .filter(|op| is_any(v, **op, &["cond", "while_loop"]));
            let hit = |op: &_| crate::rule::Hit {
                op: Some(*op),
                message: format!(
                    "`{}` may take all ops of `{}` off the engine",
                    kind(v, *op),
                    v.f.name
                ),
            };
            control.map(hit).collect()
        }),
        ..row(ProgramLeaves, Error)
    },
    Rule {
        id: "ANE018",
        title: "Lists",
        source: M6S_PLAN,
        why: "Lists of tensors are kept by the CPU.",
        fix: "Use concat and split of tensors of fixed sizes.",
        check: Check::Op(|v, op| {
            (kind(v, op) == "make_list" || kind(v, op).starts_with("list_"))
                .then(|| format!("`{}` is not supported on the Neural Engine", kind(v, op)))
        }),
        ..ROW
    },
    Rule {
        id: "ANE019",
        title: "shape",
        source: M6S_PLAN,
        why: "It gives int32 and asks about sizes, which are fixed on the engine.",
        fix: "Write sizes as constants: convert with fixed shapes, one function for each length.",
        check: Check::Kinds(&["shape"], "Unsupported tensor data type: int32 (`shape`)"),
        ..ROW
    },
    Rule {
        id: "ANE020",
        title: "classify",
        source: M6S_PLAN,
        why: "Mapping probabilities to names gives a dictionary, which the CPU makes.",
        fix: "Give the probabilities out and look names up in the app.",
        check: Check::Kinds(&["classify"], "`classify` runs on the CPU only"),
        ..ROW
    },
    Rule {
        id: "ANE021",
        title: "non_maximum_suppression",
        evidence: Evidence::Inferred,
        source: "CoreML-LLM OP04 (catalog, iOS 18); 751K M6 study lists a validator for it and a \
            limit of 2048 boxes",
        disputed: "Apple's compiler has a validator for it on the engine, so small cases may be \
            accepted; no plan with it was published",
        why: "Its results are int32 indices and counts that depend on the data.",
        fix: "Give boxes and scores out and suppress on the host.",
        check: Check::Kinds(
            &["non_maximum_suppression"],
            "Unsupported tensor data type: int32 (`non_maximum_suppression`)",
        ),
        ..ROW
    },
    Rule {
        id: "ANE022",
        title: "reverse_sequence",
        evidence: Evidence::Inferred,
        source: "751K M6 study: none of the 24 validators that Core ML imports from the engine's \
            compiler is for it; no probe published",
        why: "The engine reverses whole axes only, not each row by its own length.",
        fix: "Use `reverse` and mask the padding.",
        check: Check::Kinds(
            &["reverse_sequence"],
            "`reverse_sequence` has no lowering to the Neural Engine",
        ),
        ..ROW
    },
    Rule {
        id: "ANE023",
        title: "topk is slower on the engine than off it",
        source: "751K M6 study, probes topk_w and topk_c, M4 and M6, macOS 27",
        why: "Core ML underestimates topk 170 to 200 times and puts it on the engine, where it \
            adds 6 to 10 ms a call.",
        fix: "Take the best on the host, or use reduce_max where one is enough.",
        check: Check::Kinds(
            &["topk"],
            "`topk` adds about 6 to 10 ms on the Neural Engine",
        ),
        ..core_ml(Slow, Warning)
    },
    Rule {
        id: "ANE024",
        title: "topk does not compile directly on M4",
        scope: Scope::generations(16, 16).on(Route::Direct),
        source: "751K M6 study, ANECompiler 10.26.6 with target h16g",
        disputed: "ANEForge's bridge compiles it on M2 to M5",
        why: "The compiler of the engine ends with code 22 on topk for this chip.",
        fix: "Take the best on the host.",
        check: Check::Kinds(&["topk"], "ANECCompile() FAILED (rc 22) at `topk`"),
        ..row(CompileFails(Some("rc 22")), Error)
    },
    Rule {
        id: "ANE025",
        title: "Logical ops on the direct route",
        source: "sbryngelson/ANEForge op catalog, M1 to M5, macOS 26",
        disputed: "751K: Core ML accepts logical_and on M4 with macOS 27",
        why: "Truth values are no tensors of their own on the engine; and, or and xor were not \
            compiled.",
        fix: "Use numbers: mul for and, maximum for or, not_equal for xor, over 0 and 1 in fp16.",
        check: Check::Kinds(
            &["logical_and", "logical_or", "logical_xor"],
            "`{op}` is not compiled on the direct route",
        ),
        ..direct(CompileFails(None), Error)
    },
    Rule {
        id: "ANE174",
        title: "Attention by softmax on M5 with macOS 27.2",
        scope: Scope::generations(17, 17).on(Route::CoreMl).since((27, 2)),
        evidence: Evidence::Inferred,
        source: "Anemll/anemll-embeddings, docs/M5_ANE_SOFTMAX_FIX.md: M5, macOS 27.2, through \
            Core AI; nobody published the same for Core ML, M5 Pro or M5 Max",
        disputed: "mashbox-labs: a hybrid of 1.7B has 91.9 % of its ops on the engine of an M5 with macOS \
            27.2 through Core ML; how it writes its attention is not said",
        why: "Core AI sends a whole tower with matmul, softmax and matmul in a row to the GPU, \
            without a message, whatever its sizes. M4 Pro and M3 Ultra with macOS 27.0 keep it.",
        fix: "Write the softmax as reduce_max, sub, exp, reduce_sum, inverse and mul. A division \
            is taken for a softmax again. On macOS 27.0 this took as long for text, and 22 to 34 % \
            longer for images.",
        check: Check::Op(|v, op| {
            (!v.target.is_mobile() && is_attention(v, op)).then(|| {
                format!(
                    "`{}`: attention by softmax may take all ops off the engine",
                    label(v, op)
                )
            })
        }),
        ..row(ProgramLeaves, Warning)
    },
];

/// A softmax by hand that is taken for one.
const DIVIDED: Pattern = pattern!(real_div(powers @ exp((SHIFTED)), sum @ reduce_sum(powers)));
const SHIFTED: Pattern = pattern!(sub(x, most @ reduce_max(x)));

/// Whether an op makes the weights of attention out of a product of activations, for another such
/// product; or is the whole attention.
fn is_attention(v: &View<'_>, op: OpId) -> bool {
    let is_over_rows = || {
        let rank = param_type(v, op, "x").map_or(0, |ty| ty.rank());
        let axis = wrap(int(v, op, "axis").unwrap_or(-1), rank);
        axis.is_some() && axis == rank.checked_sub(1)
    };
    let scores = match kind(v, op) {
        "scaled_dot_product_attention" => return true,
        "softmax" if is_over_rows() => v.op(op).value_arg("x"),
        "real_div" => DIVIDED
            .find(v, op)
            .ok()
            .flatten()
            .and_then(|d| d.value("x")),
        _ => None,
    };
    let weighs = |user, value| is_product(v, user) && v.op(user).value_arg("x") == Some(value);
    scores.is_some_and(|x| comes_from_product(v, x, 6)) && reaches(v, op, (3, &["cast"]), &weighs)
}

/// Whether an op multiplies matrices of activations.
fn is_product(v: &View<'_>, op: OpId) -> bool {
    kind(v, op) == "matmul" && is_runtime(v, op, "x") && is_runtime(v, op, "y")
}

/// Whether a value is a product of activations that at most so many ops scaled, capped or masked.
fn comes_from_product(v: &View<'_>, value: ValueId, most: usize) -> bool {
    const BETWEEN: [&str; 7] = ["mul", "add", "sub", "real_div", "select", "cast", "tanh"];
    let Some(op) = v.maker(value) else {
        return false;
    };
    is_product(v, op)
        || most > 0
            && is_any(v, op, &BETWEEN)
            && operands(v, op).any(|(_, x)| comes_from_product(v, x, most - 1))
}
