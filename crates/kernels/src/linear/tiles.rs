//! Products of panels in f32 with many tokens, in tiles: as many tokens and rows as there are
//! registers for their sums.

use super::choose::most_panels;
use super::columns::{LINE_BYTES, PackedColumn};
use super::output::{Extent, Output};
use crate::simd::{LANES, Multiply, Simd};

/// Columns between one asking for lines ahead and the next.
const CHUNK_COLS: usize = 8;

/// What the products that follow will read first from memory: some bytes of each of some rows.
#[derive(Clone, Copy, Default)]
pub(super) struct Next<'a> {
    /// From the first to be read on.
    pub(super) rows: &'a [u8],
    /// From row to row.
    pub(super) stride: usize,
    /// Of a row.
    pub(super) n_bytes: usize,
}

/// Asks for what is read next a few lines at a time, so that the tiles of one panel together ask
/// for the whole of it.
struct Ahead<'a> {
    next: Next<'a>,
    /// In the first row.
    at: usize,
    at_once: usize,
}

impl Ahead<'_> {
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S) {
        for _ in 0..self.at_once {
            let Some(line) = self.next.rows.get(self.at) else {
                return;
            };
            simd.prefetch_far(std::ptr::from_ref(line).cast());
            self.at += LINE_BYTES;
            if self.at >= self.next.n_bytes {
                self.at = 0;
                self.next.rows = self.next.rows.get(self.next.stride..).unwrap_or(&[]);
            }
        }
    }
}

/// Adds a column's weights times its input of each token.
///
/// # Safety
/// Each panel and each of `N` tokens has more than `col` columns.
#[inline(always)]
unsafe fn add_column<M: Multiply, const P: usize, const N: usize>(
    simd: M,
    panels: &[&[PackedColumn]; P],
    inputs: Inputs,
    col: usize,
    acc: &mut [[<M::Base as Simd>::F; N]; P],
) {
    let base = simd.base();
    let mut weights = [base.splat(0.0); P];
    for p in 0..P {
        // SAFETY: the caller's promise.
        weights[p] = base.load(unsafe { &panels[p].get_unchecked(col).0 });
    }
    for n in 0..N {
        // SAFETY: the caller's promise.
        let x = base.splat(unsafe { *inputs.data.get_unchecked(n * inputs.stride + col) });
        for p in 0..P {
            acc[p][n] = simd.add_products(weights[p], x, acc[p][n]);
        }
    }
}

/// Columns of the tokens of [`Tiles`].
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// From the first token on.
    pub(super) data: &'a [f32],
    /// From token to token.
    pub(super) stride: usize,
}

/// 16 rows each, column by column.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    pub(super) data: &'a [PackedColumn],
    /// Columns from a panel to the next.
    pub(super) stride: usize,
    /// Columns.
    pub(super) len: usize,
    /// One or two.
    pub(super) n_panels: usize,
}

/// Some tokens, and the rows of one or two panels of outputs of each.
pub(super) struct Tiles<'a> {
    pub(super) first_token: usize,
    pub(super) end_token: usize,
    pub(super) out: &'a Output<'a>,
    pub(super) first_row: usize,
}

impl Tiles<'_> {
    /// Panels that the rows make.
    #[inline(always)]
    pub(super) fn n_panels<S: Simd>(&self) -> usize {
        (self.out.n_rows - self.first_row)
            .div_ceil(LANES)
            .min(most_panels::<S>())
    }

    /// The products of panels with as many columns: of the first they are, with the bias, the
    /// outputs, and of others added to them. `next` is asked for meanwhile.
    #[inline(always)]
    pub(super) fn multiply<M: Multiply>(
        &self,
        simd: M,
        panels: Panels,
        inputs: Inputs,
        extent: Extent,
        next: Next,
    ) {
        let Panels {
            data,
            stride,
            len,
            n_panels,
        } = panels;
        if const { M::Base::HAS_MANY_REGISTERS } && n_panels == 2 {
            self.multiply_by::<M, 2>(
                simd,
                [&data[..len], &data[stride..][..len]],
                inputs,
                extent,
                next,
            );
        } else {
            self.multiply_by::<M, 1>(simd, [&data[..len]], inputs, extent, next);
        }
    }

    #[inline(always)]
    fn multiply_by<M: Multiply, const P: usize>(
        &self,
        simd: M,
        panels: [&[PackedColumn]; P],
        inputs: Inputs,
        extent: Extent,
        next: Next,
    ) {
        let mut token_idx = self.first_token;
        let n_tiles = (self.end_token - token_idx)
            .div_ceil(M::Base::TILE_TOKENS.clamp(6, 12))
            .max(1);
        // Of a column there is no more than a line of each panel to read.
        let mut ahead = Ahead {
            next,
            at: 0,
            at_once: (P * CHUNK_COLS).div_ceil(n_tiles),
        };
        while const { M::Base::HAS_MANY_REGISTERS } && self.end_token - token_idx >= 12 {
            self.tile::<M, P, 12>(simd, panels, token_idx, inputs, extent, &mut ahead);
            token_idx += 12;
        }
        // 12 sums of two registers, a weight of two and a broadcast fill the 16 registers of AVX2.
        // Fewer than 4 tokens leave multipliers idle, so that 7 to 11 are taken in halves.
        while token_idx < self.end_token {
            let n = match self.end_token - token_idx {
                n @ ..=6 => n,
                n @ 7..12 => n.div_ceil(2),
                _ => 6,
            };
            match n {
                6 => self.tile::<M, P, 6>(simd, panels, token_idx, inputs, extent, &mut ahead),
                5 => self.tile::<M, P, 5>(simd, panels, token_idx, inputs, extent, &mut ahead),
                4 => self.tile::<M, P, 4>(simd, panels, token_idx, inputs, extent, &mut ahead),
                3 => self.tile::<M, P, 3>(simd, panels, token_idx, inputs, extent, &mut ahead),
                2 => self.tile::<M, P, 2>(simd, panels, token_idx, inputs, extent, &mut ahead),
                _ => self.tile::<M, P, 1>(simd, panels, token_idx, inputs, extent, &mut ahead),
            }
            token_idx += n;
        }
    }

    /// Some columns of `P` times 16 rows times `N` tokens.
    #[inline(always)]
    fn tile<M: Multiply, const P: usize, const N: usize>(
        &self,
        simd: M,
        panels: [&[PackedColumn]; P],
        first_token: usize,
        inputs: Inputs,
        extent: Extent,
        ahead: &mut Ahead,
    ) {
        let (base, n_cols) = (simd.base(), panels[0].len());
        // By one address and a stride: an address for each token takes more registers than there
        // are.
        let inputs = Inputs {
            data: &inputs.data[(first_token - self.first_token) * inputs.stride..],
            ..inputs
        };
        assert!(
            inputs.data.len() >= (N - 1) * inputs.stride + n_cols,
            "inputs of each token"
        );
        let panel = |p: usize| {
            self.out
                .panel(first_token, self.first_row + p * LANES, extent.is_first)
        };
        for p in 0..P {
            panel(p).prefetch(base, N);
        }
        let mut acc = [[base.splat(0.0); N]; P];
        let n_chunks = n_cols / CHUNK_COLS;
        for chunk_idx in 0..n_chunks {
            ahead.ask(base);
            for i in 0..CHUNK_COLS {
                // SAFETY: each panel has `n_cols`, and so has each token, as asserted.
                unsafe { add_column(simd, &panels, inputs, chunk_idx * CHUNK_COLS + i, &mut acc) };
            }
        }
        for col in n_chunks * CHUNK_COLS..n_cols {
            // SAFETY: as above.
            unsafe { add_column(simd, &panels, inputs, col, &mut acc) };
        }
        // By constant index: a loop would leave the sums in memory all along.
        // SAFETY: the rows of these panels belong, for these tokens, to this task alone.
        unsafe {
            panel(0).add(base, acc[0], N);
            if P == 2 {
                panel(1).add(base, acc[P - 1], N);
            }
        }
        if extent.is_last {
            (0..P).for_each(|p| self.out.finish(first_token, N, self.first_row + p * LANES));
        }
    }
}
