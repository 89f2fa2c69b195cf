//! Rules about whole functions and programs: opset, depth, number of functions, weights that are
//! not shared.

use thane_mil::program::{Definition, OpId};
use thane_mil::types::{DType, Type};

use super::query::{is_any, kind, product_of};
use super::sharing::{copied_weights, cut_tables, differing};
use super::{core_ml, direct, row};
use crate::rule::Effect::{CompileFails, LoadFails, RunFails, Slow, WrongResult};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule, Scope};
use crate::target::{Evidence, Route};
use crate::view::View;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE143",
        title: "An opset that the release does not read",
        source: "joshuaswarren/ane-linux-experiments: macOS 14.8.9 refuses CoreML8, 26.6.2 takes \
            it; ExecuTorch: CoreML7 below iOS 17",
        why: "A release reads the opsets that it knows and no newer ones, on every compute unit.",
        fix: "Write the lowest opset that has the ops used, or raise the deployment target.",
        check: Check::Program(|p, target| {
            let newest = target.release.opset;
            let newer = p.functions().iter().filter(|f| f.opset > newest);
            newer
                .map(|f| {
                    format!(
                        "Unknown opset: `{}` is {}, {} reads up to {}",
                        f.name,
                        f.opset.name(),
                        target.release_name(),
                        newest.name()
                    )
                })
                .collect()
        }),
        ..row(LoadFails(Some("Unknown opset")), Error)
    },
    Rule {
        id: "ANE144",
        title: "Many attention layers in one function, on phones",
        source: "CoreML-LLM SZ02, iPhone 17 Pro: 17, 20 and 21 layers load, 35 do not; SZ03 drew \
            the line at 15 on iOS 18",
        disputed: "where between 21 and 35 the line lies nobody has published; Macs load 28 layers \
            (CoreML-LLM S0)",
        why: "Above some number of layers a phone refuses the compiled program with \"Must \
            re-compile the E5 bundle\".",
        fix: "Cut the model into chunks of 12 to 20 layers; a boundary costs less than 0.5 ms.",
        check: Check::Function(|v| {
            let n = n_attentions(v);
            Hit::when(v.target.is_mobile() && n > 21, None, || {
                format!("{n} attention layers, 21 are the most that were seen to load")
            })
        }),
        ..row(LoadFails(Some("Must re-compile the E5 bundle")), Warning)
    },
    Rule {
        id: "ANE145",
        title: "Many attention layers in one function, directly",
        source: "sbryngelson/ANEForge #254, through e5rt: 30 layers run and 32 fail with status \
            -1, at any width; ANEForge keeps to 24",
        why: "Whole models above some 24 to 31 layers did not compile as one program.",
        fix: "Cut the model into programs of at most 24 layers.",
        check: Check::Function(|v| {
            let n = n_attentions(v);
            Hit::when(n > 24, None, || {
                format!("{n} attention layers, 24 compile and 31 do not")
            })
        }),
        ..direct(CompileFails(Some("ANECCompile() FAILED")), Warning)
    },
    Rule {
        id: "ANE146",
        title: "Chains of more than 386 products on M6 and A19",
        scope: Scope::generations(18, u8::MAX),
        source: "751K M6 study: 386 convolutions in a row compile with target h18g, 387 crash the \
            compiler",
        disputed: "M4: 448 compile (751K); maderix/ANE: 384 blocks fail on the direct route of \
            macOS 15",
        why: "The pass that splits work over two engines recurses along the chain and crashes.",
        fix: "Cut the program in two.",
        check: Check::Function(|v| {
            let (n, last) = longest_chain(v, &|op| product_of(v, op).is_some(), true);
            Hit::when(n > 386, last, || {
                format!("{n} products in a row, 386 are the most that compile")
            })
        }),
        ..row(CompileFails(Some("ANECCompile() FAILED")), Error)
    },
    Rule {
        id: "ANE147",
        title: "Long elementwise chains on M6 and A19",
        scope: Scope::generations(18, u8::MAX),
        source: "751K M6 study: 512 elementwise ops in a row take 179 s to compile with target \
            h18g, 0.4 s with h18; time grows with the 3.5th to 3.8th power",
        why: "The first load compiles for minutes where hundreds of elementwise ops follow one \
            another.",
        fix: "Fold constants and scales; break the chain with a product.",
        check: Check::Function(|v| {
            let (n, last) = longest_chain(v, &|op| is_elementwise(v, op), false);
            // 256: (256 / 512)^3.6 * 179 s = 15 s, the least that a user waits for.
            Hit::when(n >= 256, last, || {
                format!(
                    "{n} elementwise ops in a row: about {:.0} s to compile",
                    179.0 * libm::pow(n as f64 / 512.0, 3.6)
                )
            })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE148",
        title: "Four functions or more",
        source: "CoreML-LLM RT12: cold load 3 times as long, long prefill 560 to 1250 ms with four \
            variants; iPhone 17 Pro",
        why: "Each function is compiled and loaded by itself, and prefill became slower with four \
            of them on a phone.",
        fix: "Ship the lengths that are used, as packages of their own where load time counts.",
        check: Check::Program(|p, _| {
            let n = p.functions().len();
            (4..=127)
                .contains(&n)
                .then(|| format!("{n} functions: each is compiled and loaded by itself"))
                .into_iter()
                .collect()
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE149",
        title: "More than 127 functions",
        source: "sbryngelson/ANEForge and qwen-ane: the 128th or 129th loaded program of a process \
            fails; oMLX: about 121; ane-compiler, M5: 128 places",
        disputed: "on the direct route of M4 fewer: mil_infer holds about 85 models for each \
            client, tmc/apple 15 functions for the whole Mac (ANE164)",
        why: "A process has 127 places for loaded programs; one function takes one.",
        fix: "Load functions when they are needed and drop those that are not.",
        check: Check::Program(|p, _| {
            let n = p.functions().len();
            (n > 127)
                .then(|| format!("{n} functions, 127 can be loaded at once"))
                .into_iter()
                .collect()
        }),
        ..row(LoadFails(Some("0x50004")), Warning)
    },
    Rule {
        id: "ANE150",
        title: "Weights that differ between functions",
        source: "pplx-embed packaging (CoreML-LLM 3.4): equal weight files make three lengths 1.15 \
            GB to load, different ones 3.5 GB",
        disputed: "anemll-forge (M6), oxinfer (M5 Max) and coremltools #2351: each function holds \
            its own copy of equal weights too (ANE165)",
        why: "Functions share a weight only where its bytes are equal; the others are stored and \
            loaded once for each function.",
        fix: "Fold scales and norms in the same way for each function, so that equal layers have \
            equal bytes.",
        check: Check::Program(|p, _| differing(p)),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE151",
        title: "Tables cut to a length for each function",
        source: "CoreML-LLM TC03 and 3.4: static slices of a table are folded, so each length has \
            a copy of its own",
        why: "A table of positions that is cut to the length of each function is stored once for \
            each of them.",
        fix: "Keep the whole table in each function and slice it there at a position that the call \
            knows, or pass the rows in.",
        check: Check::Program(|p, _| cut_tables(p)),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE152",
        title: "identity as the only way to an output, directly",
        source: "True2456/qwen-ane, M5 Max, macOS 26 and 27: NaN",
        why: "A program whose one output is an identity of an input gives NaN.",
        fix: "Let the op before make the output.",
        check: Check::Function(|v| {
            let [output] = v.f.body().outputs[..] else {
                return Vec::new();
            };
            let Definition::Result(op, _) = v.f.value(output).definition else {
                return Vec::new();
            };
            let hit = || Hit {
                op: Some(op),
                message: "the only output is made by `identity`".to_owned(),
            };
            (kind(v, op) == "identity").then(hit).into_iter().collect()
        }),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE153",
        title: "An output that is also used, directly",
        source: "True2456/qwen-ane, M5 Max, macOS 26 and 27",
        why: "A tensor that leaves the program and is read by another op of it needs a copy.",
        fix: "Give out an `identity` of it.",
        check: Check::Function(|v| {
            let used =
                v.f.body()
                    .outputs
                    .iter()
                    .filter(|o| !v.users(**o).is_empty());
            used.map(|o| Hit::from(format!("output `{}` is used by another op", v.name(*o))))
                .collect()
        }),
        ..direct(WrongResult, Error)
    },
    Rule {
        id: "ANE154",
        title: "Programs without a product, directly",
        evidence: Evidence::Folklore,
        source: "electricapp/ane-bridge-rs docs/MIL-CONSTRAINTS.md, M5, macOS 26.5.2: may be \
            refused",
        why: "Programs of elementwise ops alone were refused when loaded.",
        fix: "Add a 1x1 convolution with an identity weight, or compute it on the CPU.",
        check: Check::Function(|v| {
            let ops = v.f.all_ops();
            let mut computing = ops.iter().filter(|op| !v.op(**op).def.is_constexpr());
            let only =
                computing.clone().next().is_some() && computing.all(|op| is_elementwise(v, *op));
            Hit::when(only, None, || {
                format!("`{}` has elementwise ops only", v.f.name)
            })
        }),
        ..direct(LoadFails(None), Warning)
    },
    Rule {
        id: "ANE155",
        title: "Several inputs or outputs, directly",
        source: "True2456/qwen-ane and vmlx-swift: alphabetical; qwen-ane HWX-ISA-SPEC: reversed",
        disputed: "the same project reports both orders; read the symbol arrays of the loaded \
            program",
        why: "The order in which surfaces are bound is not that of the text; a wrong one is \
            noticed only where sizes differ.",
        fix: "Bind by the symbol names of the loaded program, or name inputs and outputs in \
            alphabetical order.",
        check: Check::Function(|v| {
            let sorted = |values: &[_]| {
                values
                    .windows(2)
                    .all(|w: &[_]| v.name(w[0]) <= v.name(w[1]))
            };
            let body = v.f.body();
            Hit::when(
                !(sorted(&body.inputs) && sorted(&body.outputs)),
                None,
                || {
                    format!(
                        "inputs or outputs of `{}` are not in alphabetical order",
                        v.f.name
                    )
                },
            )
        }),
        ..direct(RunFails(Some("Code=42")), Note)
    },
    Rule {
        id: "ANE156",
        title: "int32 inputs",
        source: "751K M6 study: message of Core ML, M4, macOS 27",
        why: "An int32 input is live on the CPU only; what first takes it runs there.",
        fix: "Look tokens and positions up in the app and pass fp16 rows and masks in.",
        check: Check::Function(|v| {
            let int32 = |t: &Type| t.tensor().is_some_and(|t| t.dtype == DType::Int32);
            let inputs =
                v.f.body()
                    .inputs
                    .iter()
                    .filter(|i| int32(&v.f.value(**i).ty) && !v.users(**i).is_empty());
            let message = |name: &str| {
                format!(
                    "Tensor buffer live-in not created: Unsupported tensor data type: int32 \
                     (`{name}`)"
                )
            };
            inputs
                .map(|i| Hit {
                    op: None,
                    message: message(v.name(*i)),
                })
                .collect()
        }),
        ..core_ml(Slow, Note)
    },
    Rule {
        id: "ANE163",
        title: "More than 3,164 ops in a function",
        source: "mil_spec, M4: programs fail with code -14 from somewhere between 3,164 and 3,284 \
            ops, by the number of ops and not of bytes",
        disputed: "CoreML-LLM OP17: a model of 4,316 ops ran on a Mac; in how many programs is not \
            said",
        why: "Programs of 3,164 ops loaded and programs of 3,284 failed; nobody knows which part \
            of the compiler sets the limit.",
        fix: "Cut the model into chunks of fewer ops, or fuse ops: layer_norm, softmax and \
            attention as one op each.",
        check: Check::Function(|v| {
            let ops = v.f.all_ops();
            let computes =
                |op: &&OpId| !v.op(**op).def.is_const() && !v.op(**op).def.is_constexpr();
            let n = ops.iter().filter(computes).count();
            Hit::when(n > 3164, None, || {
                format!("{n} ops in `{}`: 3164 loaded, 3284 failed", v.f.name)
            })
        }),
        ..core_ml(LoadFails(Some("-14")), Warning)
    },
    Rule {
        id: "ANE164",
        title: "More than 15 functions, directly on M4 with macOS 26",
        scope: Scope::generations(16, 16)
            .on(Route::Direct)
            .releases(26, 26),
        source: "tmc/apple, M4, macOS 26, through e5rt: the 16th function with live operations \
            fails with status 13, counted over all processes",
        disputed: "ANEForge counts 110 to 128 for each process",
        why: "e5rt has places for 15 functions on the whole Mac. Many operations of one function \
            take one place; a compiled function without operations takes none.",
        fix: "Release the operation and the stream of a function before using another, or merge \
            functions.",
        check: Check::Program(|p, _| {
            let n = p.functions().len();
            (n > 15)
                .then(|| format!("{n} functions, 15 can have live operations at once"))
                .into_iter()
                .collect()
        }),
        ..row(RunFails(Some("status 13")), Warning)
    },
    Rule {
        id: "ANE165",
        title: "Functions that share weights hold a copy each",
        source: "anemll-forge, M6, macOS 27: a file of 0.69 GB wires 1.05 GB for one function and \
            2.09 GB for two, and the entry points of a Core AI package share one copy; oxinfer, M5 \
            Max, macOS 26, and coremltools #2351 report the same of Core ML",
        disputed: "pplx-embed packaging (CoreML-LLM 3.4): equal weight files make three lengths \
            1.15 GB to load, different ones 3.5 GB",
        why: "Sharing saves room in the file. When a function is loaded, Core ML still wires a \
            copy of its weights for the Neural Engine.",
        fix: "Load only the functions in use and drop the others, or ship fewer lengths.",
        check: Check::Program(|p, _| copied_weights(p)),
        ..core_ml(Slow, Note)
    },
];

fn n_attentions(v: &View<'_>) -> usize {
    v.f.all_ops()
        .into_iter()
        .filter(|op| is_any(v, *op, &["softmax", "scaled_dot_product_attention"]))
        .count()
}

fn is_elementwise(v: &View<'_>, op: OpId) -> bool {
    v.op(op).def.kind.is_elementwise()
}

/// The most ops of a sort that depend on one another, and the last of them; `across`: others may
/// lie between.
fn longest_chain(
    v: &View<'_>,
    counts: &dyn Fn(OpId) -> bool,
    across: bool,
) -> (usize, Option<OpId>) {
    let mut depth = vec![0usize; v.f.n_values()];
    let mut longest = (0, None);
    for op in v.f.all_ops() {
        let before = v.op(op).uses().map(|u| depth[u.index()]).max().unwrap_or(0);
        let n = if counts(op) {
            before + 1
        } else {
            before * usize::from(across)
        };
        v.op(op).results.iter().for_each(|r| depth[r.index()] = n);
        if n > longest.0 {
            longest = (n, Some(op));
        }
    }
    longest
}
