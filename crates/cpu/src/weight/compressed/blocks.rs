//! Codes with scales as the blocks of a block type, whose products multiply the codes themselves.
//!
//! A package that was made of such blocks has a constant of codes, one of scales, and perhaps one
//! of offsets. Other writers make the same structure: 4-bit codes whose scales are f16, say. A type
//! is taken only where its blocks give the same numbers: `scale * (code - offset)` bit for bit, or,
//! where the type has minimums, `scale * code + minimum` whose offset is `-minimum / scale` rounded
//! to f32.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_kernels::{BlockType, Context};

use super::{Coding, Compressed};

/// Types that may hold codes of up to four bits, those of fewer bytes first.
const NARROW: &[BlockType] = &[
    BlockType::Q4_0,
    BlockType::Q4K,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q6K,
];
/// Types that may hold codes of more bits.
const WIDE: &[BlockType] = &[
    BlockType::Q5_0,
    BlockType::Q5K,
    BlockType::Q5_1,
    BlockType::Q6K,
    BlockType::Q8_0,
];
/// Blocks that are looked at to find a type.
const N_SAMPLES: usize = 128;
/// Values of the longest block.
const MAX_LEN: usize = 256;
/// The magnitude of an offset that stands for a minimum alone: the code is rounded away.
const HUGE: f32 = (1u64 << 30) as f32;

/// Codes with scales.
#[derive(Clone, Copy)]
struct Scaled<'a> {
    n_bits: usize,
    codes: &'a [u8],
    is_signed: bool,
    scales: &'a [f32],
    offsets: &'a [f32],
    group: [usize; 2],
    shape: [usize; 2],
}

/// The scale of a group, and what a code of 0 gives.
#[derive(Clone, Copy, Default)]
struct Factors {
    scale: f32,
    offset: f32,
    minimum: f32,
}

impl Compressed {
    /// The type whose blocks these codes are, as far as some of them tell.
    pub fn block_type(&self) -> Option<BlockType> {
        let scaled = self.scaled()?;
        let types = if scaled.n_bits <= 4 { NARROW } else { WIDE };
        types.iter().copied().find(|ty| scaled.is_sampled(*ty))
    }

    /// Writes some rows as blocks of a type; whether these are the same numbers.
    pub fn write_blocks(
        &self,
        context: &Context,
        ty: BlockType,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> bool {
        let Some(scaled) = self.scaled() else {
            return false;
        };
        let (block_len, block_bytes) = (ty.block_len(), ty.block_bytes());
        let row_bytes = scaled.shape[1] / block_len * block_bytes;
        let is_exact = AtomicBool::new(out.len() == rows.len() * row_bytes);
        context.pool().run_chunks(out, row_bytes.max(1), |i, out| {
            let blocks = out.chunks_exact_mut(block_bytes).enumerate();
            for (at, block) in blocks {
                if scaled
                    .write(ty, rows.start + i, at * block_len, block)
                    .is_none()
                {
                    is_exact.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
        is_exact.into_inner()
    }

    fn scaled(&self) -> Option<Scaled<'_>> {
        let Coding::Scale {
            is_signed,
            scales,
            offsets,
            group,
        } = &self.coding
        else {
            return None;
        };
        self.mask.is_none().then_some(Scaled {
            n_bits: self.n_bits,
            codes: self.codes.as_slice(),
            is_signed: *is_signed,
            scales,
            offsets,
            group: *group,
            shape: self.shape,
        })
    }
}

impl Scaled<'_> {
    /// Whether some blocks, spread over all, are of this type.
    fn is_sampled(&self, ty: BlockType) -> bool {
        let [n_rows, n_cols] = self.shape;
        let Some(codes) = ty.codes() else {
            return false;
        };
        let fits = n_cols.is_multiple_of(ty.block_len())
            && self.group[1].is_multiple_of(codes.group_len)
            && n_rows > 0
            && n_cols > 0;
        if !fits {
            return false;
        }
        let n_blocks = n_cols / ty.block_len();
        let n = n_rows * n_blocks;
        let mut block = [0; MAX_LEN];
        let block = &mut block[..ty.block_bytes()];
        (0..N_SAMPLES.min(n)).all(|i| {
            // The first and the last among them.
            let at = i * (n - 1) / N_SAMPLES.min(n).saturating_sub(1).max(1);
            let (row, col) = (at / n_blocks, at % n_blocks * ty.block_len());
            self.write(ty, row, col, block).is_some()
        })
    }

    /// Writes the block of `ty` that begins at a column; `None` where it is no such block.
    fn write(&self, ty: BlockType, row: usize, col: usize, out: &mut [u8]) -> Option<()> {
        let codes = ty.codes()?;
        let (len, group_len) = (ty.block_len(), codes.group_len);
        let mut numbers = [0i16; MAX_LEN];
        let numbers = &mut numbers[..len];
        self.read(row, col, numbers);
        let mut factors = [Factors::default(); MAX_LEN / 16];
        let factors = &mut factors[..len / group_len];
        for (i, factors) in factors.iter_mut().enumerate() {
            *factors = self.factors(row, col + i * group_len, codes.has_minimum)?;
        }
        if codes.has_minimum {
            // Codes without a sign: the offsets have taken it.
            let bias = self.bias();
            numbers.iter_mut().for_each(|n| *n += bias);
        } else {
            let groups = numbers.chunks_exact_mut(group_len).zip(&*factors);
            for (numbers, factors) in groups {
                let offset = factors.offset as i16;
                numbers.iter_mut().for_each(|n| *n -= offset);
            }
        }
        match ty {
            BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q5_0 | BlockType::Q5_1 => {
                small(ty, &factors[0], numbers, out)
            }
            BlockType::Q8_0 => bytes(&factors[0], numbers, out),
            BlockType::Q4K | BlockType::Q5K => k_block(ty, factors, numbers, out),
            BlockType::Q6K => q6_k(factors, numbers, out),
            _ => None,
        }
    }

    /// What codes with a sign need to have none.
    fn bias(&self) -> i16 {
        match self.is_signed {
            true => 1 << (self.n_bits - 1),
            false => 0,
        }
    }

    /// The codes from a column of a row on.
    fn read(&self, row: usize, col: usize, out: &mut [i16]) {
        let first = row * self.shape[1] + col;
        let flip = self.bias();
        let number = |code: u8| (i16::from(code) ^ flip) - flip;
        match self.n_bits {
            8 => {
                let codes = &self.codes[first..][..out.len()];
                for (out, code) in out.iter_mut().zip(codes) {
                    *out = number(*code);
                }
            }
            4 if first.is_multiple_of(2) => {
                let codes = &self.codes[first / 2..][..out.len() / 2];
                for (out, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                    *out = [number(code & 15), number(code >> 4)];
                }
            }
            n_bits => {
                for (i, out) in out.iter_mut().enumerate() {
                    let at = (first + i) * n_bits;
                    let next = self.codes.get(at / 8 + 1).copied().unwrap_or(0);
                    let both = u16::from_le_bytes([self.codes[at / 8], next]) >> (at % 8);
                    *out = number((both & ((1 << n_bits) - 1)) as u8);
                }
            }
        }
    }

    /// The factors of the group that a column belongs to, for codes without a sign where there is a
    /// minimum; without one, the offset must be a small integer.
    fn factors(&self, row: usize, col: usize, has_minimum: bool) -> Option<Factors> {
        let at = row / self.group[0] * (self.shape[1] / self.group[1]) + col / self.group[1];
        let scale = self.scales[at];
        let offset = self.offsets.get(at).copied().unwrap_or(0.0);
        if !scale.is_finite() || !offset.is_finite() {
            return None;
        }
        if !has_minimum {
            let is_small = offset.abs() <= 256.0 && offset.trunc() == offset;
            return is_small.then_some(Factors {
                scale,
                offset,
                minimum: 0.0,
            });
        }
        let bias = f32::from(self.bias());
        let shifted = offset + bias;
        if offset.abs() == HUGE {
            return Some(Factors {
                scale: 0.0,
                offset,
                minimum: -(scale * offset),
            });
        }
        (shifted - bias == offset).then_some(Factors {
            scale,
            offset: shifted,
            minimum: -(scale * shifted),
        })
    }
}

impl Factors {
    /// Whether a minimum gives the offset.
    fn is_given_by(&self, minimum: f32) -> bool {
        match self.offset {
            _ if self.scale == 0.0 => minimum == self.minimum,
            0.0 => minimum == 0.0,
            offset => -minimum / self.scale == offset,
        }
    }
}

/// The f16 that is this number.
fn half(value: f32) -> Option<u16> {
    let bits = f32_to_f16(value);
    (f16_to_f32(bits) == value).then_some(bits)
}

/// Numbers as codes from 0 to `most`, `bias` added.
fn biased(numbers: &[i16], bias: i16, most: i16, out: &mut [u8]) -> Option<()> {
    let mut fits = true;
    for (out, number) in out.iter_mut().zip(numbers) {
        let code = number + bias;
        fits &= (0..=most).contains(&code);
        *out = code as u8;
    }
    fits.then_some(())
}

/// 32 codes of four or five bits.
fn small(ty: BlockType, factors: &Factors, numbers: &[i16], out: &mut [u8]) -> Option<()> {
    let has_fifth = matches!(ty, BlockType::Q5_0 | BlockType::Q5_1);
    let has_minimum = matches!(ty, BlockType::Q4_1 | BlockType::Q5_1);
    let most = if has_fifth { 31 } else { 15 };
    let bias = if has_minimum { 0 } else { (most + 1) / 2 };
    let mut codes = [0u8; 32];
    biased(numbers, bias, most, &mut codes)?;
    let mut rest = out;
    let mut put = |bytes: &[u8]| {
        let (to, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        to.copy_from_slice(bytes);
        rest = after;
    };
    put(&half(factors.scale)?.to_le_bytes());
    if has_minimum {
        let minimum = f32_to_f16(factors.minimum);
        if !factors.is_given_by(f16_to_f32(minimum)) {
            return None;
        }
        put(&minimum.to_le_bytes());
    }
    if has_fifth {
        let bit = |i: usize| u32::from(codes[i] >> 4) << i;
        put(&(0..32).fold(0, |bits, i| bits | bit(i)).to_le_bytes());
    }
    let mut nibbles = [0; 16];
    for (i, byte) in nibbles.iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
    put(&nibbles);
    Some(())
}

/// Q8_0.
fn bytes(factors: &Factors, numbers: &[i16], out: &mut [u8]) -> Option<()> {
    out[..2].copy_from_slice(&half(factors.scale)?.to_le_bytes());
    let mut codes = [0; 32];
    biased(numbers, 128, 255, &mut codes)?;
    for (out, code) in out[2..].iter_mut().zip(codes) {
        *out = code ^ 128;
    }
    Some(())
}

/// The f16 of which all scales are multiples by integers from `-least` to `most`, and these; the
/// largest scale is most often the largest multiple.
fn multiples(scales: &[f32], least: i32, most: i32, out: &mut [i32]) -> Option<u16> {
    let largest = scales
        .iter()
        .copied()
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
    if largest == 0.0 {
        out.fill(0);
        return Some(0);
    }
    let n = least.max(most);
    let candidates = (1..=n)
        .rev()
        .flat_map(|k| [(k <= least).then_some(-k), (k <= most).then_some(k)]);
    candidates.flatten().find_map(|k| {
        let unit = largest / k as f32;
        let bits = half(unit)?;
        for (out, scale) in out.iter_mut().zip(scales) {
            let multiple = (scale / unit).round();
            let is_in = multiple >= -least as f32 && multiple <= most as f32;
            if !is_in || multiple * unit != *scale {
                return None;
            }
            *out = multiple as i32;
        }
        Some(bits)
    })
}

/// The f16 of which all minimums are multiples from 0 to 63, taken off, where these give the
/// offsets.
fn minimums(factors: &[Factors], out: &mut [i32]) -> Option<u16> {
    let largest = factors
        .iter()
        .map(|f| -f.minimum)
        .fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
    if largest == 0.0 {
        out.fill(0);
        return factors.iter().all(|f| f.is_given_by(0.0)).then_some(0);
    }
    (1..=63).rev().find_map(|k| {
        // The product of scale and offset was rounded: the f16 next to it.
        let bits = f32_to_f16(largest / k as f32);
        let unit = f16_to_f32(bits);
        for (out, factors) in out.iter_mut().zip(factors) {
            let multiple = (-factors.minimum / unit).round();
            let is_in = (0.0..=63.0).contains(&multiple);
            if !is_in || !factors.is_given_by(-(unit * multiple)) {
                return None;
            }
            *out = multiple as i32;
        }
        Some(bits)
    })
}

/// Q4_K and Q5_K.
fn k_block(ty: BlockType, factors: &[Factors], numbers: &[i16], out: &mut [u8]) -> Option<()> {
    let has_fifth = ty == BlockType::Q5K;
    let mut scales = [0.0; 8];
    for (scale, factors) in scales.iter_mut().zip(factors) {
        *scale = factors.scale;
    }
    let (mut of_scales, mut of_minimums) = ([0; 8], [0; 8]);
    let d = multiples(&scales, 0, 63, &mut of_scales)?;
    let dmin = minimums(factors, &mut of_minimums)?;
    let mut codes = [0; MAX_LEN];
    biased(numbers, 0, if has_fifth { 31 } else { 15 }, &mut codes)?;
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());
    let packed = &mut out[4..16];
    for i in 0..4 {
        let [low, high] = [i, i + 4].map(|i| (of_scales[i] as u8, of_minimums[i] as u8));
        packed[i] = low.0 | high.0 >> 4 << 6;
        packed[4 + i] = low.1 | high.1 >> 4 << 6;
        packed[8 + i] = high.0 & 15 | high.1 << 4;
    }
    let (fifth, low) = out[16..].split_at_mut(if has_fifth { 32 } else { 0 });
    for (i, byte) in fifth.iter_mut().enumerate() {
        *byte = (0..8).fold(0, |byte, j| byte | codes[32 * j + i] >> 4 << j);
    }
    for (i, byte) in low.iter_mut().enumerate() {
        let at = i / 32 * 64 + i % 32;
        *byte = codes[at] & 15 | codes[at + 32] << 4;
    }
    Some(())
}

/// Q6_K.
fn q6_k(factors: &[Factors], numbers: &[i16], out: &mut [u8]) -> Option<()> {
    let mut scales = [0.0; 16];
    for (scale, factors) in scales.iter_mut().zip(factors) {
        *scale = factors.scale;
    }
    let mut of_scales = [0; 16];
    let d = multiples(&scales, 128, 127, &mut of_scales)?;
    let mut codes = [0; MAX_LEN];
    biased(numbers, 32, 63, &mut codes)?;
    for (i, byte) in out[..128].iter_mut().enumerate() {
        let at = i / 64 * 128 + i % 64;
        *byte = codes[at] & 15 | codes[at + 64] << 4;
    }
    for (i, byte) in out[128..192].iter_mut().enumerate() {
        let at = i / 32 * 128 + i % 32;
        *byte = (0..4).fold(0, |byte, s| byte | codes[at + 32 * s] >> 4 << (2 * s));
    }
    for (byte, scale) in out[192..208].iter_mut().zip(of_scales) {
        *byte = scale as i8 as u8;
    }
    out[208..210].copy_from_slice(&d.to_le_bytes());
    Some(())
}
