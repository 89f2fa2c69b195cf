//! Blocks of query rows over tiles of keys.

use super::mask::Tile;
use super::{BLOCK_ROWS, Block, Common, KvData, KvView, MASK_FLOOR, MOST_BLOCKS, TILE_KEYS, few, math};
use crate::f16::{f16_to_f32, u16_as_bytes};
use crate::simd::{Kernel, LANES, Simd};

pub(super) struct RowTask<'a> {
    pub(super) common: &'a Common<'a>,
    /// One or several blocks of rows.
    pub(super) block: Block,
    pub(super) scratch: &'a mut [f32],
    /// Where the keys are split: for each row the sums, the maximum and the sum of exponentials.
    pub(super) partials: &'a mut [f32],
    /// Where they are not.
    pub(super) out: &'a mut [f32],
}

/// A worker's scratch.
struct Scratch<'a> {
    /// [TILE_KEYS / 16, padded_dim, 16 keys]
    keys: &'a mut [f32],
    /// [TILE_KEYS, padded_dim]
    values: &'a mut [f32],
    /// [BLOCK_ROWS, TILE_KEYS]: scores, then their exponentials.
    weights: &'a mut [f32],
    /// [rows, padded_dim]: the weighted sums of the values.
    sums: &'a mut [f32],
}

/// The running maximum and sum of exponentials of each row of a block.
#[derive(Clone, Copy)]
struct State {
    max: [f32; BLOCK_ROWS],
    total: [f32; BLOCK_ROWS],
}

impl Kernel for RowTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { common, block, scratch, partials, out } = self;
        let padded_dim = common.division.padded_dim;
        let (keys, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (values, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (weights, sums) = scratch.split_at_mut(BLOCK_ROWS * TILE_KEYS);
        let mut scratch = Scratch { keys, values, weights, sums };
        scratch.sums[..block.n_rows * padded_dim].fill(0.0);
        let mut states = [State { max: [f32::NEG_INFINITY; BLOCK_ROWS], total: [0.0; BLOCK_ROWS] }; MOST_BLOCKS];
        for first_key in (block.first_key..block.end_key).step_by(TILE_KEYS) {
            let end_key = block.end_key.min(first_key + TILE_KEYS);
            let mut is_loaded = false;
            for (i, state) in states[..block.n_rows.div_ceil(BLOCK_ROWS)].iter_mut().enumerate() {
                let first_row = block.first_row + i * BLOCK_ROWS;
                let mask = match common.tiles.get(first_row / BLOCK_ROWS, first_key / TILE_KEYS) {
                    Tile::Hidden => continue,
                    Tile::Clear => None,
                    Tile::Mixed => common.mask,
                };
                let n_rows = BLOCK_ROWS.min(block.n_rows - i * BLOCK_ROWS);
                let Scratch { keys, values, weights, sums } = &mut scratch;
                let sums = &mut sums[i * BLOCK_ROWS * padded_dim..][..n_rows * padded_dim];
                let of_block = Scratch { keys, values, weights, sums };
                let block = Block { first_row, n_rows, first_key, end_key, ..block };
                tile(simd, common, block, mask, of_block, state, &mut is_loaded);
            }
        }
        for row_idx in 0..block.n_rows {
            let state = &states[row_idx / BLOCK_ROWS];
            let (max, total) = (state.max[row_idx % BLOCK_ROWS], state.total[row_idx % BLOCK_ROWS]);
            let sums = &scratch.sums[row_idx * padded_dim..][..padded_dim];
            if out.is_empty() {
                let partial = &mut partials[row_idx * (padded_dim + 2)..][..padded_dim + 2];
                partial[..padded_dim].copy_from_slice(sums);
                partial[padded_dim..].copy_from_slice(&[max, total]);
            } else {
                let out = &mut out[row_idx * common.head_dim..][..common.head_dim];
                let factor = 1.0 / total;
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * factor);
            }
        }
    }
}

/// The masks of a row of the block.
#[inline(always)]
fn mask_row(mask: &[f32], n_keys: usize, block: Block, row_idx: usize) -> &[f32] {
    &mask[(block.first_row + row_idx) * n_keys..][..n_keys]
}

/// The keys of `block`, at most a tile; they are loaded where an earlier block did not.
#[inline(always)]
fn tile<S: Simd>(
    simd: S,
    common: &Common,
    block: Block,
    mask: Option<&[f32]>,
    scratch: Scratch,
    state: &mut State,
    is_loaded: &mut bool,
) {
    let (first_key, n_keys) = (block.first_key, block.end_key - block.first_key);
    let padded_dim = common.division.padded_dim;
    let first_query = block.head_idx * common.n_rows + block.first_row;
    let queries = &common.q[first_query * common.head_dim..][..block.n_rows * common.head_dim];
    // What is left of the keys may be far fewer than a tile.
    let n_groups = n_keys.div_ceil(LANES);
    let few = |view| {
        let rows = few::Rows::new(view, common.head_dim, block.head_idx, first_key, n_keys);
        rows.filter(|_| block.n_rows <= few::MOST_ROWS)
    };
    let (few_keys, few_values) = (few(&common.k), few(&common.v));
    if !*is_loaded && (few_keys.is_none() || few_values.is_none()) {
        load(simd, common, block, scratch.keys, scratch.values);
        *is_loaded = true;
    }
    if let Some(keys) = few_keys {
        few::scores(simd, keys, queries, scratch.weights);
    } else {
        let keys = Panels {
            data: &scratch.keys[..n_groups * LANES * padded_dim],
            panel_stride: LANES * padded_dim,
            stride: LANES,
            n_panels: n_groups,
            n_vectors: common.head_dim,
        };
        products::<S, false>(simd, keys, queries, common.head_dim, scratch.weights, TILE_KEYS);
    }
    let mut tile_max = [f32::NEG_INFINITY; BLOCK_ROWS];
    for (row_idx, max) in tile_max[..block.n_rows].iter_mut().enumerate() {
        let mask = mask.map(|mask| &mask_row(mask, common.n_keys, block, row_idx)[first_key..][..n_keys]);
        let scores = scratch.weights[row_idx * TILE_KEYS..][..n_groups * LANES].as_chunks_mut().0;
        *max = mask_scores(simd, scores, mask, n_keys, common.scale);
    }
    state.renew(simd, &tile_max, &mut scratch.sums[..block.n_rows * padded_dim], padded_dim);
    for row_idx in 0..block.n_rows {
        let scores = scratch.weights[row_idx * TILE_KEYS..][..n_groups * LANES].as_chunks_mut().0;
        state.total[row_idx] += weigh(simd, scores, state.max[row_idx]);
    }
    let weights = &scratch.weights[..block.n_rows * TILE_KEYS];
    if let Some(values) = few_values {
        return few::add_values(simd, values, weights, &mut scratch.sums[..block.n_rows * padded_dim]);
    }
    let (values, stride) = whole_rows(&common.v, common.head_dim, block).unwrap_or((scratch.values, padded_dim));
    let n_panels = padded_dim / LANES;
    let values = Panels { data: values, panel_stride: LANES, stride, n_panels, n_vectors: n_keys };
    products::<S, true>(simd, values, weights, TILE_KEYS, scratch.sums, padded_dim);
}

/// Makes panels of the keys of a block, and rows of its values where they are not used as they are.
#[inline(always)]
fn load<S: Simd>(simd: S, common: &Common, block: Block, keys: &mut [f32], values: &mut [f32]) {
    let (head_dim, padded_dim) = (common.head_dim, common.division.padded_dim);
    let n_keys = block.end_key - block.first_key;
    let (rows, stride) = match whole_rows(&common.k, head_dim, block) {
        Some(rows) => rows,
        None => {
            load_rows(simd, &common.k, head_dim, block.head_idx, block.first_key, n_keys, values);
            (&*values, padded_dim)
        }
    };
    transpose_keys(simd, rows, stride, padded_dim, &mut keys[..n_keys.next_multiple_of(LANES) * padded_dim]);
    if whole_rows(&common.v, head_dim, block).is_none() {
        load_rows(simd, &common.v, head_dim, block.head_idx, block.first_key, n_keys, values);
    }
}

/// The keys or values of a block from its first on, and how far they are apart, where they are whole rows of f32.
#[inline(always)]
fn whole_rows<'a>(view: &KvView<'a>, head_dim: usize, block: Block) -> Option<(&'a [f32], usize)> {
    match view.data {
        KvData::F32(data) if block.end_key - block.first_key == TILE_KEYS && head_dim.is_multiple_of(LANES) => {
            Some((&data[block.head_idx * view.head_stride + block.first_key * view.key_stride..], view.key_stride))
        }
        _ => None,
    }
}

/// Some keys or values as f32 rows [TILE_KEYS, padded_dim], filled up with zeros both ways.
#[inline(always)]
fn load_rows<S: Simd>(
    simd: S,
    view: &KvView,
    head_dim: usize,
    head_idx: usize,
    first_key: usize,
    n_keys: usize,
    rows: &mut [f32],
) {
    let padded_dim = head_dim.next_multiple_of(LANES);
    let (used, unused) = rows.split_at_mut(n_keys * padded_dim);
    unused.fill(0.0);
    for (i, row) in used.chunks_exact_mut(padded_dim).enumerate() {
        let start = head_idx * view.head_stride + (first_key + i) * view.key_stride;
        match view.data {
            KvData::F32(data) => row[..head_dim].copy_from_slice(&data[start..][..head_dim]),
            KvData::F16(data) => {
                let (vectors, rest) = data[start..][..head_dim].as_chunks::<16>();
                for (vector, row) in vectors.iter().zip(row.as_chunks_mut::<16>().0) {
                    simd.store(simd.load_f16(u16_as_bytes(vector)), row);
                }
                for (half, row) in rest.iter().zip(&mut row[vectors.len() * 16..]) {
                    *row = f16_to_f32(*half);
                }
            }
        }
        row[head_dim..].fill(0.0);
    }
}

/// Rows of keys as panels of 16 keys: element by element, the keys as lanes.
#[inline(always)]
fn transpose_keys<S: Simd>(simd: S, rows: &[f32], stride: usize, padded_dim: usize, panels: &mut [f32]) {
    for (group, panel) in panels.chunks_exact_mut(LANES * padded_dim).enumerate() {
        let rows = &rows[group * LANES * stride..];
        for first in (0..padded_dim).step_by(LANES) {
            let mut lanes = [simd.splat(0.0); LANES];
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = simd.load(rows[i * stride + first..].first_chunk().expect("whole vectors"));
            }
            simd.transpose(&mut lanes);
            for (lane, out) in lanes.into_iter().zip(panel[first * LANES..].as_chunks_mut().0) {
                simd.store(lane, out);
            }
        }
    }
}

/// Panels of as many vectors of 16.
#[derive(Clone, Copy)]
struct Panels<'a> {
    data: &'a [f32],
    /// From panel to panel.
    panel_stride: usize,
    /// From vector to vector.
    stride: usize,
    n_panels: usize,
    n_vectors: usize,
}

impl Panels<'_> {
    /// From this panel on.
    #[inline(always)]
    fn from(self, panel_idx: usize) -> Self {
        let first = (panel_idx * self.panel_stride).min(self.data.len());
        Self { data: &self.data[first..], n_panels: self.n_panels - panel_idx, ..self }
    }
}

/// For each row of `rows`, of length `row_len`, and each panel, the sum of the panel's vectors times the row's elements; put into, or
/// added to, the panel's 16 elements of a row of `out`, whose rows are `out_stride` apart.
#[inline(always)]
fn products<S: Simd, const ADD: bool>(
    simd: S,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let mut panel_idx = 0;
    // With many registers each element that is read is multiplied with four vectors.
    while S::TILE_TOKENS >= 12 && panels.n_panels - panel_idx >= 4 {
        let out = &mut out[panel_idx * LANES..];
        products_of::<S, ADD, 4>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 4;
    }
    while panel_idx < panels.n_panels {
        let out = &mut out[panel_idx * LANES..];
        products_of::<S, ADD, 1>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 1;
    }
}

/// As [`products`], of the first `P` panels.
#[inline(always)]
fn products_of<S: Simd, const ADD: bool, const P: usize>(
    simd: S,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let n_rows = rows.len() / row_len;
    let mut at = 0;
    // Few rows have several sums each, so that no addition waits for the one before. 6 sums of two registers, a vector of two and a
    // broadcast fit the 16 registers of AVX2; 12 sums, or 24 of four panels, the 32 of AVX-512.
    while at < n_rows {
        let (rows, out) = (&rows[at * row_len..], &mut out[at * out_stride..]);
        at += match n_rows - at {
            12.. if S::TILE_TOKENS >= 12 && P == 1 => {
                product::<S, ADD, P, 12, 1>(simd, panels, rows, row_len, out, out_stride)
            }
            6.. => product::<S, ADD, P, 6, 1>(simd, panels, rows, row_len, out, out_stride),
            4.. => product::<S, ADD, P, 4, 1>(simd, panels, rows, row_len, out, out_stride),
            2.. if P == 1 => product::<S, ADD, P, 2, 4>(simd, panels, rows, row_len, out, out_stride),
            2.. => product::<S, ADD, P, 2, 2>(simd, panels, rows, row_len, out, out_stride),
            _ if P == 1 => product::<S, ADD, P, 1, 4>(simd, panels, rows, row_len, out, out_stride),
            _ => product::<S, ADD, P, 1, 2>(simd, panels, rows, row_len, out, out_stride),
        };
    }
}

/// `N` rows and `P` panels, each in `SUMS` sums; `N`.
#[inline(always)]
fn product<S: Simd, const ADD: bool, const P: usize, const N: usize, const SUMS: usize>(
    simd: S,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) -> usize {
    let Panels { data, panel_stride, stride, n_panels, n_vectors } = panels;
    assert!(n_vectors <= row_len && rows.len() >= N * row_len, "as many elements in each row as vectors");
    let last = (P - 1) * panel_stride + n_vectors.saturating_sub(1) * stride;
    assert!(n_panels >= P && (n_vectors == 0 || last + LANES <= data.len()), "whole vectors");
    let mut acc = [[[simd.splat(0.0); P]; SUMS]; N];
    let n_whole = n_vectors / SUMS * SUMS;
    for first in (0..n_whole).step_by(SUMS) {
        for k in 0..SUMS {
            // SAFETY: first + k < n_vectors <= row_len; the panels and the N rows have that many by the assertions above.
            unsafe { add_product(simd, panels, rows, row_len, first + k, &mut acc, k) };
        }
    }
    for i in n_whole..n_vectors {
        // SAFETY: as above.
        unsafe { add_product(simd, panels, rows, row_len, i, &mut acc, 0) };
    }
    for n in 0..N {
        let out = &mut out[n * out_stride..][..P * LANES];
        for p in 0..P {
            let out = out[p * LANES..].first_chunk_mut().expect("whole vectors");
            let mut sum = acc[n][0][p];
            for k in 1..SUMS {
                sum = simd.add(sum, acc[n][k][p]);
            }
            simd.store(if ADD { simd.add(sum, simd.load(out)) } else { sum }, out);
        }
    }
    N
}

/// Adds vector `i` of each panel times element `i` of each row to sum `k` of the row.
///
/// # Safety
/// `P` panels have more than `i` whole vectors, and `N` rows of `row_len` have more than `i` elements each.
#[inline(always)]
unsafe fn add_product<S: Simd, const P: usize, const N: usize, const SUMS: usize>(
    simd: S,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    i: usize,
    acc: &mut [[[S::F; P]; SUMS]; N],
    k: usize,
) {
    let mut vectors = [simd.splat(0.0); P];
    for p in 0..P {
        // SAFETY: the caller's promise.
        vectors[p] =
            simd.load(unsafe { &*panels.data.as_ptr().add(p * panels.panel_stride + i * panels.stride).cast() });
    }
    for n in 0..N {
        // SAFETY: the caller's promise.
        let element = simd.splat(unsafe { *rows.get_unchecked(n * row_len + i) });
        for p in 0..P {
            acc[n][k][p] = simd.fma(vectors[p], element, acc[n][k][p]);
        }
    }
}

/// Scales and masks the scores of a row; the largest of them.
#[inline(always)]
fn mask_scores<S: Simd>(simd: S, scores: &mut [[f32; LANES]], mask: Option<&[f32]>, n_keys: usize, scale: f32) -> f32 {
    let scale = simd.splat(scale);
    let mut max = simd.splat(f32::NEG_INFINITY);
    if mask.is_none() && n_keys == TILE_KEYS {
        for scores in scores {
            let score = simd.mul(simd.load(scores), scale);
            simd.store(score, scores);
            max = simd.max(score, max);
        }
        return simd.max_lane(max);
    }
    let mut padded = [0.0; TILE_KEYS];
    for (padded, mask) in padded.iter_mut().zip(mask.unwrap_or(&[])) {
        // NaN stays.
        *padded = if *mask < MASK_FLOOR { MASK_FLOOR } else { *mask };
    }
    // exp(-inf) adds nothing.
    padded[n_keys..].fill(f32::NEG_INFINITY);
    for (scores, mask) in scores.iter_mut().zip(padded.as_chunks().0) {
        let score = simd.fma(simd.load(scores), scale, simd.load(mask));
        simd.store(score, scores);
        max = simd.max(score, max);
    }
    simd.max_lane(max)
}

/// Turns a row's scores into weights; their sum.
#[inline(always)]
fn weigh<S: Simd>(simd: S, scores: &mut [[f32; LANES]], max: f32) -> f32 {
    let max = simd.splat(max);
    let mut total = simd.splat(0.0);
    for scores in scores {
        let weight = math::exp_negative(simd, simd.sub(simd.load(scores), max));
        simd.store(weight, scores);
        total = simd.add(total, weight);
    }
    simd.sum(total)
}

impl State {
    /// Takes the maxima of another tile in: what was summed up before counts for less where a score is larger than all
    /// before it.
    #[inline(always)]
    fn renew<S: Simd>(&mut self, simd: S, tile_max: &[f32; BLOCK_ROWS], sums: &mut [f32], padded_dim: usize) {
        let mut factors = [0.0; BLOCK_ROWS];
        let n_vectors = (sums.len() / padded_dim).div_ceil(LANES);
        let vectors = self.max.as_chunks_mut().0.iter_mut().zip(self.total.as_chunks_mut().0);
        for (((max, total), tile), factor) in
            vectors.zip(tile_max.as_chunks().0).zip(factors.as_chunks_mut().0).take(n_vectors)
        {
            let old = simd.load(max);
            let new = simd.max(simd.load(tile), old);
            // 0 before the first tile, whose maximum is -inf.
            let scale = math::exp_negative(simd, simd.sub(old, new));
            simd.store(new, max);
            simd.store(simd.mul(simd.load(total), scale), total);
            simd.store(scale, factor);
        }
        for (sums, factor) in sums.chunks_exact_mut(padded_dim).zip(factors) {
            let factor = simd.splat(factor);
            for sum in sums.as_chunks_mut().0 {
                simd.store(simd.mul(simd.load(sum), factor), sum);
            }
        }
    }
}
