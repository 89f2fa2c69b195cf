//! The products of few query rows, as in decoding: keys and values are read where they are, element
//! type and all.
//!
//! To lay keys out by lanes, as for many rows, would cost more than it saves.

use super::TILE_KEYS;
use super::rows::Rows;
use crate::simd::{LANES, Simd};

/// Query rows up to which it pays: those of a token in grouped-query attention.
pub(super) const MOST_ROWS: usize = 4;

/// The products of each query, of rows so far apart, with each key, scaled: into `scores`, a row
/// [`TILE_KEYS`] long for each. The values of the keys are asked for, and the keys that lie `ahead`
/// elements behind, those of the next tile: a cache is mostly in memory, behind all weights of a
/// step, and too short to be foreseen.
#[inline(always)]
pub(super) fn scores<S: Simd>(
    simd: S,
    ([keys, values], ahead): ([Rows; 2], Option<usize>),
    queries: (&[f32], usize),
    scale: f32,
    scores: &mut [f32],
) {
    match queries.0.len().div_ceil(queries.1) {
        1 => scores_of::<S, 1>(simd, ([keys, values], ahead), queries, scale, scores),
        2 => scores_of::<S, 2>(simd, ([keys, values], ahead), queries, scale, scores),
        3 => scores_of::<S, 3>(simd, ([keys, values], ahead), queries, scale, scores),
        _ => scores_of::<S, 4>(simd, ([keys, values], ahead), queries, scale, scores),
    }
}

#[inline(always)]
fn scores_of<S: Simd, const N: usize>(
    simd: S,
    ([keys, values], ahead): ([Rows; 2], Option<usize>),
    (queries, stride): (&[f32], usize),
    scale: f32,
    scores: &mut [f32],
) {
    let dim = keys.head_dim;
    let queries = &queries[..(N - 1) * stride + dim];
    for key_idx in 0..keys.n {
        values.prefetch(simd, key_idx, 0);
        if let Some(ahead) = ahead {
            keys.prefetch(simd, key_idx, ahead);
        }
        let mut acc = [simd.splat(0.0); N];
        for first in (0..dim).step_by(LANES) {
            // SAFETY: the key is one of them, and `first` counts in whole vectors up to the
            // dimension.
            let key = unsafe { keys.vector(simd, key_idx, first) };
            for n in 0..N {
                // SAFETY: N rows of `dim` elements, `stride` apart, as the slice above says.
                let query = simd.load(unsafe { &*queries.as_ptr().add(n * stride + first).cast() });
                acc[n] = simd.fma(key, query, acc[n]);
            }
        }
        for n in 0..N {
            scores[n * TILE_KEYS + key_idx] = simd.sum(acc[n]) * scale;
        }
    }
    // Up to whole vectors, what is masked later has to be numbers.
    for scores in scores.chunks_mut(TILE_KEYS).take(N) {
        scores[keys.n..keys.n.next_multiple_of(LANES)].fill(0.0);
    }
}

/// Adds the values, each times its weight in a row of `weights`, [`TILE_KEYS`] long, to the row's
/// sums.
#[inline(always)]
pub(super) fn add_values<S: Simd>(simd: S, values: Rows, weights: &[f32], sums: &mut [f32]) {
    match sums.len() / values.head_dim {
        1 => add_values_of::<S, 1>(simd, values, weights, sums),
        2 => add_values_of::<S, 2>(simd, values, weights, sums),
        3 => add_values_of::<S, 3>(simd, values, weights, sums),
        _ => add_values_of::<S, 4>(simd, values, weights, sums),
    }
}

#[inline(always)]
fn add_values_of<S: Simd, const N: usize>(
    simd: S,
    values: Rows,
    weights: &[f32],
    sums: &mut [f32],
) {
    assert!(
        values.n <= TILE_KEYS && weights.len() >= N * TILE_KEYS,
        "a weight for each value"
    );
    // As many sums at once as registers hold: those of one vector each wait for the one before.
    let mut n_wide = 0;
    if const { S::HAS_MANY_REGISTERS } {
        n_wide = values.head_dim / (4 * LANES) * 4 * LANES;
        for first in (0..n_wide).step_by(4 * LANES) {
            add_vectors::<S, N, 4>(simd, values, first, weights, sums);
        }
    }
    for first in (n_wide..values.head_dim).step_by(LANES) {
        add_vectors::<S, N, 1>(simd, values, first, weights, sums);
    }
}

/// `V` vectors of the sums, from `first` on.
#[inline(always)]
fn add_vectors<S: Simd, const N: usize, const V: usize>(
    simd: S,
    values: Rows,
    first: usize,
    weights: &[f32],
    sums: &mut [f32],
) {
    let mut acc = [[simd.splat(0.0); V]; N];
    for i in 0..values.n {
        for v in 0..V {
            // SAFETY: the value is one of them, and `first` counts in whole vectors up to the
            // dimension, V of which are left.
            let value = unsafe { values.vector(simd, i, first + v * LANES) };
            for n in 0..N {
                // SAFETY: i < TILE_KEYS, and the caller asserted N rows of them.
                let weight = simd.splat(unsafe { *weights.get_unchecked(n * TILE_KEYS + i) });
                acc[n][v] = simd.fma(value, weight, acc[n][v]);
            }
        }
    }
    for n in 0..N {
        for v in 0..V {
            let sums = sums[n * values.head_dim + first + v * LANES..]
                .first_chunk_mut()
                .expect("whole vectors");
            simd.store(simd.add(acc[n][v], simd.load(sums)), sums);
        }
    }
}
