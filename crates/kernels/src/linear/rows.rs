//! Few tokens: each weight row is read once and dotted with each token.

use super::choose::MAX_ROW_TOKENS;
use super::columns::LINE_BYTES;
use super::output::Output;
use super::q8::{LaneToken, Q8Activations};
use super::source::Source;
use super::tasks::run_row_parts;
use super::weight::Rows;
use crate::Context;
use crate::quant::BlockType;
use crate::quant::format::{Format, FormatTask, SuperBlock, step, with_format};
use crate::simd::{Isa, Kernel, Simd};

pub(super) fn linear_q8(ctx: &Context, ty: BlockType, rows: Rows, x: &Q8Activations, out: &Output) {
    let mut tokens = [LaneToken {
        codes: &[],
        scales: &[],
        sums: &[],
    }; MAX_ROW_TOKENS];
    for (token_idx, token) in tokens.iter_mut().enumerate().take(x.n_tokens()) {
        *token = x.lane_token(token_idx);
    }
    let tokens = &tokens[..x.n_tokens()];
    run_row_parts(ctx.pool(), rows.n_rows, 1, |start, len| {
        ctx.isa().run(Part {
            ty,
            rows,
            tokens,
            out,
            start,
            len,
        });
    });
}

/// A part of the rows, against all tokens.
#[derive(Clone, Copy)]
struct Part<'a> {
    ty: BlockType,
    rows: Rows<'a>,
    tokens: &'a [LaneToken<'a>],
    out: &'a Output<'a>,
    start: usize,
    len: usize,
}

impl Kernel for Part<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let done = with_format(self.ty, PartWith { simd, part: self });
        debug_assert!(done.is_some(), "float weights have no codes");
    }
}

struct PartWith<'a, S> {
    simd: S,
    part: Part<'a>,
}

impl<S: Simd> FormatTask for PartWith<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run<T: Format>(self) {
        match *self.part.tokens {
            [] => {}
            [a] => row_part::<S, T, 1>(self.simd, self.part, [a]),
            [a, b, ..] => row_part::<S, T, 2>(self.simd, self.part, [a, b]),
        }
    }
}

#[inline(always)]
fn row_part<S: Simd, T: Format, const N: usize>(simd: S, part: Part, tokens: [LaneToken; N]) {
    let n_steps = tokens[0].codes.len();
    for token in tokens {
        assert!(
            token.codes.len() == n_steps
                && token.scales.len() == n_steps
                && token.sums.len() == n_steps,
            "steps"
        );
    }
    for row_idx in part.start..part.start + part.len {
        let row = part.rows.get(row_idx);
        assert!(
            row.len().div_ceil(size_of::<T::Super>()) * T::N_STEPS == n_steps,
            "as many steps as the activations"
        );
        // SAFETY: the steps of the row and of all tokens are equally many, as asserted.
        let dots = unsafe { row_dots::<S, T, N>(simd, row, &tokens) };
        for (token_idx, dot) in dots.into_iter().enumerate() {
            // SAFETY: the rows of this part belong to this task alone.
            let y = unsafe { part.out.part(token_idx, row_idx, 1) };
            y[0] = dot + part.out.start(row_idx, y[0]);
        }
    }
}

/// # Safety
/// Every token has as many steps as the row.
#[inline(always)]
unsafe fn row_dots<S: Simd, T: Format, const N: usize>(
    simd: S,
    row: &[u8],
    tokens: &[LaneToken; N],
) -> [f32; N] {
    let mut acc = RowAcc {
        scaled: [simd.splat(0.0); N],
        shifted: [simd.splat(0.0); N],
    };
    let (supers, rest) = T::Super::split(row);
    for (super_idx, block) in supers.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { super_dots::<S, T, N>(simd, block, super_idx, tokens, &mut acc) };
    }
    if !rest.is_empty() {
        // Half a pair of blocks: the other half has scale 0.
        let mut block = T::Super::ZERO;
        block.bytes_mut()[..rest.len()].copy_from_slice(rest);
        // SAFETY: the caller's promise.
        unsafe { super_dots::<S, T, N>(simd, &block, supers.len(), tokens, &mut acc) };
    }
    let mut dots = [0.0; N];
    for n in 0..N {
        dots[n] = simd.sum(simd.add(acc.scaled[n], acc.shifted[n]));
    }
    dots
}

struct RowAcc<S: Simd, const N: usize> {
    scaled: [S::F; N],
    shifted: [S::F; N],
}

/// # Safety
/// Every token has the steps of this super-block.
#[inline(always)]
unsafe fn super_dots<S: Simd, T: Format, const N: usize>(
    simd: S,
    block: &T::Super,
    super_idx: usize,
    tokens: &[LaneToken; N],
    acc: &mut RowAcc<S, N>,
) {
    let head = T::head(simd, block);
    for step_idx in 0..T::N_STEPS {
        let step = step::<S, T>(simd, block, head, step_idx);
        let at = super_idx * T::N_STEPS + step_idx;
        for n in 0..N {
            let LaneToken {
                codes,
                scales,
                sums,
            } = tokens[n];
            // SAFETY: the caller's promise.
            let (codes, scales, sums) = unsafe {
                (
                    codes.get_unchecked(at),
                    scales.get_unchecked(at),
                    sums.get_unchecked(at),
                )
            };
            let (zero, codes) = (simd.zero_int(), simd.load_b(codes));
            let dot = if T::IS_WIDE {
                simd.dot_wide(zero, step.codes, codes)
            } else {
                simd.dot_narrow(zero, step.codes, codes)
            };
            let scale = simd.mul(step.scale, simd.load(scales));
            acc.scaled[n] = simd.fma(simd.int_values(dot), scale, acc.scaled[n]);
            if !T::HAS_NO_SHIFT || S::WIDE_XOR != 0 {
                acc.shifted[n] = simd.fma(step.shift, simd.load(sums), acc.shifted[n]);
            }
        }
    }
}

/// Columns dequantized at a time: a multiple of every block length, and small enough for the
/// first-level cache.
const CHUNK_LEN: usize = 256;
/// What foresees reads stops at the end of a page of memory, and a file that is mapped lies in
/// small ones: 1.08 times as fast so with two threads, 1.2 with one.
const AHEAD_BYTES: usize = 4096;

pub(super) fn linear_f32(ctx: &Context, source: Source, x: &[f32], n_tokens: usize, out: &Output) {
    run_row_parts(ctx.pool(), source.rows().n_rows, 1, |start, len| {
        ctx.isa().run(PartF32 {
            isa: ctx.isa(),
            source,
            x,
            n_cols: source.n_cols(),
            n_tokens,
            out,
            start,
            len,
        });
    });
}

struct PartF32<'a> {
    isa: Isa,
    source: Source<'a>,
    x: &'a [f32],
    n_cols: usize,
    n_tokens: usize,
    out: &'a Output<'a>,
    start: usize,
    len: usize,
}

impl Kernel for PartF32<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for row_idx in self.start..self.start + self.len {
            let totals = self.row(simd, row_idx);
            for (token_idx, total) in totals.into_iter().enumerate().take(self.n_tokens) {
                // SAFETY: the rows of this part belong to this task alone.
                let y = unsafe { self.out.part(token_idx, row_idx, 1) };
                y[0] = simd.sum(simd.add(total[0], total[1])) + self.out.start(row_idx, y[0]);
            }
        }
    }
}

impl PartF32<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, simd: S, row_idx: usize) -> [[S::F; 2]; MAX_ROW_TOKENS] {
        let mut totals = [[simd.splat(0.0); 2]; MAX_ROW_TOKENS];
        let mut values = [0.0f32; CHUNK_LEN];
        // Whole pairs of vectors of floats go from memory to the product: on the way through
        // `values` reading is slower than memory.
        let row = self.source.rows().get(row_idx);
        let mut start = match self.source.float_type() {
            Some(BlockType::Bf16) => self.pairs::<S, true>(simd, row, &mut totals),
            Some(BlockType::F16) => self.pairs::<S, false>(simd, row, &mut totals),
            Some(BlockType::F32) => self.float_pairs(simd, row, &mut totals),
            _ => 0,
        };
        while start < self.n_cols {
            let len = CHUNK_LEN.min(self.n_cols - start);
            self.source
                .values(self.isa, row_idx, start, &mut values[..len]);
            // Filled up with zeros to whole pairs of vectors.
            let padded_len = len.next_multiple_of(32);
            values[len..padded_len].fill(0.0);
            for (token_idx, total) in totals.iter_mut().enumerate().take(self.n_tokens) {
                let x = &self.x[token_idx * self.n_cols + start..][..len];
                dot_chunk(simd, &values[..padded_len], x, total);
            }
            start += len;
        }
        totals
    }

    /// Adds the products of the columns by 32 with weights of f32; how many columns that are: none
    /// where the weights do not lie as f32 do.
    #[inline(always)]
    fn float_pairs<S: Simd>(
        &self,
        simd: S,
        row: &[u8],
        totals: &mut [[S::F; 2]; MAX_ROW_TOKENS],
    ) -> usize {
        // SAFETY: any bits are f32.
        let (before, row, _) = unsafe { row.align_to::<f32>() };
        if !before.is_empty() {
            return 0;
        }
        let row = row.as_chunks::<16>().0.as_chunks::<2>().0;
        for (token_idx, total) in totals.iter_mut().enumerate().take(self.n_tokens) {
            let x = self.x[token_idx * self.n_cols..][..self.n_cols]
                .as_chunks::<16>()
                .0
                .as_chunks::<2>()
                .0;
            for (values, x) in row.iter().zip(x) {
                if token_idx == 0 {
                    let ahead = values.as_ptr().cast::<f32>();
                    simd.prefetch_far(ahead.wrapping_byte_add(AHEAD_BYTES));
                    simd.prefetch_far(ahead.wrapping_byte_add(AHEAD_BYTES + LINE_BYTES));
                }
                total[0] = simd.fma(simd.load(&values[0]), simd.load(&x[0]), total[0]);
                total[1] = simd.fma(simd.load(&values[1]), simd.load(&x[1]), total[1]);
            }
        }
        row.len() * 32
    }

    /// Adds the products of the columns by 32 with weights of bf16 or f16; how many columns that
    /// are.
    #[inline(always)]
    fn pairs<S: Simd, const IS_BF16: bool>(
        &self,
        simd: S,
        row: &[u8],
        totals: &mut [[S::F; 2]; MAX_ROW_TOKENS],
    ) -> usize {
        let row = row.as_chunks::<32>().0.as_chunks::<2>().0;
        for (token_idx, total) in totals.iter_mut().enumerate().take(self.n_tokens) {
            let x = self.x[token_idx * self.n_cols..][..self.n_cols]
                .as_chunks::<16>()
                .0
                .as_chunks::<2>()
                .0;
            for (values, x) in row.iter().zip(x) {
                if token_idx == 0 {
                    simd.prefetch_far(values.as_ptr().cast::<f32>().wrapping_byte_add(AHEAD_BYTES));
                }
                for i in 0..2 {
                    let values = if IS_BF16 {
                        simd.load_bf16(&values[i])
                    } else {
                        simd.load_f16(&values[i])
                    };
                    total[i] = simd.fma(values, simd.load(&x[i]), total[i]);
                }
            }
        }
        row.len() * 32
    }
}

/// Adds products to two vectors of sums, in turn. `values` is `x` long, filled up with zeros to a
/// multiple of 32.
#[inline(always)]
fn dot_chunk<S: Simd>(simd: S, values: &[f32], x: &[f32], total: &mut [S::F; 2]) {
    let (pairs, rest) = x.as_chunks::<32>();
    let mut last = [0.0; 32];
    last[..rest.len()].copy_from_slice(rest);
    for (i, values) in values.as_chunks::<32>().0.iter().enumerate() {
        let x = pairs.get(i).unwrap_or(&last).as_chunks::<16>().0;
        let values = values.as_chunks::<16>().0;
        total[0] = simd.fma(simd.load(&values[0]), simd.load(&x[0]), total[0]);
        total[1] = simd.fma(simd.load(&values[1]), simd.load(&x[1]), total[1]);
    }
}
