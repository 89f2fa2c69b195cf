//! Float weights as integers: 7 bits, the sign among them, for weights and activations alike, with a scale for each 64 columns.
//!
//! 16 rows are a panel whose lanes are the rows, as elsewhere. Codes are -63 to 63 and not -127 to 127 so that the machines
//! without an instruction for products of four bytes can sum up four of them in 16 bits: that takes five instructions for 64
//! products, where wider codes take six to eight. All machines compute the same sums.

use std::hint::black_box;
use std::ops::Range;

use super::dense::block_tokens;
use super::tiles::{LEAST_PACKED_TOKENS, share_len};
use super::{LINE_BYTES, Output, Rows, Start, Weight, dequantize_simd};
use crate::Context;
use crate::activation::Unary;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};

/// Columns that share a scale.
const GROUP_LEN: usize = 64;
/// Fours of columns of a group.
const GROUP_QUADS: usize = GROUP_LEN / 4;
/// The greatest code: two times two products of 127 * 63 fit an i16.
const MAX_CODE: f32 = 63.0;
/// What is added to an activation's code where it is to have no sign.
const OFFSET: u8 = 64;
/// Panels of a task: with sums in six registers of AVX2, scales' products in six more, every weight is an operand from memory.
const TASK_PANELS: usize = 3;
/// Groups of columns that a task goes over with all its tokens at a time: 12 of 48 rows are 40 KiB, which are read from the second
/// cache, and as fast as fewer from the first.
const fn part_groups<S: Simd>() -> usize {
    if S::PART_PRODUCTS == 4 { 24 } else { 12 }
}
/// Tokens of a tile.
const TILE_TOKENS: usize = 4;
/// Below this the inverse of a scale would be close to overflow: all codes are 0.
const LEAST: f32 = 1e-36;

/// 64 columns of 16 rows, on whole cache lines: a vector in two lines takes two reads.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Int8Group {
    /// Four columns of 16 rows each.
    codes: [[u8; 64]; GROUP_QUADS],
    scales: [f32; LANES],
    /// What a sum begins with, so that what is added to activations is taken away.
    offsets: [i32; LANES],
}

impl Int8Group {
    /// To be filled.
    pub const ZERO: Self = Self { codes: [[0; 64]; GROUP_QUADS], scales: [0.0; LANES], offsets: [0; LANES] };

    /// Its cache lines.
    #[inline(always)]
    fn lines(&self) -> impl Iterator<Item = *const f32> {
        (0..size_of::<Self>() / LINE_BYTES).map(|i| std::ptr::from_ref(self).cast::<f32>().wrapping_add(i * LANES))
    }
}

/// A matrix as [`pack_int8`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Int8Weight<'a> {
    /// By 48 rows, then by columns, then by 16 rows; [`int8_len`] of them.
    pub groups: &'a [Int8Group],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Elements of [`Int8Weight::groups`]; `None` if their bytes are too many to count.
pub fn int8_len(n_rows: usize, n_cols: usize) -> Option<usize> {
    let n_groups = n_rows.div_ceil(LANES).checked_mul(n_cols.div_ceil(GROUP_LEN))?;
    n_groups.checked_mul(size_of::<Int8Group>()).map(|_| n_groups)
}

/// Rounds a matrix of floats: code = round(w * 63 / max|w|), to even, the greatest of each 64 columns of a row.
///
/// # Panics
/// If the weight is of a quantised type or not well formed, or `groups` are not [`int8_len`].
pub fn pack_int8(ctx: &Context, weight: &Weight, groups: &mut [Int8Group]) {
    let (rows, n_groups) = (weight.checked(), weight.n_cols.div_ceil(GROUP_LEN));
    assert!(weight.ty.is_float(), "a weight of type {:?} has codes already", weight.ty);
    assert_eq!(Some(groups.len()), int8_len(weight.n_rows, weight.n_cols), "groups");
    ctx.pool().run_chunks(groups, (TASK_PANELS * n_groups).max(1), |task_idx, groups| {
        let n_panels = groups.len() / n_groups;
        for i in 0..n_panels {
            let groups = groups[i..].iter_mut().step_by(n_panels);
            let first_row = (task_idx * TASK_PANELS + i) * LANES;
            ctx.isa().run(Pack { ty: weight.ty, rows, first_row, groups });
        }
    });
}

struct Pack<'a, I> {
    ty: BlockType,
    rows: Rows<'a>,
    first_row: usize,
    groups: I,
}

impl<'g, I: Iterator<Item = &'g mut Int8Group>> Kernel for Pack<'_, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let group_bytes = self.ty.row_bytes(GROUP_LEN).unwrap_or(GROUP_LEN).max(1);
        for (group_idx, group) in self.groups.enumerate() {
            let Int8Group { codes: quads, scales, offsets } = group;
            for lane in 0..LANES {
                let row = self.rows.get((self.first_row + lane).min(self.rows.n_rows - 1));
                let bytes = &row[group_idx * group_bytes..];
                let bytes = &bytes[..bytes.len().min(group_bytes)];
                let mut values = [0.0; GROUP_LEN];
                dequantize_simd(simd, self.ty, bytes, &mut values[..bytes.len() * GROUP_LEN / group_bytes]);
                let mut codes = [0; GROUP_LEN];
                let sum;
                (scales[lane], sum) = quantize_group(simd, &values, 0.0, &mut codes);
                scales[lane] = short(scales[lane]);
                // What a weight that is no number adds up to does not matter.
                let offset = if S::HAS_UNSIGNED { (sum as i32).wrapping_mul(-i32::from(OFFSET)) } else { 0 };
                offsets[lane] = offset + S::PART_BEGIN.0;
                for (four, quad) in codes.as_chunks::<4>().0.iter().zip(&mut *quads) {
                    quad.as_chunks_mut::<4>().0[lane] = *four;
                }
            }
        }
    }
}

/// A scale of 20 bits, so that its product with [`Simd::PART_BEGIN`] is exact.
fn short(scale: f32) -> f32 {
    f32::from_bits((scale.to_bits() + 8) & !0xf)
}

/// The codes of 64 values, with this added, their scale and the sum of the codes. The scale is NaN where a value is infinite or NaN.
#[inline(always)]
fn quantize_group<S: Simd>(simd: S, x: &[f32; GROUP_LEN], added: f32, codes: &mut [u8; GROUP_LEN]) -> (f32, f32) {
    let mut parts = [simd.splat(0.0); GROUP_LEN / LANES];
    let mut max = simd.splat(0.0);
    for (part, x) in parts.iter_mut().zip(x.as_chunks().0) {
        *part = simd.load(x);
        // NaN becomes infinite.
        max = simd.max(simd.min(simd.abs(*part), simd.splat(f32::INFINITY)), max);
    }
    let max = simd.max_lane(max);
    let inverse = simd.splat(if max < LEAST { 0.0 } else { MAX_CODE / max });
    let subtracted = simd.to_int(simd.splat(-added));
    let mut sum = simd.splat(0.0);
    let mut rounded = [simd.zero_int(); GROUP_LEN / LANES];
    for i in 0..GROUP_LEN / LANES {
        let code = simd.to_int(simd.mul(parts[i], inverse));
        rounded[i] = simd.sub_int(code, subtracted);
        sum = simd.add(sum, simd.int_values(code));
    }
    simd.store_b(simd.narrow(rounded), codes);
    let scale = match max {
        ..LEAST => 0.0,
        ..f32::INFINITY => max / MAX_CODE,
        _ => f32::NAN,
    };
    (scale, simd.sum(sum))
}

/// 64 columns of the tokens of a tile.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct TileGroup {
    /// Of each token, with [`OFFSET`] added where the instruction set takes codes without a sign.
    codes: [[u8; GROUP_LEN]; TILE_TOKENS],
    scales: [f32; TILE_TOKENS],
}

/// f32s of scratch that [`quantize_int8`] needs.
pub fn int8_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens.div_ceil(TILE_TOKENS) * n_cols.div_ceil(GROUP_LEN) * (size_of::<TileGroup>() / size_of::<f32>())
}

/// Activations as codes, made by [`quantize_int8`].
#[derive(Debug, Clone, Copy)]
pub struct Int8Activations<'a> {
    /// By tile, then by columns. What is behind the last token is of no meaning.
    tiles: &'a [TileGroup],
    n_tokens: usize,
    n_cols: usize,
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
    assert_eq!(Some(x.len()), n_tokens.checked_mul(n_cols), "inputs of {n_tokens} tokens");
    let scratch = &mut scratch[..int8_scratch_len(n_tokens, n_cols)];
    // SAFETY: a group of a tile is made of f32 and of bytes in fours, of which none is bad.
    let (_, tiles, _) = unsafe { scratch.align_to_mut::<TileGroup>() };
    ctx.pool().run_chunks(tiles, n_cols.div_ceil(GROUP_LEN).max(1), |tile_idx, groups| {
        let first = tile_idx * TILE_TOKENS;
        let x = &x[first * n_cols..(first + TILE_TOKENS).min(n_tokens) * n_cols];
        ctx.isa().run(QuantizeTile { x, n_cols, groups });
    });
    Int8Activations { tiles, n_tokens, n_cols }
}

/// The product of a matrix of integers with rounded activations; `y` is [n_tokens, n_rows]. An output is what `then` gives of it.
///
/// # Panics
/// If a size does not fit.
pub fn linear_int8<'a>(
    ctx: &Context,
    weight: &Int8Weight,
    x: &Int8Activations,
    start: impl Into<Start<'a>>,
    then: Option<Unary>,
    y: &mut [f32],
) {
    let Int8Weight { groups, n_rows, n_cols } = *weight;
    assert_eq!(Some(groups.len()), int8_len(n_rows, n_cols), "groups");
    assert_eq!(x.n_cols, n_cols, "columns of the activations");
    let (n_tokens, n_groups, n_panels) = (x.n_tokens, n_cols.div_ceil(GROUP_LEN), n_rows.div_ceil(LANES));
    let out = Output::new(n_rows, n_tokens, start.into(), y).then(ctx, then);
    let n_tasks = n_panels.div_ceil(TASK_PANELS);
    let block_tokens = share_len(ctx, n_tokens, (TILE_TOKENS, LEAST_PACKED_TOKENS), block_tokens(n_cols.div_ceil(4)));
    ctx.pool().run(n_tasks * n_tokens.div_ceil(block_tokens), |task_idx| {
        let first = task_idx % n_tasks * TASK_PANELS;
        let end = (first + TASK_PANELS).min(n_panels);
        let first_token = task_idx / n_tasks * block_tokens;
        let of_panels = |first: usize, end: usize| &groups[first * n_groups..end.min(n_panels) * n_groups];
        ctx.isa().run(PanelTask {
            groups: of_panels(first, end),
            next: of_panels(end, end + TASK_PANELS),
            x,
            tokens: first_token..(first_token + block_tokens).min(n_tokens),
            out: &out,
            first_row: first * LANES,
            n_panels: end - first,
        });
    });
}

/// The tokens of a tile, or those that there are.
struct QuantizeTile<'a> {
    x: &'a [f32],
    n_cols: usize,
    groups: &'a mut [TileGroup],
}

impl Kernel for QuantizeTile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let added = f32::from(if S::HAS_UNSIGNED { OFFSET } else { 0 });
        for (token_idx, x) in self.x.chunks_exact(self.n_cols).enumerate() {
            let (whole, rest) = x.as_chunks::<GROUP_LEN>();
            let mut last = [0.0; GROUP_LEN];
            last[..rest.len()].copy_from_slice(rest);
            for (group, x) in self.groups.iter_mut().zip(whole.iter().chain([&last])) {
                (group.scales[token_idx], _) = quantize_group(simd, x, added, &mut group.codes[token_idx]);
            }
        }
    }
}

/// Up to three panels of 16 rows, and some tokens.
struct PanelTask<'a> {
    /// By columns, then by panel.
    groups: &'a [Int8Group],
    /// What this thread may multiply next: asked for a few lines with each tile.
    next: &'a [Int8Group],
    x: &'a Int8Activations<'a>,
    tokens: Range<usize>,
    out: &'a Output<'a>,
    first_row: usize,
    n_panels: usize,
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.n_panels {
            3 => self.rows::<S, 3>(simd),
            2 => self.rows::<S, 2>(simd),
            _ => self.rows::<S, 1>(simd),
        }
    }
}

impl PanelTask<'_> {
    /// Some tokens after others, over columns of which the codes of all rows stay in the first-level cache.
    #[inline(always)]
    fn rows<S: Simd, const P: usize>(&self, simd: S) {
        let groups = self.groups.as_chunks::<P>().0;
        let mut ahead = self.next.iter().flat_map(Int8Group::lines);
        let part_len = part_groups::<S>();
        let n_tiles = groups.len().div_ceil(part_len) * self.tokens.len().div_ceil(TILE_TOKENS);
        let n_ahead = (size_of_val(self.next) / LINE_BYTES).div_ceil(n_tiles.max(1));
        for start in (0..groups.len().max(1)).step_by(part_len) {
            let groups = &groups[start..(start + part_len).min(groups.len())];
            for first_token in self.tokens.clone().step_by(TILE_TOKENS) {
                ahead.by_ref().take(n_ahead).for_each(|line| simd.prefetch_far(line));
                // With many registers each weight that is read is multiplied with a tile's tokens, or with what is in their place.
                if S::PART_PRODUCTS == 4 {
                    self.tile::<S, P, TILE_TOKENS>(simd, groups, start, first_token);
                    continue;
                }
                for token_idx in first_token..self.tokens.end.min(first_token + TILE_TOKENS) {
                    self.tile::<S, P, 1>(simd, groups, start, token_idx);
                }
            }
        }
        // Not with each tile, which is too few for the function.
        let Range { start, end } = self.tokens;
        (0..P).for_each(|p| self.out.finish(start, end - start, self.first_row + p * LANES));
    }

    /// Some groups of columns, from `start` on, of `N` tokens of a tile or of those that there are.
    #[inline(always)]
    fn tile<S: Simd, const P: usize, const N: usize>(
        &self,
        simd: S,
        groups: &[[Int8Group; P]],
        start: usize,
        first_token: usize,
    ) {
        let n_groups = self.x.n_cols.div_ceil(GROUP_LEN);
        let tile = &self.x.tiles[first_token / TILE_TOKENS * n_groups + start..][..groups.len()];
        let panel = |p: usize| self.out.panel(first_token, self.first_row + p * LANES, start == 0);
        let n_tokens = N.min(self.tokens.end - first_token);
        for p in 0..P {
            panel(p).prefetch(simd, n_tokens);
        }
        let acc = sums::<S, P, N>(simd, groups, tile, first_token % TILE_TOKENS);
        for p in 0..P {
            // SAFETY: the rows of these panels belong, for these tokens, to this task alone.
            unsafe { panel(p).add(simd, acc[p], n_tokens) };
        }
    }
}

/// The products of some groups with `N` tokens of a tile.
#[inline(always)]
fn sums<S: Simd, const P: usize, const N: usize>(
    simd: S,
    groups: &[[Int8Group; P]],
    tile: &[TileGroup],
    first: usize,
) -> [[S::F; N]; P] {
    assert!(first + N <= TILE_TOKENS, "tokens of a tile");
    // No constant, so that the loop over it stays one: written out, it needs more registers than there are.
    let n_quads = black_box(GROUP_QUADS).min(GROUP_QUADS);
    let mut acc = [[simd.splat(0.0); N]; P];
    for (panels, x) in groups.iter().zip(tile) {
        let mut dots = [[simd.zero_int(); P]; N];
        for n in 0..N {
            for p in 0..P {
                dots[n][p] = simd.load_int(&panels[p].offsets);
            }
        }
        let four_of = |n: usize, quad: usize| {
            let codes: &[[u8; 4]] = x.codes[first + n].as_chunks().0;
            // SAFETY: there are GROUP_QUADS.
            simd.dup4_b(&unsafe { codes.get_unchecked(quad) }.map(|code| code as i8))
        };
        if S::PART_PRODUCTS == 4 {
            for quad in 0..n_quads {
                let mut weights = [simd.dup4_b(&[0; 4]); P];
                for p in 0..P {
                    // SAFETY: n_quads is at most GROUP_QUADS, here and below.
                    weights[p] = simd.load_b(unsafe { panels[p].codes.get_unchecked(quad) });
                }
                for n in 0..N {
                    let four = four_of(n, quad);
                    for p in 0..P {
                        dots[n][p] = simd.dot_part(dots[n][p], four, weights[p]);
                    }
                }
            }
        } else {
            for pair in 0..GROUP_QUADS / 2 {
                for n in 0..N {
                    let fours = [four_of(n, 2 * pair), four_of(n, 2 * pair + 1)];
                    for p in 0..P {
                        let weights = panels[p].codes.as_chunks::<2>().0[pair].each_ref().map(|quad| simd.load_b(quad));
                        dots[n][p] = simd.dot_two(dots[n][p], fours, weights);
                    }
                }
            }
        }
        for p in 0..P {
            let scales = simd.load(&panels[p].scales);
            let offsets = simd.mul(scales, simd.splat(-S::PART_BEGIN.1));
            for n in 0..N {
                let values = simd.part_values(dots[n][p]);
                let values = match S::PART_BEGIN {
                    (0, _) => simd.mul(values, scales),
                    _ => simd.fma(values, scales, offsets),
                };
                acc[p][n] = simd.fma(values, simd.splat(x.scales[first + n]), acc[p][n]);
            }
        }
    }
    acc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::activation::unary;
    use crate::quant::dequantize_row;
    use crate::testing::{Random, relative_error};

    /// What the codes of 64 columns say, with an error of none but f64.
    fn rounded(row: &[f32], scale: impl Fn(f32) -> f32) -> Vec<f64> {
        let group = |group: &[f32]| {
            let max = group.iter().fold(0.0f32, |max, v| max.max(v.abs()));
            let inverse = if max < LEAST { 0.0 } else { MAX_CODE / max };
            let value = |v: &f32| f64::from((v * inverse).round_ties_even()) * f64::from(scale(max / MAX_CODE));
            group.iter().map(value).collect::<Vec<_>>()
        };
        row.chunks(GROUP_LEN).flat_map(group).collect()
    }

    fn product(ctx: &Context, weight: &Weight, x: &[f32], n_tokens: usize, bias: &[f32]) -> Vec<f32> {
        let Weight { n_rows, n_cols, .. } = *weight;
        let unfilled = Int8Group { codes: [[0xa5; 64]; GROUP_QUADS], scales: [f32::NAN; LANES], offsets: [7; LANES] };
        let mut groups = vec![unfilled; int8_len(n_rows, n_cols).unwrap()];
        pack_int8(ctx, weight, &mut groups);
        let packed = Int8Weight { groups: &groups, n_rows, n_cols };
        let mut scratch = vec![f32::NAN; int8_scratch_len(n_tokens, n_cols)];
        let x = quantize_int8(ctx, x, n_tokens, n_cols, &mut scratch);
        let mut y = vec![f32::NAN; n_tokens * n_rows];
        linear_int8(ctx, &packed, &x, Some(bias), None, &mut y);
        let mut twice = y.clone();
        linear_int8(ctx, &packed, &x, Start { bias: None, accumulates: true }, None, &mut twice);
        let (mut activated, mut due) = (vec![f32::NAN; y.len()], vec![f32::NAN; y.len()]);
        linear_int8(ctx, &packed, &x, Some(bias), Some(Unary::GeluErf), &mut activated);
        unary(ctx, Unary::GeluErf, &y, &mut due);
        assert!(activated.iter().zip(&due).all(|(a, b)| a.to_bits() == b.to_bits()), "activated");
        for ((twice, y), bias) in twice.iter().zip(&y).zip(bias.iter().cycle()) {
            let error = (twice - (2.0 * y - bias)).abs();
            assert!(error < 1e-4 || y.is_nan() && twice.is_nan(), "{y} {bias} {twice}");
        }
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
                for (n_rows, n_tokens) in [(1, 0), (1, 1), (16, 2), (37, 3), (57, 7), (48, 8), (96, 3), (5, 101)] {
                    let bytes = random.weight_bytes(ty, n_rows, n_cols);
                    let mut values = vec![0.0; n_rows * n_cols];
                    dequantize_row(ty, &bytes, &mut values);
                    let (x, bias) = (random.f32s(n_tokens * n_cols), random.f32s(n_rows));
                    let weight = Weight::new(ty, &bytes, n_rows, n_cols).unwrap();
                    let rows: Vec<Vec<f64>> = values.chunks(n_cols).map(|row| rounded(row, short)).collect();
                    let mut first: Option<Vec<f32>> = None;
                    for ctx in &contexts {
                        let y = product(ctx, &weight, &x, n_tokens, &bias);
                        for (x, y) in x.chunks(n_cols).map(|x| rounded(x, |scale| scale)).zip(y.chunks(n_rows)) {
                            for ((row, bias), y) in rows.iter().zip(&bias).zip(y) {
                                let due: f64 = row.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>() + f64::from(*bias);
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
    fn of_no_columns_there_is_the_bias() {
        let bias: Vec<f32> = (0..53u8).map(f32::from).collect();
        for ctx in contexts() {
            let weight = Weight::new(BlockType::F32, &[], 53, 0).unwrap();
            assert_eq!(product(&ctx, &weight, &[], 2, &bias), [bias.as_slice(), &bias].concat());
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
