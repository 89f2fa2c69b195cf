//! Functions for measurements of products with one matrix, and of feed-forward layers.

use thane_mil::program::ValueId;

use super::{Built, Expressed, Why, Words, lacks, size};
use crate::labeled::measurements::graph::Graph;

/// What a row about products of matrices is about.
pub fn build(words: &Words<'_>) -> Option<Expressed> {
    if words.model.has("mlp") {
        return Some(feed_forward(words));
    }
    let named = ["gemv", "gemm", "linear", "matmul"]
        .into_iter()
        .any(|name| words.model.has(name));
    let arrow = words.model.joined("->").is_some() || words.shape.joined("->").is_some();
    (named || arrow).then(|| product(words))
}

/// Positions, inputs and outputs.
fn sizes(words: &Words<'_>) -> Option<[usize; 3]> {
    let text = &words.shape;
    if let (Some(m), Some(k), Some(n)) = (text.after("m"), text.after("k"), text.after("n")) {
        return Some([m, k, n].map(size));
    }
    if text.has("cube") {
        let n = text.after("n=").or_else(|| text.before(" cube"))?;
        return Some([size(n); 3]);
    }
    if let Some(weight) = text.behind("@") {
        let positions = text.bracket('[', ']')?.first().copied().flatten()?;
        let pair = weight.joined("->").or_else(|| weight.joined(","))?;
        return Some([positions, pair[0], pair[1]].map(size));
    }
    let pair = words.model.joined("->").or_else(|| text.joined("->"))?;
    Some([words.positions()?, size(pair[0]), size(pair[1])])
}

fn product(words: &Words<'_>) -> Expressed {
    if words.shape.has("max over") {
        return Err(super::not_ours("it is the best of several sizes"));
    }
    let [m, k, n] = sizes(words).ok_or_else(|| lacks("the size"))?;
    let mut g = words.graph();
    let x = g.input(&[m, k]);
    let by_matmul = words.model.has("gemm") || words.model.has("matmul");
    let y = if by_matmul {
        g.product(x, n)?
    } else {
        g.linear(x, n)?
    };
    Ok(Built {
        per_call: m as f64,
        ..Built::of(g.finish(&[y]))
    })
}

/// `MLP 2560-9216-2560 x2`, `gated MLP 2560-10240-2560`,
/// `27B SwiGLU MLP .., down split in 4 x K=4352`.
fn feed_forward(words: &Words<'_>) -> Expressed {
    // Language models of billions have gates; so do those whose name says it.
    let gated =
        words.model.has("gated") || words.model.has("swiglu") || words.model.before("b").is_some();
    let parts = words
        .model
        .behind("split in")
        .and_then(|t| t.before(" x"))
        .map_or(1, size)
        .clamp(1, 64);
    let widths = words
        .model
        .joined("-")
        .filter(|w| w.len() == 3)
        .map(|w| [w[0], w[1], w[2]].map(size));
    let [d, hidden, out] = widths
        .or_else(|| widths_of_bytes(words, gated, parts))
        .ok_or_else(|| lacks("a width"))?;
    let n_weights = (hidden * if gated { 2 * d + out } else { d + out } * words.repeats()) as f64;
    // Rows of a rate that is the same over many say what they count with.
    let counted = words
        .row
        .flops
        .filter(|_| words.row.unit.contains("FLOP"))
        .map(|f| size(f / 2.0 / n_weights));
    let s = counted
        .or_else(|| words.positions())
        .ok_or_else(|| lacks("the number of positions"))?;
    let mut g = words.graph();
    let mut x = g.input(&[1, d, 1, s]);
    for _ in 0..words.repeats() {
        x = layer(&mut g, x, hidden, out, (gated, parts))?;
    }
    Ok(Built {
        per_call: s as f64,
        ..Built::of(g.finish(&[x]))
    })
}

/// Widths by the parts of the inner one, and the bytes of all weights.
fn widths_of_bytes(words: &Words<'_>, gated: bool, parts: usize) -> Option<[usize; 3]> {
    let hidden = size(words.model.after("k=")?).checked_mul(parts)?;
    let n_weights = words.row.weight_bytes? * 8.0 / words.weights.bits();
    let d = size(n_weights / hidden as f64 / if gated { 3.0 } else { 2.0 });
    Some([d, hidden, d])
}

fn layer(
    g: &mut Graph,
    x: ValueId,
    hidden: usize,
    out: usize,
    (gated, parts): (bool, usize),
) -> Result<ValueId, Why> {
    let mut h = g.conv(x, hidden, (1, 1), 1)?;
    h = g.unary("silu", h)?;
    if gated {
        let up = g.conv(x, hidden, (1, 1), 1)?;
        h = g.binary("mul", h, up)?;
    }
    Ok(g.conv_in_parts(h, out, (1, 1), parts)?)
}
