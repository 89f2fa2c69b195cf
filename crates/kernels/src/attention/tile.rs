//! Blocks of query rows over tiles of keys.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::mask::Tile;
use super::rows::Rows;
use super::{BLOCK_ROWS, Block, Common, KvData, KvView, MASK_FLOOR, MOST_BLOCKS, TILE_KEYS, few};
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
        let (keys, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (values, scratch) = scratch.split_at_mut(TILE_KEYS * padded_dim);
        let (weights, scratch) = scratch.split_at_mut(BLOCK_ROWS * TILE_KEYS);
        let (totals, sums) = scratch.split_at_mut(block.n_rows * LANES);
        totals.fill(0.0);
        let sums = &mut sums[..block.n_rows * padded_dim];
        sums.fill(0.0);
        let mut max = [f32::NEG_INFINITY; MOST_BLOCKS * BLOCK_ROWS];
        let rows = RowStates {
            max: &mut max[..block.n_rows],
            totals: totals.as_chunks_mut().0,
            sums,
        };
        let mut scratch = Scratch {
            keys,
            values,
            weights,
            rounded,
            rows,
        };
        for first_key in (block.first_key..block.end_key).step_by(TILE_KEYS) {
            let end_key = block.end_key.min(first_key + TILE_KEYS);
            let mut not_loaded = Some(end_key);
            let mut start = 0;
            while start < block.n_rows {
                let tile = common
                    .tiles
                    .get(block.first_row + start, first_key / TILE_KEYS);
                // Rows of which the same is said, of one block.
                let most = block
                    .n_rows
                    .min(start / BLOCK_ROWS * BLOCK_ROWS + BLOCK_ROWS);
                let mut end = start + LANES;
                while end < most
                    && common
                        .tiles
                        .get(block.first_row + end, first_key / TILE_KEYS)
                        == tile
                {
                    end += LANES;
                }
                let rows = start..end.min(most);
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
        for row_idx in 0..block.n_rows {
            let RowStates { max, totals, sums } = &scratch.rows;
            let (max, total) = (max[row_idx], simd.sum(simd.load(&totals[row_idx])));
            let sums = &sums[row_idx * padded_dim..][..padded_dim];
            if let Some(OutRows { all, first, stride }) = &out {
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
    let few = |view| {
        let rows = Rows::new(view, common.head_dim, block.head_idx, first_key, n_keys);
        rows.filter(|_| block.n_rows <= few::MOST_ROWS)
    };
    let (few_keys, few_values) = (few(&common.k), few(&common.v));
    if (few_keys.is_none() || few_values.is_none())
        && let Some(end_key) = not_loaded.take()
    {
        load(
            multiply,
            common,
            Block { end_key, ..block },
            scratch.keys,
            scratch.values,
        );
    }
    if let Some(keys) = few_keys {
        // Behind the last tile of a head comes the first of the next.
        let KvView {
            head_stride,
            key_stride,
            ..
        } = common.k;
        let next = if block.end_key < common.n_keys {
            TILE_KEYS * key_stride
        } else {
            head_stride.wrapping_sub(first_key * key_stride)
        };
        let ahead = (block.end_key < common.n_keys || block.head_idx + 1 < common.n_kv_heads)
            .then_some(next);
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
    if let Some(mask) = mask {
        for (i, scores) in weights.chunks_exact_mut(TILE_KEYS).enumerate() {
            let mask = &mask[(block.first_row + i) * common.n_keys + first_key..][..n_keys];
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
    let RowStates { max, totals, sums } = scratch.rows;
    let mut at = 0;
    while at < block.n_rows {
        let states = RowStates {
            max: &mut max[at..],
            totals: &mut totals[at..],
            sums: &mut sums[at * padded_dim..],
        };
        let scores = &mut weights[at * TILE_KEYS..];
        at += if block.n_rows - at >= 4 {
            weigh::<M::Base, 4>(simd, scores, n_groups, states, padded_dim)
        } else {
            weigh::<M::Base, 1>(simd, scores, n_groups, states, padded_dim)
        };
    }
    if let Some(values) = few_values {
        return few::add_values(simd, values, weights, sums);
    }
    if M::LANE_LEN > 1 {
        join_weights(multiply, weights, n_groups);
    }
    let close = close_rows(&common.v, common.head_dim, block).filter(|_| M::LANE_LEN == 1);
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

/// Some queries, so far apart, in lanes of two elements.
#[inline(always)]
fn round<M: Multiply>(
    simd: M,
    queries: &[f32],
    row_stride: usize,
    rounded: &mut [f32],
    rounded_dim: usize,
) {
    let base = simd.base();
    for (query, rounded) in queries
        .chunks(row_stride)
        .zip(rounded.chunks_exact_mut(rounded_dim))
    {
        let (vectors, _) = query[..rounded_dim * M::LANE_LEN].as_chunks::<LANES>();
        for (pair, to) in vectors
            .as_chunks::<2>()
            .0
            .iter()
            .zip(rounded.as_chunks_mut().0)
        {
            base.store(simd.join([base.load(&pair[0]), base.load(&pair[1])]), to);
        }
    }
}

/// Rows of [`TILE_KEYS`] weights, of which so many vectors count: two go into a lane, in the first
/// half of the row.
#[inline(always)]
fn join_weights<M: Multiply>(simd: M, weights: &mut [f32], n_groups: usize) {
    let base = simd.base();
    for row in weights
        .as_chunks_mut::<LANES>()
        .0
        .chunks_exact_mut(TILE_KEYS / LANES)
    {
        for first in (0..n_groups).step_by(2) {
            let mut pair = [base.load(&row[first]), base.splat(0.0)];
            if first + 1 < n_groups {
                pair[1] = base.load(&row[first + 1]);
            }
            base.store(simd.join(pair), &mut row[first / 2]);
        }
    }
}

/// Makes panels of the keys of a block, and rows of its values where they are not used as they are.
#[inline(always)]
fn load<M: Multiply>(simd: M, common: &Common, block: Block, keys: &mut [f32], values: &mut [f32]) {
    let (head_dim, padded_dim) = (common.head_dim, common.division.padded_dim);
    let n_keys = block.end_key - block.first_key;
    let whole = |view| Rows::new(view, head_dim, block.head_idx, block.first_key, n_keys);
    let rows = match whole(&common.k) {
        Some(rows) => rows,
        None => {
            fill_up(&common.k, head_dim, block, values);
            Rows::padded(values, padded_dim, n_keys)
        }
    };
    rows.transpose(
        simd,
        common.scale,
        &mut keys[..n_keys.next_multiple_of(LANES) * padded_dim / M::LANE_LEN],
    );
    if M::LANE_LEN == 1 && close_rows(&common.v, head_dim, block).is_some() {
        return;
    }
    match whole(&common.v) {
        Some(rows) => rows.copy(simd, values),
        None => fill_up(&common.v, head_dim, block, values),
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
        Self {
            data: &self.data[first..],
            n_panels: self.n_panels - panel_idx,
            ..self
        }
    }
}

/// For each of `rows`, `row_len` apart, and each panel, the sum of the panel's vectors times the
/// row's elements; put into, or added to, the panel's 16 elements of a row of `out`, whose rows are
/// `out_stride` apart.
#[inline(always)]
fn products<M: Multiply, const ADD: bool>(
    simd: M,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let mut panel_idx = 0;
    // With many registers each element that is read is multiplied with four vectors, or two.
    while const { M::Base::TILE_TOKENS >= 12 } && panels.n_panels - panel_idx >= 4 {
        let out = &mut out[panel_idx * LANES..];
        products_of::<M, ADD, 4>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 4;
    }
    while const { M::Base::TILE_TOKENS >= 12 } && panels.n_panels - panel_idx >= 2 {
        let out = &mut out[panel_idx * LANES..];
        products_of::<M, ADD, 2>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 2;
    }
    while panel_idx < panels.n_panels {
        let out = &mut out[panel_idx * LANES..];
        products_of::<M, ADD, 1>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 1;
    }
}

/// As [`products`], of the first `P` panels.
#[inline(always)]
fn products_of<M: Multiply, const ADD: bool, const P: usize>(
    simd: M,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let n_rows = rows.len().div_ceil(row_len);
    let mut at = 0;
    // Few rows have several sums each, so that no addition waits for the one before. 6 sums of two
    // registers, a vector of two and a broadcast fit the 16 registers of AVX2; 12 sums, or 24 of
    // four panels, the 32 of AVX-512.
    while at < n_rows {
        let (rows, out) = (&rows[at * row_len..], &mut out[at * out_stride..]);
        at += match n_rows - at {
            12.. if const { M::Base::TILE_TOKENS >= 12 && P <= 2 } => {
                product::<M, ADD, P, 12, 1>(simd, panels, rows, row_len, out, out_stride)
            }
            6.. => product::<M, ADD, P, 6, 1>(simd, panels, rows, row_len, out, out_stride),
            4.. => product::<M, ADD, P, 4, 1>(simd, panels, rows, row_len, out, out_stride),
            2.. if const { P == 1 } => {
                product::<M, ADD, P, 2, 4>(simd, panels, rows, row_len, out, out_stride)
            }
            2.. => product::<M, ADD, P, 2, 2>(simd, panels, rows, row_len, out, out_stride),
            _ if const { P == 1 } => {
                product::<M, ADD, P, 1, 4>(simd, panels, rows, row_len, out, out_stride)
            }
            _ => product::<M, ADD, P, 1, 2>(simd, panels, rows, row_len, out, out_stride),
        };
    }
}

/// `N` rows and `P` panels, each in `SUMS` sums; `N`.
#[inline(always)]
fn product<M: Multiply, const ADD: bool, const P: usize, const N: usize, const SUMS: usize>(
    simd: M,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) -> usize {
    let (
        base,
        Panels {
            data,
            panel_stride,
            stride,
            n_panels,
            n_vectors,
        },
    ) = (simd.base(), panels);
    assert!(
        n_vectors <= row_len && rows.len() >= (N - 1) * row_len + n_vectors,
        "as many elements in each row as vectors"
    );
    let last = (P - 1) * panel_stride + n_vectors.saturating_sub(1) * stride;
    assert!(
        n_panels >= P && (n_vectors == 0 || last + LANES <= data.len()),
        "whole vectors"
    );
    let mut acc = [[[base.splat(0.0); P]; SUMS]; N];
    let n_whole = n_vectors / SUMS * SUMS;
    for first in (0..n_whole).step_by(SUMS) {
        for k in 0..SUMS {
            // SAFETY: first + k < n_vectors; the panels and the N rows have that many by the
            // assertions above.
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
                sum = base.add(sum, acc[n][k][p]);
            }
            base.store(
                if ADD {
                    base.add(sum, base.load(out))
                } else {
                    sum
                },
                out,
            );
        }
    }
    N
}

/// Adds vector `i` of each panel times element `i` of each row to sum `k` of the row.
///
/// # Safety
/// `P` panels have more than `i` whole vectors, and `N` rows of `row_len` apart have more than `i`
/// elements each.
#[inline(always)]
unsafe fn add_product<M: Multiply, const P: usize, const N: usize, const SUMS: usize>(
    simd: M,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    i: usize,
    acc: &mut [[[<M::Base as Simd>::F; P]; SUMS]; N],
    k: usize,
) {
    let base = simd.base();
    let mut vectors = [base.splat(0.0); P];
    for p in 0..P {
        // SAFETY: the caller's promise.
        vectors[p] = base.load(unsafe {
            &*panels
                .data
                .as_ptr()
                .add(p * panels.panel_stride + i * panels.stride)
                .cast()
        });
    }
    // By one address that goes from row to row: one for each row takes more registers than there
    // are. SAFETY: the caller's promise.
    let mut element = unsafe { rows.as_ptr().add(i) };
    for n in 0..N {
        // SAFETY: the caller's promise.
        let x = base.splat(unsafe { *element });
        element = element.wrapping_add(row_len);
        for p in 0..P {
            acc[n][k][p] = simd.add_products(vectors[p], x, acc[n][k][p]);
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
