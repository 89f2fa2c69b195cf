//! Many tokens in f32: 16 rows at a time are dequantised, by 256 columns, to a panel whose lanes are the rows, and all
//! tokens go over it.

use super::rows::chunk_bytes;
use super::{Output, Rows, Weight, dequantize_simd};
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// Columns of a panel: a multiple of every block length.
const PANEL_COLS: usize = 256;
/// Columns whose products are added up one after the other before the sum joins the output: bounds the rounding error.
const SUM_COLS: usize = 128;
/// f32s of scratch per thread: the rows, and the panel.
pub(super) const SCRATCH_LEN: usize = 2 * LANES * PANEL_COLS;

pub(super) fn linear_f32(
    ctx: &Context,
    weight: &Weight,
    rows: Rows,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    let (ty, n_cols) = (weight.ty, weight.n_cols);
    let scratch = SharedMut::new(scratch);
    let block_tokens = block_tokens(n_cols);
    let n_panels = rows.n_rows.div_ceil(LANES);
    ctx.pool().run_indexed(n_panels * n_tokens.div_ceil(block_tokens), |worker_idx, task_idx| {
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { scratch.slice(worker_idx * SCRATCH_LEN, SCRATCH_LEN) };
        let (block_idx, panel_idx) = (task_idx / n_panels, task_idx % n_panels);
        let first_token = block_idx * block_tokens;
        let end_token = (first_token + block_tokens).min(n_tokens);
        let first_row = panel_idx * LANES;
        ctx.isa().run(PanelTask { ty, rows, x, n_cols, first_token, end_token, out, scratch, first_row });
    });
}

/// Tokens of a task: as many as stay in a core's second cache while every panel goes over them, and enough for the filling of
/// a panel to be a small part of the work.
fn block_tokens(n_cols: usize) -> usize {
    // 1 MB: what a core of the machines at hand has.
    const CACHE_F32S: usize = 1 << 18;
    (CACHE_F32S / n_cols.max(1)).clamp(96, 1536).next_multiple_of(12)
}

struct PanelTask<'a> {
    ty: BlockType,
    rows: Rows<'a>,
    x: &'a [f32],
    n_cols: usize,
    first_token: usize,
    end_token: usize,
    out: &'a Output<'a>,
    scratch: &'a mut [f32],
    first_row: usize,
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let n_rows = (self.rows.n_rows - self.first_row).min(LANES);
        for token_idx in self.first_token..self.end_token {
            // SAFETY: the rows of this panel belong, for these tokens, to this task alone.
            let y = unsafe { self.out.part(token_idx, self.first_row, n_rows) };
            for (i, y) in y.iter_mut().enumerate() {
                *y = self.out.bias(self.first_row + i);
            }
        }
        let mut start = 0;
        while start < self.n_cols {
            let len = PANEL_COLS.min(self.n_cols - start);
            self.fill(simd, n_rows, start, len);
            for part in (0..len).step_by(SUM_COLS) {
                self.multiply(simd, n_rows, start, part, SUM_COLS.min(len - part));
            }
            start += len;
        }
    }
}

impl PanelTask<'_> {
    /// The columns `start..start + len` as the panel: column by column, 16 rows each.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, simd: S, n_rows: usize, start: usize, len: usize) {
        let (panel, values) = self.scratch.split_at_mut(LANES * PANEL_COLS);
        for (i, values) in values.chunks_exact_mut(PANEL_COLS).enumerate() {
            // Rows past the end are the last row again; their outputs are not stored.
            let row = self.rows.get(self.first_row + i.min(n_rows - 1));
            dequantize_simd(simd, self.ty, chunk_bytes(self.ty, row, start, len), &mut values[..len]);
            values[len..len.next_multiple_of(LANES)].fill(0.0);
        }
        for block in 0..len.div_ceil(LANES) {
            let mut lanes = [simd.splat(0.0); LANES];
            for (i, lane) in lanes.iter_mut().enumerate() {
                *lane = simd.load(&values[i * PANEL_COLS..][..PANEL_COLS].as_chunks().0[block]);
            }
            simd.transpose(&mut lanes);
            for (lane, out) in lanes.into_iter().zip(panel[block * LANES * LANES..].as_chunks_mut().0) {
                simd.store(lane, out);
            }
        }
    }

    /// Adds the products of `len` columns, from `part` of the panel on, to all outputs.
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, n_rows: usize, start: usize, part: usize, len: usize) {
        let panel = &self.scratch[part * LANES..][..len * LANES].as_chunks::<LANES>().0;
        let mut token_idx = self.first_token;
        while S::TILE_TOKENS >= 12 && self.end_token - token_idx >= 12 {
            self.tile::<S, 12>(simd, panel, token_idx, start + part, n_rows);
            token_idx += 12;
        }
        // 12 sums of two registers, a weight of two and a broadcast fill the 16 registers of AVX2.
        while self.end_token - token_idx >= 6 {
            self.tile::<S, 6>(simd, panel, token_idx, start + part, n_rows);
            token_idx += 6;
        }
        while self.end_token - token_idx >= 2 {
            self.tile::<S, 2>(simd, panel, token_idx, start + part, n_rows);
            token_idx += 2;
        }
        while token_idx < self.end_token {
            self.tile::<S, 1>(simd, panel, token_idx, start + part, n_rows);
            token_idx += 1;
        }
    }

    /// Some columns of 16 rows times `N` tokens.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(
        &self,
        simd: S,
        panel: &[[f32; LANES]],
        first_token: usize,
        first_col: usize,
        n_rows: usize,
    ) {
        let tokens: [&[f32]; N] =
            std::array::from_fn(|n| &self.x[(first_token + n) * self.n_cols + first_col..][..panel.len()]);
        let mut acc = [simd.splat(0.0); N];
        for (col, weights) in panel.iter().enumerate() {
            let weights = simd.load(weights);
            for n in 0..N {
                // SAFETY: each token's slice is as long as the panel.
                let x = simd.splat(unsafe { *tokens[n].get_unchecked(col) });
                acc[n] = simd.fma(weights, x, acc[n]);
            }
        }
        for (n, acc) in acc.into_iter().enumerate() {
            // SAFETY: the rows of this panel belong, for these tokens, to this task alone.
            let y = unsafe { self.out.part(first_token + n, self.first_row, n_rows) };
            if let Ok(y) = <&mut [f32; LANES]>::try_from(&mut *y) {
                simd.store(simd.add(simd.load(y), acc), y);
                continue;
            }
            let mut lanes = [0.0; LANES];
            simd.store(acc, &mut lanes);
            for (y, lane) in y.iter_mut().zip(lanes) {
                *y += lane;
            }
        }
    }
}
