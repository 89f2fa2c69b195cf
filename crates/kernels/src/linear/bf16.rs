//! bf16 weights on a machine that multiplies bf16: the activations are rounded to bf16 once, and the weights are used as
//! they are stored, two columns to a lane.
//!
//! As elsewhere, few tokens are dotted with each row, and for many 16 rows become the lanes of a vector. A tile is two
//! such vectors times 12 tokens: each activation that is read then serves two products, of which the machine does as
//! many per cycle as it reads. Rows need no unpacking here, so that "few" are more than elsewhere.

use super::{Output, Rows, Weight, f32_as_u8, run_row_parts};
use crate::Context;
use crate::simd::{Avx512Bf16, Bf16Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// Up to this many tokens, weight rows are dotted as they are; from there on, transposing them pays (measured for 1536 x 576
/// on an AMD EPYC of family 26, from the cache and from memory: 32 tokens take 193 and 295 us, 48 take 295 and 436, and
/// transposed 67 take 396 and 444).
const MAX_ROW_TOKENS: usize = 32;
/// Up to this many tokens are rounded by the caller's thread: as many as take less time than handing them to another.
const MAX_SERIAL_TOKENS: usize = 8;
/// Rows dotted at once: sums that do not wait for each other.
const BLOCK_ROWS: usize = 4;
/// Columns of 64 bytes.
const STEP_COLS: usize = 32;
/// Vectors of rows in a panel.
const PANEL_VECTORS: usize = 2;
const PANEL_ROWS: usize = PANEL_VECTORS * LANES;
/// Columns of a panel, whose 32 KiB stay in the first-level cache: also as many as are added up before the sum joins the
/// output, which bounds the rounding error.
const PANEL_COLS: usize = 512;
/// f32s of a panel: two columns each.
const PANEL_LEN: usize = PANEL_ROWS * PANEL_COLS / 2;

/// The activations of each token in bf16, filled up with zeros to whole steps.
#[derive(Clone, Copy)]
struct Activations<'a> {
    steps: &'a [[u8; 64]],
    n_steps: usize,
    n_tokens: usize,
}

impl<'a> Activations<'a> {
    #[inline(always)]
    fn token(self, token_idx: usize) -> &'a [[u8; 64]] {
        &self.steps[token_idx * self.n_steps..][..self.n_steps]
    }

    /// The columns of one token in pairs.
    #[inline(always)]
    fn pairs(self, token_idx: usize) -> &'a [[i8; 4]] {
        let bytes = self.token(token_idx).as_flattened();
        // SAFETY: four i8 have the alignment of u8 and no bad values, and the length is that of the same bytes.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4) }
    }
}

/// f32s of the rounded activations.
fn activations_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens * n_cols.div_ceil(STEP_COLS) * (64 / size_of::<f32>())
}

pub(super) fn scratch_len(ctx: &Context, n_tokens: usize, n_cols: usize) -> usize {
    let panels_len = if n_tokens <= MAX_ROW_TOKENS { 0 } else { ctx.pool().n_threads() * PANEL_LEN };
    activations_len(n_tokens, n_cols) + panels_len
}

/// `x` is [n_tokens, n_cols] and the scratch as long as [`scratch_len`] says, or this panics.
pub(super) fn linear(
    ctx: &Context,
    simd: Avx512Bf16,
    weight: &Weight,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
    scratch: &mut [f32],
) {
    let (rows, n_cols) = (weight.checked(), weight.n_cols);
    let (steps, scratch) = scratch.split_at_mut(activations_len(n_tokens, n_cols));
    let n_steps = n_cols.div_ceil(STEP_COLS);
    round(ctx, simd, x, n_cols, f32_as_u8(steps).as_chunks_mut().0);
    let x = Activations { steps: f32_as_u8(steps).as_chunks().0, n_steps, n_tokens };
    if n_tokens <= MAX_ROW_TOKENS {
        run_row_parts(ctx.pool(), rows.n_rows, BLOCK_ROWS, |start, len| simd.run(RowPart { rows, x, out, start, len }));
        return;
    }
    let scratch = SharedMut::new(&mut scratch[..ctx.pool().n_threads() * PANEL_LEN]);
    let n_panels = rows.n_rows.div_ceil(PANEL_ROWS);
    ctx.pool().run_indexed(n_panels, |worker_idx, task_idx| {
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { scratch.slice(worker_idx * PANEL_LEN, PANEL_LEN) };
        let panel = f32_as_u8(scratch).as_chunks_mut().0.as_chunks_mut().0;
        let first_row = task_idx * PANEL_ROWS;
        simd.run(PanelTask { rows, x, out, panel, first_row, n_rows: (rows.n_rows - first_row).min(PANEL_ROWS) });
    });
}

/// Rounds each token's columns to its steps.
fn round(ctx: &Context, simd: Avx512Bf16, x: &[f32], n_cols: usize, steps: &mut [[u8; 64]]) {
    let n_steps = n_cols.div_ceil(STEP_COLS);
    let round = |token_idx: usize, steps: &mut [[u8; 64]]| {
        simd.run(Round { x: &x[token_idx * n_cols..][..n_cols], steps });
    };
    if steps.len() <= MAX_SERIAL_TOKENS * n_steps {
        steps.chunks_exact_mut(n_steps.max(1)).enumerate().for_each(|(token_idx, steps)| round(token_idx, steps));
    } else {
        ctx.pool().run_chunks(steps, n_steps, round);
    }
}

struct Round<'a> {
    x: &'a [f32],
    steps: &'a mut [[u8; 64]],
}

impl Bf16Kernel for Round<'_> {
    #[inline(always)]
    fn run(self, simd: Avx512Bf16) {
        let (whole, rest) = self.x.as_chunks::<STEP_COLS>();
        let mut last = [0.0; STEP_COLS];
        last[..rest.len()].copy_from_slice(rest);
        for (step_idx, step) in self.steps.iter_mut().enumerate() {
            simd.base().store_b(simd.round(whole.get(step_idx).unwrap_or(&last)), step);
        }
    }
}

/// A part of the rows, against all of a few tokens.
#[derive(Clone, Copy)]
struct RowPart<'a> {
    rows: Rows<'a>,
    x: Activations<'a>,
    out: &'a Output<'a>,
    start: usize,
    len: usize,
}

impl Bf16Kernel for RowPart<'_> {
    #[inline(always)]
    fn run(self, simd: Avx512Bf16) {
        let end = self.start + self.len;
        let mut row_idx = self.start;
        while end - row_idx >= BLOCK_ROWS {
            self.block::<BLOCK_ROWS>(simd, row_idx);
            row_idx += BLOCK_ROWS;
        }
        while row_idx < end {
            self.block::<1>(simd, row_idx);
            row_idx += 1;
        }
    }
}

impl RowPart<'_> {
    /// `R` rows times all tokens, four at a time: the rows stay in the first-level cache.
    #[inline(always)]
    fn block<const R: usize>(self, simd: Avx512Bf16, first_row: usize) {
        let mut token_idx = 0;
        while self.x.n_tokens - token_idx >= 4 {
            self.dots::<R, 4>(simd, first_row, token_idx);
            token_idx += 4;
        }
        match self.x.n_tokens - token_idx {
            0 => {}
            1 => self.dots::<R, 1>(simd, first_row, token_idx),
            2 => self.dots::<R, 2>(simd, first_row, token_idx),
            _ => self.dots::<R, 3>(simd, first_row, token_idx),
        }
    }

    /// `R` rows times `N` tokens.
    #[inline(always)]
    fn dots<const R: usize, const N: usize>(self, simd: Avx512Bf16, first_row: usize, first_token: usize) {
        let base = simd.base();
        let tokens: [&[[u8; 64]]; N] = std::array::from_fn(|n| self.x.token(first_token + n));
        let rows: [(&[[u8; 64]], &[u8]); R] = std::array::from_fn(|r| self.rows.get(first_row + r).as_chunks());
        let (n_whole, rest_len) = (rows[0].0.len(), rows[0].1.len());
        assert!(rows.iter().all(|(whole, _)| whole.len() == n_whole), "rows of one length");
        assert!(n_whole + rest_len.div_ceil(64) == self.x.n_steps, "as many steps as the activations");
        let mut acc = [[base.splat(0.0); N]; R];
        for step_idx in 0..n_whole {
            // SAFETY: the rows have n_whole steps, and the tokens no fewer, as asserted.
            let x: [&[u8; 64]; N] = std::array::from_fn(|n| unsafe { tokens[n].get_unchecked(step_idx) });
            for r in 0..R {
                // SAFETY: as above.
                let weights = unsafe { rows[r].0.get_unchecked(step_idx) };
                if first_token == 0 {
                    // The same step of the next block: of four short rows at once the machine foresees too little.
                    simd.prefetch(weights, R * self.rows.row_bytes);
                }
                let weights = base.load_b(weights);
                for n in 0..N {
                    acc[r][n] = simd.dot(acc[r][n], weights, base.load_b(x[n]));
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                if rest_len > 0 {
                    let weights = base.load_b(&filled_up(rows[r].1));
                    acc[r][n] = simd.dot(acc[r][n], weights, base.load_b(&tokens[n][n_whole]));
                }
                // SAFETY: the rows of this part belong to this task alone.
                let y = unsafe { self.out.part(first_token + n, first_row + r, 1) };
                y[0] = base.sum(acc[r][n]) + self.out.start(first_row + r, y[0]);
            }
        }
    }
}

/// Bytes past the end are zeros.
#[inline(always)]
fn filled_up(rest: &[u8]) -> [u8; 64] {
    let mut step = [0; 64];
    step[..rest.len()].copy_from_slice(rest);
    step
}

/// Some rows against all of many tokens.
struct PanelTask<'a> {
    rows: Rows<'a>,
    x: Activations<'a>,
    out: &'a Output<'a>,
    /// Two columns of each row.
    panel: &'a mut [[[u8; 64]; PANEL_VECTORS]],
    first_row: usize,
    n_rows: usize,
}

impl Bf16Kernel for PanelTask<'_> {
    #[inline(always)]
    fn run(mut self, simd: Avx512Bf16) {
        for token_idx in 0..self.x.n_tokens {
            // SAFETY: the rows of this panel belong to this task alone.
            let y = unsafe { self.out.part(token_idx, self.first_row, self.n_rows) };
            for (i, y) in y.iter_mut().enumerate() {
                *y = self.out.start(self.first_row + i, *y);
            }
        }
        const PANEL_STEPS: usize = PANEL_COLS / STEP_COLS;
        for first_step in (0..self.x.n_steps).step_by(PANEL_STEPS) {
            let n_steps = PANEL_STEPS.min(self.x.n_steps - first_step);
            for step_idx in 0..n_steps {
                for vector_idx in 0..PANEL_VECTORS {
                    self.fill(simd, first_step, step_idx, vector_idx);
                }
            }
            self.multiply(simd, first_step * LANES, n_steps * LANES);
        }
    }
}

impl PanelTask<'_> {
    /// Transposes one step of 16 rows.
    #[inline(always)]
    fn fill(&mut self, simd: Avx512Bf16, first_step: usize, step_idx: usize, vector_idx: usize) {
        let base = simd.base();
        let mut vectors = [base.dup4_b(&[0; 4]); LANES];
        for (i, vector) in vectors.iter_mut().enumerate() {
            // Rows past the end are the last row again; their outputs are not stored.
            let row = self.rows.get(self.first_row + (vector_idx * LANES + i).min(self.n_rows - 1));
            let (whole, rest) = row.as_chunks();
            *vector = match whole.get(first_step + step_idx) {
                Some(step) => {
                    // The same step of the next panel.
                    simd.prefetch(step, PANEL_ROWS * self.rows.row_bytes);
                    base.load_b(step)
                }
                None => base.load_b(&filled_up(rest)),
            };
        }
        base.transpose_b(&mut vectors);
        for (vector, pair) in vectors.into_iter().zip(&mut self.panel[step_idx * LANES..][..LANES]) {
            base.store_b(vector, &mut pair[vector_idx]);
        }
    }

    /// Adds the products of the first `n_pairs` of the panel, which are those of the rows from `first_pair` on, to all
    /// outputs.
    #[inline(always)]
    fn multiply(&self, simd: Avx512Bf16, first_pair: usize, n_pairs: usize) {
        let panel = &self.panel[..n_pairs];
        let mut token_idx = 0;
        while self.x.n_tokens - token_idx >= 12 {
            self.tile::<12>(simd, panel, token_idx, first_pair);
            token_idx += 12;
        }
        while self.x.n_tokens - token_idx >= 4 {
            self.tile::<4>(simd, panel, token_idx, first_pair);
            token_idx += 4;
        }
        while token_idx < self.x.n_tokens {
            self.tile::<1>(simd, panel, token_idx, first_pair);
            token_idx += 1;
        }
    }

    /// Some columns of 32 rows times `N` tokens.
    #[inline(always)]
    fn tile<const N: usize>(
        &self,
        simd: Avx512Bf16,
        panel: &[[[u8; 64]; PANEL_VECTORS]],
        first_token: usize,
        first_pair: usize,
    ) {
        let base = simd.base();
        let tokens: [&[[i8; 4]]; N] =
            std::array::from_fn(|n| &self.x.pairs(first_token + n)[first_pair..][..panel.len()]);
        let mut acc = [[base.splat(0.0); PANEL_VECTORS]; N];
        for (pair_idx, [low, high]) in panel.iter().enumerate() {
            let (low, high) = (base.load_b(low), base.load_b(high));
            for n in 0..N {
                // SAFETY: each token's slice is as long as the panel.
                let x = base.dup4_b(unsafe { tokens[n].get_unchecked(pair_idx) });
                acc[n][0] = simd.dot(acc[n][0], low, x);
                acc[n][1] = simd.dot(acc[n][1], high, x);
            }
        }
        for (n, acc) in acc.into_iter().enumerate() {
            let mut lanes = [[0.0; LANES]; PANEL_VECTORS];
            base.store(acc[0], &mut lanes[0]);
            base.store(acc[1], &mut lanes[1]);
            // SAFETY: the rows of this panel belong to this task alone.
            let y = unsafe { self.out.part(first_token + n, self.first_row, self.n_rows) };
            for (y, lane) in y.iter_mut().zip(lanes.as_flattened()) {
                *y += lane;
            }
        }
    }
}
