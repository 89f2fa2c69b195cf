//! 16-bit floats in panels: 16 rows side by side, column after column, so that a product widens
//! what it reads and transposes nothing.

use std::ops::Range;

use super::choose::MAX_ROW_TOKENS;
use super::columns::PackedColumn;
use super::output::Output;
use super::tasks::run_row_parts;
use super::tiles::Next;
use super::weight::Weight;
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};

/// Bytes of a column of 16 rows.
const COLUMN_BYTES: usize = 2 * LANES;

/// A weight matrix [n_rows, n_cols] in panels, as [`pack_halves`] makes them.
#[derive(Debug, Clone, Copy)]
pub struct HalfPanels<'a> {
    ty: BlockType,
    bytes: &'a [u8],
    n_rows: usize,
    n_cols: usize,
}

/// Bytes of a matrix in panels; `None` if it is not of f16 or bf16, or if they are too many to
/// count.
pub fn half_panels_len(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    if !matches!(ty, BlockType::F16 | BlockType::Bf16) {
        return None;
    }
    n_rows
        .div_ceil(LANES)
        .checked_mul(n_cols.checked_mul(COLUMN_BYTES)?)
}

/// Packs some rows of a matrix of f16 or bf16, from a multiple of 16 on, to where they belong in
/// `packed`; rows past the end are zeros.
///
/// # Panics
/// If the weight is not well formed or of another type, the rows are not rows of it or begin
/// inside of a panel, or `packed` is not of [`half_panels_len`].
pub fn pack_halves(ctx: &Context, weight: &Weight, rows: Range<usize>, packed: &mut [u8]) {
    /// Columns at once, which stay in the first cache.
    const CHUNK_COLS: usize = 64;
    let (all, n_cols) = (weight.checked(), weight.n_cols);
    let len = half_panels_len(weight.ty, weight.n_rows, n_cols);
    assert_eq!(Some(packed.len()), len, "bytes of the panels");
    assert!(
        rows.start.is_multiple_of(LANES) && rows.start <= rows.end && rows.end <= weight.n_rows,
        "whole panels of rows"
    );
    let panel_bytes = n_cols * COLUMN_BYTES;
    if panel_bytes == 0 {
        return;
    }
    let first_panel = rows.start / LANES;
    let packed = &mut packed[first_panel * panel_bytes..rows.end.div_ceil(LANES) * panel_bytes];
    ctx.pool().run_chunks(packed, panel_bytes, |at, panel| {
        let first_row = (first_panel + at) * LANES;
        let columns = panel.as_chunks_mut::<COLUMN_BYTES>().0;
        for (at, columns) in columns.chunks_mut(CHUNK_COLS).enumerate() {
            for lane in 0..LANES {
                if first_row + lane >= weight.n_rows {
                    columns
                        .iter_mut()
                        .for_each(|to| to[2 * lane..][..2].fill(0));
                    continue;
                }
                let row: &[[u8; 2]] = all.get(first_row + lane).as_chunks().0;
                for (to, number) in columns.iter_mut().zip(&row[at * CHUNK_COLS..]) {
                    to[2 * lane..][..2].copy_from_slice(number);
                }
            }
        }
    });
}

impl<'a> HalfPanels<'a> {
    /// The matrix that [`pack_halves`] packed; `None` where the bytes are not as many as
    /// [`half_panels_len`].
    pub fn new(ty: BlockType, bytes: &'a [u8], [n_rows, n_cols]: [usize; 2]) -> Option<Self> {
        (half_panels_len(ty, n_rows, n_cols) == Some(bytes.len())).then_some(Self {
            ty,
            bytes,
            n_rows,
            n_cols,
        })
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The columns of the 16 rows from `first_row` on.
    #[inline(always)]
    fn columns(&self, first_row: usize) -> &'a [[u8; COLUMN_BYTES]] {
        &self.bytes.as_chunks().0[first_row / LANES * self.n_cols..][..self.n_cols]
    }

    /// The columns from `start` on of the 16 rows from `first_row` on, in f32.
    #[inline(always)]
    pub(super) fn panel<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        start: usize,
        panel: &mut [PackedColumn],
    ) {
        let columns = &self.columns(first_row)[start..];
        if self.ty == BlockType::F16 {
            for (to, column) in panel.iter_mut().zip(columns) {
                simd.store(simd.load_f16(column), &mut to.0);
            }
        } else {
            for (to, column) in panel.iter_mut().zip(columns) {
                simd.store(simd.load_bf16(column), &mut to.0);
            }
        }
    }

    /// What is read next, where that is these columns of the rows from `first_row` on.
    pub(super) fn next_panels(
        &self,
        first_row: usize,
        n_rows: usize,
        start: usize,
        len: usize,
    ) -> Next<'a> {
        let panel_bytes = self.n_cols * COLUMN_BYTES;
        let end = (first_row + n_rows).min(self.n_rows).div_ceil(LANES) * panel_bytes;
        Next {
            rows: &self.bytes[first_row / LANES * panel_bytes + start * COLUMN_BYTES..end],
            stride: panel_bytes,
            n_bytes: len * COLUMN_BYTES,
        }
    }
}

/// The product of up to [`MAX_ROW_TOKENS`] tokens.
pub(super) fn linear_few(
    ctx: &Context,
    weight: HalfPanels,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
) {
    run_row_parts(ctx.pool(), weight.n_rows, LANES, |start, len| {
        ctx.isa().run(Few {
            weight,
            x,
            n_tokens,
            out,
            rows: [start, len],
        });
    });
}

/// Some panels, against all tokens.
struct Few<'a> {
    weight: HalfPanels<'a>,
    x: &'a [f32],
    n_tokens: usize,
    out: &'a Output<'a>,
    /// The first row, a multiple of 16, and how many there are.
    rows: [usize; 2],
}

impl Kernel for Few<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match (self.n_tokens, self.weight.ty) {
            (0, _) => {}
            (1, BlockType::F16) => self.products::<S, 1, true>(simd),
            (1, _) => self.products::<S, 1, false>(simd),
            (_, BlockType::F16) => self.products::<S, MAX_ROW_TOKENS, true>(simd),
            (..) => self.products::<S, MAX_ROW_TOKENS, false>(simd),
        }
    }
}

impl Few<'_> {
    #[inline(always)]
    fn products<S: Simd, const N: usize, const IS_F16: bool>(&self, simd: S) {
        let [start, len] = self.rows;
        let mut sums = [0.0; LANES];
        for first_row in (start..start + len).step_by(LANES) {
            let n_rows = (start + len - first_row).min(LANES);
            let totals = self.panel::<S, N, IS_F16>(simd, first_row);
            for (token_idx, total) in totals.into_iter().enumerate() {
                simd.store(total, &mut sums);
                // SAFETY: the rows of this part belong to this task alone.
                let y = unsafe { self.out.part(token_idx, first_row, n_rows) };
                for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
                    *y = sum + self.out.start(first_row + i, *y);
                }
            }
        }
    }

    /// The products of 16 rows with each token.
    #[inline(always)]
    fn panel<S: Simd, const N: usize, const IS_F16: bool>(
        &self,
        simd: S,
        first_row: usize,
    ) -> [S::F; N] {
        /// Sums at once, as one waits for the sum before.
        const N_SUMS: usize = 4;
        /// What foresees reads stops at the end of a page of memory.
        const AHEAD_BYTES: usize = 4096;
        let n_cols = self.weight.n_cols;
        let x: [&[f32]; N] = std::array::from_fn(|n| &self.x[n * n_cols..][..n_cols]);
        let load = |column: &[u8; COLUMN_BYTES]| match IS_F16 {
            true => simd.load_f16(column),
            false => simd.load_bf16(column),
        };
        let mut totals = [[simd.splat(0.0); N_SUMS]; N];
        let (steps, rest) = self.weight.columns(first_row).as_chunks::<N_SUMS>();
        for (at, step) in steps.iter().enumerate() {
            let ahead = step.as_ptr().cast::<f32>().wrapping_byte_add(AHEAD_BYTES);
            simd.prefetch_far(ahead);
            simd.prefetch_far(ahead.wrapping_byte_add(2 * COLUMN_BYTES));
            for i in 0..N_SUMS {
                let values = load(&step[i]);
                for n in 0..N {
                    let x = simd.splat(x[n][N_SUMS * at + i]);
                    totals[n][i] = simd.fma(values, x, totals[n][i]);
                }
            }
        }
        for (i, column) in rest.iter().enumerate() {
            for n in 0..N {
                let x = simd.splat(x[n][N_SUMS * steps.len() + i]);
                totals[n][0] = simd.fma(load(column), x, totals[n][0]);
            }
        }
        totals.map(|[a, b, c, d]| simd.add(simd.add(a, b), simd.add(c, d)))
    }
}
