//! The products of attention in the layout of the Neural Engine, for functions without a cache.

use super::attention::{Attention, AttentionInputs, Projected, soft_capped};
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
        let scores = g.op("matmul", "scores", [("x", q), ("y", p.k)])?;
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
        let out = g.op(
            "matmul",
            "attended",
            [("x", weights), ("y", p.v), ("transpose_y", yes)],
        )?;
        let out = g.reshape(out, &[1, heads, -1, head_dim])?;
        let out = g.transpose(out, &[0, 1, 3, 2])?; // [1, heads, head_dim, tokens]
        g.reshape(out, &[1, heads * head_dim, 1, -1])
    }
}
