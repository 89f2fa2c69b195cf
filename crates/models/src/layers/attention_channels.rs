//! The products of attention in the layout of the Neural Engine.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::attention::{Attention, AttentionInputs, Past, Projected, soft_capped};
use crate::graph::{Graph, ValueResult};

impl Attention {
    /// Attention in the channel layout. The queries that share a key head become rows of one
    /// product; scores are [1, heads, tokens, keys] for mask and softmax.
    pub(super) fn attend_in_channels(
        &self,
        g: &mut Graph,
        p: Projected,
        inputs: AttentionInputs<'_>,
    ) -> ValueResult {
        let (heads, kv_heads, head_dim) = (
            self.n_heads as i32,
            self.n_kv_heads as i32,
            self.head_dim as i32,
        );
        let tokens = g.shape(p.q)[3].known().map_or(-1, |n| n as i32);
        let q = g.scale(p.q, self.scale as f32)?;
        let q = g.transpose(q, &[0, 1, 3, 2])?; // [1, heads, tokens, head_dim]
        let q = g.reshape(q, &[1, kv_heads, -1, head_dim])?;
        let yes = g.bool(true)?;
        // [1, kv_heads, group * tokens, keys]
        let mut scores = g.op("matmul", "scores", [("x", q), ("y", p.k)])?;
        if let Some(Past::Separate { keys, .. }) = inputs.past {
            let past = g.op(
                "matmul",
                "past_scores",
                [("x", q), ("y", keys), ("transpose_y", yes)],
            )?;
            scores = g.join("concat", &[past, scores], -1)?;
        }
        let scores = g.reshape(scores, &[1, heads, tokens, -1])?;
        let scores = match self.soft_cap {
            None => scores,
            Some(cap) => soft_capped(g, scores, cap)?,
        };
        let scores = g.add(scores, inputs.mask)?;
        let axis = g.int(-1)?;
        let weights = g.op("softmax", "weights", [("x", scores), ("axis", axis)])?;
        let keys = g.shape(weights)[3].known().map_or(-1, |n| n as i32);
        let weights = g.reshape(weights, &[1, kv_heads, -1, keys])?;
        let out = match inputs.past {
            Some(Past::Separate {
                values,
                context,
                new,
                ..
            }) => {
                let (past_weights, new_weights) = split_last_axis(g, weights, context)?;
                // [1, kv_heads, tokens, head_dim]
                let (k, v) = (
                    g.transpose(p.k, &[0, 1, 3, 2])?,
                    g.transpose(p.v, &[0, 1, 3, 2])?,
                );
                new.borrow_mut().extend([k, v]);
                let past = g.op(
                    "matmul",
                    "past_attended",
                    [("x", past_weights), ("y", values)],
                )?;
                let own = g.op("matmul", "attended", [("x", new_weights), ("y", v)])?;
                g.add(past, own)?
            }
            _ => g.op(
                "matmul",
                "attended",
                [("x", weights), ("y", p.v), ("transpose_y", yes)],
            )?,
        };
        let out = g.reshape(out, &[1, heads, -1, head_dim])?;
        let out = g.transpose(out, &[0, 1, 3, 2])?; // [1, heads, head_dim, tokens]
        g.reshape(out, &[1, heads * head_dim, 1, -1])
    }
}

/// Splits the last of four axes into its first `n` elements and the rest.
fn split_last_axis(g: &mut Graph, x: ValueId, n: usize) -> Result<(ValueId, ValueId), BuildError> {
    let at = g.ints(&[0, 0, 0, i32::try_from(n).unwrap_or(i32::MAX)])?;
    let zeros = g.ints(&[0; 4])?;
    let (all, but_last) = (g.bools(&[true; 4])?, g.bools(&[true, true, true, false])?);
    let mut slice = |[begin, end, begin_mask, end_mask]: [ValueId; 4]| {
        let args = [
            ("x", x),
            ("begin", begin),
            ("end", end),
            ("begin_mask", begin_mask),
            ("end_mask", end_mask),
        ];
        g.op("slice_by_index", "part", args)
    };
    Ok((
        slice([zeros, at, all, but_last])?,
        slice([at, zeros, but_last, all])?,
    ))
}
