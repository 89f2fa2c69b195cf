//! Attention of several sequences side by side, each with one token and a cache of its own.
//!
//! Ops that do not look back see sequences as they see tokens, along the last axis. Here, a
//! sequence has heads of its own: caches are [1, sequences * kv_heads, context, head_dim], so that
//! the products are those of one sequence with more heads. The first axis stays 1, and the caches
//! of sequences follow each other in memory, each as it is for one sequence alone.

use thane_mil::program::ValueId;

use super::attention::{Apart, Attention, soft_capped};
use crate::graph::{Graph, ValueResult};

impl Attention {
    /// `x` [1, heads, sequences, head_dim] as [1, sequences * heads, 1, head_dim].
    pub(super) fn as_lanes(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        let rows = g.transpose(x, &[0, 2, 1, 3])?; // [1, sequences, heads, head_dim]
        g.reshape(rows, &[1, -1, 1, self.head_dim as i32])
    }

    /// The products of queries [1, kv_heads, group * sequences, head_dim]. The queries that share a
    /// key head are rows of one product.
    pub(super) fn attend_in_lanes(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
        past: Apart<'_>,
        mask: ValueId,
    ) -> ValueResult {
        let [h, kv, d] = [self.n_heads, self.n_kv_heads, self.head_dim].map(|n| n as i32);
        let n = (g.len_along(q, 2) / self.group()) as i32;
        let q = g.reshape(q, &[1, h, n, d])?;
        let q = g.transpose(q, &[0, 2, 1, 3])?; // [1, sequences, heads, head_dim]
        let q = g.reshape(q, &[1, n * kv, -1, d])?;
        let yes = g.bool(true)?;
        let mut product = |name: &str, keys| {
            let args = [("x", q), ("y", keys), ("transpose_y", yes)];
            g.op("matmul", name, args)
        };
        let (before, own) = (product("past_scores", past.keys)?, product("scores", k)?);
        let scores = g.join("concat", &[before, own], -1)?; // [.., group, context + 1]
        let n_keys = past.context as i32 + 1;
        // The mask is that of a sequence, for all its heads.
        let scores = g.reshape(scores, &[1, n, h, n_keys])?;
        let scores = match self.soft_cap {
            None => scores,
            Some(cap) => soft_capped(g, scores, cap)?,
        };
        let scores = g.add(scores, mask)?;
        let axis = g.int(-1)?;
        let weights = g.op("softmax", "weights", [("x", scores), ("axis", axis)])?;
        let weights = g.reshape(weights, &[1, n * kv, -1, n_keys])?;
        let parts = g.split_sizes(weights, &[n_keys - 1, 1], -1)?;
        let mut product =
            |name: &str, weights, values| g.op("matmul", name, [("x", weights), ("y", values)]);
        let (before, own) = (
            product("past_attended", parts[0], past.values)?,
            product("attended", parts[1], v)?,
        );
        let out = g.add(before, own)?; // [1, sequences * kv_heads, group, head_dim]
        let out = g.reshape(out, &[1, 1, n, h * d])?;
        g.transpose(out, &[0, 3, 1, 2])
    }
}
