//! Products of rows with panels of keys or values.

use super::TILE_KEYS;
use crate::simd::{LANES, Multiply, Simd};

/// Panels of as many vectors of 16.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) data: &'a [f32],
    /// From panel to panel.
    pub(super) panel_stride: usize,
    /// From vector to vector.
    pub(super) stride: usize,
    pub(super) n_panels: usize,
    pub(super) n_vectors: usize,
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
pub(super) fn products<M: Multiply, const ADD: bool>(
    simd: M,
    panels: Panels,
    rows: &[f32],
    row_len: usize,
    out: &mut [f32],
    out_stride: usize,
) {
    let mut panel_idx = 0;
    // With many registers each element that is read is multiplied with four vectors, or two.
    while const { M::Base::HAS_MANY_REGISTERS } && panels.n_panels - panel_idx >= 4 {
        let out = &mut out[panel_idx * LANES..];
        products_of::<M, ADD, 4>(simd, panels.from(panel_idx), rows, row_len, out, out_stride);
        panel_idx += 4;
    }
    while const { M::Base::HAS_MANY_REGISTERS } && panels.n_panels - panel_idx >= 2 {
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
            12.. if const { M::Base::HAS_MANY_REGISTERS && P <= 2 } => {
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

/// Some queries, so far apart, in lanes of two elements.
#[inline(always)]
pub(super) fn round<M: Multiply>(
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
pub(super) fn join_weights<M: Multiply>(simd: M, weights: &mut [f32], n_groups: usize) {
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
