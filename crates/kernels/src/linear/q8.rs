//! Activations as 8-bit codes with a scale per 32 columns.

use super::choose::{MAX_ROW_TOKENS, Path, is_wide, stored_codes};
use super::int8::{FINE_PARTS, Int8Activations, quantize_int8, tiles_len};
use super::memory::{f32_as_i8, i8_as_u8};
use super::steps::{HALF_LANES, TILE_TOKENS, scales_of, tile_step};
use super::tasks::run_row_parts;
use crate::Context;
use crate::simd::{Kernel, Simd};
use crate::threads::SharedMut;

/// f32s of scratch that [`quantize_q8`] needs for `n_tokens` rows of `n_cols`.
pub fn q8_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    let (step_len, tile_len) = (
        STEP_LEN * n_tokens,
        2 * TILE_LEN * n_tokens.div_ceil(TILE_TOKENS),
    );
    (n_cols.div_ceil(64) * step_len.max(tile_len)).max(tiles_len::<FINE_PARTS>(n_tokens, n_cols))
}

/// f32s of 64 columns of a token: codes, 16 scales and 16 sums.
const STEP_LEN: usize = 64 / 4 + 16 + 16;
/// f32s of 32 columns of the tokens of a tile.
const TILE_LEN: usize = size_of::<TileGroup>() / size_of::<f32>();
/// Activations as 8-bit codes with a scale per 32. Made by [`quantize_q8`].
///
/// The columns are filled up with zeros to steps of 64.
#[derive(Debug, Clone, Copy)]
pub struct Q8Activations<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    sums: &'a [f32],
    blocks: &'a [Block],
    tiles: &'a [TileGroup],
    int8: Int8Activations<'a, FINE_PARTS>,
    n_tokens: usize,
    n_cols: usize,
    form: Form,
}

/// How activations are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// For few tokens: scales and sums are vectors, the scale of each lane of four columns, and the
    /// sum of the lane's codes times it.
    Lanes,
    /// By [`Block`].
    Blocks,
    /// By [`TileGroup`], or as [`Int8Activations`] where codes of weights are
    /// [fitted to 8 bits](is_wide).
    Tiles,
}

/// A token of activations laid out as vectors, by steps of 64 columns.
#[derive(Clone, Copy)]
pub(super) struct LaneToken<'a> {
    pub(super) codes: &'a [[u8; 64]],
    pub(super) scales: &'a [[f32; 16]],
    pub(super) sums: &'a [[f32; 16]],
}

/// 32 columns of a token. Those of all tokens lie side by side: what a product with some of them
/// needs has one address.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Block {
    pub(super) codes: [[i8; 4]; 8],
    pub(super) scale: f32,
    /// Of all codes, times the scale.
    pub(super) sum32: f32,
    /// Of the first 16 and of the others.
    pub(super) sums16: [f32; 2],
}

/// 32 columns of some tokens.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct TileGroup {
    /// With 128 added, as bytes without a sign.
    pub(super) codes: [[[i8; 4]; TILE_TOKENS]; 8],
    pub(super) scales: [f32; TILE_TOKENS],
    /// Of all columns.
    pub(super) sums32: [f32; TILE_TOKENS],
    /// Of the first 16 columns and of the others.
    pub(super) sums16: [[f32; TILE_TOKENS]; 2],
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

    /// How they are laid out.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    pub(super) fn n_steps(&self) -> usize {
        self.n_cols.div_ceil(64)
    }

    pub(super) fn lane_token(&self, token_idx: usize) -> LaneToken<'_> {
        assert!(
            self.form == Form::Lanes,
            "activations are not laid out as vectors"
        );
        let steps = token_idx * self.n_steps()..(token_idx + 1) * self.n_steps();
        LaneToken {
            codes: &i8_as_u8(self.codes).as_chunks().0[steps.clone()],
            scales: &self.scales.as_chunks().0[steps.clone()],
            sums: &self.sums.as_chunks().0[steps],
        }
    }

    /// The blocks of the tokens from `first_token` on, by 32 columns.
    #[inline(always)]
    pub(super) fn blocks<const N: usize>(
        &self,
        first_token: usize,
    ) -> impl Iterator<Item = &[Block; N]> {
        assert!(
            self.form == Form::Blocks,
            "activations are not laid out by blocks"
        );
        assert!(first_token + N <= self.n_tokens, "tokens that there are");
        let groups = self.blocks.chunks_exact(self.n_tokens);
        groups.map(move |blocks| blocks[first_token..].first_chunk().expect("as asserted"))
    }

    pub(super) fn int8(&self) -> &Int8Activations<'_, FINE_PARTS> {
        &self.int8
    }

    /// The columns of the tokens from `TILE_TOKENS * tile_idx` on; those past the last have any
    /// codes.
    #[inline(always)]
    pub(super) fn tile(&self, tile_idx: usize) -> &[TileGroup] {
        assert!(
            self.form == Form::Tiles,
            "activations are not laid out by tiles"
        );
        &self.tiles[tile_idx * 2 * self.n_steps()..][..2 * self.n_steps()]
    }
}

/// Quantizes `x` [n_tokens, n_cols] to 8 bits per 32 columns: code = round(x * 127 / max|x|), to
/// even. A block below 1e-36 becomes zeros; the scale of a block with an infinity or NaN is NaN.
///
/// # Panics
/// If `x` has another size or the scratch is shorter than [`q8_scratch_len`].
pub fn quantize_q8<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> Q8Activations<'a> {
    let form = match stored_codes(ctx.isa(), n_tokens) {
        Path::CodeRows => Form::Lanes,
        Path::CodeParts => Form::Tiles,
        _ => Form::Blocks,
    };
    quantize(ctx, x, n_tokens, n_cols, scratch, form)
}

/// [`quantize_q8`], in this form.
pub(super) fn quantize<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
    form: Form,
) -> Q8Activations<'a> {
    assert_eq!(
        Some(x.len()),
        n_tokens.checked_mul(n_cols),
        "inputs of {n_tokens} tokens"
    );
    let scratch = &mut scratch[..q8_scratch_len(n_tokens, n_cols)];
    let int8 = Int8Activations::EMPTY;
    let mut activations = Q8Activations {
        codes: &[],
        scales: &[],
        sums: &[],
        blocks: &[],
        tiles: &[],
        int8,
        n_tokens,
        n_cols,
        form,
    };
    if form == Form::Tiles && is_wide(ctx.isa()) {
        return Q8Activations {
            int8: quantize_int8(ctx, x, n_tokens, n_cols, scratch),
            ..activations
        };
    }
    match form {
        Form::Tiles => activations.tiles = quantize_tiles(ctx, x, n_tokens, n_cols, scratch),
        Form::Blocks => activations.blocks = quantize_blocks(ctx, x, n_tokens, n_cols, scratch),
        Form::Lanes => {
            let (codes, scales, sums) = quantize_lanes(ctx, x, n_tokens, n_cols, scratch);
            (activations.codes, activations.scales, activations.sums) = (codes, scales, sums);
        }
    }
    activations
}

/// By [`TileGroup`].
fn quantize_tiles<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> &'a [TileGroup] {
    let n_steps = n_cols.div_ceil(64);
    // SAFETY: a group of a tile is made of f32 and of bytes in fours, of which none is bad.
    let (_, tiles, _) = unsafe { scratch.align_to_mut::<TileGroup>() };
    let tiles = &mut tiles[..2 * n_steps * n_tokens.div_ceil(TILE_TOKENS)];
    ctx.pool()
        .run_chunks(tiles, (2 * n_steps).max(1), |tile_idx, groups| {
            let first = tile_idx * TILE_TOKENS;
            let x = &x[first * n_cols..(first + TILE_TOKENS).min(n_tokens) * n_cols];
            ctx.isa().run(QuantizeTile { x, n_cols, groups });
        });
    tiles
}

/// Whether tokens are quantized by the caller's thread: one of a few thousand columns takes less
/// time than handing it to another.
fn is_alone(n_tokens: usize) -> bool {
    n_tokens <= MAX_ROW_TOKENS
}

/// By [`Block`].
fn quantize_blocks<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> &'a [Block] {
    let n_steps = n_cols.div_ceil(64);
    // SAFETY: a block is made of f32 and of bytes in fours, of which none is bad.
    let (_, blocks, _) = unsafe { scratch.align_to_mut::<Block>() };
    let blocks = &mut blocks[..2 * n_steps * n_tokens];
    if is_alone(n_tokens) {
        ctx.isa().run(QuantizeBlocks {
            x,
            n_cols,
            first_step: 0,
            blocks: &mut *blocks,
        });
    } else {
        let shared = SharedMut::new(&mut *blocks);
        run_row_parts(ctx.pool(), n_steps, 1, |first_step, len| {
            // SAFETY: each step is done once, and what is of different steps does not overlap.
            let blocks = unsafe { shared.slice(2 * first_step * n_tokens, 2 * len * n_tokens) };
            ctx.isa().run(QuantizeBlocks {
                x,
                n_cols,
                first_step,
                blocks,
            });
        });
    }
    blocks
}

/// Codes, scales and sums as vectors.
fn quantize_lanes<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> (&'a [i8], &'a [f32], &'a [f32]) {
    let n_steps = n_cols.div_ceil(64);
    let (codes, scratch) = scratch.split_at_mut(n_tokens * n_steps * 16);
    let (scales, sums) = scratch.split_at_mut(n_tokens * n_steps * 16);
    let codes = f32_as_i8(codes);
    {
        let (codes, scales, sums) = (
            SharedMut::new(&mut *codes),
            SharedMut::new(&mut *scales),
            SharedMut::new(&mut *sums),
        );
        let quantize = |token_idx: usize| {
            let (start, len) = (token_idx * n_steps, n_steps);
            // SAFETY: each token is done once, and what is of different tokens does not overlap.
            let (codes, scales, sums) = unsafe {
                (
                    codes.slice(start * 64, len * 64),
                    scales.slice(start * 16, len * 16),
                    sums.slice(start * 16, len * 16),
                )
            };
            let x = &x[token_idx * n_cols..][..n_cols];
            ctx.isa().run(Quantize {
                x,
                codes,
                scales,
                sums,
            });
        };
        if is_alone(n_tokens) {
            (0..n_tokens).for_each(quantize);
        } else {
            run_row_parts(ctx.pool(), n_tokens, 1, |start, len| {
                (start..start + len).for_each(&quantize)
            });
        }
    }
    (codes, scales, sums)
}

struct Quantize<'a> {
    x: &'a [f32],
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Quantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let codes = self.codes.as_chunks_mut::<64>().0;
        for ((step_idx, x), codes) in (0..).zip(steps(self.x, &mut [0.0; 64])).zip(codes) {
            let scales = quantize_step(simd, x, codes);
            let [a, b] = scales;
            self.scales.as_chunks_mut().0[step_idx] =
                [a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b];
            self.sums.as_chunks_mut().0[step_idx] = sums_of(simd, codes, scales);
        }
    }
}

/// Some steps of 64 columns of all tokens.
struct QuantizeBlocks<'a> {
    x: &'a [f32],
    n_cols: usize,
    first_step: usize,
    /// Of the steps from the first on.
    blocks: &'a mut [Block],
}

impl Kernel for QuantizeBlocks<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            x,
            n_cols,
            first_step,
            blocks,
        } = self;
        let n_tokens = x.len().checked_div(n_cols).unwrap_or(0);
        for (step_idx, blocks) in (first_step..).zip(blocks.chunks_exact_mut((2 * n_tokens).max(1)))
        {
            for token_idx in 0..n_tokens {
                let x = &x[token_idx * n_cols..][..n_cols];
                let mut last = [0.0; 64];
                let Some(x) = steps(&x[64 * step_idx..], &mut last).next() else {
                    return;
                };
                let mut codes = [0; 64];
                let scales = quantize_step(simd, x, &mut codes);
                let sums = sums_of_fours(&sums_of(simd, &codes, scales));
                for (half, codes) in codes.as_chunks::<4>().0.as_chunks().0.iter().enumerate() {
                    let sums16 = [sums[2 * half], sums[2 * half + 1]];
                    let (scale, sum32) = (scales[half], sums16[0] + sums16[1]);
                    blocks[half * n_tokens + token_idx] = Block {
                        codes: *codes,
                        scale,
                        sum32,
                        sums16,
                    };
                }
            }
        }
    }
}

/// The tokens of a tile.
struct QuantizeTile<'a> {
    x: &'a [f32],
    n_cols: usize,
    groups: &'a mut [TileGroup],
}

impl Kernel for QuantizeTile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, n_cols, groups } = self;
        for (step_idx, pair) in groups.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let mut last = [[0.0; 64]; TILE_TOKENS];
            quantize_tile_step(simd, tile_step(x, n_cols, step_idx, &mut last), pair);
        }
    }
}

/// 64 columns of each token. What is across lanes is done for all of them at once, by transposing.
#[inline(always)]
fn quantize_tile_step<S: Simd>(
    simd: S,
    tokens: [&[f32; 64]; TILE_TOKENS],
    pair: &mut [TileGroup; 2],
) {
    let scales = scales_of(simd, &tokens);
    let mut codes = [simd.dup4_b(&[0; 4]); 16];
    for n in 0..TILE_TOKENS {
        let halves = [scales.inverse[n], scales.inverse[HALF_LANES + n]];
        let mut values = [simd.zero_int(); 4];
        for i in 0..4 {
            let x = simd.load(&tokens[n].as_chunks().0[i]);
            values[i] = simd.to_int(simd.mul(x, simd.splat(halves[i / 2])));
        }
        codes[n] = simd.narrow(values);
    }
    simd.transpose_b(&mut codes);
    let ones = simd.dup4_b(&[1; 4]);
    for (half, group) in pair.iter_mut().enumerate() {
        let codes = &codes[8 * half..][..8];
        let lanes = scales.scale[HALF_LANES * half..][..TILE_TOKENS]
            .first_chunk()
            .expect("a lane for each token");
        group.scales = *lanes;
        for part in 0..2 {
            let mut dots = simd.zero_int();
            for codes in &codes[4 * part..][..4] {
                dots = simd.dot_narrow(dots, ones, *codes);
            }
            let mut sums = [0.0; 16];
            simd.store(simd.int_values(dots), &mut sums);
            for n in 0..TILE_TOKENS {
                group.sums16[part][n] = sums[n] * group.scales[n];
            }
        }
        for n in 0..TILE_TOKENS {
            group.sums32[n] = group.sums16[0][n] + group.sums16[1][n];
        }
        for (codes, to) in codes.iter().zip(&mut group.codes) {
            let mut bytes = [0; 64];
            simd.store_b(simd.xor_b(*codes, 0x80), &mut bytes);
            for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = bytes.map(|byte| byte as i8);
            }
        }
    }
}

/// The columns by 64; what is left of them is put in front of zeros.
#[inline(always)]
fn steps<'a>(x: &'a [f32], last: &'a mut [f32; 64]) -> impl Iterator<Item = &'a [f32; 64]> {
    let (whole, rest) = x.as_chunks();
    last[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&*last);
    whole.iter().chain(last)
}

/// The sum of each four codes, times their scale.
#[inline(always)]
fn sums_of<S: Simd>(simd: S, codes: &[i8; 64], [a, b]: [f32; 2]) -> [f32; 16] {
    let ones = simd.dup4_b(&[1; 4]);
    let codes = simd.load_b(i8_as_u8(codes).first_chunk().expect("64 codes"));
    let scales = simd.load(&[a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b]);
    let mut sums = [0.0; 16];
    simd.store(
        simd.mul(
            simd.int_values(simd.dot_narrow(simd.zero_int(), ones, codes)),
            scales,
        ),
        &mut sums,
    );
    sums
}

/// Of sums of four columns, those of 16.
#[inline(always)]
fn sums_of_fours(sums: &[f32; 16]) -> [f32; 4] {
    std::array::from_fn(|i| sums[4 * i] + sums[4 * i + 1] + sums[4 * i + 2] + sums[4 * i + 3])
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
        *scale = if is_zero {
            poison
        } else {
            max / 127.0 + poison
        };
    }
    scales
}
