//! Functions for measurements of convolutions and chains of convolutions.

use super::{Built, Expressed, Words, lacks, not_ours, size};

/// Batch, height and width.
type Space = [usize; 3];

/// What a row with `conv` in its name is about.
pub fn build(words: &Words<'_>) -> Option<Expressed> {
    if !words.model.has("conv") || words.model.has("mlp ") && !words.model.has("conv1x1") {
        return None;
    }
    Some(if words.model.has("depthwise") {
        depthwise(words)
    } else {
        chain(words)
    })
}

fn kernel(words: &Words<'_>) -> (usize, usize) {
    let named = words.model.behind("conv").and_then(|t| {
        let sizes = t.joined("x")?;
        // `conv1x1` and `conv 3x3`, but not what comes later.
        let start: String = t
            .as_str()
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        (start.parse() == Ok(size(sizes[0]))).then(|| (size(sizes[0]), size(sizes[1])))
    });
    // Not said of `conv-relu` stacks: 3x3 is what they are made of.
    named.unwrap_or((3, 3))
}

/// The channels of each convolution: K, O, K, .. of `K<->O`, else the same throughout.
fn channels(words: &Words<'_>) -> Option<(usize, usize)> {
    let pair = |way: &'static str| words.model.joined(way).or_else(|| words.shape.joined(way));
    if let Some(pair) = pair("<->").or_else(|| pair("->")) {
        return Some((size(pair[0]), size(pair[1])));
    }
    let same = words.find(|t| {
        t.before("ch")
            .or_else(|| t.after("c"))
            .or_else(|| t.after("c="))
    });
    let bracket = || {
        words
            .shape
            .bracket('[', ']')
            .and_then(|b| b.get(1).copied().flatten())
            .map(size)
    };
    // `256x256 sp64` and `2560x2560 W=32`: channels, where the space is said apart.
    let square = || {
        let apart = words.shape.after("sp").or_else(|| words.shape.after("w="));
        words
            .shape
            .joined("x")
            .filter(|p| p.len() == 2 && apart.is_some())
            .map(|p| (size(p[0]), size(p[1])))
    };
    let plain = || {
        words
            .shape
            .joined("x")
            .filter(|p| p.len() == 4)
            .map(|p| size(p[1]))
    };
    square().or_else(|| same.or_else(bracket).or_else(plain).map(|c| (c, c)))
}

fn space(words: &Words<'_>) -> Option<Space> {
    let batch = words.shape.after("b").map_or(1, size);
    let bracket = words.shape.bracket('[', ']').filter(|b| b.len() == 4);
    if let Some([b, _, h, w]) = bracket.as_deref() {
        return Some([b.map_or(1, size), size((*h)?), size((*w)?)]);
    }
    if let Some(sizes) = words.shape.joined("x") {
        match sizes[..] {
            [b, _, h, w] => return Some([size(b), size(h), size(w)]),
            [h, w]
                if words
                    .shape
                    .after("sp")
                    .or_else(|| words.shape.after("w="))
                    .is_none() =>
            {
                return Some([batch, size(h), size(w)]);
            }
            _ => {}
        }
    }
    if let (Some(h), Some(w)) = (words.shape.after("h"), words.shape.after("w")) {
        return Some([batch, size(h), size(w)]);
    }
    words.positions().map(|s| [batch, 1, s])
}

fn chain(words: &Words<'_>) -> Expressed {
    let (inputs, outputs) = channels(words).ok_or_else(|| lacks("the number of channels"))?;
    let [b, h, w] = space(words).ok_or_else(|| lacks("the number of positions"))?;
    let kernel = kernel(words);
    // A slope is that of a layer in a long chain.
    let slope = words.row.model.contains("slope") || words.row.metric.contains("per-layer");
    let n = if slope {
        words.repeats().max(16)
    } else {
        words.repeats()
    };
    let mut g = words.graph();
    // Layers of a chain that says nothing of it have the same weights: 128 of them on M3 Pro, M4
    // Pro, M4 Max and M5 are read faster than memory is (maderix/ANE, rows of the split
    // `constants`).
    if words.has("shared w") || words.model.has("chain") && !words.has("unique") {
        g.share_weights();
    }
    let mut x = g.input(&[b, inputs, h, w]);
    let parts = parts(words);
    if parts > 1 {
        let y = g.conv_in_parts(x, outputs, kernel, parts)?;
        return Ok(Built::of(g.finish(&[y])));
    }
    // As many of the four of `conv-relu-conv-relu` as there are, in each block.
    let (convs, relus) = (
        words.model.as_str().matches("conv").count(),
        words.model.as_str().matches("relu").count(),
    );
    let per_block = if relus > 0 { convs.max(1) } else { 1 };
    for _ in 0..n * per_block {
        let channels = g.shape(x).get(1).copied().unwrap_or(inputs);
        x = g.conv(
            x,
            if channels == inputs { outputs } else { inputs },
            kernel,
            1,
        )?;
        if relus > 0 {
            x = g.unary("relu", x)?;
        }
    }
    Ok(Built {
        layers: Some((n * per_block) as f64),
        ..Built::of(g.finish(&[x]))
    })
}

/// How many convolutions of a part of the inputs each take the place of one:
/// `split on K in 4 parts`, `split K/4`.
fn parts(words: &Words<'_>) -> usize {
    let said = words
        .model
        .before(" parts")
        .or_else(|| words.model.after("k/"))
        .or_else(|| words.model.after("split in "));
    said.map_or(1, size).clamp(1, 64)
}

/// `3-tap depthwise conv chain`, `0.82 MB tensor`; `depthwise causal conv k4 C=10240 S=32`.
fn depthwise(words: &Words<'_>) -> Expressed {
    let taps = words
        .find(|t| t.before("-tap").or_else(|| t.after("k")))
        .unwrap_or(3);
    let said = words.find(|t| t.after("c=").or_else(|| t.before("ch")));
    let positions = words.find(|t| t.after("s=").or_else(|| t.before(" px")));
    let bytes = words.shape.before(" mb").map(|mb| mb * 1e6);
    let (c, s) = match (said, positions, bytes) {
        (Some(c), Some(s), _) => (c, s),
        // Only the bytes of the tensor are said; how they fall into channels does not matter to
        // what moves.
        (_, _, Some(bytes)) => (512, size(bytes / 2.0 / 512.0)),
        _ => return Err(lacks("the size")),
    };
    let is_chain = words.model.has("chain");
    let n = if is_chain { words.repeats().max(16) } else { 1 };
    let kernel = (1, taps.clamp(1, 64));
    if c.saturating_mul(s) > 1 << 32 {
        return Err(not_ours("it is too large"));
    }
    let mut g = words.graph();
    let mut x = g.input(&[1, c, 1, s]);
    for _ in 0..n {
        x = g.conv(x, c, kernel, c)?;
    }
    Ok(Built {
        layers: Some(n as f64),
        ..Built::of(g.finish(&[x]))
    })
}
