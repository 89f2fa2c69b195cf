//! Functions for measurements of language models that state only the number or bytes of weights: a
//! decoder of the usual proportions.

use thane_mil::program::ValueId;

use super::{Built, Expressed, Why, Words, lacks, not_ours, size};
use crate::labeled::measurements::graph::Graph;
use crate::target::Target;

/// A step of a language model, or a batch of its prompt.
pub fn build(words: &Words<'_>, target: &Target) -> Expressed {
    let n_weights = n_weights(words).ok_or_else(|| lacks("the number of weights"))?;
    let window = words.find(|t| {
        t.before("-token window")
            .or_else(|| t.before("-token batches"))
    });
    let decode = words.has("decode");
    if !decode && window.is_none() {
        return Err(lacks("the length of a batch"));
    }
    if words.has("prompt +") {
        return Err(not_ours("it is a mean over prompt and answer"));
    }
    let note = super::Text::new(&words.row.note);
    let full = words.has("full forward");
    let context = context(words);
    // Programs of some width compute as many positions for each token.
    let width = window
        .or_else(|| note.after("width-").map(size))
        .or(full.then_some(context))
        .unwrap_or(1);
    let calls = [" ane calls", " chunks", " programs", " calls"];
    let said = words.find(|t| calls.iter().find_map(|way| t.before(way)));
    let geometry = Geometry::of(n_weights);
    // Where nothing is said, as few programs as the release is sure to take, with a tenth of room.
    let bytes = n_weights * bits(words) / 8.0;
    let limit = 0.9 * target.release.program_bytes(target.is_mobile()).low;
    let least = (bytes / limit).ceil().max(1.0);
    let calls = said.map_or(least, |n| n as f64);
    let parts = calls.min(geometry.layers as f64);
    let function = decoder(words, &geometry.part(n_weights / parts), width, context)?;
    let per_call = if decode { 1.0 } else { width as f64 };
    Ok(Built {
        calls: parts,
        idle_calls: calls - parts,
        per_call,
        ..Built::of(function)
    })
}

fn bits(words: &Words<'_>) -> f64 {
    (words.weights.bits() + words.others.bits()) / 2.0
}

/// Weights by their bytes, else by the `4B` of a name.
fn n_weights(words: &Words<'_>) -> Option<f64> {
    let by_bytes = words
        .row
        .weight_bytes
        .map(|bytes| bytes * 8.0 / bits(words));
    let n = by_bytes.or_else(|| words.model.before("b").map(|n| n * 1e9))?;
    Some(n).filter(|n| (1e6..1e12).contains(n))
}

/// Positions that a step looks back at: `ctx 4096`, `@1K`, `512 ctx`.
fn context(words: &Words<'_>) -> usize {
    let thousands = words
        .find(|t| t.after("@").filter(|_| t.has("k kv") || t.has("@1k")))
        .map(|k| k * 1024);
    let said = words.find(|t| {
        t.after("ctx ")
            .or_else(|| t.after("ctx"))
            .or_else(|| t.before(" ctx"))
    });
    // 1024: what most of those that say it have.
    said.or(thousands).unwrap_or(1024).clamp(1, 1 << 17)
}

/// Widths and layers of a decoder of so many weights.
struct Geometry {
    width: usize,
    layers: usize,
    head_outputs: usize,
}

impl Geometry {
    /// Layers of 11.5 d^2 weights: attention with keys of a quarter, and a gated feed-forward layer
    /// of three times the width. Depth is d / 100: 0.6 to 27 billion weights in 17 to 61 layers.
    fn of(n_weights: f64) -> Self {
        let width = (n_weights * 100.0 / 11.5).cbrt();
        let width = ((width / 512.0).round().max(1.0) * 512.0).min(65_536.0);
        Self {
            width: size(width),
            layers: 1,
            head_outputs: 0,
        }
        .part(n_weights)
    }

    /// So many weights of it: as many layers as fit, and the rest as a head.
    fn part(&self, n_weights: f64) -> Self {
        let width = self.width as f64;
        let layer = 11.5 * width * width;
        let layers = (n_weights / layer).floor().clamp(1.0, 512.0);
        let rest = (n_weights - layers * layer).max(0.0);
        Self {
            width: self.width,
            layers: size(layers),
            head_outputs: (rest / width) as usize,
        }
    }
}

fn decoder(
    words: &Words<'_>,
    geometry: &Geometry,
    positions: usize,
    context: usize,
) -> Result<thane_mil::program::Function, Why> {
    let Geometry {
        width,
        layers,
        head_outputs,
    } = *geometry;
    let mut g = words.graph();
    let mut x = g.input(&[1, width, 1, positions]);
    let mut outputs = Vec::new();
    for layer in 0..layers {
        // `LUT4/8`: some layers in the one form, some in the other.
        g.set_weights(if layer % 2 == 0 {
            words.weights
        } else {
            words.others
        });
        let attended = attention(&mut g, x, (width, positions, context), &mut outputs)?;
        x = g.binary("add", x, attended)?;
        let normed = g.rms_norm(x, 1)?;
        let (gate, up) = (
            g.conv(normed, 3 * width, (1, 1), 1)?,
            g.conv(normed, 3 * width, (1, 1), 1)?,
        );
        let gate = g.unary("silu", gate)?;
        let hidden = g.binary("mul", gate, up)?;
        let down = g.conv(hidden, width, (1, 1), 1)?;
        x = g.binary("add", x, down)?;
    }
    let mut left = head_outputs;
    // 16,384: what every chip takes of one axis.
    while left > 0 {
        let n = left.min(16_384);
        outputs.push(g.conv(x, n, (1, 1), 1)?);
        left -= n;
    }
    if head_outputs == 0 {
        outputs.push(x);
    }
    Ok(g.finish(&outputs))
}

/// Attention over `context` positions that come as inputs; what the step adds to them is put to the
/// outputs.
fn attention(
    g: &mut Graph,
    x: ValueId,
    (width, s, context): (usize, usize, usize),
    outputs: &mut Vec<ValueId>,
) -> Result<ValueId, Why> {
    const HEAD: usize = 128;
    let (heads, groups) = (width / HEAD, (width / HEAD / 4).max(1));
    let normed = g.rms_norm(x, 1)?;
    let query = g.conv(normed, heads * HEAD, (1, 1), 1)?;
    let (key, value) = (
        g.conv(normed, groups * HEAD, (1, 1), 1)?,
        g.conv(normed, groups * HEAD, (1, 1), 1)?,
    );
    let query = g.reshape(query, &[1, heads, HEAD, s])?;
    let query = g.transpose(query, &[0, 1, 3, 2])?;
    // Query heads of one group are rows of one product.
    let query = g.reshape(query, &[1, groups, heads / groups * s, HEAD])?;
    let past = g.input(&[1, groups, HEAD, context]);
    let read = g.input(&[1, groups, context, HEAD]);
    let scores = g.matmul(query, past, false)?;
    let weights = g.softmax(scores)?;
    let y = g.matmul(weights, read, false)?;
    let y = g.reshape(y, &[1, heads, s, HEAD])?;
    let y = g.transpose(y, &[0, 1, 3, 2])?;
    let y = g.reshape(y, &[1, heads * HEAD, 1, s])?;
    outputs.extend([key, value]);
    Ok(g.conv(y, width, (1, 1), 1)?)
}
