//! Float weights as integers: 7 bits, the sign among them, for weights and activations alike, with a scale for each 64 columns.
//!
//! 16 rows are a panel whose lanes are the rows, as elsewhere. Codes are -63 to 63 and not -127 to 127 so that the machines
//! without an instruction for products of four bytes can sum up four of them in 16 bits: that takes five instructions for 64
//! products, where wider codes take six to eight. All machines compute the same sums.

use super::dense::block_tokens;
use super::panel::{Target, store_rows};
use super::{Output, Rows, Weight, dequantize_simd, f32_as_i8, i8_as_u8};
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// Columns that share a scale.
const GROUP_LEN: usize = 64;
/// Fours of columns of a group.
const GROUP_QUADS: usize = GROUP_LEN / 4;
/// The greatest code: two times two products of 127 * 63 fit an i16.
const MAX_CODE: f32 = 63.0;
/// What is added to a weight's code, which is stored without a sign.
const OFFSET: u8 = 64;
/// Below this the inverse of a scale would be close to overflow: all codes are 0.
const LEAST: f32 = 1e-36;

/// A matrix as [`pack_int8`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Int8Weight<'a> {
    /// [n_rows / 16, n_cols / 4, 16, 4], each with 64 added; columns are filled up to 64, rows are the last again.
    pub codes: &'a [u8],
    /// [n_rows / 16, n_cols / 64, 16].
    pub scales: &'a [f32],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Elements of [`Int8Weight::codes`] and [`Int8Weight::scales`]; `None` if they are too many to count.
pub fn int8_len(n_rows: usize, n_cols: usize) -> Option<(usize, usize)> {
    let n_scales = n_rows.checked_next_multiple_of(LANES)?.checked_mul(n_cols.div_ceil(GROUP_LEN))?;
    Some((n_scales.checked_mul(GROUP_LEN)?, n_scales))
}

/// Rounds a matrix of floats: code = round(w * 63 / max|w|), to even, the greatest of each 64 columns of a row.
///
/// # Panics
/// If the weight is of a quantised type or not well formed, or `codes` or `scales` are not of [`int8_len`].
pub fn pack_int8(ctx: &Context, weight: &Weight, codes: &mut [u8], scales: &mut [f32]) {
    let (rows, n_groups) = (weight.checked(), weight.n_cols.div_ceil(GROUP_LEN));
    assert!(weight.ty.is_float(), "a weight of type {:?} has codes already", weight.ty);
    assert_eq!(Some((codes.len(), scales.len())), int8_len(weight.n_rows, weight.n_cols), "codes and scales");
    let (panel_codes, panel_scales) = (n_groups * GROUP_LEN * LANES, n_groups * LANES);
    let (codes, scales) = (SharedMut::new(codes), SharedMut::new(scales));
    ctx.pool().run(rows.n_rows.div_ceil(LANES), |panel_idx| {
        // SAFETY: each panel is filled once, and its parts are no other's.
        let (codes, scales) = unsafe {
            (codes.slice(panel_idx * panel_codes, panel_codes), scales.slice(panel_idx * panel_scales, panel_scales))
        };
        let (codes, scales) = (codes.as_chunks_mut().0, scales.as_chunks_mut().0);
        ctx.isa().run(Pack { ty: weight.ty, rows, first_row: panel_idx * LANES, codes, scales });
    });
}

struct Pack<'a> {
    ty: BlockType,
    rows: Rows<'a>,
    first_row: usize,
    /// Four columns of 16 rows each.
    codes: &'a mut [[u8; 64]],
    /// By group.
    scales: &'a mut [[f32; LANES]],
}

impl Kernel for Pack<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let group_bytes = self.ty.row_bytes(GROUP_LEN).unwrap_or(GROUP_LEN);
        for lane in 0..LANES {
            let row = self.rows.get((self.first_row + lane).min(self.rows.n_rows - 1));
            let groups = row.chunks(group_bytes.max(1)).zip(self.codes.as_chunks_mut::<GROUP_QUADS>().0);
            for ((bytes, quads), scales) in groups.zip(&mut *self.scales) {
                let mut values = [0.0; GROUP_LEN];
                dequantize_simd(simd, self.ty, bytes, &mut values[..bytes.len() * GROUP_LEN / group_bytes]);
                let mut codes = [0; GROUP_LEN];
                (scales[lane], _) = quantize_group(simd, &values, &mut codes);
                for (four, quad) in i8_as_u8(&codes).as_chunks::<4>().0.iter().zip(quads) {
                    // No byte carries into the next; what a weight that is no number has for codes does not matter.
                    let added = u32::from_le_bytes(*four) ^ 0x8080_8080;
                    let code = added.wrapping_sub(u32::from_le_bytes([128 - OFFSET; 4]));
                    quad.as_chunks_mut::<4>().0[lane] = code.to_le_bytes();
                }
            }
        }
    }
}

/// The codes of 64 values, their scale and the sum of the codes. The scale is NaN where a value is infinite or NaN.
#[inline(always)]
fn quantize_group<S: Simd>(simd: S, x: &[f32; GROUP_LEN], codes: &mut [i8; GROUP_LEN]) -> (f32, f32) {
    let mut parts = [simd.splat(0.0); GROUP_LEN / LANES];
    let (mut max, mut poison) = (simd.splat(0.0), simd.splat(0.0));
    for (part, x) in parts.iter_mut().zip(x.as_chunks().0) {
        *part = simd.load(x);
        max = simd.max(simd.abs(*part), max);
        // x - x is 0, or NaN where x is infinite or NaN.
        poison = simd.add(poison, simd.sub(*part, *part));
    }
    let (max, poison) = (simd.max_lane(max), simd.sum(poison));
    let is_zero = max < LEAST;
    let inverse = simd.splat(if is_zero { 0.0 } else { MAX_CODE / max });
    let mut sum = simd.splat(0.0);
    for (part, codes) in parts.into_iter().zip(codes.as_chunks_mut::<LANES>().0) {
        let rounded = simd.to_int(simd.mul(part, inverse));
        simd.store_i8(rounded, codes);
        sum = simd.add(sum, simd.int_values(rounded));
    }
    (if is_zero { poison } else { max / MAX_CODE + poison }, simd.sum(sum))
}

/// Columns filled up to whole groups.
fn padded(n_cols: usize) -> usize {
    n_cols.next_multiple_of(GROUP_LEN)
}

/// f32s of scratch that [`quantize_int8`] needs.
pub fn int8_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens * (padded(n_cols) / 4 + 2 * n_cols.div_ceil(GROUP_LEN))
}

/// Activations as codes, made by [`quantize_int8`].
#[derive(Debug, Clone, Copy)]
pub struct Int8Activations<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    /// What [`OFFSET`] adds to the sum of a group, to be taken away.
    offsets: &'a [f32],
    n_tokens: usize,
    n_cols: usize,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    codes: &'a [[i8; 4]],
    scales: &'a [f32],
    offsets: &'a [f32],
}

impl<'a> Int8Activations<'a> {
    #[inline(always)]
    fn token(&self, token_idx: usize) -> Token<'a> {
        let n_groups = self.n_cols.div_ceil(GROUP_LEN);
        let groups = token_idx * n_groups..(token_idx + 1) * n_groups;
        Token {
            codes: &self.codes.as_chunks().0[groups.start * GROUP_QUADS..groups.end * GROUP_QUADS],
            scales: &self.scales[groups.clone()],
            offsets: &self.offsets[groups],
        }
    }
}

/// Rounds activations [n_tokens, n_cols] as [`pack_int8`] rounds weights.
///
/// # Panics
/// If a size does not fit or the scratch is shorter than [`int8_scratch_len`].
pub fn quantize_int8<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> Int8Activations<'a> {
    /// As many tokens are rounded by the caller's thread as take less time than handing them to another.
    const MAX_SERIAL_TOKENS: usize = 4;
    assert_eq!(Some(x.len()), n_tokens.checked_mul(n_cols), "inputs of {n_tokens} tokens");
    let n_groups = n_cols.div_ceil(GROUP_LEN);
    let (codes, scratch) = scratch.split_at_mut(n_tokens * padded(n_cols) / 4);
    let (scales, scratch) = scratch.split_at_mut(n_tokens * n_groups);
    let offsets = &mut scratch[..n_tokens * n_groups];
    let codes = f32_as_i8(codes);
    {
        let shared = (SharedMut::new(&mut *codes), SharedMut::new(&mut *scales), SharedMut::new(&mut *offsets));
        let quantize = |token_idx: usize| {
            let start = token_idx * n_groups;
            // SAFETY: each token is done once, and the parts of different tokens do not overlap.
            let (codes, scales, offsets) = unsafe {
                (
                    shared.0.slice(start * GROUP_LEN, n_groups * GROUP_LEN),
                    shared.1.slice(start, n_groups),
                    shared.2.slice(start, n_groups),
                )
            };
            let x = &x[token_idx * n_cols..][..n_cols];
            ctx.isa().run(Quantize { x, codes: codes.as_chunks_mut().0, scales, offsets });
        };
        let is_serial = n_tokens <= MAX_SERIAL_TOKENS;
        if is_serial { (0..n_tokens).for_each(quantize) } else { ctx.pool().run(n_tokens, quantize) }
    }
    Int8Activations { codes, scales, offsets, n_tokens, n_cols }
}

/// The product of a matrix of integers with rounded activations; `y` is [n_tokens, n_rows].
///
/// # Panics
/// If a size does not fit.
pub fn linear_int8(ctx: &Context, weight: &Int8Weight, x: &Int8Activations, bias: Option<&[f32]>, y: &mut [f32]) {
    let Int8Weight { codes, scales, n_rows, n_cols } = *weight;
    assert_eq!(Some((codes.len(), scales.len())), int8_len(n_rows, n_cols), "codes and scales");
    assert_eq!(x.n_cols, n_cols, "columns of the activations");
    let (n_tokens, n_groups) = (x.n_tokens, n_cols.div_ceil(GROUP_LEN));
    let out = Output::new(n_rows, n_tokens, bias, y);
    let (n_panels, block_tokens) = (n_rows.div_ceil(LANES), block_tokens(n_cols.div_ceil(4)));
    ctx.pool().run(n_panels * n_tokens.div_ceil(block_tokens), |task_idx| {
        let (block_idx, panel_idx) = (task_idx / n_panels, task_idx % n_panels);
        let first_row = panel_idx * LANES;
        ctx.isa().run(PanelTask {
            codes: &codes.as_chunks().0[panel_idx * n_groups * GROUP_QUADS..][..n_groups * GROUP_QUADS],
            scales: &scales.as_chunks().0[panel_idx * n_groups..][..n_groups],
            x,
            tokens: block_idx * block_tokens..((block_idx + 1) * block_tokens).min(n_tokens),
            target: Target { out: &out, first_row, n_rows: (n_rows - first_row).min(LANES) },
        });
    });
}

struct Quantize<'a> {
    x: &'a [f32],
    codes: &'a mut [[i8; GROUP_LEN]],
    scales: &'a mut [f32],
    offsets: &'a mut [f32],
}

impl Kernel for Quantize<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (whole, rest) = self.x.as_chunks::<GROUP_LEN>();
        let mut last = [0.0; GROUP_LEN];
        last[..rest.len()].copy_from_slice(rest);
        let groups = self.codes.iter_mut().zip(self.scales).zip(self.offsets);
        for (((codes, scale), offset), x) in groups.zip(whole.iter().chain([&last])) {
            let sum;
            (*scale, sum) = quantize_group(simd, x, codes);
            *offset = -f32::from(OFFSET) * sum * *scale;
        }
    }
}

struct PanelTask<'a> {
    /// Four columns of 16 rows each.
    codes: &'a [[u8; 64]],
    /// By group.
    scales: &'a [[f32; LANES]],
    x: &'a Int8Activations<'a>,
    tokens: std::ops::Range<usize>,
    target: Target<'a>,
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (mut token_idx, end) = (self.tokens.start, self.tokens.end);
        // As many tokens as there are registers for, then fewer.
        while S::TILE_TOKENS >= 12 && end - token_idx >= 12 {
            self.tile::<S, 12>(simd, token_idx);
            token_idx += 12;
        }
        while end - token_idx >= 4 {
            self.tile::<S, 4>(simd, token_idx);
            token_idx += 4;
        }
        while end - token_idx >= 2 {
            self.tile::<S, 2>(simd, token_idx);
            token_idx += 2;
        }
        if token_idx < end {
            self.tile::<S, 1>(simd, token_idx);
        }
    }
}

impl PanelTask<'_> {
    /// 16 rows times `N` tokens.
    #[inline(always)]
    fn tile<S: Simd, const N: usize>(&self, simd: S, first_token: usize) {
        let mut tokens = [self.x.token(first_token); N];
        for n in 1..N {
            tokens[n] = self.x.token(first_token + n);
        }
        let mut acc = [simd.splat(0.0); N];
        for (group, (codes, scales)) in self.codes.as_chunks::<GROUP_QUADS>().0.iter().zip(self.scales).enumerate() {
            // SAFETY: a token has as many groups as the panel.
            let dots = unsafe { group_dots::<S, N>(simd, codes, group, &tokens) };
            let scales = simd.load(scales);
            for n in 0..N {
                // SAFETY: as above.
                let (scale, offset) =
                    unsafe { (*tokens[n].scales.get_unchecked(group), *tokens[n].offsets.get_unchecked(group)) };
                let sums = simd.fma(simd.int_values(dots[n]), simd.splat(scale), simd.splat(offset));
                acc[n] = simd.fma(sums, scales, acc[n]);
            }
        }
        for n in 0..N {
            store_rows(simd, acc[n], first_token + n, self.target);
        }
    }
}

/// The integer products of a group of columns.
///
/// # Safety
/// The tokens have the group.
#[inline(always)]
unsafe fn group_dots<S: Simd, const N: usize>(
    simd: S,
    codes: &[[u8; 64]; GROUP_QUADS],
    group: usize,
    tokens: &[Token; N],
) -> [S::I; N] {
    let mut dots = [simd.zero_int(); N];
    for (i, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
        let weights = [simd.load_b(&pair[0]), simd.load_b(&pair[1])];
        for n in 0..N {
            let quad = group * GROUP_QUADS + 2 * i;
            // SAFETY: the caller's promise: a token has 16 fours of codes for each group.
            let x = unsafe {
                [simd.dup4_b(tokens[n].codes.get_unchecked(quad)), simd.dup4_b(tokens[n].codes.get_unchecked(quad + 1))]
            };
            dots[n] = if S::HAS_PARTS {
                let part = simd.dot_part(simd.zero_int(), weights[0], x[0]);
                simd.join_part(dots[n], simd.dot_part(part, weights[1], x[1]))
            } else {
                simd.dot_narrow(simd.dot_narrow(dots[n], weights[0], x[0]), weights[1], x[1])
            };
        }
    }
    dots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::quant::dequantize_row;
    use crate::testing::{Random, relative_error};

    /// What the codes of 64 columns say, with an error of none but f64.
    fn rounded(row: &[f32]) -> Vec<f64> {
        let group = |group: &[f32]| {
            let max = group.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let inverse = if max < LEAST { 0.0 } else { MAX_CODE / max };
            let value = |v: &f32| f64::from((v * inverse).round_ties_even()) * f64::from(max / MAX_CODE);
            group.iter().map(value).collect::<Vec<_>>()
        };
        row.chunks(GROUP_LEN).flat_map(group).collect()
    }

    fn product(ctx: &Context, weight: &Weight, x: &[f32], n_tokens: usize, bias: &[f32]) -> Vec<f32> {
        let Weight { n_rows, n_cols, .. } = *weight;
        let (n_codes, n_scales) = int8_len(n_rows, n_cols).unwrap();
        let (mut codes, mut scales) = (vec![0xa5; n_codes], vec![f32::NAN; n_scales]);
        pack_int8(ctx, weight, &mut codes, &mut scales);
        let packed = Int8Weight { codes: &codes, scales: &scales, n_rows, n_cols };
        let mut scratch = vec![f32::NAN; int8_scratch_len(n_tokens, n_cols)];
        let x = quantize_int8(ctx, x, n_tokens, n_cols, &mut scratch);
        let mut y = vec![f32::NAN; n_tokens * n_rows];
        linear_int8(ctx, &packed, &x, Some(bias), &mut y);
        y
    }

    fn contexts() -> Vec<Context> {
        Isa::available().into_iter().flat_map(|isa| [Context::with_isa(1, isa), Context::with_isa(3, isa)]).collect()
    }

    #[test]
    fn products_are_those_of_the_codes() {
        let mut random = Random::new(1);
        let contexts = contexts();
        for ty in [BlockType::F32, BlockType::F16, BlockType::Bf16] {
            for n_cols in [1, 15, 33, 64, 65, 300, 576] {
                for (n_rows, n_tokens) in [(1, 0), (1, 1), (16, 2), (37, 3), (37, 7), (17, 8), (16, 29), (5, 101)] {
                    let bytes = random.weight_bytes(ty, n_rows, n_cols);
                    let mut values = vec![0.0; n_rows * n_cols];
                    dequantize_row(ty, &bytes, &mut values);
                    let (x, bias) = (random.f32s(n_tokens * n_cols), random.f32s(n_rows));
                    let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
                    let rows: Vec<Vec<f64>> = values.chunks(n_cols).map(rounded).collect();
                    let mut first: Option<Vec<f32>> = None;
                    for ctx in &contexts {
                        let y = product(ctx, &weight, &x, n_tokens, &bias);
                        for (x, y) in x.chunks(n_cols).map(rounded).zip(y.chunks(n_rows)) {
                            for ((row, bias), y) in rows.iter().zip(&bias).zip(y) {
                                let due: f64 = row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>() + f64::from(*bias);
                                // 64 is added to each code while they are summed up.
                                let size: f64 = x.iter().map(|x| x.abs()).sum::<f64>() + 1.0;
                                let error = (f64::from(*y) - due).abs() / size;
                                assert!(
                                    error < 4e-7,
                                    "{ty:?} {n_tokens}x{n_rows}x{n_cols} {}: {error}",
                                    ctx.isa().name()
                                );
                            }
                        }
                        let is_fused = ctx.isa() != Isa::Portable;
                        if is_fused && *first.get_or_insert_with(|| y.clone()) != y {
                            panic!("{} differs from another instruction set", ctx.isa().name());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn seven_bits_lose_about_a_percent() {
        let mut random = Random::new(2);
        let (n_tokens, n_rows, n_cols) = (6, 64, 768);
        let bytes = random.weight_bytes(BlockType::F32, n_rows, n_cols);
        let mut values = vec![0.0; n_rows * n_cols];
        dequantize_row(BlockType::F32, &bytes, &mut values);
        let x = random.f32s(n_tokens * n_cols);
        let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
        let y = product(&Context::new(1), &weight, &x, n_tokens, &vec![0.0; n_rows]);
        let dot = |row: &[f32], x: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
        let due: Vec<f64> = x.chunks(n_cols).flat_map(|x| values.chunks(n_cols).map(move |row| dot(row, x))).collect();
        let error = relative_error(&y, &due);
        assert!((0.005..0.02).contains(&error), "{error}");
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        for ctx in contexts() {
            for (w, x) in [(1.0f32, 1.0f32), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)] {
                let bytes: Vec<u8> = [w; 128].iter().flat_map(|w| w.to_le_bytes()).collect();
                let weight = Weight::new(BlockType::F32, &bytes, 1, 128).unwrap();
                for n_tokens in [1, 2, 5, 13] {
                    let y = product(&ctx, &weight, &vec![x; n_tokens * 128], n_tokens, &[0.0]);
                    assert!(y.iter().all(|y| (y - w * x * 128.0).abs() < 1e-3), "{} {w} {x}: {y:?}", ctx.isa().name());
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_shows() {
        let mut random = Random::new(3);
        let (n_rows, n_cols) = (18, 80);
        for ctx in contexts() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 40, 79] {
                    let bytes = random.weight_bytes(BlockType::F32, n_rows, n_cols);
                    let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
                    let mut x = random.f32s(3 * n_cols);
                    x[n_cols + at] = bad;
                    let y = product(&ctx, &weight, &x, 3, &vec![0.0; n_rows]);
                    let is_bad = |i: usize| (n_rows..2 * n_rows).contains(&i);
                    assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == is_bad(i)), "{bad} at {at} of x");
                    let mut bytes = bytes.clone();
                    bytes[(n_cols + at) * 4..][..4].copy_from_slice(&bad.to_le_bytes());
                    let weight = Weight::new(BlockType::F32, &bytes, n_rows, n_cols).unwrap();
                    let y = product(&ctx, &weight, &random.f32s(n_cols), 1, &vec![0.0; n_rows]);
                    assert!(y.iter().enumerate().all(|(i, y)| y.is_nan() == (i == 1)), "{bad} at {at} of a row");
                }
            }
        }
    }
}
