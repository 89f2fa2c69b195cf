//! bf16 weights on a machine that multiplies bf16: the activations are rounded to bf16 once, and
//! the weights are used as they are stored, two columns to a lane.
//!
//! As elsewhere, few tokens are dotted with each row, and for many 16 rows become the lanes of a
//! vector, where two columns in bf16 go as one in f32 ([`dense`]). Rows need no unpacking here, so
//! that "few" are more than elsewhere.

use super::choose::{Form, Path, Precision, choose};
use super::dense;
use super::memory::f32_as_u8;
use super::output::Output;
use super::source::Source;
use super::tasks::run_row_parts;
use super::weight::{Rows, Weight};
use crate::quant::BlockType;
use crate::simd::{Avx512Bf16, Bf16Kernel, LANES, Simd};
use crate::{Context, Isa};

/// Up to this many tokens are rounded by the caller's thread: as many as take less time than
/// handing them to another.
const MAX_SERIAL_TOKENS: usize = 8;
/// Rows dotted at once: sums that do not wait for each other.
const BLOCK_ROWS: usize = 4;
/// Columns of 64 bytes.
const STEP_COLS: usize = 32;

/// How to multiply weights of this type in bf16, if they are and the instruction set can.
pub(super) fn bf16_products(ctx: &Context, ty: BlockType) -> Option<Avx512Bf16> {
    if ty == BlockType::Bf16 {
        Avx512Bf16::of(ctx.isa())
    } else {
        None
    }
}

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
        &self.steps[token_idx * steps_stride(self.n_steps)..][..self.n_steps]
    }
}

/// From the steps of a token to those of the next: an odd number, so that those of a tile of tokens
/// lie in as many different sets of the first cache.
fn steps_stride(n_steps: usize) -> usize {
    n_steps | 1
}

/// f32s of the rounded activations.
pub(super) fn activations_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens * steps_stride(n_cols.div_ceil(STEP_COLS)) * LANES
}

/// The weight with two columns as one in f32, where it is transposed to panels.
fn in_pairs<'a>(isa: Isa, weight: &Weight<'a>, n_tokens: usize) -> Option<Weight<'a>> {
    let stored = (BlockType::Bf16, Form::Stored);
    let shape = [weight.n_rows, weight.n_cols];
    let path = choose(isa, Precision::Fast, stored, shape, n_tokens);
    (path == Path::Bf16Panels).then_some(Weight {
        ty: BlockType::F32,
        n_cols: weight.n_cols / 2,
        ..*weight
    })
}

pub(super) fn scratch_len(ctx: &Context, weight: &Weight, n_tokens: usize) -> usize {
    let dense_len = in_pairs(ctx.isa(), weight, n_tokens).map_or(0, |pairs| {
        dense::scratch_len(ctx, Source::Blocks(pairs), n_tokens)
    });
    activations_len(n_tokens, weight.n_cols) + dense_len
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
    let (steps, scratch) = scratch.split_at_mut(activations_len(n_tokens, weight.n_cols));
    let (x, stride) = round(ctx, simd, x, n_tokens, weight.n_cols, steps);
    if let Some(pairs) = in_pairs(ctx.isa(), weight, n_tokens) {
        return dense::linear_bf16(
            ctx,
            simd,
            Source::Blocks(pairs),
            (x, stride),
            n_tokens,
            out,
            scratch,
        );
    }
    let (rows, steps) = (weight.checked(), f32_as_u8(steps).as_chunks().0);
    let x = Activations {
        steps,
        n_steps: weight.n_cols.div_ceil(STEP_COLS),
        n_tokens,
    };
    run_row_parts(ctx.pool(), rows.n_rows, BLOCK_ROWS, |start, len| {
        simd.run(RowPart {
            rows,
            x,
            out,
            start,
            len,
        })
    });
}

/// The activations of `x` [n_tokens, n_cols] in bf16, two to an f32 and filled up with zeros, in as
/// many `pairs` as [`activations_len`] says; and how many lie from a token to the next.
pub(super) fn round<'a>(
    ctx: &Context,
    simd: Avx512Bf16,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    pairs: &'a mut [f32],
) -> (&'a [f32], usize) {
    let stride = steps_stride(n_cols.div_ceil(STEP_COLS)) * LANES;
    let round = |token_idx: usize, pairs: &mut [f32]| {
        let steps = f32_as_u8(pairs).as_chunks_mut().0;
        simd.run(Round {
            x: &x[token_idx * n_cols..][..n_cols],
            steps,
        });
    };
    if n_tokens <= MAX_SERIAL_TOKENS {
        pairs
            .chunks_exact_mut(stride)
            .enumerate()
            .for_each(|(token_idx, pairs)| round(token_idx, pairs));
    } else {
        ctx.pool().run_chunks(&mut *pairs, stride, round);
    }
    (pairs, stride)
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
            simd.base()
                .store_b(simd.round(whole.get(step_idx).unwrap_or(&last)), step);
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
        if self.x.n_tokens == 1 {
            return (row_idx..end).for_each(|row_idx| self.dot(simd, row_idx));
        }
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

    /// One row times one token. Memory gives the most where it is read in its order: twice as much
    /// as of four rows by turns, on an AMD EPYC of family 25.
    #[inline(always)]
    fn dot(self, simd: Avx512Bf16, row_idx: usize) {
        const SUMS: usize = 4;
        let base = simd.base();
        let (row, rest) = self.rows.get(row_idx).as_chunks::<64>();
        let x = self.x.token(0);
        let mut sums = [base.splat(0.0); SUMS];
        let (fours, last) = row.as_chunks::<SUMS>();
        // Activations have one step more where a rest follows.
        let (x_fours, x_last) = x[..row.len()].as_chunks::<SUMS>();
        for (row, x) in fours.iter().zip(x_fours) {
            for i in 0..SUMS {
                sums[i] = simd.dot(sums[i], base.load_b(&row[i]), base.load_b(&x[i]));
            }
        }
        for (row, x) in last.iter().zip(x_last) {
            sums[0] = simd.dot(sums[0], base.load_b(row), base.load_b(x));
        }
        if !rest.is_empty() {
            sums[1] = simd.dot(
                sums[1],
                base.load_b(&filled_up(rest)),
                base.load_b(&x[row.len()]),
            );
        }
        let sum = base.add(base.add(sums[0], sums[1]), base.add(sums[2], sums[3]));
        // SAFETY: the rows of this part belong to this task alone.
        let y = unsafe { self.out.part(0, row_idx, 1) };
        y[0] = base.sum(sum) + self.out.start(row_idx, y[0]);
    }

    /// `R` rows times `N` tokens.
    #[inline(always)]
    fn dots<const R: usize, const N: usize>(
        self,
        simd: Avx512Bf16,
        first_row: usize,
        first_token: usize,
    ) {
        let base = simd.base();
        let tokens: [&[[u8; 64]]; N] = std::array::from_fn(|n| self.x.token(first_token + n));
        let rows: [(&[[u8; 64]], &[u8]); R] =
            std::array::from_fn(|r| self.rows.get(first_row + r).as_chunks());
        let (n_whole, rest_len) = (rows[0].0.len(), rows[0].1.len());
        assert!(
            rows.iter().all(|(whole, _)| whole.len() == n_whole),
            "rows of one length"
        );
        assert!(
            n_whole + rest_len.div_ceil(64) == self.x.n_steps,
            "as many steps as the activations"
        );
        let next = self
            .rows
            .get(first_row)
            .as_ptr()
            .wrapping_add(R * self.rows.row_bytes);
        let mut acc = [[base.splat(0.0); N]; R];
        for step_idx in 0..n_whole {
            // SAFETY: the rows have n_whole steps, and the tokens no fewer, as asserted.
            let x: [&[u8; 64]; N] =
                std::array::from_fn(|n| unsafe { tokens[n].get_unchecked(step_idx) });
            for r in 0..R {
                // SAFETY: as above.
                let weights = unsafe { rows[r].0.get_unchecked(step_idx) };
                if first_token == 0 {
                    // The next block, in the order of memory: of four rows by turns the machine
                    // foresees too little.
                    base.prefetch(next.wrapping_add(64 * (R * step_idx + r)).cast());
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
