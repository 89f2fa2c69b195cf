//! Functions for measurements of residual networks on images (He et al. 2015, table 1): the name of
//! a network gives all of its layers.

use thane_mil::literal::Literal;
use thane_mil::program::ValueId;

use super::{Built, Expressed, Words, not_ours, size};
use crate::labeled::measurements::graph::{Graph, GraphError};

/// Depth, blocks of each stage, and whether a block has three convolutions instead of two.
const DEPTHS: [(usize, [usize; 4], bool); 5] = [
    (18, [2, 2, 2, 2], false),
    (34, [3, 4, 6, 3], false),
    (50, [3, 4, 6, 3], true),
    (101, [3, 4, 23, 3], true),
    (152, [3, 8, 36, 3], true),
];

/// What a row about a residual network is about.
pub fn build(words: &Words<'_>) -> Option<Expressed> {
    let depth = words
        .model
        .after("resnet-")
        .or_else(|| words.model.after("resnet"))
        .map(size)?;
    let Some((_, blocks, deep)) = DEPTHS.into_iter().find(|(n, ..)| *n == depth) else {
        return Some(Err(not_ours(
            "a residual network of that depth is not published",
        )));
    };
    let batch = words
        .find(|t| t.after("b").or_else(|| t.after("batch ")))
        .unwrap_or(1)
        .clamp(1, 256);
    let mut g = words.graph();
    let y = network(&mut g, batch, blocks, deep);
    Some(
        y.map(|y| Built {
            per_call: batch as f64,
            ..Built::of(g.finish(&[y]))
        })
        .map_err(Into::into),
    )
}

fn network(
    g: &mut Graph,
    batch: usize,
    blocks: [usize; 4],
    deep: bool,
) -> Result<ValueId, GraphError> {
    let x = g.input(&[batch, 3, 224, 224]);
    let x = g.strided(x, 64, 7, 2)?;
    let x = g.unary("relu", x)?;
    let constants = [
        ("kernel_sizes", Literal::i32s(&[3, 3])),
        ("strides", Literal::i32s(&[2, 2])),
        ("pad_type", Literal::string("same")),
    ];
    let mut x = g.with("max_pool", [("x", x)], constants)?;
    for (stage, n) in blocks.into_iter().enumerate() {
        for block in 0..n {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            x = residual(g, x, 64 << stage, stride, deep)?;
        }
    }
    let mean = g.reduce("reduce_mean", x, &[2, 3])?;
    g.strided(mean, 1000, 1, 1)
}

fn residual(
    g: &mut Graph,
    x: ValueId,
    width: usize,
    stride: i32,
    deep: bool,
) -> Result<ValueId, GraphError> {
    let outputs = if deep { 4 * width } else { width };
    // The stride is that of the first 3x3 kernel.
    let kernels: &[(usize, usize, i32)] = if deep {
        &[(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
    } else {
        &[(width, 3, stride), (width, 3, 1)]
    };
    let mut y = x;
    for (i, (channels, kernel, stride)) in kernels.iter().enumerate() {
        y = g.strided(y, *channels, *kernel, *stride)?;
        if i + 1 < kernels.len() {
            y = g.unary("relu", y)?;
        }
    }
    let same = g.shape(x).get(1) == Some(&outputs) && stride == 1;
    let shortcut = if same {
        x
    } else {
        g.strided(x, outputs, 1, stride)?
    };
    let sum = g.binary("add", y, shortcut)?;
    g.unary("relu", sum)
}
