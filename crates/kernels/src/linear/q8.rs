//! Activations as 8-bit codes with a scale per 32 columns.

use super::{MAX_ROW_TOKENS, i8_as_u8};
use crate::Context;
use crate::simd::{Kernel, Simd};
use crate::threads::SharedMut;

/// Elements of the three buffers of [`quantize_q8`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Q8Len {
    /// Codes (`i8`).
    pub codes: usize,
    /// Scales (`f32`).
    pub scales: usize,
    /// Sums (`f32`).
    pub sums: usize,
}

/// What [`quantize_q8`] needs for `n_tokens` rows of `n_cols`.
pub fn q8_len(n_tokens: usize, n_cols: usize) -> Q8Len {
    let n_steps = n_tokens * n_cols.div_ceil(64);
    Q8Len { codes: n_steps * 64, scales: n_steps * 16, sums: n_steps * 16 }
}

/// Activations as 8-bit codes with a scale per 32. Made by [`quantize_q8`].
///
/// The columns are filled up with zeros to steps of 64. For few tokens, scales and sums are laid out as vectors: the
/// scale of each lane of four columns, and the sum of the lane's codes times it. For many, they are by token: the scale
/// of each 32 columns; the sums of each 16 columns and then of each 32.
#[derive(Debug, Clone, Copy)]
pub struct Q8Activations<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    sums: &'a [f32],
    n_tokens: usize,
    n_cols: usize,
    by_lane: bool,
}

/// A token of activations laid out as vectors, by steps of 64 columns.
#[derive(Clone, Copy)]
pub(super) struct LaneToken<'a> {
    pub(super) codes: &'a [[u8; 64]],
    pub(super) scales: &'a [[f32; 16]],
    pub(super) sums: &'a [[f32; 16]],
}

/// A token of activations laid out by blocks.
#[derive(Clone, Copy)]
pub(super) struct BlockToken<'a> {
    pub(super) codes: &'a [[i8; 4]],
    /// By 32 columns.
    pub(super) scales: &'a [f32],
    /// By 16 columns.
    pub(super) sums16: &'a [f32],
    /// By 32 columns.
    pub(super) sums32: &'a [f32],
}

impl Q8Activations<'_> {
    /// Tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Columns.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(super) fn n_steps(&self) -> usize {
        self.n_cols.div_ceil(64)
    }

    pub(super) fn lane_token(&self, token_idx: usize) -> LaneToken<'_> {
        assert!(self.by_lane, "activations are laid out by blocks");
        let steps = token_idx * self.n_steps()..(token_idx + 1) * self.n_steps();
        LaneToken {
            codes: &i8_as_u8(self.codes).as_chunks().0[steps.clone()],
            scales: &self.scales.as_chunks().0[steps.clone()],
            sums: &self.sums.as_chunks().0[steps],
        }
    }

    #[inline(always)]
    pub(super) fn block_token(&self, token_idx: usize) -> BlockToken<'_> {
        assert!(!self.by_lane, "activations are laid out as vectors");
        let n_steps = self.n_steps();
        let sums = &self.sums[token_idx * n_steps * 16..][..n_steps * 6];
        BlockToken {
            codes: &self.codes.as_chunks().0[token_idx * n_steps * 16..][..n_steps * 16],
            scales: &self.scales[token_idx * n_steps * 16..][..n_steps * 2],
            sums16: &sums[..n_steps * 4],
            sums32: &sums[n_steps * 4..],
        }
    }
}

/// Quantises `x` [n_tokens, n_cols] to 8 bits per 32 columns: code = round(x * 127 / max|x|), to even. A block below
/// 1e-36 becomes zeros; the scale of a block with an infinity or NaN is NaN.
///
/// # Panics
/// If `x` has another size or a buffer is shorter than [`q8_len`] says.
pub fn quantize_q8<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
) -> Q8Activations<'a> {
    quantize(ctx, x, n_tokens, n_cols, Buffers { codes, scales, sums }, n_tokens <= MAX_ROW_TOKENS)
}

/// Where activations are put, as [`q8_len`] says.
pub(super) struct Buffers<'a> {
    pub(super) codes: &'a mut [i8],
    pub(super) scales: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
}

/// [`quantize_q8`], as vectors or by blocks.
pub(super) fn quantize<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    buffers: Buffers<'a>,
    by_lane: bool,
) -> Q8Activations<'a> {
    let Buffers { codes, scales, sums } = buffers;
    assert_eq!(Some(x.len()), n_tokens.checked_mul(n_cols), "inputs of {n_tokens} tokens");
    let len = q8_len(n_tokens, n_cols);
    let (codes, scales, sums) = (&mut codes[..len.codes], &mut scales[..len.scales], &mut sums[..len.sums]);
    let n_steps = n_cols.div_ceil(64);
    {
        let (codes, scales, sums) = (SharedMut::new(codes), SharedMut::new(scales), SharedMut::new(sums));
        let quantize = |token_idx: usize| {
            let (start, len) = (token_idx * n_steps, n_steps);
            // SAFETY: each token is done once, and the parts of different tokens do not overlap.
            let (codes, scales, sums) = unsafe {
                (
                    codes.slice(start * 64, len * 64),
                    scales.slice(start * 16, len * 16),
                    sums.slice(start * 16, len * 16),
                )
            };
            let x = &x[token_idx * n_cols..][..n_cols];
            ctx.isa().run(Quantize { x, codes, scales, sums, by_lane });
        };
        // A token of a few thousand columns takes less time than handing it to another thread.
        if n_tokens <= MAX_ROW_TOKENS { (0..n_tokens).for_each(quantize) } else { ctx.pool().run(n_tokens, quantize) }
    }
    Q8Activations { codes, scales, sums, n_tokens, n_cols, by_lane }
}

struct Quantize<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    by_lane: bool,
}

impl Kernel for Quantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n_steps = self.codes.len() / 64;
        let (whole, rest) = self.x.as_chunks::<64>();
        let mut last = [0.0; 64];
        last[..rest.len()].copy_from_slice(rest);
        for (step_idx, codes) in self.codes.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let x = whole.get(step_idx).unwrap_or(&last);
            let scales = quantize_step(simd, x, codes);
            let [a, b] = scales;
            let scale_lanes = [a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b];
            let ones = simd.dup4_b(&[1; 4]);
            let code_bytes = simd.load_b(i8_as_u8(codes).first_chunk().expect("64 codes"));
            let sums =
                simd.mul(simd.int_values(simd.dot_narrow(simd.zero_int(), ones, code_bytes)), simd.load(&scale_lanes));
            if self.by_lane {
                self.scales.as_chunks_mut().0[step_idx] = scale_lanes;
                simd.store(sums, &mut self.sums.as_chunks_mut().0[step_idx]);
            } else {
                self.scales.as_chunks_mut().0[step_idx] = scales;
                let mut lanes = [0.0; 16];
                simd.store(sums, &mut lanes);
                let four = |group: usize| {
                    lanes[4 * group] + lanes[4 * group + 1] + lanes[4 * group + 2] + lanes[4 * group + 3]
                };
                let sums16 = [four(0), four(1), four(2), four(3)];
                self.sums.as_chunks_mut().0[step_idx] = sums16;
                self.sums[n_steps * 4..].as_chunks_mut().0[step_idx] = [sums16[0] + sums16[1], sums16[2] + sums16[3]];
            }
        }
    }
}

/// The codes of 64 columns, and the scales of both halves.
#[inline(always)]
fn quantize_step<S: Simd>(simd: S, x: &[f32; 64], codes: &mut [i8; 64]) -> [f32; 2] {
    let x = x.as_chunks::<16>().0;
    let codes = codes.as_chunks_mut::<16>().0;
    let mut scales = [0.0; 2];
    for (half, scale) in scales.iter_mut().enumerate() {
        let (a, b) = (simd.load(&x[2 * half]), simd.load(&x[2 * half + 1]));
        let max = simd.max_lane(simd.max(simd.abs(a), simd.abs(b)));
        // x - x is 0, or NaN where x is infinite or NaN.
        let poison = simd.sum(simd.add(simd.sub(a, a), simd.sub(b, b)));
        // Below 1e-36 the inverse of the scale would be close to overflow.
        let is_zero = max < 1e-36;
        let inverse = simd.splat(if is_zero { 0.0 } else { 127.0 / max });
        simd.store_i8(simd.to_int(simd.mul(a, inverse)), &mut codes[2 * half]);
        simd.store_i8(simd.to_int(simd.mul(b, inverse)), &mut codes[2 * half + 1]);
        *scale = if is_zero { poison } else { max / 127.0 + poison };
    }
    scales
}
