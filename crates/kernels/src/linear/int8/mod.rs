//! Weights as integers: float ones, and quantized ones where a machine adds up products of integers
//! faster than it scales their sums.
//!
//! 16 rows are a panel whose lanes are the rows, as elsewhere, and 256 columns of a row share a
//! scale: to scale a sum by a weight's scale and an activation's takes as long as two of the
//! products, of 32 columns a fifth of the time. Codes are -127 to 127 on machines that add up four
//! products of bytes in 32 bits. Elsewhere they are -63 to 63, so that four products fit a sum of
//! 16 bits: that takes five instructions for 64 products, where wider codes take six to eight.
//! These machines compute the same sums.
//!
//! Activations have outliers. Those of float weights are rotated before they are rounded, and the
//! weights are too, which changes no product but spreads an outlier over 64 columns; then 256 share
//! a scale. Those of quantized weights, which are fitted to codes anew for each prompt, have one
//! for 32. `scripts/peers/scales.py` has how far the outputs of a model stray with either, and with
//! neither.

mod requantize;
mod rotate;
mod tile;

pub(super) use requantize::Requantize;
pub(super) use rotate::rotate;
use tile::TileBlock;
pub(super) use tile::{PanelTask, Sums};

use super::choose;
use super::columns::{LINE_BYTES, block_tokens};
use super::output::{Output, PanelSums};
use super::steps::{HALF_LANES, TILE_TOKENS, scales_of, tile_step};
use super::tasks::{LEAST_PACKED_TOKENS, share_len};
use super::values::dequantize_simd;
use super::weight::{Rows, Weight};
use crate::quant::{BlockType, has_format};
use crate::simd::{Kernel, LANES, Simd};
use crate::{Context, Isa};

/// Columns of an [`Int8Block`].
pub(super) const BLOCK_LEN: usize = 256;
/// Columns that are rotated together. A block has a multiple of them, the last behind the last
/// column.
const GROUP_LEN: usize = 64;
/// Fours of columns of a block.
const BLOCK_QUADS: usize = BLOCK_LEN / 4;
/// Below this the inverse of a scale would be close to overflow: all codes are 0.
const LEAST: f32 = 1e-36;

/// Codes have 8 bits.
const fn is_wide<S: Simd>() -> bool {
    S::PARTS.are_of_four()
}

/// The greatest code: two times two products of 127 * 63 fit an i16.
const fn max_code<S: Simd>() -> f32 {
    if is_wide::<S>() { 127.0 } else { 63.0 }
}

/// What is added to an activation's code where it is to have no sign.
const fn offset<S: Simd>() -> u8 {
    match (S::HAS_UNSIGNED, is_wide::<S>()) {
        (false, _) => 0,
        (true, false) => 64,
        (true, true) => 128,
    }
}

/// Panels of a task. With sums in six registers of AVX2, scales' products in six more, every weight
/// is an operand from memory. With more registers, each weight is multiplied with a tile's tokens.
fn task_panels(isa: Isa) -> usize {
    if choose::is_wide(isa) { 2 } else { 3 }
}

/// 256 columns of 16 rows, on whole cache lines: a vector in two lines takes two reads. Activations
/// have this many scales for them.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Int8Block<const PARTS: usize = 1> {
    /// Four columns of 16 rows each.
    #[doc(hidden)]
    pub codes: [[u8; 64]; BLOCK_QUADS],
    /// Of the rows.
    #[doc(hidden)]
    pub scales: [f32; LANES],
    /// What the sum of a part begins with, so that what is added to activations is taken away.
    #[doc(hidden)]
    pub offsets: [[i32; LANES]; PARTS],
}

impl<const PARTS: usize> Int8Block<PARTS> {
    /// To be filled.
    pub const ZERO: Self = Self {
        codes: [[0; 64]; BLOCK_QUADS],
        scales: [0.0; LANES],
        offsets: [[0; LANES]; PARTS],
    };
}

/// A matrix as [`pack_int8`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct Int8Weight<'a> {
    /// By the rows of a task, then by columns, then by 16 rows; [`int8_len`] of them.
    pub blocks: &'a [Int8Block],
    /// Outputs.
    pub n_rows: usize,
    /// Inputs.
    pub n_cols: usize,
}

/// Elements of [`Int8Weight::blocks`]; `None` if their bytes are too many to count.
pub fn int8_len(n_rows: usize, n_cols: usize) -> Option<usize> {
    let n_blocks = n_rows
        .div_ceil(LANES)
        .checked_mul(n_cols.div_ceil(BLOCK_LEN))?;
    n_blocks
        .checked_mul(size_of::<Int8Block>())
        .map(|_| n_blocks)
}

/// Rotates and rounds a matrix of floats: code = round(w * 127 / max|w|), to even, the greatest of
/// each 256 columns of a row; or 63, where the machine does not add up four products of bytes in 32
/// bits. For products on the same kind of machine. Values so great that a sum of 64 overflows are
/// as no numbers, here and in [`quantize_int8`].
///
/// # Panics
/// If the weight is of a quantized type or not well formed, or `blocks` are not [`int8_len`].
pub fn pack_int8(ctx: &Context, weight: &Weight, blocks: &mut [Int8Block]) {
    let (rows, n_blocks) = (weight.checked(), weight.n_cols.div_ceil(BLOCK_LEN));
    assert!(
        !has_format(weight.ty),
        "a weight of type {:?} has codes already",
        weight.ty
    );
    assert_eq!(
        Some(blocks.len()),
        int8_len(weight.n_rows, weight.n_cols),
        "blocks"
    );
    let task_panels = task_panels(ctx.isa());
    ctx.pool().run_chunks(
        blocks,
        (task_panels * n_blocks).max(1),
        |task_idx, blocks| {
            let n_panels = blocks.len() / n_blocks;
            for i in 0..n_panels {
                let blocks = blocks[i..].iter_mut().step_by(n_panels);
                let first_row = (task_idx * task_panels + i) * LANES;
                ctx.isa().run(Pack {
                    ty: weight.ty,
                    rows,
                    first_row,
                    blocks,
                });
            }
        },
    );
}

struct Pack<'a, I> {
    ty: BlockType,
    rows: Rows<'a>,
    first_row: usize,
    blocks: I,
}

impl<'b, I: Iterator<Item = &'b mut Int8Block>> Kernel for Pack<'_, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let block_bytes = self.ty.byte_len(BLOCK_LEN).unwrap_or(BLOCK_LEN).max(1);
        for (block_idx, block) in self.blocks.enumerate() {
            for lane in 0..LANES {
                let row = self
                    .rows
                    .get((self.first_row + lane).min(self.rows.n_rows - 1));
                let bytes = &row[block_idx * block_bytes..];
                let bytes = &bytes[..bytes.len().min(block_bytes)];
                let (mut values, n_values) =
                    ([0.0; BLOCK_LEN], bytes.len() * BLOCK_LEN / block_bytes);
                dequantize_simd(simd, self.ty, bytes, &mut values[..n_values]);
                let mut codes = [0; BLOCK_LEN];
                let (scale, sum) = round(simd, &values[..n_values], 0, &mut codes);
                // What a weight that is no number adds up to does not matter.
                block.offsets[0][lane] = (sum as i32).wrapping_mul(-i32::from(offset::<S>()));
                // Rotated products are as many times too great.
                block.scales[lane] = scale / GROUP_LEN as f32;
                for (four, quad) in codes.as_chunks::<4>().0.iter().zip(&mut block.codes) {
                    quad.as_chunks_mut::<4>().0[lane] = *four;
                }
            }
        }
    }
}

/// Rotates 256 values at most, and gives their codes with this added, their scale, and the sum of
/// the codes without it. The last group may be shorter than others.
#[inline(always)]
fn round<S: Simd>(simd: S, values: &[f32], added: u8, codes: &mut [u8; BLOCK_LEN]) -> (f32, f32) {
    let (whole, rest) = values.as_chunks();
    let mut last = [0.0; GROUP_LEN];
    last[..rest.len()].copy_from_slice(rest);
    let mut groups = [[simd.splat(0.0); GROUP_LEN / LANES]; BLOCK_LEN / GROUP_LEN];
    // NaN becomes infinite.
    let (infinity, mut most) = (simd.splat(f32::INFINITY), simd.splat(0.0));
    for i in 0..groups.len() {
        let Some(group) = whole.get(i).or_else(|| (i == whole.len()).then_some(&last)) else {
            break;
        };
        groups[i] = rotate(simd, group);
        for v in groups[i] {
            most = simd.max(simd.min(simd.abs(v), infinity), most);
        }
    }
    let (scale, inverse) = match simd.max_lane(most) {
        ..LEAST => (0.0, 0.0),
        most if most < f32::INFINITY => (most / max_code::<S>(), max_code::<S>() / most),
        _ => (f32::NAN, 0.0),
    };
    let mut sum = simd.splat(0.0);
    for i in 0..groups.len() {
        let scaled = groups[i].map(|v| simd.mul(v, simd.splat(inverse)));
        sum = simd.add(
            codes_of(simd, scaled, added, &mut codes.as_chunks_mut().0[i]),
            sum,
        );
    }
    (scale, simd.sum(sum))
}

/// The nearest codes of 64 values, with this added, and their sums without it.
#[inline(always)]
fn codes_of<S: Simd>(
    simd: S,
    x: [S::F; GROUP_LEN / LANES],
    added: u8,
    codes: &mut [u8; GROUP_LEN],
) -> S::F {
    // 128 is the highest bit of a byte, which a code with a sign has not room for.
    let (subtracted, flipped) = if added == 128 {
        (0.0, 128)
    } else {
        (-f32::from(added), 0)
    };
    let subtracted = simd.to_int(simd.splat(subtracted));
    let mut sum = simd.splat(0.0);
    let mut rounded = [simd.zero_int(); GROUP_LEN / LANES];
    for i in 0..GROUP_LEN / LANES {
        let code = simd.to_int(x[i]);
        rounded[i] = simd.sub_int(code, subtracted);
        sum = simd.add(sum, simd.int_values(code));
    }
    simd.store_b(simd.xor_b(simd.narrow(rounded), flipped), codes);
    sum
}

/// f32s of scratch that [`quantize_int8`] needs.
pub(super) fn int8_scratch_len(n_tokens: usize, n_cols: usize) -> usize {
    tiles_len::<1>(n_tokens, n_cols)
}

/// f32s of activations with as many scales for a block.
pub(super) const fn tiles_len<const PARTS: usize>(n_tokens: usize, n_cols: usize) -> usize {
    n_tokens.div_ceil(TILE_TOKENS)
        * n_cols.div_ceil(BLOCK_LEN)
        * (size_of::<TileBlock<PARTS>>() / size_of::<f32>())
}

/// Activations as codes, made by [`quantize_int8`].
#[derive(Debug, Clone, Copy)]
pub struct Int8Activations<'a, const PARTS: usize = 1> {
    /// By tile, then by columns. What is behind the last token is of no meaning.
    tiles: &'a [TileBlock<PARTS>],
    n_tokens: usize,
    n_cols: usize,
}

impl<const PARTS: usize> Int8Activations<'_, PARTS> {
    pub(super) const EMPTY: Self = Self {
        tiles: &[],
        n_tokens: 0,
        n_cols: 0,
    };
}

/// Scales of 32 columns in a block.
pub(super) const FINE_PARTS: usize = BLOCK_LEN / 32;

/// Rounds activations [n_tokens, n_cols] to 8 bits: with one part rotated as [`pack_int8`] does
/// weights, with [`FINE_PARTS`] with a scale for each 32 columns, as
/// [`quantize_q8`](super::q8::quantize_q8) does.
///
/// # Panics
/// If a size does not fit or the scratch is shorter than [`int8_scratch_len`] with one part.
pub(super) fn quantize_int8<'a, const PARTS: usize>(
    ctx: &Context,
    x: &[f32],
    n_tokens: usize,
    n_cols: usize,
    scratch: &'a mut [f32],
) -> Int8Activations<'a, PARTS>
where
    for<'b> QuantizeTile<'b, PARTS>: Kernel<Output = ()>,
{
    assert_eq!(
        Some(x.len()),
        n_tokens.checked_mul(n_cols),
        "inputs of {n_tokens} tokens"
    );
    let tiles = tile_blocks(n_tokens, n_cols, scratch);
    let tile_len = n_cols.div_ceil(BLOCK_LEN).max(1);
    ctx.pool().run_chunks(tiles, tile_len, |tile_idx, blocks| {
        let x = of_tile(x, n_cols, tile_idx);
        ctx.isa().run(QuantizeTile { x, n_cols, blocks });
    });
    Int8Activations {
        tiles,
        n_tokens,
        n_cols,
    }
}

/// Scratch as the blocks of tiles.
fn tile_blocks<const PARTS: usize>(
    n_tokens: usize,
    n_cols: usize,
    scratch: &mut [f32],
) -> &mut [TileBlock<PARTS>] {
    // SAFETY: a block of a tile is made of f32 and of bytes in fours, of which none is bad.
    let (_, blocks, _) = unsafe { scratch.align_to_mut() };
    &mut blocks[..n_tokens.div_ceil(TILE_TOKENS) * n_cols.div_ceil(BLOCK_LEN)]
}

/// The tokens of a tile, or those that there are.
fn of_tile(x: &[f32], n_cols: usize, tile_idx: usize) -> &[f32] {
    let x = &x[tile_idx * TILE_TOKENS * n_cols..];
    &x[..x.len().min(TILE_TOKENS * n_cols)]
}

pub(super) struct QuantizeTile<'a, const PARTS: usize> {
    x: &'a [f32],
    n_cols: usize,
    blocks: &'a mut [TileBlock<PARTS>],
}

impl Kernel for QuantizeTile<'_, 1> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (token_idx, x) in self.x.chunks_exact(self.n_cols).enumerate() {
            for (block, x) in self.blocks.iter_mut().zip(x.chunks(BLOCK_LEN)) {
                let codes = &mut block.codes[token_idx];
                (block.scales[0][token_idx], _) = round(simd, x, offset::<S>(), codes);
            }
        }
    }
}

impl Kernel for QuantizeTile<'_, FINE_PARTS> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for step_idx in 0..self.n_cols.div_ceil(GROUP_LEN) {
            let (block, at) = (
                &mut self.blocks[step_idx * GROUP_LEN / BLOCK_LEN],
                step_idx % (BLOCK_LEN / GROUP_LEN),
            );
            let mut last = [[0.0; GROUP_LEN]; TILE_TOKENS];
            let tokens = tile_step(self.x, self.n_cols, step_idx, &mut last);
            let scales = scales_of(simd, &tokens);
            for n in 0..TILE_TOKENS {
                let mut scaled = [simd.splat(0.0); GROUP_LEN / LANES];
                for i in 0..scaled.len() {
                    let inverse = scales.inverse[HALF_LANES * (2 * i / scaled.len()) + n];
                    scaled[i] =
                        simd.mul(simd.load(&tokens[n].as_chunks().0[i]), simd.splat(inverse));
                }
                codes_of(
                    simd,
                    scaled,
                    offset::<S>(),
                    &mut block.codes[n].as_chunks_mut().0[at],
                );
            }
            for half in 0..2 {
                block.scales[2 * at + half]
                    .copy_from_slice(&scales.scale[HALF_LANES * half..][..TILE_TOKENS]);
            }
        }
    }
}

/// The product of a matrix of integers with rounded activations.
///
/// # Panics
/// If a size does not fit.
pub(super) fn multiply(ctx: &Context, weight: &Int8Weight, x: &Int8Activations, out: &Output) {
    let Int8Weight {
        blocks,
        n_rows,
        n_cols,
    } = *weight;
    assert_eq!(Some(blocks.len()), int8_len(n_rows, n_cols), "blocks");
    assert_eq!(x.n_cols, n_cols, "columns of the activations");
    let (n_tokens, n_blocks, n_panels) = (
        x.n_tokens,
        n_cols.div_ceil(BLOCK_LEN),
        n_rows.div_ceil(LANES),
    );
    let task_panels = task_panels(ctx.isa());
    let n_tasks = n_panels.div_ceil(task_panels);
    let block_tokens = share_len(
        ctx,
        n_tokens,
        (TILE_TOKENS, LEAST_PACKED_TOKENS),
        block_tokens(n_cols.div_ceil(4)),
    );
    ctx.pool()
        .run(n_tasks * n_tokens.div_ceil(block_tokens), |task_idx| {
            let first = task_idx % n_tasks * task_panels;
            let end = (first + task_panels).min(n_panels);
            let first_token = task_idx / n_tasks * block_tokens;
            let of_panels =
                |first: usize, end: usize| &blocks[first * n_blocks..end.min(n_panels) * n_blocks];
            ctx.isa().run(PanelTask {
                blocks: of_panels(first, end),
                n_panels: end - first,
                x,
                tokens: first_token..(first_token + block_tokens).min(n_tokens),
                next: [bytes_of(of_panels(end, end + task_panels)), &[]],
                sums: &OfRows {
                    out,
                    first_row: first * LANES,
                },
            });
        });
}

/// The memory of blocks.
fn bytes_of(blocks: &[Int8Block]) -> &[u8] {
    // SAFETY: a block has no bytes between its fields, and none of its bytes is bad.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), size_of_val(blocks)) }
}

/// Panels of rows behind each other.
struct OfRows<'a> {
    out: &'a Output<'a>,
    first_row: usize,
}

impl Sums for OfRows<'_> {
    #[inline(always)]
    fn panel(&self, panel_idx: usize, first_token: usize, is_first: bool) -> PanelSums<'_> {
        self.out
            .panel(first_token, self.first_row + panel_idx * LANES, is_first)
    }

    #[inline(always)]
    fn finish(&self, n_panels: usize, first_token: usize, n_tokens: usize) {
        (0..n_panels).for_each(|p| {
            self.out
                .finish(first_token, n_tokens, self.first_row + p * LANES)
        });
    }
}
