//! Functions for measurements of single ops, chains of ops, and attention.

use thane_mil::literal::Literal;
use thane_mil::program::ValueId;

use super::{Built, Expressed, Words, lacks, not_ours, size};
use crate::labeled::measurements::graph::{Graph, GraphError};

/// What a row with an op's name is about.
pub fn build(words: &Words<'_>) -> Option<Expressed> {
    if words.model.has("native sdpa") {
        return Some(Err(not_ours(
            "programs have no native attention layer; Core ML takes it apart",
        )));
    }
    if words.model.has("mha") || words.model.has("attention block") {
        return Some(heads(words));
    }
    if words.model.has("attention core") || words.model.has("sdpa") {
        return Some(core(words));
    }
    if words.model.has("add of n inputs") {
        return Some(many_inputs(words));
    }
    if words.model.has("matvec") && words.model.has("reduce_sum") {
        return Some(dynamic_matvec(words));
    }
    if words.model.has("pointwise") {
        return Some(pointwise(words));
    }
    let has_layers = [
        "conv",
        "gem",
        "linear",
        "matmul",
        "mlp",
        "chain",
        "norm conv",
    ]
    .iter()
    .any(|w| words.model.has(w));
    let parts = words
        .model
        .as_str()
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if has_layers {
        None
    } else {
        parts.filter_map(|name| single(words, name)).next()
    }
}

/// The sizes in brackets.
fn sizes(words: &Words<'_>) -> Option<Vec<usize>> {
    let text = &words.shape;
    let sizes = text.bracket('[', ']').or_else(|| text.bracket('(', ')'))?;
    sizes.into_iter().map(|n| n.map(size)).collect()
}

fn single(words: &Words<'_>, name: &str) -> Option<Expressed> {
    const BINARY: [&str; 7] = ["add", "sub", "mul", "real_div", "maximum", "minimum", "pow"];
    const UNARY: [&str; 20] = [
        "relu", "sigmoid", "tanh", "silu", "erf", "exp", "exp2", "sqrt", "abs", "square",
        "softplus", "softsign", "relu6", "sin", "cos", "round", "floor", "ceil", "sign",
        "identity",
    ];
    const REDUCE: [&str; 6] = [
        "reduce_sum",
        "reduce_mean",
        "reduce_max",
        "reduce_min",
        "reduce_sum_square",
        "reduce_l2_norm",
    ];
    let known = BINARY.contains(&name) || UNARY.contains(&name) || REDUCE.contains(&name);
    let others = [
        "softmax",
        "layer_norm",
        "layernorm",
        "rms_norm",
        "rmsnorm",
        "max_pool",
        "avg_pool",
        "group_norm",
        "pixel_shuffle",
        "transpose",
        "gelu",
    ];
    if !known && !others.contains(&name) {
        return None;
    }
    let Some(shape) = sizes(words) else {
        return Some(Err(lacks("the size")));
    };
    let mut g = words.graph();
    let x = g.input(&shape);
    let y = match name {
        _ if BINARY.contains(&name) => {
            let other = g.input(&shape);
            g.binary(name, x, other)
        }
        _ if UNARY.contains(&name) => g.unary(name, x),
        _ if REDUCE.contains(&name) => g.reduce(name, x, &[-1]),
        _ => composite(&mut g, name, x, &shape),
    };
    Some(y.map(|y| Built::of(g.finish(&[y]))).map_err(Into::into))
}

fn composite(
    g: &mut Graph,
    name: &str,
    x: ValueId,
    shape: &[usize],
) -> Result<ValueId, GraphError> {
    match name {
        "softmax" => g.softmax(x),
        "gelu" => g.with("gelu", [("x", x)], [("mode", Literal::string("EXACT"))]),
        "layer_norm" | "layernorm" => layer_norm(g, x),
        "rms_norm" | "rmsnorm" => g.rms_norm(x, -1),
        "max_pool" | "avg_pool" => {
            let constants = [
                ("kernel_sizes", Literal::i32s(&[2, 2])),
                ("strides", Literal::i32s(&[2, 2])),
                ("pad_type", Literal::string("valid")),
            ];
            g.with(name, [("x", x)], constants)
        }
        "pixel_shuffle" => g.with(name, [("x", x)], [("upscale_factor", Literal::i32(2))]),
        "group_norm" => {
            // 32 groups, as a norm over what is not their axis.
            let n: usize = shape.iter().product();
            let groups = g.reshape(x, &[shape[0], 32, n / shape[0].max(1) / 32])?;
            let normed = layer_norm(g, groups)?;
            g.reshape(normed, shape)
        }
        _ => {
            let mut perm: Vec<i32> = (0..i32::try_from(shape.len()).unwrap_or(0)).collect();
            let n = perm.len();
            if n > 1 {
                perm.swap(n - 1, n - 2);
            }
            g.transpose(x, &perm)
        }
    }
}

/// A norm over the last axis.
fn layer_norm(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    g.with("layer_norm", [("x", x)], [("axes", Literal::i32s(&[-1]))])
}

/// `S512 D768 H12`: projections, scores, softmax, and what is read.
fn heads(words: &Words<'_>) -> Expressed {
    let find = |prefix: &str| {
        let found = words.find(|t| t.after(prefix));
        found.ok_or_else(|| lacks("S, D or H"))
    };
    let (s, d, h) = (find("s")?, find("d")?, find("h")?);
    let width = d / h.max(1);
    let mut g = words.graph();
    let x = g.input(&[1, s, d]);
    let mut parts = Vec::new();
    for _ in 0..3 {
        let projected = g.linear(x, d)?;
        let split = g.reshape(projected, &[1, s, h, width])?;
        parts.push(g.transpose(split, &[0, 2, 1, 3])?);
    }
    let scores = g.matmul(parts[0], parts[1], true)?;
    let weights = g.softmax(scores)?;
    let read = g.matmul(weights, parts[2], false)?;
    let back = g.transpose(read, &[0, 2, 1, 3])?;
    let joined = g.reshape(back, &[1, s, d])?;
    let y = g.linear(joined, d)?;
    Ok(Built::of(g.finish(&[y])))
}

/// `GQA attention core q24 kv4 d256`, `KV=128, 1 query`.
fn core(words: &Words<'_>) -> Expressed {
    let find = |prefix: &'static str| words.find(move |t| t.after(prefix));
    let heads = find("q")
        .or_else(|| find("h"))
        .ok_or_else(|| lacks("the number of heads"))?;
    let width = find("d").ok_or_else(|| lacks("the width of a head"))?;
    let keys = find("kv=")
        .or_else(|| find("s="))
        .ok_or_else(|| lacks("the number of keys"))?;
    let groups = find("kv")
        .filter(|n| *n > 0 && heads.is_multiple_of(*n))
        .unwrap_or(heads);
    // Where nothing is said of queries, there are as many as keys.
    let queries = words
        .find(|t| t.before(" query").or_else(|| t.before(" queries")))
        .unwrap_or(keys);
    let mut g = words.graph();
    let query = g.input(&[1, groups, heads / groups * queries, width]);
    let (key, value) = (
        g.input(&[1, groups, keys, width]),
        g.input(&[1, groups, keys, width]),
    );
    let scores = g.matmul(query, key, true)?;
    let weights = g.softmax(scores)?;
    let y = g.matmul(weights, value, false)?;
    Ok(Built::of(g.finish(&[y])))
}

/// `add of N inputs + 4 conv1x1`, `N=3 inputs [1,256,64,64]`.
fn many_inputs(words: &Words<'_>) -> Expressed {
    let n = words
        .find(|t| t.after("n="))
        .ok_or_else(|| lacks("the number of inputs"))?
        .min(64);
    let shape = sizes(words)
        .filter(|s| s.len() == 4)
        .ok_or_else(|| lacks("the size of an input"))?;
    let convs = words.find(|t| t.before(" conv1x1")).unwrap_or(0).min(64);
    let mut g = words.graph();
    let mut x = g.input(&shape);
    for _ in 1..n {
        let more = g.input(&shape);
        x = g.binary("add", x, more)?;
    }
    for _ in 0..convs {
        x = g.conv(x, shape[1], (1, 1), 1)?;
    }
    Ok(Built::of(g.finish(&[x])))
}

/// `[2560,80,1,32]x2`: two inputs, their product, and its sum along channels.
fn dynamic_matvec(words: &Words<'_>) -> Expressed {
    let shape = sizes(words).ok_or_else(|| lacks("the size"))?;
    let mut g = words.graph();
    let (x, y) = (g.input(&shape), g.input(&shape));
    let product = g.binary("mul", x, y)?;
    let y = g.reduce("reduce_sum", product, &[1])?;
    Ok(Built::of(g.finish(&[y])))
}

/// `(1,2560,4,32) square x8`, `square x64 C=4 S=32`; each time an op, a sum along channels, and
/// adding it.
fn pointwise(words: &Words<'_>) -> Expressed {
    let shape = sizes(words).or_else(|| {
        let (c, s) = (
            words.find(|t| t.after("c="))?,
            words.find(|t| t.after("s="))?,
        );
        Some(vec![1, c, 1, s])
    });
    let shape = shape
        .filter(|s| s.len() > 1)
        .ok_or_else(|| lacks("the size"))?;
    let known = ["square", "exp", "sigmoid", "tanh", "sqrt", "abs", "relu"];
    let op = known
        .into_iter()
        .find(|op| words.has(op))
        .ok_or_else(|| lacks("the op"))?;
    // Where an axis is named it is summed up along that one.
    let axis = ["axis=", "axis "]
        .into_iter()
        .find_map(|way| words.find(|t| t.after(way)))
        .unwrap_or(1);
    let axis = i32::try_from(axis).unwrap_or(1);
    let mut g = words.graph();
    let mut x = g.input(&shape);
    for _ in 0..words.repeats() {
        let y = g.unary(op, x)?;
        let sum = g.reduce("reduce_sum", y, &[axis])?;
        x = g.binary("add", y, sum)?;
    }
    Ok(Built::of(g.finish(&[x])))
}
