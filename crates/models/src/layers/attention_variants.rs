//! Other ways to attend in functions of fixed length: in tiles of the cache, and with heads that
//! see different parts of it.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use super::attention::{Apart, Attention, StreamingHeads, soft_capped};
use crate::graph::{Graph, ValueResult};

impl Attention {
    /// The products of queries [1, kv_heads, group * tokens, head_dim], in tiles of `tile` rows of
    /// the cache. All tiles have one maximum, and sums are divided at the end:
    /// `sum_t exp(s_t - max) v_t / sum_t exp(s_t - max)`. An op of many columns leaves the Neural
    /// Engine or takes longer than its parts (Forge, M6).
    pub(super) fn attend_by_tiles(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
        (past, tile): (Apart<'_>, usize),
        mask: ValueId,
    ) -> ValueResult {
        let [h, kv] = [self.n_heads, self.n_kv_heads].map(|n| n as i32);
        let n = g.len_along(q, 2) / self.group();
        let n_tiles = past.context.div_ceil(tile);
        let size = |i: usize| tile.min(past.context - i * tile) as i32;
        let sizes: Vec<i32> = (0..n_tiles).map(size).collect();
        let mut keys = g.split_sizes(past.keys, &sizes, 2)?;
        let mut values = g.split_sizes(past.values, &sizes, 2)?;
        let mut columns = sizes;
        columns.push(n as i32);
        let masks = g.split_sizes(mask, &columns, -1)?;
        keys.push(k);
        values.push(v);
        let mut scores = Vec::new();
        for ((keys, mask), n_keys) in keys.into_iter().zip(masks).zip(&columns) {
            scores.push(self.tile_scores(g, q, (keys, *n_keys), (mask, n))?);
        }
        let mut most: Option<ValueId> = None;
        for tile in &scores {
            let of_tile = g.reduce("reduce_max", *tile, -1)?;
            most = Some(match most {
                None => of_tile,
                Some(most) => g.op("maximum", "most", [("x", most), ("y", of_tile)])?,
            });
        }
        let (mut sum, mut weighted): (Option<ValueId>, Option<ValueId>) = (None, None);
        for ((tile, values), n_keys) in scores.into_iter().zip(values).zip(&columns) {
            let below = match most {
                None => tile,
                Some(most) => g.sub(tile, most)?,
            };
            let weights = g.op("exp", "weights", [("x", below)])?;
            let of_tile = g.reduce("reduce_sum", weights, -1)?;
            let weights = g.reshape(weights, &[1, kv, -1, *n_keys])?;
            let attended = g.op("matmul", "attended", [("x", weights), ("y", values)])?;
            sum = Some(added(g, sum, of_tile)?);
            weighted = Some(added(g, weighted, attended)?);
        }
        let (Some(sum), Some(weighted)) = (sum, weighted) else {
            return Ok(q);
        };
        let sum = g.reshape(sum, &[1, kv, h / kv * n as i32, 1])?;
        let out = g.op("real_div", "attended", [("x", weighted), ("y", sum)])?;
        self.as_features(g, out, n)
    }

    /// Scores of a tile of `n_keys` keys, masked: [1, heads, tokens, keys].
    fn tile_scores(
        &self,
        g: &mut Graph,
        q: ValueId,
        (keys, n_keys): (ValueId, i32),
        (mask, n): (ValueId, usize),
    ) -> ValueResult {
        let yes = g.bool(true)?;
        let args = [("x", q), ("y", keys), ("transpose_y", yes)];
        let scores = g.op("matmul", "scores", args)?;
        let scores = g.reshape(scores, &[1, self.n_heads as i32, n as i32, n_keys])?;
        let scores = match self.soft_cap {
            None => scores,
            Some(cap) => soft_capped(g, scores, cap)?,
        };
        g.add(scores, mask)
    }

    /// The products of heads that see all tokens, and of heads that see some, each with a cache of
    /// its own. Their results go back to the order of the heads.
    pub(super) fn attend_by_heads(
        &self,
        g: &mut Graph,
        q: ValueId,
        [k, v]: [ValueId; 2],
        (past, mask): (Apart<'_>, ValueId),
        streaming: StreamingHeads<'_>,
    ) -> ValueResult {
        let group = self.group();
        let retrieval = streaming.retrieval;
        let [q, k, v] = [
            by_kind(g, q, retrieval)?,
            by_kind(g, k, retrieval)?,
            by_kind(g, v, retrieval)?,
        ];
        let n_full = retrieval.iter().filter(|keeps_all| **keeps_all).count();
        let kept = Apart {
            keys: streaming.keys,
            values: streaming.values,
            context: streaming.context,
            ..past
        };
        let parts = [
            (n_full, past, mask),
            (retrieval.len() - n_full, kept, streaming.mask),
        ];
        let mut attended = Vec::new();
        for (i, (n_kv_heads, past, mask)) in parts.into_iter().enumerate() {
            let heads = Self {
                n_heads: n_kv_heads * group,
                n_kv_heads,
                ..*self
            };
            past.new.borrow_mut().push([k[i], v[i]]);
            let out = heads.attend_apart(g, q[i], [k[i], v[i]], past, mask)?;
            let size = (group * self.head_dim) as i32;
            let each = g.split_sizes(out, &vec![size; n_kv_heads], 1)?;
            attended.push(each.into_iter());
        }
        let next = |keeps_all: &bool| attended[usize::from(!keeps_all)].next();
        let in_order: Vec<ValueId> = retrieval.iter().filter_map(next).collect();
        g.join("concat", &in_order, 1)
    }
}

fn added(g: &mut Graph, sum: Option<ValueId>, x: ValueId) -> ValueResult {
    match sum {
        None => Ok(x),
        Some(sum) => g.add(sum, x),
    }
}

/// The key heads of `x` [1, kv_heads, ..] that see all tokens, and those that do not.
fn by_kind(g: &mut Graph, x: ValueId, retrieval: &[bool]) -> Result<[ValueId; 2], BuildError> {
    let runs: Vec<&[bool]> = retrieval.chunk_by(|a, b| a == b).collect();
    let sizes: Vec<i32> = runs.iter().map(|run| run.len() as i32).collect();
    let parts = g.split_sizes(x, &sizes, 1)?;
    let mut of_kind = |keeps_all: bool| {
        let all = runs.iter().zip(&parts);
        let chosen: Vec<ValueId> = all
            .filter(|(run, _)| run[0] == keeps_all)
            .map(|(_, part)| *part)
            .collect();
        match chosen.as_slice() {
            [one] => Ok(*one),
            several => g.join("concat", several, 1),
        }
    };
    Ok([of_kind(true)?, of_kind(false)?])
}
