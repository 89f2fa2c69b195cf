//! Many tokens in f32: 16 rows at a time are dequantised, by 256 columns, to a panel whose lanes are the rows, and all
//! tokens go over it.

use std::ops::Range;

use super::rows::chunk_bytes;
use super::{Output, Rows, Weight, add_rows, dequantize_simd};
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// Columns of a panel, at most: a multiple of every block length. Their products are added up one after the other before the
/// sum joins the output, which bounds the rounding error; with the inputs of a tile they fit a first cache of 32 KiB.
const PANEL_COLS: usize = 256;
/// Tokens of a task, at least, where there are as many.
const LEAST_TOKENS: usize = 96;
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
    let n_panels = rows.n_rows.div_ceil(LANES);
    let part = |tokens: Range<usize>, cols: Range<usize>| {
        // Few panels for many threads are shared, as far as filling them is a small part of the work.
        let n_shares = (2 * ctx.pool().n_threads()).div_ceil(n_panels.max(1)).min(tokens.len() / LEAST_TOKENS).max(1);
        let share_len = tokens.len().div_ceil(n_shares);
        ctx.pool().run_indexed(n_panels * n_shares, |worker_idx, task_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * SCRATCH_LEN, SCRATCH_LEN) };
            let first_token = (tokens.start + task_idx / n_panels * share_len).min(tokens.end);
            let end_token = (first_token + share_len).min(tokens.end);
            let tiles = Tiles { x, n_cols, first_token, end_token, out, first_row: task_idx % n_panels * LANES };
            ctx.isa().run(PanelTask { ty, rows, tiles, cols: cols.clone(), scratch });
        });
    };
    if n_tokens <= block_tokens(n_cols) {
        part(0..n_tokens, 0..n_cols);
        return;
    }
    // All rows over some columns, then over those that follow: that takes as many more tokens in the cache, and to fill a panel
    // for each 128 of 1024 columns was an eighth of the time.
    let panel_cols = panel_cols(n_cols, ty);
    let block_tokens = block_tokens(panel_cols);
    for first_token in (0..n_tokens).step_by(block_tokens) {
        let end_token = (first_token + block_tokens).min(n_tokens);
        for start in (0..n_cols.max(1)).step_by(panel_cols) {
            part(first_token..end_token, start..(start + panel_cols).min(n_cols));
        }
    }
}

/// Tokens of a task: as many as stay in a core's second cache while every panel goes over them, and enough for the filling of
/// a panel to be a small part of the work.
pub(super) fn block_tokens(n_cols: usize) -> usize {
    // 512 KB: half of the second cache of the machines at hand, for the weights and outputs pass through it too.
    const CACHE_F32S: usize = 1 << 17;
    (CACHE_F32S / n_cols.max(1)).clamp(LEAST_TOKENS, 1536).next_multiple_of(12)
}

/// Columns of each panel but the last: as even as whole blocks allow.
pub(super) fn panel_cols(n_cols: usize, ty: BlockType) -> usize {
    let n_panels = n_cols.div_ceil(PANEL_COLS).max(1);
    n_cols.div_ceil(n_panels).max(1).next_multiple_of(ty.block_len().max(LANES)).min(PANEL_COLS)
}

struct PanelTask<'a> {
    ty: BlockType,
    rows: Rows<'a>,
    tiles: Tiles<'a>,
    /// Columns, from a multiple of [`panel_cols`] on.
    cols: Range<usize>,
    scratch: &'a mut [f32],
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let panel_cols = panel_cols(self.tiles.n_cols, self.ty);
        let cols = self.cols.clone();
        // One panel of no columns where there are none: the outputs are the bias.
        for start in (cols.start..cols.end.max(1)).step_by(panel_cols) {
            let len = panel_cols.min(cols.end - start);
            self.fill(simd, start, len);
            self.tiles.multiply(simd, self.scratch[..len * LANES].as_chunks().0, start, &[]);
        }
    }
}

impl PanelTask<'_> {
    /// The columns `start..start + len` as the panel: column by column, 16 rows each.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, simd: S, start: usize, len: usize) {
        let (first_row, n_rows) = (self.tiles.first_row, self.tiles.n_rows());
        let (panel, values) = self.scratch.split_at_mut(LANES * PANEL_COLS);
        for (i, values) in values.chunks_exact_mut(PANEL_COLS).enumerate() {
            // Rows past the end are the last row again; their outputs are not stored.
            let row = self.rows.get(first_row + i.min(n_rows - 1));
            let bytes = chunk_bytes(self.ty, row, start, len);
            // The next row is read while this one is written: they are far apart in memory, where nothing else foresees it.
            let next = self.rows.get(first_row + (i + 1).min(n_rows - 1));
            chunk_bytes(self.ty, next, start, len).chunks(64).for_each(|line| simd.prefetch(line.as_ptr().cast()));
            dequantize_simd(simd, self.ty, bytes, &mut values[..len]);
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
}

/// Columns between one asking for lines ahead and the next.
const CHUNK_COLS: usize = 8;

/// What the products that follow will read first from memory: asked for a few lines at a time, so that the tiles of one panel
/// together ask for the whole of the next.
struct Ahead<'a> {
    lines: std::slice::Iter<'a, [f32; LANES]>,
    at_once: usize,
}

impl Ahead<'_> {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S) {
        for line in self.lines.by_ref().take(self.at_once) {
            simd.prefetch_far(line.as_ptr());
        }
    }
}

/// Adds a column's weights times its input of each token.
///
/// # Safety
/// Each token has more than `col` inputs.
#[inline(always)]
unsafe fn add_column<S: Simd, const N: usize>(
    simd: S,
    weights: &[f32; LANES],
    tokens: &[&[f32]; N],
    col: usize,
    acc: &mut [S::F; N],
) {
    let weights = simd.load(weights);
    for n in 0..N {
        // SAFETY: the caller's promise.
        let x = simd.splat(unsafe { *tokens[n].get_unchecked(col) });
        acc[n] = simd.fma(weights, x, acc[n]);
    }
}

/// Some tokens, and 16 rows of outputs of each.
pub(super) struct Tiles<'a> {
    pub(super) x: &'a [f32],
    pub(super) n_cols: usize,
    pub(super) first_token: usize,
    pub(super) end_token: usize,
    pub(super) out: &'a Output<'a>,
    pub(super) first_row: usize,
}

impl Tiles<'_> {
    /// Rows that there are, of the 16.
    fn n_rows(&self) -> usize {
        (self.out.n_rows - self.first_row).min(LANES)
    }

    /// The products of a panel, whose first column is `start`: the outputs are the bias and the first, then those that follow
    /// are added. `next` is asked for meanwhile.
    #[inline(always)]
    pub(super) fn multiply<S: Simd>(&self, simd: S, panel: &[[f32; LANES]], start: usize, next: &[[f32; LANES]]) {
        let mut token_idx = self.first_token;
        let n_tiles = (self.end_token - token_idx).div_ceil(S::TILE_TOKENS.clamp(6, 12)).max(1);
        let mut ahead = Ahead { lines: next.iter(), at_once: CHUNK_COLS.div_ceil(n_tiles) };
        while S::TILE_TOKENS >= 12 && self.end_token - token_idx >= 12 {
            self.tile::<S, 12>(simd, panel, token_idx, start, &mut ahead);
            token_idx += 12;
        }
        // 12 sums of two registers, a weight of two and a broadcast fill the 16 registers of AVX2. Fewer than 4 tokens leave
        // multipliers idle, so that 7 to 11 are taken in halves.
        while token_idx < self.end_token {
            let n = match self.end_token - token_idx {
                n @ ..=6 => n,
                n @ 7..12 => n.div_ceil(2),
                _ => 6,
            };
            match n {
                6 => self.tile::<S, 6>(simd, panel, token_idx, start, &mut ahead),
                5 => self.tile::<S, 5>(simd, panel, token_idx, start, &mut ahead),
                4 => self.tile::<S, 4>(simd, panel, token_idx, start, &mut ahead),
                3 => self.tile::<S, 3>(simd, panel, token_idx, start, &mut ahead),
                2 => self.tile::<S, 2>(simd, panel, token_idx, start, &mut ahead),
                _ => self.tile::<S, 1>(simd, panel, token_idx, start, &mut ahead),
            }
            token_idx += n;
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
        ahead: &mut Ahead,
    ) {
        let n_rows = self.n_rows();
        let mut tokens = [&self.x[..0]; N];
        let mut outs: [Option<&mut [f32]>; N] = [const { None }; N];
        for n in 0..N {
            tokens[n] = &self.x[(first_token + n) * self.n_cols + first_col..][..panel.len()];
            // SAFETY: the rows of this panel belong, for these tokens, to this task alone.
            let out = unsafe { self.out.part(first_token + n, self.first_row, n_rows) };
            simd.prefetch(out.as_ptr());
            outs[n] = Some(out);
        }
        let mut acc = [simd.splat(0.0); N];
        let (chunks, rest) = panel.as_chunks::<CHUNK_COLS>();
        for (chunk_idx, weights) in chunks.iter().enumerate() {
            ahead.ask(simd);
            for (i, weights) in weights.iter().enumerate() {
                // SAFETY: each token's slice is as long as the panel.
                unsafe { add_column(simd, weights, &tokens, chunk_idx * CHUNK_COLS + i, &mut acc) };
            }
        }
        for (i, weights) in rest.iter().enumerate() {
            // SAFETY: as above.
            unsafe { add_column(simd, weights, &tokens, chunks.len() * CHUNK_COLS + i, &mut acc) };
        }
        let bias = self.out.bias_of(self.first_row, n_rows);
        for (acc, y) in acc.into_iter().zip(outs) {
            let Some(y) = y else { continue };
            add_rows(simd, acc, y, bias, first_col > 0);
        }
    }
}
