//! How heads and tokens lie in the products of attention. The queries that share a key head become
//! rows of one product: query head `h = kv * group + j` is rows `j * tokens ..` of key head `kv`.

use thane_mil::program::ValueId;

use super::Attention;
use crate::graph::{Graph, ValueResult};

/// An op that moves elements.
#[derive(Clone)]
pub(super) enum Move {
    Reshape(Vec<i32>),
    Transpose([i32; 4]),
    Squeeze(i32),
}

use Move::{Reshape, Squeeze, Transpose};

/// `x` after these ops.
pub(super) fn moved(g: &mut Graph, x: ValueId, moves: &[Move]) -> ValueResult {
    moves.iter().try_fold(x, |x, step| match step {
        Reshape(shape) => g.reshape(x, shape),
        Transpose(perm) => g.transpose(x, perm),
        Squeeze(axis) => g.squeeze(x, &[*axis]),
    })
}

/// The shapes of the products of one kind of function.
pub(super) struct HeadLayout {
    /// From heads of queries to [batch, key_heads, rows, head_dim].
    pub(super) queries: Vec<Move>,
    /// Whether keys and values are columns, [1, key_heads, head_dim, keys], instead of
    /// [batch, key_heads, keys, head_dim].
    pub(super) columns: bool,
    /// Dimensions of the scores before that of the keys, if the mask does not fit the products.
    pub(super) scores: Option<[i32; 3]>,
    /// Key heads of the products.
    pub(super) key_heads: i32,
    /// Bound of the scores: `cap * tanh(scores / cap)`.
    pub(super) soft_cap: Option<f32>,
    /// From [batch, key_heads, rows, head_dim] to features.
    pub(super) results: Vec<Move>,
    /// Whether one op computes attention, which divides the scores by `sqrt(head_dim)`.
    pub(super) fused: bool,
}

/// From [1, key_heads, group * tokens, head_dim] to [1, features, 1, tokens].
fn to_columns(a: &Attention, n_tokens: i32) -> [Move; 3] {
    let [h, _, d] = a.sizes();
    let apart = vec![1, h, n_tokens, d];
    let together = vec![1, h * d, 1, n_tokens];
    [Reshape(apart), Transpose([0, 1, 3, 2]), Reshape(together)]
}

impl HeadLayout {
    fn new(a: &Attention, queries: &[Move], scores: Option<[i32; 3]>, results: &[Move]) -> Self {
        Self {
            queries: queries.to_vec(),
            columns: false,
            scores,
            key_heads: a.n_kv_heads as i32,
            soft_cap: a.soft_cap,
            results: results.to_vec(),
            fused: false,
        }
    }

    /// Heads are [batch, heads, tokens, head_dim], and features [batch, tokens, features], as the
    /// portable form has them. The mask has rows for all queries of a key head.
    pub(super) fn rows(a: &Attention, batch_is_one: bool) -> Self {
        let ([h, kv, d], batch) = (a.sizes(), i32::from(batch_is_one));
        let (mut queries, mut results) = (Vec::new(), Vec::new());
        if h != kv || batch_is_one {
            queries.push(Reshape(vec![batch, kv, -1, d]));
            results.push(Reshape(vec![batch, h, -1, d]));
        }
        results.push(Transpose([0, 2, 1, 3]));
        results.extend(match batch_is_one {
            true => vec![Reshape(vec![1, -1, h * d])],
            // Batch and tokens are both symbolic; 0 keeps a dimension.
            false => vec![Reshape(vec![0, 0, 1, h * d]), Squeeze(2)],
        });
        Self {
            fused: a.soft_cap.is_none(),
            ..Self::new(a, &queries, None, &results)
        }
    }

    /// Heads are [1, heads, head_dim, tokens], and features [1, features, 1, tokens], as encoders
    /// with functions of fixed length have them.
    pub(super) fn columns(a: &Attention, n_tokens: usize) -> Self {
        let [h, kv, d] = a.sizes();
        let queries = [Transpose([0, 1, 3, 2]), Reshape(vec![1, kv, -1, d])];
        let (scores, results) = ([1, h, n_tokens as i32], to_columns(a, -1));
        Self {
            columns: true,
            ..Self::new(a, &queries, Some(scores), &results)
        }
    }

    /// Queries are [1, kv_heads, group * tokens, head_dim] already, and features [1, features, 1,
    /// tokens]. Products for one token fit its mask, unless the mask is split into `tiles`.
    pub(super) fn fixed(a: &Attention, n_tokens: usize, tiles: bool) -> Self {
        let ([h, _, d], n) = (a.sizes(), n_tokens as i32);
        let scores = (n > 1 || tiles).then_some([1, h, n]);
        match n {
            1 => Self::new(a, &[], scores, &[Reshape(vec![1, h * d, 1, 1])]),
            _ => Self::new(a, &[], scores, &to_columns(a, n)),
        }
    }

    /// Like [`Self::fixed`], of several sequences side by side, each with one token, a cache and a
    /// mask of its own.
    ///
    /// Ops that do not look back see sequences as they see tokens, along the last axis. Here, a
    /// sequence has heads of its own: caches are [1, sequences * kv_heads, context, head_dim], so
    /// that the products are those of one sequence with more heads. The first axis stays 1, and
    /// the caches of sequences follow each other in memory, each as it is for one sequence alone.
    pub(super) fn lanes(a: &Attention, n_sequences: usize) -> Self {
        let ([h, kv, d], n) = (a.sizes(), n_sequences as i32);
        let queries = [
            Reshape(vec![1, h, n, d]),
            Transpose([0, 2, 1, 3]), // [1, sequences, heads, head_dim]
            Reshape(vec![1, n * kv, -1, d]),
        ];
        let results = [Reshape(vec![1, 1, n, h * d]), Transpose([0, 3, 1, 2])];
        Self {
            key_heads: n * kv,
            ..Self::new(a, &queries, Some([1, n, h]), &results)
        }
    }
}
