//! Weights as integers: float ones, and quantised ones where a machine adds up products of integers faster than it scales their sums.
//!
//! 16 rows are a panel whose lanes are the rows, as elsewhere. Of float weights and their activations 64 columns share a scale. Codes are
//! -127 to 127 on machines that add up four products of bytes in 32 bits. Elsewhere they are -63 to 63, so that four products fit a sum
//! of 16 bits: that takes five instructions for 64 products, where wider codes take six to eight. These machines compute the same sums.
//!
//! To scale a sum by a weight's scale and an activation's takes as long as two of the products: of 32 columns a fifth of the time.
//! So 256 columns of quantised weights share a scale. Their activations keep one for 32, as they have outliers: with 64 of both, the
//! outputs of a model strayed a quarter further, with 256 of both three times as far (`scripts/peers/scales.py`).

mod requantize;
mod tile;

pub(super) use requantize::Requantize;
use tile::TileGroup;
pub(super) use tile::{PanelTask, Sums};

use super::dense::block_tokens;
use super::q8::{HALF_LANES, TILE_TOKENS, scales_of, tile_step};
use super::tiles::{LEAST_PACKED_TOKENS, share_len};
use super::{LINE_BYTES, Output, PanelSums, Rows, Start, Weight, dequantize_simd, parts};
use crate::activation::Unary;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::{Context, Isa};

/// Columns of an [`Int8Group`].
const GROUP_LEN: usize = 64;
/// Fours of columns of a group.
const GROUP_QUADS: usize = GROUP_LEN / 4;
/// Below this the inverse of a scale would be close to overflow: all codes are 0.
const LEAST: f32 = 1e-36;

/// Codes have 8 bits.
const fn is_wide<S: Simd>() -> bool {
    S::PART_PRODUCTS == 4
}

/// The greatest code: two times two products of 127 * 63 fit an i16.
const fn max_code<S: Simd>() -> f32 {
    if is_wide::<S>() { 127.0 } else { 63.0 }
}

/// Groups that share a weight's scale, that of the first: of one part none, for an activation's are then as wide.
const fn shared_groups<S: Simd, const PARTS: usize>() -> usize {
    if is_wide::<S>() && PARTS > 1 { 4 } else { 1 }
}

/// What is added to an activation's code where it is to have no sign.
const fn offset<S: Simd>() -> u8 {
    match (S::HAS_UNSIGNED, is_wide::<S>()) {
        (false, _) => 0,
        (true, false) => 64,
        (true, true) => 128,
    }
}

/// Panels of a task. With sums in six registers of AVX2, scales' products in six more, every weight is an operand from memory. With more
/// registers, each weight is multiplied with a tile's tokens.
fn task_panels(isa: Isa) -> usize {
    if parts::is_wide(isa) { 2 } else { 3 }
}

/// 64 columns of 16 rows, on whole cache lines: a vector in two lines takes two reads. Of several parts, each has an activation's scale.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Int8Group<const PARTS: usize = 1> {
    /// Four columns of 16 rows each.
    codes: [[u8; 64]; GROUP_QUADS],
    scales: [f32; LANES],
    /// What a sum begins with, so that what is added to activations is taken away.
    offsets: [[i32; LANES]; PARTS],
}

impl<const PARTS: usize> Int8Group<PARTS> {
    /// To be filled.
    pub const ZERO: Self = Self { codes: [[0; 64]; GROUP_QUADS], scales: [0.0; LANES], offsets: [[0; LANES]; PARTS] };
}

/// A matrix as [`pack_int8`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Int8Weight<'a> {
    /// By the rows of a task, then by columns, then by 16 rows; [`int8_len`] of them.
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

/// Rounds a matrix of floats: code = round(w * 127 / max|w|), to even, the greatest of each 64 columns of a row; or 63, where the machine does
/// not add up four products of bytes in 32 bits. For products on the same kind of machine.
///
/// # Panics
/// If the weight is of a quantised type or not well formed, or `groups` are not [`int8_len`].
pub fn pack_int8(ctx: &Context, weight: &Weight, groups: &mut [Int8Group]) {
    let (rows, n_groups) = (weight.checked(), weight.n_cols.div_ceil(GROUP_LEN));
    assert!(weight.ty.is_float(), "a weight of type {:?} has codes already", weight.ty);
    assert_eq!(Some(groups.len()), int8_len(weight.n_rows, weight.n_cols), "groups");
    let task_panels = task_panels(ctx.isa());
    ctx.pool().run_chunks(groups, (task_panels * n_groups).max(1), |task_idx, groups| {
        let n_panels = groups.len() / n_groups;
        for i in 0..n_panels {
            let groups = groups[i..].iter_mut().step_by(n_panels);
            let first_row = (task_idx * task_panels + i) * LANES;
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
            let Int8Group { codes: quads, scales, offsets: [offsets] } = group;
            for lane in 0..LANES {
                let row = self.rows.get((self.first_row + lane).min(self.rows.n_rows - 1));
                let bytes = &row[group_idx * group_bytes..];
                let bytes = &bytes[..bytes.len().min(group_bytes)];
                let mut values = [0.0; GROUP_LEN];
                dequantize_simd(simd, self.ty, bytes, &mut values[..bytes.len() * GROUP_LEN / group_bytes]);
                let (scale, inverse) = scale_of(simd, &values);
                let mut codes = [0; GROUP_LEN];
                let sum = codes_of(simd, &values, [inverse; 2], 0, &mut codes);
                scales[lane] = scale;
                // What a weight that is no number adds up to does not matter.
                offsets[lane] = (sum as i32).wrapping_mul(-i32::from(offset::<S>()));
                for (four, quad) in codes.as_chunks::<4>().0.iter().zip(&mut *quads) {
                    quad.as_chunks_mut::<4>().0[lane] = *four;
                }
            }
        }
    }
}

/// The scale of some values and what makes them codes. The scale is NaN where a value is infinite or NaN.
#[inline(always)]
fn scale_of<S: Simd>(simd: S, x: &[f32; GROUP_LEN]) -> (f32, f32) {
    // NaN becomes infinite.
    let infinity = simd.splat(f32::INFINITY);
    let mut most = [simd.splat(0.0); GROUP_LEN / LANES];
    for (most, x) in most.iter_mut().zip(x.as_chunks().0) {
        *most = simd.min(simd.abs(simd.load(x)), infinity);
    }
    let max = simd.max_lane(simd.max(simd.max(most[0], most[1]), simd.max(most[2], most[3])));
    match max {
        ..LEAST => (0.0, 0.0),
        ..f32::INFINITY => (max / max_code::<S>(), max_code::<S>() / max),
        _ => (f32::NAN, 0.0),
    }
}

/// The codes of 64 values, with this added, and their sum without it. Each half has its inverse.
#[inline(always)]
fn codes_of<S: Simd>(simd: S, x: &[f32; GROUP_LEN], inverses: [f32; 2], added: u8, codes: &mut [u8; GROUP_LEN]) -> f32 {
    // 128 is the highest bit of a byte, which a code with a sign has not room for.
    let (subtracted, flipped) = if added == 128 { (0.0, 128) } else { (-f32::from(added), 0) };
    let subtracted = simd.to_int(simd.splat(subtracted));
    let mut sum = simd.splat(0.0);
    let mut rounded = [simd.zero_int(); GROUP_LEN / LANES];
    for i in 0..GROUP_LEN / LANES {
        let x = simd.load(&x.as_chunks().0[i]);
        let code = simd.to_int(simd.mul(x, simd.splat(inverses[2 * i / (GROUP_LEN / LANES)])));
        rounded[i] = simd.sub_int(code, subtracted);
        sum = simd.add(sum, simd.int_values(code));
    }
    simd.store_b(simd.xor_b(simd.narrow(rounded), flipped), codes);
    simd.sum(sum)
}

/// f32s of scratch that [`quantize_int8`] needs.
pub fn int8_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens.div_ceil(TILE_TOKENS) * n_cols.div_ceil(GROUP_LEN) * (size_of::<TileGroup<1>>() / size_of::<f32>())
}

/// Activations as codes, made by [`quantize_int8`].
#[derive(Debug, Clone, Copy)]
pub struct Int8Activations<'a, const PARTS: usize = 1> {
    /// By tile, then by columns. What is behind the last token is of no meaning.
    tiles: &'a [TileGroup<PARTS>],
    n_tokens: usize,
    n_cols: usize,
}

impl<const PARTS: usize> Int8Activations<'_, PARTS> {
    pub(super) const EMPTY: Self = Self { tiles: &[], n_tokens: 0, n_cols: 0 };
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
    let tiles = tile_groups(n_tokens, n_cols, scratch);
    ctx.pool().run_chunks(tiles, n_cols.div_ceil(GROUP_LEN).max(1), |tile_idx, groups| {
        ctx.isa().run(QuantizeTile { x: of_tile(x, n_cols, tile_idx), n_cols, groups });
    });
    Int8Activations { tiles, n_tokens, n_cols }
}

/// Rounds activations [n_tokens, n_cols] to 8 bits with a scale for each 32 columns, as [`quantize_q8`](super::quantize_q8) does.
///
/// # Panics
/// If the scratch is too short.
pub(super) fn quantize_halves<'a>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> Int8Activations<'a, 2> {
    let tiles = tile_groups(n_tokens, n_cols, scratch);
    ctx.pool().run_chunks(tiles, n_cols.div_ceil(GROUP_LEN).max(1), |tile_idx, groups| {
        ctx.isa().run(QuantizeHalves { x: of_tile(x, n_cols, tile_idx), n_cols, groups });
    });
    Int8Activations { tiles, n_tokens, n_cols }
}

/// Scratch as the groups of tiles.
fn tile_groups<const PARTS: usize>(n_tokens: usize, n_cols: usize, scratch: &mut [f32]) -> &mut [TileGroup<PARTS>] {
    // SAFETY: a group of a tile is made of f32 and of bytes in fours, of which none is bad.
    let (_, groups, _) = unsafe { scratch.align_to_mut() };
    &mut groups[..n_tokens.div_ceil(TILE_TOKENS) * n_cols.div_ceil(GROUP_LEN)]
}

/// The tokens of a tile, or those that there are.
fn of_tile(x: &[f32], n_cols: usize, tile_idx: usize) -> &[f32] {
    let x = &x[tile_idx * TILE_TOKENS * n_cols..];
    &x[..x.len().min(TILE_TOKENS * n_cols)]
}

struct QuantizeTile<'a> {
    x: &'a [f32],
    n_cols: usize,
    groups: &'a mut [TileGroup<1>],
}

impl Kernel for QuantizeTile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (token_idx, x) in self.x.chunks_exact(self.n_cols).enumerate() {
            let (whole, rest) = x.as_chunks();
            let mut last = [0.0; GROUP_LEN];
            last[..rest.len()].copy_from_slice(rest);
            for (group, x) in self.groups.iter_mut().zip(whole.iter().chain([&last])) {
                let (scale, inverse) = scale_of(simd, x);
                group.scales[0][token_idx] = scale;
                codes_of(simd, x, [inverse; 2], offset::<S>(), &mut group.codes[token_idx]);
            }
        }
    }
}

struct QuantizeHalves<'a> {
    x: &'a [f32],
    n_cols: usize,
    groups: &'a mut [TileGroup<2>],
}

impl Kernel for QuantizeHalves<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (step_idx, group) in self.groups.iter_mut().enumerate() {
            let mut last = [[0.0; GROUP_LEN]; TILE_TOKENS];
            let tokens = tile_step(self.x, self.n_cols, step_idx, &mut last);
            let scales = scales_of(simd, &tokens);
            for n in 0..TILE_TOKENS {
                let inverses = [scales.inverse[n], scales.inverse[HALF_LANES + n]];
                codes_of(simd, tokens[n], inverses, offset::<S>(), &mut group.codes[n]);
            }
            for (half, to) in group.scales.iter_mut().enumerate() {
                to.copy_from_slice(&scales.scale[HALF_LANES * half..][..TILE_TOKENS]);
            }
        }
    }
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
    let task_panels = task_panels(ctx.isa());
    let n_tasks = n_panels.div_ceil(task_panels);
    let block_tokens = share_len(ctx, n_tokens, (TILE_TOKENS, LEAST_PACKED_TOKENS), block_tokens(n_cols.div_ceil(4)));
    ctx.pool().run(n_tasks * n_tokens.div_ceil(block_tokens), |task_idx| {
        let first = task_idx % n_tasks * task_panels;
        let end = (first + task_panels).min(n_panels);
        let first_token = task_idx / n_tasks * block_tokens;
        let of_panels = |first: usize, end: usize| &groups[first * n_groups..end.min(n_panels) * n_groups];
        ctx.isa().run(PanelTask {
            groups: of_panels(first, end),
            n_panels: end - first,
            x,
            tokens: first_token..(first_token + block_tokens).min(n_tokens),
            next: [bytes_of(of_panels(end, end + task_panels)), &[]],
            sums: &OfRows { out: &out, first_row: first * LANES },
        });
    });
}

/// The memory of groups.
fn bytes_of(groups: &[Int8Group]) -> &[u8] {
    // SAFETY: a group has no bytes between its fields, and none of its bytes is bad.
    unsafe { std::slice::from_raw_parts(groups.as_ptr().cast(), size_of_val(groups)) }
}

/// Panels of rows behind each other.
struct OfRows<'a> {
    out: &'a Output<'a>,
    first_row: usize,
}

impl Sums for OfRows<'_> {
    #[inline(always)]
    fn panel(&self, panel_idx: usize, first_token: usize, is_first: bool) -> PanelSums<'_> {
        self.out.panel(first_token, self.first_row + panel_idx * LANES, is_first)
    }

    #[inline(always)]
    fn finish(&self, n_panels: usize, first_token: usize, n_tokens: usize) {
        (0..n_panels).for_each(|p| self.out.finish(first_token, n_tokens, self.first_row + p * LANES));
    }
}

#[cfg(test)]
pub(super) mod tests;
