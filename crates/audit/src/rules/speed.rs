//! Rules about products, kernels and reductions that run far below the peak, and about attention
//! scores that are too large.

use thane_mil::program::{OpId, ValueId};

use super::numerics::reduced_len;
use super::parameters::kernel;
use super::query::{
    int, ints, is_any, is_runtime, is_weight, kind, label, param_shape, producer, product,
    product_of, reaches, result_shape, scalars, show_bytes, tensor,
};
use super::{core_ml, row};
use crate::plan::stream::Gemm;
use crate::rule::Effect::{RunFails, Slow};
use crate::rule::Severity::{Error, Note, Warning};
use crate::rule::{Check, Hit, Rule, Scope};
use crate::target::Evidence;
use crate::view::View;

/// Rows.
pub static RULES: &[Rule] = &[
    Rule {
        id: "ANE115",
        title: "Weights that are read again for each tile",
        source: "`plan::stream` over qwen-ane (M5 Max: 18.2 to 4.84 ms by four parts) and \
            mlx-serve (M4 Max: 4.3 to 11.8 TFLOP/s)",
        disputed: "the model is ours; it missed 5 of 22 published rows by more than 25 %, and 3x3 \
            kernels were not tested",
        why: "A product over K inputs works on tiles of about 2^18/K positions and reads all \
            weights again for each tile.",
        fix: "Split K into parts of 2,048 to 4,096 and add the results, or store fewer bits a \
            weight; 8 parts begin to cost accuracy.",
        check: Check::Op(|v, op| {
            let p = product_of(v, op).filter(|_| is_pointwise(v, op))?;
            let gemm = Gemm::matrix(p.k, p.n_outputs, p.columns, p.weights?);
            let (passes, takes) = (
                gemm.passes(v.target.chip),
                gemm.seconds(v.target.chip, false),
            );
            // 0.1 ms: what a call costs at least; 1.5: the model misses by a quarter.
            (passes > 1.0 && takes.weights > 1.5 * takes.compute && takes.weights > 1e-4).then(|| {
                let (read, weights, products) =
                    (show_bytes(p.weight_bytes()), takes.weights * 1e3, takes.compute * 1e3);
                format!(
                    "{read} of weights, read {passes} times: about {weights:.2} ms; the products \
                     take {products:.2} ms"
                )
            })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE116",
        title: "Weights of a whole number of megabytes a core",
        scope: Scope::generations(16, 16),
        source: "Eileen Yoon, eiln.github.io/posts/ane-dma.html (by way of stablehlo-coreml PR \
            #110), M4: 17 to 19 GB/s instead of 45 to 60",
        disputed: "maderix/ANE's 4096x4096 product on M4 has such weights and was read at about 65 \
            GB/s",
        why: "Where a core's share of fp16 weights is within 16 KiB of a multiple of 1 MiB, they \
            were read at a third of the speed.",
        fix: "Pad or split the inputs of the product, so that ceil(outputs / 16) * inputs * 2 \
            bytes is off by more than 16 KiB.",
        check: Check::Op(|v, op| {
            let p = product_of(v, op).filter(|p| p.weights.is_some_and(|w| w.bits == 16.0))?;
            let share = (p.n_outputs / 16.0).ceil() * p.k * 2.0;
            let (mib, off) = ((share / 1_048_576.0).round(), share % 1_048_576.0);
            let near = mib >= 1.0 && off.min(1_048_576.0 - off) <= 16_384.0;
            near.then(|| format!("{share} bytes of weights for each core, just {mib} MiB"))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE117",
        title: "Fewer than 64 positions cost as much as 64",
        source: "qwen-ane, M5 Max: one layer 1.37 ms at 1 position, 1.84 ms at 4; cadamcat: \
            verifying 5 tokens costs 1.05 of one; anemll-forge, 27B on M6: 94.5, 95.3 and 91.5 ms \
            for 3, 4 and 8 tokens",
        why: "A call that is bound by reading weights takes as long for 1 position as for 32, \
            often 64.",
        fix: "Use the spare positions: verify 4 to 32 drafted tokens a call, or batch requests.",
        check: Check::Function(|v| {
            let narrow =
                |op: &OpId| product_of(v, *op).filter(|p| p.weights.is_some() && p.columns < 64.0);
            let bytes: f64 =
                v.f.body()
                    .ops
                    .iter()
                    .filter_map(narrow)
                    .map(|p| p.weight_bytes())
                    .sum();
            // 10 MB: 0.15 ms on M4, as much as a call costs before it does anything.
            Hit::when(bytes >= 10e6, None, || {
                format!(
                    "{} of weights are read for fewer than 64 positions",
                    show_bytes(bytes)
                )
            })
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE118",
        title: "Kernels 9 to 15 wide",
        source: "751K M6 study, table 7-7: 42 to 85 % of the peak, M6, macOS 27",
        why: "Kernels of these widths are rewritten to sparse ones of stride 2, which run at 42 to \
            85 % of the peak.",
        fix: "Use kernels of 3, 5 or 8, or put the long axis on the height (9x1 runs at 92 %).",
        check: Check::Op(|v, op| {
            let (h, w) = kernel(v, op)?;
            (9..=15)
                .contains(&w)
                .then(|| format!("kernel {h}x{w}: width {w} is from 9 to 15"))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE119",
        title: "Dilated 3x3 kernels",
        source: "751K M6 study: 14.6 against up to 31 TFLOP/s, M6, macOS 27",
        why: "Plain 3x3 kernels use Winograd's method and run above the nominal peak; dilated ones \
            do not.",
        fix: "Use space_to_depth and a plain kernel, or accept it.",
        check: Check::Op(|v, op| {
            let dilated = ints(v, op, "dilations")?.iter().any(|d| *d > 1);
            (dilated && kernel(v, op)? == (3, 3))
                .then(|| "dilated 3x3 kernel: computed without the Winograd transform".to_owned())
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE120",
        title: "Few channels over a large image",
        source: "maderix/ANE, M4: 64 channels at 128x128 from 3.92 to 16.37 TFLOP/s by \
            space_to_depth(4); 751K, M6: 9.5 to 31.7",
        why: "The engine splits channels among its 16 cores; with few of them over a large image \
            most of it waits.",
        fix: "space_to_depth first and depth_to_space after (3 % on M4, 0.1 % on M6), with the \
            weights rearranged once.",
        check: Check::Op(|v, op| {
            let (w, x) = (param_shape(v, op, "weight")?, param_shape(v, op, "x")?);
            let [_, channels, height, width] = x[..] else {
                return None;
            };
            let outputs = *w.first()?;
            (kind(v, op) == "conv"
                && int(v, op, "groups").unwrap_or(1) == 1
                && channels.max(outputs) <= 64
                && height.min(width) >= 128)
                .then(|| {
                    format!("{channels} to {outputs} channels over an image of {height}x{width}")
                })
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE121",
        title: "Output channels just above 256",
        source: "751K M6 study: 272 channels take 32 % more than 256, M6",
        why: "Outputs are made in groups of 256; a few more need another group.",
        fix: "Use 256, or fill the next group.",
        check: Check::Op(|v, op| {
            let p = product_of(v, op).filter(|p| p.weights.is_some())?;
            (p.n_outputs > 256.0 && p.n_outputs <= 288.0)
                .then(|| format!("{} output channels: just above 256", p.n_outputs))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE122",
        title: "Output channels that do not fill the cores",
        source: "751K M6 study: 16 cores take output channels in fours, weights are stored as 16 \
            blocks",
        why: "Output channels that are no multiple of 16 leave cores without work in the last \
            round.",
        fix: "Pad the output channels to a multiple of 16 and slice, where the product is large.",
        check: Check::Op(|v, op| {
            let p = product_of(v, op).filter(|p| p.weights.is_some() && p.flops() >= 1e8)?;
            (p.n_outputs % 16.0 != 0.0 && p.n_outputs < 512.0)
                .then(|| format!("{} output channels do not fill the cores", p.n_outputs))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE123",
        title: "matmul with constant weights",
        source: "maderix/ANE, M4: a 1x1 convolution is about 3 times as fast; 751K: Core ML \
            reckons 10.6 TFLOP/s for linear and 5.3 for matmul",
        disputed: "CoreML-LLM OP01: 40.0 against 39.9 tokens/s for conv and linear on iPhone 17 \
            Pro: parity",
        why: "A matmul does not tell the compiler that one side is a weight; linear and 1x1 \
            convolutions do.",
        fix: "Use linear, or a 1x1 convolution over (batch, channels, 1, sequence).",
        check: Check::Op(|v, op| {
            let weight = is_weight(v, op, "y")
                && param_shape(v, op, "y").is_some_and(|s| product(&s) >= 65_536.0);
            (kind(v, op) == "matmul" && weight)
                .then(|| format!("matmul `{}` has a constant weight", label(v, op)))
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE124",
        title: "Rows of 64 positions in pointwise convolutions",
        scope: Scope::generations(0, 16),
        source: "smpanaro/more-ane-transformers: 50 % faster on M1, A14, A16 and A17 Pro, 20 % of \
            the whole model",
        disputed: "CoreML-LLM OP25: a bundle of changes with this one lost the engine",
        why: "Work is handed out in squares; a row of 64 fills them worse than 8 by 8.",
        fix: "Reshape (B, C, 1, 64) to (B, C, 8, 8) around the convolutions of an MLP, not around \
            attention.",
        check: Check::Op(|v, op| {
            let [_, _, height, width] = param_shape(v, op, "x")?[..] else {
                return None;
            };
            (is_pointwise(v, op) && kind(v, op) == "conv" && height == 1 && width == 64)
                .then(|| "pointwise convolution over one row of 64 positions".to_owned())
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE125",
        title: "RMSNorm as layer_norm over x and -x",
        source: "CoreML-LLM OP15, M4 Max, macOS 26: 35.98 against 31.92 ms at 256 tokens, 100.40 \
            against 82.61 at 512",
        disputed: "Anemll uses this form throughout: it cannot overflow and is one op",
        why: "The tensor is twice as wide, and the plain form ran 12 to 21 % faster in an encoder.",
        fix: "Use the plain form where residuals stay small, with the maximum taken out where they \
            do not.",
        check: Check::Op(|v, op| {
            let joined = producer(v, op, "x")
                .filter(|d| kind(v, op) == "layer_norm" && d.def.name == "concat")?;
            let parts: Vec<_> = joined.uses().filter(|u| !v.is_fixed(*u)).collect();
            let [x, y] = parts[..] else { return None };
            let negated = v.f.definer(y).filter(|d| d.uses().any(|u| u == x))?;
            let minus = negated.def.name == "sub" || scalars(v, negated).any(|n| n == -1.0);
            minus.then(|| "layer_norm over concat(x, -x)".to_owned())
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE126",
        title: "Many short reductions",
        source: "qwen-ane, M5 Max: (1,4,2560,32) over the axis of 4 takes 1.7 ms for 8, over 2560 \
            0.35 ms",
        why: "A reduction that gives more than ten thousand results of a few numbers each takes 5 \
            times as long as one of long rows.",
        fix: "Add the few slices, or use a grouped 1x1 convolution with a constant 1/n.",
        check: Check::Op(|v, op| {
            let n = reduced_len(v, op).filter(|_| kind(v, op).starts_with("reduce_"))?;
            let results = product(&result_shape(v, op)?);
            (n <= 16 && results > 1e4).then(|| format!("{results} results of {n} numbers each"))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE127",
        title: "Reductions along a long axis",
        source: "sbryngelson/ANEForge: axes from 192 (384 from M3 on) are reduced by way of a \
            transpose",
        why: "A long axis that is neither the last nor the channels is transposed first, at about \
            60 GB/s.",
        fix: "Keep the reduced axis on the channels, or use a 1x1 convolution with a constant 1/n.",
        check: Check::Op(|v, op| {
            let shape = param_shape(v, op, "x")?;
            let [axis] = ints(v, op, "axes")?[..] else {
                return None;
            };
            let axis = super::query::wrap(axis, shape.len())?;
            let limit = if v.target.chip.generation < 15 {
                192
            } else {
                384
            };
            let inner = kind(v, op).starts_with("reduce_") && axis != 1 && axis + 1 < shape.len();
            (inner && shape[axis] >= limit).then(|| {
                format!(
                    "axis {axis} of {}, {limit} and more are transposed first",
                    shape[axis]
                )
            })
        }),
        ..row(Slow, Note)
    },
    Rule {
        id: "ANE128",
        title: "Attention scores of 2 GB and more",
        source: "CoreML-LLM SZ05 (pplx-embed, 16 heads of 8192x8192): compiles for 25 minutes, \
            shows 99.81 % on the engine, ends with 0x15 at the call; M4 Max, macOS 26; 4096 runs",
        why: "A tensor of scores of 2^31 bytes does not fit what the engine can address; the plan \
            looks right and each call fails.",
        fix: "Tile the queries in rows of 512, or shorten the sequence.",
        check: Check::Op(|v, op| {
            let (n, heads, rows, keys) = scores(v, op)?;
            (n >= 2f64.powi(31)).then(|| {
                format!(
                    "`{}`: scores of {heads} x {rows} x {keys} take {}: status 0x15 at the call",
                    label(v, op),
                    show_bytes(n)
                )
            })
        }),
        ..row(RunFails(Some("0x15")), Error)
    },
    Rule {
        id: "ANE129",
        title: "Attention scores of 0.5 to 2 GB",
        evidence: Evidence::Inferred,
        source: "CoreML-LLM SZ05: 0.54 GB (4096 tokens) run, 2.15 GB (8192) do not; M4 Max; nobody \
            published a length between",
        why: "Somewhere between 0.54 and 2.15 GB of scores a call begins to fail with status 0x15.",
        fix: "Tile the queries in rows of 512, or test on the device.",
        check: Check::Op(|v, op| {
            let (n, heads, rows, keys) = scores(v, op)?;
            (n > 2f64.powi(29) && n < 2f64.powi(31)).then(|| {
                format!(
                    "`{}`: scores of {heads} x {rows} x {keys} take {}",
                    label(v, op),
                    show_bytes(n)
                )
            })
        }),
        ..row(RunFails(Some("0x15")), Warning)
    },
    Rule {
        id: "ANE130",
        title: "Attention over long sequences in one piece",
        source: "sbryngelson/ANEForge: 3 times faster in tiles of 512 rows from 1,500 positions \
            and 16 heads on; whole scores hit a wall of 2.4",
        why: "Scores of all heads do not stay on the chip, and the softmax waits for memory.",
        fix: "Slice the queries in tiles of about 512 rows and join the results.",
        check: Check::Op(|v, op| {
            let (n, heads, rows, keys) = scores(v, op)?;
            (rows.min(keys) >= 1500.0 && n <= 2f64.powi(29))
                .then(|| format!("`{}`: scores of {heads} x {rows} x {keys}", label(v, op)))
        }),
        ..row(Slow, Warning)
    },
    Rule {
        id: "ANE131",
        title: "Programs too small for the engine",
        source: "751K M6 study, Espresso's segmenter: 0.25 ms to enter and leave, CPU reckoned at \
            0.75 TFLOP/s; ANEForge: 88.9 % of 451 small programs stay on the CPU",
        why: "Entering and leaving the engine is reckoned at 0.25 to 0.4 ms; below 0.2 GFLOP of \
            products the CPU is cheaper and Core ML keeps the program there.",
        fix: "Batch calls or join programs; a small model may well be fastest on the CPU.",
        check: Check::Function(|v| {
            let flops: f64 =
                v.f.all_ops()
                    .into_iter()
                    .filter_map(|op| product_of(v, op))
                    .map(|p| p.flops())
                    .sum();
            let message = format!(
                "too little work in `{}` ({:.3} GFLOP of products): entering the engine pays \
                 from about 0.2 GFLOP",
                v.f.name,
                flops / 1e9 + 0.0
            );
            // Of open axes the work is not known.
            let is_open =
                |value: &ValueId| tensor(v, *value).is_some_and(|t| t.known_shape().is_none());
            if flops >= 0.2e9 || flops == 0.0 && v.f.body().inputs.iter().any(is_open) {
                Vec::new()
            } else {
                vec![Hit { op: None, message }]
            }
        }),
        ..core_ml(Slow, Note)
    },
];

/// Whether a product has a weight for each input and output channel only.
fn is_pointwise(v: &View<'_>, op: OpId) -> bool {
    match kind(v, op) {
        "conv" => kernel(v, op) == Some((1, 1)) && is_weight(v, op, "weight"),
        name => matches!(name, "linear" | "matmul"),
    }
}

/// Bytes, heads, rows and keys of the scores that an op makes: a product of two activations that a
/// softmax takes, or an attention in one op.
fn scores(v: &View<'_>, op: OpId) -> Option<(f64, f64, f64, f64)> {
    let shape = match kind(v, op) {
        "scaled_dot_product_attention" => {
            let (mut q, k) = (param_shape(v, op, "query")?, param_shape(v, op, "key")?);
            *q.last_mut()? = *k.get(k.len().checked_sub(2)?)?;
            q
        }
        "matmul" if is_runtime(v, op, "x") && is_runtime(v, op, "y") && reaches_softmax(v, op) => {
            result_shape(v, op)?
        }
        "einsum" if reaches_softmax(v, op) => {
            // nchw,nwhr->nchr: c rows and r keys of h heads.
            let [n, rows, heads, keys] = result_shape(v, op)?[..] else {
                return None;
            };
            vec![n, heads, rows, keys]
        }
        _ => return None,
    };
    let [outer @ .., rows, keys] = &shape[..] else {
        return None;
    };
    Some((
        2.0 * product(&shape),
        product(outer),
        *rows as f64,
        *keys as f64,
    ))
}

/// Whether what an op gives is scaled, masked or reshaped and then goes into a softmax, or into one
/// that is written out.
fn reaches_softmax(v: &View<'_>, op: OpId) -> bool {
    let between = [
        "mul", "add", "sub", "real_div", "select", "cast", "reshape", "tanh",
    ];
    // Six: scale, softcap of three ops, mask, cast.
    reaches(v, op, (7, &between), &|user, _| {
        is_any(v, user, &["softmax", "exp"])
    })
}
