//! Blocks of query rows over tiles of keys.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::mask::Tile;
use super::products::{Panels, join_weights, products, round};
use super::rows::Rows;
use super::{
    BLOCK_ROWS, Block, Common, KvData, KvView, MASK_FLOOR, MOST_BLOCKS, Part, TILE_KEYS, few,
};
use crate::Isa;
use crate::f16::f16_to_f32;
use crate::math::{self, Each};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx512Bf16, Bf16Kernel};
use crate::simd::{Kernel, LANES, Multiply, Simd};
use crate::threads::SharedMut;

pub(super) struct RowTask<'a> {
    pub(super) common: &'a Common<'a>,
    /// One or several blocks of rows.
    pub(super) block: Block,
    pub(super) scratch: &'a mut [f32],
    /// Where the keys are split: for each row the sums, the maximum and the sum of weights.
    pub(super) partials: &'a mut [f32],
    /// Where they are not.
    pub(super) out: Option<OutRows<'a>>,
}

/// The outputs of the rows of a task.
pub(super) struct OutRows<'a> {
    pub(super) all: &'a SharedMut<'a, f32>,
    /// The first element of the first row.
    pub(super) first: usize,
    /// From row to row.
    pub(super) stride: usize,
}

/// A worker's scratch. In bf16, two elements of a key, or two values of an element, are one.
struct Scratch<'a> {
    /// [TILE_KEYS / 16, padded_dim, 16 keys]
    keys: &'a mut [f32],
    /// [TILE_KEYS, padded_dim]
    values: &'a mut [f32],
    /// [BLOCK_ROWS, TILE_KEYS]: scores, scaled so that weights are powers of 2, then the weights.
    weights: &'a mut [f32],
    /// [rows, rounded_dim]: the queries in bf16.
    rounded: &'a [f32],
    rows: RowStates<'a>,
}

impl<'a> Scratch<'a> {
    /// For rows of which nothing is known: as many as there are maxima.
    #[inline(always)]
    fn new(
        scratch: &'a mut [f32],
        rounded: &'a [f32],
        max: &'a mut [f32],
        padded_dim: usize,
    ) -> Self {
        let n_rows = max.len();
        let (keys, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (values, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (weights, scratch) = scratch.split_at_mut(BLOCK_ROWS * TILE_KEYS);
        let (totals, sums) = scratch.split_at_mut(n_rows * LANES);
        totals.fill(0.0);
        let sums = &mut sums[..n_rows * padded_dim];
        sums.fill(0.0);
        let rows = RowStates {
            max,
            totals: totals.as_chunks_mut().0,
            sums,
        };
        Self {
            keys,
            values,
            weights,
            rounded,
            rows,
        }
    }
}

/// What is known of some rows after some tiles.
struct RowStates<'a> {
    /// What is taken off the scores before they are powers: near the largest so far.
    max: &'a mut [f32],
    /// The sums of the weights, by lane.
    totals: &'a mut [[f32; LANES]],
    /// [rows, padded_dim]: the weighted sums of the values.
    sums: &'a mut [f32],
}

impl RowStates<'_> {
    /// Those of some rows.
    #[inline(always)]
    fn part(&mut self, rows: Range<usize>, padded_dim: usize) -> RowStates<'_> {
        RowStates {
            max: &mut self.max[rows.clone()],
            totals: &mut self.totals[rows.clone()],
            sums: &mut self.sums[rows.start * padded_dim..rows.end * padded_dim],
        }
    }
}

impl Kernel for RowTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.attend(simd);
    }
}

#[cfg(target_arch = "x86_64")]
impl Bf16Kernel for RowTask<'_> {
    #[inline(always)]
    fn run(self, simd: Avx512Bf16) {
        self.attend(simd);
    }
}

impl RowTask<'_> {
    /// In bf16 where rows are to be rounded.
    pub(super) fn run_on(self, isa: Isa) {
        #[cfg(target_arch = "x86_64")]
        if self.common.division.rounded_dim > 0
            && let Some(simd) = Avx512Bf16::of(isa)
        {
            return simd.run(self);
        }
        isa.run(self);
    }

    #[inline(always)]
    fn attend<M: Multiply>(self, products: M) {
        let Self {
            common,
            block,
            scratch,
            partials,
            out,
        } = self;
        let (simd, padded_dim, rounded_dim) = (
            products.base(),
            common.division.padded_dim,
            common.division.rounded_dim,
        );
        let (rounded, scratch) = scratch.split_at_mut(block.n_rows * rounded_dim);
        if M::LANE_LEN > 1 {
            round(
                products,
                common.queries(block),
                common.q_rows.row_stride,
                rounded,
                rounded_dim,
            );
        }
        let mut max = [f32::NEG_INFINITY; MOST_BLOCKS * BLOCK_ROWS];
        let max = &mut max[..block.n_rows];
        let mut scratch = Scratch::new(scratch, rounded, max, padded_dim);
        for first_key in (block.first_key..block.end_key).step_by(TILE_KEYS) {
            let end_key = block.end_key.min(first_key + TILE_KEYS);
            let mut not_loaded = Some(end_key);
            let mut start = 0;
            while start < block.n_rows {
                let tile = common
                    .tiles
                    .get(block.first_row + start, first_key / TILE_KEYS);
                let rows = start..alike_end(common, block, start, first_key);
                start = rows.end;
                let (mask, end_key) = match tile {
                    Tile::Hidden => continue,
                    Tile::Clear => (None, end_key),
                    Tile::Mixed(n_keys) => (common.mask, first_key + n_keys),
                };
                let first_row = block.first_row + rows.start;
                let block = Block {
                    first_row,
                    n_rows: rows.len(),
                    first_key,
                    end_key,
                    ..block
                };
                let Scratch {
                    keys,
                    values,
                    weights,
                    rounded,
                    rows: states,
                } = &mut scratch;
                let rounded = &rounded[rows.start * rounded_dim..rows.end * rounded_dim];
                let scratch = Scratch {
                    keys,
                    values,
                    weights,
                    rounded,
                    rows: states.part(rows, padded_dim),
                };
                tile_products(products, common, block, mask, scratch, &mut not_loaded);
            }
        }
        let rows = scratch.rows;
        finish(simd, common, (block.n_rows, rows), partials, out.as_ref());
    }
}

/// The end of the rows from `start` on, of one block, of which the mask says the same of a tile.
#[inline(always)]
fn alike_end(common: &Common, block: Block, start: usize, first_key: usize) -> usize {
    let tile = |row| {
        common
            .tiles
            .get(block.first_row + row, first_key / TILE_KEYS)
    };
    let most = block
        .n_rows
        .min(start / BLOCK_ROWS * BLOCK_ROWS + BLOCK_ROWS);
    let mut end = start + LANES;
    while end < most && tile(end) == tile(start) {
        end += LANES;
    }
    end.min(most)
}

/// The outputs of some rows, or, where keys are split, what becomes of them.
#[inline(always)]
fn finish<S: Simd>(
    simd: S,
    common: &Common,
    (n_rows, rows): (usize, RowStates),
    partials: &mut [f32],
    out: Option<&OutRows>,
) {
    let padded_dim = common.division.padded_dim;
    for row_idx in 0..n_rows {
        let RowStates { max, totals, sums } = &rows;
        let (max, total) = (max[row_idx], simd.sum(simd.load(&totals[row_idx])));
        let sums = &sums[row_idx * padded_dim..][..padded_dim];
        if let Some(OutRows { all, first, stride }) = out {
            // SAFETY: the rows are this task's alone.
            let out = unsafe { all.slice(first + row_idx * stride, common.head_dim) };
            let factor = 1.0 / total;
            let (whole, rest) = out.as_chunks_mut();
            for (out, sums) in whole.iter_mut().zip(sums.as_chunks().0) {
                simd.store(simd.mul(simd.load(sums), simd.splat(factor)), out);
            }
            rest.iter_mut()
                .zip(&sums[whole.len() * LANES..])
                .for_each(|(out, sum)| *out = sum * factor);
        } else {
            let partial = &mut partials[row_idx * (padded_dim + 2)..][..padded_dim + 2];
            partial[..padded_dim].copy_from_slice(sums);
            partial[padded_dim..].copy_from_slice(&[max, total]);
        }
    }
}

/// Some rows and keys; all keys of the tile up to `not_loaded` are loaded, where that is needed and
/// not done.
#[inline(always)]
fn tile_products<M: Multiply>(
    multiply: M,
    common: &Common,
    block: Block,
    mask: Option<&[f32]>,
    scratch: Scratch,
    not_loaded: &mut Option<usize>,
) {
    let (first_key, n_keys) = (block.first_key, block.end_key - block.first_key);
    let (simd, padded_dim) = (multiply.base(), common.division.padded_dim);
    let (queries, row_stride) = (common.queries(block), common.q_rows.row_stride);
    let n_groups = n_keys.div_ceil(LANES);
    let part = common.part(first_key);
    // The keys counted as the part counts them.
    let kv_block = |end_key| Block {
        first_key: first_key - part.first_key,
        end_key: end_key - part.first_key,
        ..block
    };
    let few = |view| {
        let first_key = first_key - part.first_key;
        let rows = Rows::new(view, common.head_dim, block.head_idx, first_key, n_keys);
        rows.filter(|_| block.n_rows <= few::MOST_ROWS)
    };
    let (few_keys, few_values) = (few(&part.k), few(&part.v));
    if (few_keys.is_none() || few_values.is_none())
        && let Some(end_key) = not_loaded.take()
    {
        load(
            multiply,
            common,
            &part,
            kv_block(end_key),
            scratch.keys,
            scratch.values,
        );
    }
    if let Some(keys) = few_keys {
        let ahead = elements_ahead(common, &part, block);
        few::scores(
            simd,
            ([keys, few_values.unwrap_or(keys)], ahead),
            (queries, row_stride),
            common.scale,
            scratch.weights,
        );
    } else {
        let panel_stride = LANES * padded_dim / M::LANE_LEN;
        let keys = Panels {
            data: &scratch.keys[..n_groups * panel_stride],
            panel_stride,
            stride: LANES,
            n_panels: n_groups,
            n_vectors: common.head_dim / M::LANE_LEN,
        };
        let (queries, row_len) = if M::LANE_LEN > 1 {
            (scratch.rounded, common.division.rounded_dim)
        } else {
            (queries, row_stride)
        };
        products::<M, false>(multiply, keys, queries, row_len, scratch.weights, TILE_KEYS);
    }
    let weights = &mut scratch.weights[..block.n_rows * TILE_KEYS];
    let mask = mask.map(|mask| &mask[block.first_row * common.n_keys + first_key..]);
    hide(simd, (mask, common.n_keys), n_keys, weights);
    let mut rows = scratch.rows;
    weigh_rows(simd, weights, n_groups, &mut rows, padded_dim);
    let sums = rows.sums;
    if let Some(values) = few_values {
        return few::add_values(simd, values, weights, sums);
    }
    if M::LANE_LEN > 1 {
        join_weights(multiply, weights, n_groups);
    }
    let close =
        close_rows(&part.v, common.head_dim, kv_block(block.end_key)).filter(|_| M::LANE_LEN == 1);
    let (n_panels, n_vectors) = (padded_dim / LANES, n_keys.div_ceil(M::LANE_LEN));
    let data = close.unwrap_or(scratch.values);
    let values = Panels {
        data,
        panel_stride: LANES,
        stride: padded_dim,
        n_panels,
        n_vectors,
    };
    products::<M, true>(multiply, values, weights, TILE_KEYS, sums, padded_dim);
}

/// Elements from the keys of a block to those of the next tile of their part: behind the last tile
/// of a head comes the first of the next.
#[inline(always)]
fn elements_ahead(common: &Common, part: &Part, block: Block) -> Option<usize> {
    let KvView {
        head_stride,
        key_stride,
        ..
    } = part.k;
    if block.end_key < part.end_key {
        return Some(TILE_KEYS * key_stride);
    }
    (block.head_idx + 1 < common.n_kv_heads)
        .then(|| head_stride.wrapping_sub((block.first_key - part.first_key) * key_stride))
}

/// Makes panels of the keys of a block, and rows of its values where they are not used as they are.
#[inline(always)]
fn load<M: Multiply>(
    simd: M,
    common: &Common,
    part: &Part,
    block: Block,
    keys: &mut [f32],
    values: &mut [f32],
) {
    let (head_dim, padded_dim) = (common.head_dim, common.division.padded_dim);
    let n_keys = block.end_key - block.first_key;
    let whole = |view| Rows::new(view, head_dim, block.head_idx, block.first_key, n_keys);
    let rows = match whole(&part.k) {
        Some(rows) => rows,
        None => {
            fill_up(&part.k, head_dim, block, values);
            Rows::padded(values, padded_dim, n_keys)
        }
    };
    rows.transpose(
        simd,
        common.scale,
        &mut keys[..n_keys.next_multiple_of(LANES) * padded_dim / M::LANE_LEN],
    );
    if M::LANE_LEN == 1 && close_rows(&part.v, head_dim, block).is_some() {
        return;
    }
    match whole(&part.v) {
        Some(rows) => rows.copy(simd, values),
        None => fill_up(&part.v, head_dim, block, values),
    }
}

/// The values of a block from its first on, where they are whole rows of f32 that lie behind each
/// other: of those that are far apart, all may take each other's places in the first cache.
#[inline(always)]
fn close_rows<'a>(view: &KvView<'a>, head_dim: usize, block: Block) -> Option<&'a [f32]> {
    match view.data {
        KvData::F32(data) if view.key_stride == head_dim && head_dim.is_multiple_of(LANES) => {
            Some(&data[block.head_idx * view.head_stride + block.first_key * head_dim..])
        }
        _ => None,
    }
}

/// The keys or values of a block as f32 rows of whole vectors, filled up with zeros.
#[cold]
fn fill_up(view: &KvView, head_dim: usize, block: Block, rows: &mut [f32]) {
    for (key_idx, row) in (block.first_key..block.end_key)
        .zip(rows.chunks_exact_mut(head_dim.next_multiple_of(LANES)))
    {
        let start = block.head_idx * view.head_stride + key_idx * view.key_stride;
        let (used, unused) = row.split_at_mut(head_dim);
        match view.data {
            KvData::F32(data) => used.copy_from_slice(&data[start..][..head_dim]),
            KvData::F16(data) => {
                used.iter_mut()
                    .zip(&data[start..])
                    .for_each(|(value, half)| *value = f16_to_f32(*half));
            }
        }
        unused.fill(0.0);
    }
}

/// Adds the mask, whose rows are so far apart, to the scores of rows; without one, hides the lanes
/// behind the keys.
#[inline(always)]
fn hide<S: Simd>(
    simd: S,
    (mask, mask_stride): (Option<&[f32]>, usize),
    n_keys: usize,
    weights: &mut [f32],
) {
    let n_groups = n_keys.div_ceil(LANES);
    if let Some(mask) = mask {
        for (i, scores) in weights.chunks_exact_mut(TILE_KEYS).enumerate() {
            let mask = &mask[i * mask_stride..][..n_keys];
            add_mask(simd, mask, &mut scores.as_chunks_mut().0[..n_groups]);
        }
    } else if !n_keys.is_multiple_of(LANES) {
        // 2 to the -inf adds nothing.
        let hidden: [f32; LANES] = std::array::from_fn(|i| {
            if i < n_keys % LANES {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        });
        let hidden = simd.load(&hidden);
        for scores in weights.chunks_exact_mut(TILE_KEYS) {
            let last = &mut scores.as_chunks_mut().0[n_groups - 1];
            simd.store(simd.add(simd.load(last), hidden), last);
        }
    }
}

/// Adds a row of the mask to its scores; those behind the keys become such that their weights are
/// 0.
#[inline(always)]
fn add_mask<S: Simd>(simd: S, mask: &[f32], scores: &mut [[f32; LANES]]) {
    let (vectors, rest) = mask.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    for (lane, mask) in last.iter_mut().zip(rest) {
        *lane = if *mask < MASK_FLOOR {
            MASK_FLOOR
        } else {
            *mask
        };
    }
    let (floor, factor) = (simd.splat(MASK_FLOOR), simd.splat(LOG2_E));
    for (mask, scores) in vectors.iter().zip(scores.iter_mut()) {
        let mask = simd.load(mask);
        // NaN stays.
        let mask = simd.select_lt(mask, floor, floor, mask);
        simd.store(simd.fma(mask, factor, simd.load(scores)), scores);
    }
    if let Some(scores) = scores.get_mut(vectors.len()) {
        simd.store(
            simd.fma(simd.load(&last), factor, simd.load(scores)),
            scores,
        );
    }
}

/// The scores of rows become their weights, which are added up.
#[inline(always)]
fn weigh_rows<S: Simd>(
    simd: S,
    weights: &mut [f32],
    n_groups: usize,
    rows: &mut RowStates,
    padded_dim: usize,
) {
    let RowStates { max, totals, sums } = rows;
    let n_rows = weights.len() / TILE_KEYS;
    let mut at = 0;
    while at < n_rows {
        let states = RowStates {
            max: &mut max[at..],
            totals: &mut totals[at..],
            sums: &mut sums[at * padded_dim..],
        };
        let scores = &mut weights[at * TILE_KEYS..];
        at += if n_rows - at >= 4 {
            weigh::<S, 4>(simd, scores, n_groups, states, padded_dim)
        } else {
            weigh::<S, 1>(simd, scores, n_groups, states, padded_dim)
        };
    }
}

/// The scores of `N` rows become their weights, which are added up; `N`.
#[inline(always)]
fn weigh<S: Simd, const N: usize>(
    simd: S,
    scores: &mut [f32],
    n_groups: usize,
    rows: RowStates,
    padded_dim: usize,
) -> usize {
    /// What the power of a weight may be: a score may be so far above all before it without their
    /// being summed up anew. Weights up to 2^12 are as exact as those up to 1.
    const SLACK: f32 = 12.0;
    let scores = scores.as_chunks_mut::<LANES>().0;
    let at = |n: usize, i: usize| n * (TILE_KEYS / LANES) + i;
    assert!(
        n_groups <= TILE_KEYS / LANES && scores.len() >= at(N - 1, n_groups),
        "scores of each row"
    );
    let mut max = [simd.splat(0.0); N];
    let mut totals = [simd.splat(0.0); N];
    for n in 0..N {
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for i in 0..n_groups {
            largest = simd.max(simd.load(&scores[at(n, i)]), largest);
        }
        let (max_before, total) = (rows.max[n], &mut rows.totals[n]);
        if max_before == f32::NEG_INFINITY {
            // The first tile: mostly 0 will do, which takes no search for the largest lane.
            let is_near_0 = simd.any_lt(simd.splat(-SLACK), largest)
                && !simd.any_lt(simd.splat(SLACK), largest);
            rows.max[n] = if is_near_0 {
                0.0
            } else {
                simd.max_lane(largest)
            };
        } else if simd.any_lt(simd.splat(max_before + SLACK), largest) {
            rows.max[n] = simd.max_lane(largest).max(max_before);
            let factor = math::exp2_negative(Each(simd), [simd.splat(max_before - rows.max[n])])[0];
            simd.store(simd.mul(simd.load(total), factor), total);
            for sum in rows.sums[n * padded_dim..][..padded_dim].as_chunks_mut().0 {
                simd.store(simd.mul(simd.load(sum), factor), sum);
            }
        }
        (max[n], totals[n]) = (simd.splat(rows.max[n]), simd.load(total));
    }
    for i in 0..n_groups {
        let mut weights = [simd.splat(0.0); N];
        for n in 0..N {
            weights[n] = simd.sub(simd.load(&scores[at(n, i)]), max[n]);
        }
        let weights = math::exp2_negative(Each(simd), weights);
        for n in 0..N {
            simd.store(weights[n], &mut scores[at(n, i)]);
            totals[n] = simd.add(totals[n], weights[n]);
        }
    }
    for n in 0..N {
        simd.store(totals[n], &mut rows.totals[n]);
    }
    N
}
