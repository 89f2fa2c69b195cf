//! 4-bit weights packed once: 16 rows are a panel whose lanes are the rows, with two fours of
//! columns in the halves of each byte. Nothing is summed up across lanes, and scales are multiplied for 16 rows at once: a
//! third of the instructions that rows as they are stored take.
//!
//! A group of 32 columns is 4 vectors of codes, then 16 scales and 16 shifts in f16: 5 bits a weight.

use std::sync::atomic::{AtomicBool, Ordering};

use super::panel::{self, Target, store_rows};
use super::q8::{self, BlockToken, Q8Len, q8_len};
use super::{Output, Q8Activations, Weight, f32_as_i8, run_row_parts};
use crate::Context;
use crate::f16::{f16_to_f32, f32_to_f16};
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// Bytes of a group: a vector is 64.
const GROUP_BYTES: usize = 5 * 64;

/// A 4-bit matrix as [`pack_nibbles`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Nibbles<'a> {
    /// [n_rows / 16, groups of 32 columns]; [`nibbles_len`] bytes.
    pub bytes: &'a [u8],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Bytes of a matrix of this type, packed; `None` for types that are not packed so, whose scales no f16 holds or whose codes
/// have more bits.
pub fn nibbles_len(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<usize> {
    let n_groups = 2 * n_cols.div_ceil(64);
    matches!(ty, BlockType::Q4_0 | BlockType::Q4_1)
        .then(|| n_rows.div_ceil(LANES).checked_mul(n_groups)?.checked_mul(GROUP_BYTES))
        .flatten()
}

/// f32s of scratch that [`pack_nibbles`] needs.
pub fn pack_nibbles_scratch_len(ctx: &Context, n_cols: usize) -> usize {
    ctx.pool().n_threads() * panel::scratch_len(n_cols)
}

/// Packs a matrix; `false` where one of its shifts is beyond f16, and `bytes` are of no use.
///
/// # Panics
/// If the weight is not well formed or `bytes` not of [`nibbles_len`], or the scratch is too short.
pub fn pack_nibbles(ctx: &Context, weight: &Weight, bytes: &mut [u8], scratch: &mut [f32]) -> bool {
    let rows = weight.checked();
    assert_eq!(Some(bytes.len()), nibbles_len(weight.ty, weight.n_rows, weight.n_cols), "bytes");
    let bytes = SharedMut::new(bytes);
    let panel_bytes = 2 * weight.n_cols.div_ceil(64) * GROUP_BYTES;
    if panel_bytes == 0 {
        return true;
    }
    let exact = AtomicBool::new(true);
    panel::fill_each(ctx, weight.ty, rows, weight.n_cols, scratch, |panel_idx, panel| {
        // SAFETY: each panel is filled once, and its bytes are no other's.
        let out = unsafe { bytes.slice(panel_idx * panel_bytes, panel_bytes) };
        let groups = out.as_chunks_mut::<GROUP_BYTES>().0;
        for (group, out) in groups.iter_mut().enumerate() {
            let codes = &panel.codes[group * 8..][..8];
            for (v, out) in out.as_chunks_mut::<64>().0.iter_mut().take(4).enumerate() {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = codes[v][i] | codes[v + 4][i] << 4;
                }
            }
            let factors = panel.scales[group].iter().chain(&panel.shifts[group]);
            for (factor, out) in factors.zip(out[4 * 64..].as_chunks_mut::<2>().0) {
                let half = f32_to_f16(*factor);
                if f16_to_f32(half) != *factor && !factor.is_nan() {
                    exact.store(false, Ordering::Relaxed);
                }
                *out = half.to_le_bytes();
            }
        }
    });
    exact.into_inner()
}

/// f32s of scratch that [`linear_nibbles`] needs.
pub fn linear_nibbles_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    let len = q8_len(n_tokens, n_cols);
    len.codes.div_ceil(4) + len.scales + len.sums
}

/// The product of [`linear_q8`](super::linear_q8) with a packed matrix, with activations that are quantised here.
///
/// # Panics
/// If a size does not fit or the scratch is too short.
pub fn linear_nibbles(
    ctx: &Context,
    weight: &Nibbles,
    x: &[f32],
    n_tokens: usize,
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    let Nibbles { bytes, n_rows, n_cols } = *weight;
    assert_eq!(Some(bytes.len()), nibbles_len(BlockType::Q4_0, n_rows, n_cols), "bytes");
    let Q8Len { codes, scales, .. } = q8_len(n_tokens, n_cols);
    let (codes, scratch) = scratch.split_at_mut(codes.div_ceil(4));
    let (scales, sums) = scratch.split_at_mut(scales);
    let buffers = q8::Buffers { codes: f32_as_i8(codes), scales, sums };
    let x = q8::quantize(ctx, x, n_tokens, n_cols, buffers, false);
    let out = Output::new(n_rows, n_tokens, bias, y);
    let n_groups = 2 * n_cols.div_ceil(64);
    let groups = bytes.as_chunks().0;
    run_row_parts(ctx.pool(), n_rows.div_ceil(LANES), 1, |start, len| {
        for panel_idx in start..start + len {
            let groups = &groups[panel_idx * n_groups..][..n_groups];
            let first_row = panel_idx * LANES;
            let target = Target { out: &out, first_row, n_rows: (n_rows - first_row).min(LANES) };
            ctx.isa().run(PanelTask { groups, x: &x, target });
        }
    });
}

struct PanelTask<'a> {
    groups: &'a [[u8; GROUP_BYTES]],
    x: &'a Q8Activations<'a>,
    target: Target<'a>,
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut token_idx = 0;
        while S::TILE_TOKENS >= 12 && self.x.n_tokens() - token_idx >= 12 {
            self.tile::<S, 12>(simd, token_idx);
            token_idx += 12;
        }
        while S::HAS_PARTS && self.x.n_tokens() - token_idx >= 6 {
            self.tile::<S, 6>(simd, token_idx);
            token_idx += 6;
        }
        while self.x.n_tokens() - token_idx >= 4 {
            self.tile::<S, 4>(simd, token_idx);
            token_idx += 4;
        }
        while self.x.n_tokens() - token_idx >= 2 {
            self.tile::<S, 2>(simd, token_idx);
            token_idx += 2;
        }
        if token_idx < self.x.n_tokens() {
            self.tile::<S, 1>(simd, token_idx);
        }
    }
}

impl PanelTask<'_> {
    /// 16 rows times `N` tokens.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&self, simd: S, first_token: usize) {
        let mut tokens = [self.x.block_token(first_token); N];
        for n in 1..N {
            tokens[n] = self.x.block_token(first_token + n);
        }
        let mut acc = [simd.splat(0.0); N];
        for (group, bytes) in self.groups.iter().enumerate() {
            let (vectors, _) = bytes.as_chunks::<64>();
            let mut dots = [simd.zero_int(); N];
            // Not a loop over four: written out, it needs more registers than there are.
            for (v, codes) in vectors[..vectors.len() - 1].iter().enumerate() {
                let codes = simd.load_b(codes);
                let (low, high) = (simd.and_b(codes, 15), simd.and_b(simd.shr_b(codes, [4; 4]), 15));
                for n in 0..N {
                    // SAFETY: a token has 8 fours of codes a group, as `quantize` lays them out for as many columns.
                    let (of_low, of_high) = unsafe { fours(&tokens[n], 8 * group + v) };
                    dots[n] = simd.dot_part(dots[n], low, simd.dup4_b(of_low));
                    dots[n] = simd.dot_part(dots[n], high, simd.dup4_b(of_high));
                }
            }
            let factors: &[[u8; 32]] = vectors[4].as_chunks().0;
            let (scales, shifts) = (simd.load_f16(&factors[0]), simd.load_f16(&factors[1]));
            for n in 0..N {
                // SAFETY: a token has a scale and a sum for each group of 32 columns.
                let (scale, sum) =
                    unsafe { (*tokens[n].scales.get_unchecked(group), *tokens[n].sums32.get_unchecked(group)) };
                // The sum of 8 times two products of 15 * 127 fits an i16.
                let dots = if S::HAS_PARTS { simd.join_part(simd.zero_int(), dots[n]) } else { dots[n] };
                acc[n] = simd.fma(simd.mul(simd.int_values(dots), scales), simd.splat(scale), acc[n]);
                acc[n] = simd.fma(shifts, simd.splat(sum), acc[n]);
            }
        }
        for n in 0..N {
            store_rows(simd, acc[n], first_token + n, self.target);
        }
    }
}

/// The four columns at `i`, and those 16 columns on.
///
/// # Safety
/// The token has both.
#[inline(always)]
unsafe fn fours<'a>(token: &BlockToken<'a>, i: usize) -> (&'a [i8; 4], &'a [i8; 4]) {
    // SAFETY: the caller's promise.
    unsafe { (token.codes.get_unchecked(i), token.codes.get_unchecked(i + 4)) }
}
