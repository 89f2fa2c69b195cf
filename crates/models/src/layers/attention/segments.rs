//! The one place that makes scores, mask, softmax and weighted sum, over segments of keys and
//! values. Scores are [.., rows, keys], where the queries that share a key head are rows.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::layout::{HeadLayout, moved};
use crate::graph::{Graph, ValueResult};

/// Parts of keys and values, as [`HeadLayout`] has them, whose scores lie side by side under one
/// mask.
pub(super) struct Segment {
    parts: Vec<[ValueId; 2]>,
    /// Added to the scores.
    mask: ValueId,
}

impl Segment {
    pub(super) fn new(parts: &[[ValueId; 2]], mask: ValueId) -> Self {
        let parts = parts.to_vec();
        Self { parts, mask }
    }

    /// Numbers of keys of the parts, which are rows.
    fn sizes(&self, g: &Graph) -> Vec<i32> {
        let keys = self.parts.iter().map(|[keys, _]| *keys);
        keys.map(|keys| g.len_along(keys, 2) as i32).collect()
    }

    /// The name of a product with part `i`.
    fn name(&self, i: usize, product: &str) -> String {
        let is_last = i + 1 == self.parts.len();
        format!("{}{product}", if is_last { "" } else { "past_" })
    }
}

impl HeadLayout {
    /// `softmax(q k^T + mask) v` over all segments, for queries that are scaled.
    pub(super) fn attend(&self, g: &mut Graph, q: ValueId, segments: &[Segment]) -> ValueResult {
        let q = moved(g, q, &self.queries)?;
        let out = match segments {
            [Segment { parts, mask }] if self.fused => {
                let [k, v] = parts[0];
                let args = [("query", q), ("key", k), ("value", v), ("attn_mask", *mask)];
                g.op("scaled_dot_product_attention", "attention", args)?
            }
            _ => self.attend_by_parts(g, q, segments)?,
        };
        moved(g, out, &self.results)
    }

    fn attend_by_parts(&self, g: &mut Graph, q: ValueId, segments: &[Segment]) -> ValueResult {
        let yes = g.bool(true)?;
        let scores = segments.iter().map(|s| self.scores(g, q, s, yes));
        let scores = scores.collect::<Result<Vec<ValueId>, BuildError>>()?;
        if let ([segment], [scores]) = (segments, scores.as_slice()) {
            let axis = g.int(-1)?;
            let weights = g.op("softmax", "weights", [("x", *scores), ("axis", axis)])?;
            return self.weighted(g, weights, (segment, yes));
        }
        // One maximum over all segments, and one division at the end:
        // `sum_t exp(s_t - max) v_t / sum_t exp(s_t - max)`. A softmax of
        // many columns takes longer than its parts.
        let mut most = g.reduce("reduce_max", scores[0], -1)?;
        for scores in &scores[1..] {
            let own = g.reduce("reduce_max", *scores, -1)?;
            most = g.op("maximum", "most", [("x", most), ("y", own)])?;
        }
        let mut sums: Option<[ValueId; 2]> = None;
        for (segment, scores) in segments.iter().zip(scores) {
            let below = g.sub(scores, most)?;
            let weights = g.op("exp", "weights", [("x", below)])?;
            let sum = g.reduce("reduce_sum", weights, -1)?;
            let weighted = self.weighted(g, weights, (segment, yes))?;
            sums = Some(match sums {
                None => [sum, weighted],
                Some(before) => [g.add(before[0], sum)?, g.add(before[1], weighted)?],
            });
        }
        let [sum, weighted] = sums.expect("a call attends to its own tokens");
        let rows = g.len_along(q, 2) as i32;
        let sum = g.reshape(sum, &[1, self.key_heads, rows, 1])?;
        g.op("real_div", "attended", [("x", weighted), ("y", sum)])
    }

    /// The scores of a segment, bounded and masked.
    fn scores(&self, g: &mut Graph, q: ValueId, segment: &Segment, yes: ValueId) -> ValueResult {
        let transposed = (!self.columns).then_some(yes);
        let mut parts = Vec::new();
        for (i, [keys, _]) in segment.parts.iter().enumerate() {
            parts.push(product(
                g,
                &segment.name(i, "scores"),
                [q, *keys],
                transposed,
            )?);
        }
        let mut scores = parts[0];
        if parts.len() > 1 {
            scores = g.join("concat", &parts, -1)?;
        }
        if let Some([a, b, c]) = self.scores {
            // Columns are counted from the shape of the product.
            let n_keys = match self.columns {
                true => -1,
                false => segment.sizes(g).iter().sum(),
            };
            scores = g.reshape(scores, &[a, b, c, n_keys])?;
        }
        if let Some(cap) = self.soft_cap {
            scores = soft_capped(g, scores, cap)?;
        }
        g.add(scores, segment.mask)
    }

    /// The values of a segment times their weights, which have the shape of the scores:
    /// [.., rows, head_dim].
    fn weighted(
        &self,
        g: &mut Graph,
        mut weights: ValueId,
        (segment, yes): (&Segment, ValueId),
    ) -> ValueResult {
        if self.scores.is_some() {
            let n_keys = g.len_along(weights, -1) as i32;
            weights = g.reshape(weights, &[1, self.key_heads, -1, n_keys])?;
        }
        let parts = match segment.parts.len() {
            1 => vec![weights],
            _ => g.split_sizes(weights, &segment.sizes(g), -1)?,
        };
        let transposed = self.columns.then_some(yes);
        let mut sum = None;
        for (i, ([_, values], weights)) in segment.parts.iter().zip(parts).enumerate() {
            let name = segment.name(i, "attended");
            let own = product(g, &name, [weights, *values], transposed)?;
            sum = Some(sum.map_or(Ok(own), |sum| g.add(sum, own))?);
        }
        Ok(sum.expect("a segment has parts"))
    }
}

fn product(g: &mut Graph, name: &str, [x, y]: [ValueId; 2], yes: Option<ValueId>) -> ValueResult {
    match yes {
        None => g.op("matmul", name, [("x", x), ("y", y)]),
        Some(yes) => g.op("matmul", name, [("x", x), ("y", y), ("transpose_y", yes)]),
    }
}

/// `cap * tanh(x / cap)`.
pub fn soft_capped(g: &mut Graph, x: ValueId, cap: f32) -> ValueResult {
    let x = g.scale(x, cap.recip())?;
    let bounded = g.op("tanh", "bounded", [("x", x)])?;
    g.scale(bounded, cap)
}
