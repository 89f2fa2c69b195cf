//! GGUF's quantisation blocks as the parts of MIL's constexpr ops.
//!
//! A block type says `value = scale * code + minimum` with integer codes in small groups. MIL's
//! `constexpr_blockwise_shift_scale` says `scale * (code - offset)`, so a part of each block
//! becomes a constant:
//!
//! | type | group | codes | scale (fp32) | offset (fp32) |
//! |---|---|---|---|---|
//! | Q4_0 | 32 | int4, code - 8 | d | none |
//! | Q4_1 | 32 | uint4 | d | -m / d |
//! | Q5_0 | 32 | int8, code - 16 | d | none |
//! | Q5_1 | 32 | uint8 | d | -m / d |
//! | Q8_0 | 32 | int8 | d | none |
//! | Q2_K | 16 | uint4 | d * 4-bit scale | dmin * 4-bit minimum / scale |
//! | Q3_K | 16 | int4 | d * (6-bit scale - 32) | none |
//! | Q4_K | 32 | uint4 | d * 6-bit scale | dmin * 6-bit minimum / scale |
//! | Q5_K | 32 | uint8 | d * 6-bit scale | dmin * 6-bit minimum / scale |
//! | Q6_K | 16 | int8, code - 32 | d * 8-bit scale | none |
//! | IQ4_NL | 32 | uint4 indices into a table of int8 | d | none |
//! | IQ4_XS | 32 | uint4 indices into a table of int8 | d * (6-bit scale - 32) | none |
//!
//! Codes are exact. Scales are exact: a product of an fp16 number (11 significant bits) and an
//! integer of at most 8 bits fits the 24 bits of fp32. An offset is a quotient, rounded once to
//! fp32, so a value `scale * (code - offset)` is three roundings from `scale * code + minimum`,
//! which the `gguf` Python package rounds once: they differ by at most 4 * 2^-24 = 2.4e-7 of
//! `|scale * code| + |minimum|`. Types without offset reproduce the package to the bit
//! (`tests/quant`). The worst that `python3 crates/models/tests/make_quant.py` finds in 4,096
//! random blocks a type, with scales of any size and with scales as weights have them:
//!
//! | type | any scale | common scale |
//! |---|---|---|
//! | Q4_1 | 1.6e-7 | 1.2e-7 |
//! | Q5_1 | 1.6e-7 | 1.2e-7 |
//! | Q2_K | 1.8e-7 | 1.2e-7 |
//! | Q4_K | 1.8e-7 | 1.2e-7 |
//! | Q5_K | 2.2e-7 | 1.2e-7 |
//!
//! A group whose scale is 0 but whose minimum is not gets the scale `|minimum| * 2^-30` and the
//! offset `-+2^30`: the code then vanishes in rounding, and the value is the minimum, exactly.

use std::sync::Arc;

use thane_mil::data::{Bytes, Data, Packed, Packing, Source};
use thane_mil::literal::f64_to_f16;
use thane_mil::types::DType;

use crate::checkpoint::TensorType;

/// Most elements in a block of any type.
const MAX_BLOCK: usize = 256;

/// The int8 table that IQ4_NL and IQ4_XS index.
pub const IQ4_TABLE: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// A block as codes with a scale and a minimum for each group of them.
struct Block {
    codes: [i8; MAX_BLOCK],
    scales: [f32; 16],
    minimums: [f32; 16],
}

/// What a quantised type looks like in MIL.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Element type of the codes.
    pub codes: DType,
    /// Elements that share a scale.
    pub group: usize,
    /// Whether there are offsets.
    pub has_offset: bool,
    /// Whether the codes are indices into [`IQ4_TABLE`].
    pub has_table: bool,
    packing: Packing,
    unpack: fn(&[u8], &mut Block),
}

/// How `ty` is expressed in MIL; `None` when it is not quantised.
pub fn layout(ty: TensorType) -> Option<Layout> {
    use TensorType as T;
    let plain = |packing, codes, group, unpack| Layout {
        codes,
        group,
        has_offset: false,
        has_table: false,
        packing,
        unpack,
    };
    let offset = |packing, codes, group, unpack| Layout {
        has_offset: true,
        ..plain(packing, codes, group, unpack)
    };
    let table = |packing, unpack| Layout {
        has_table: true,
        ..plain(packing, DType::Uint4, 32, unpack)
    };
    Some(match ty {
        T::Q4_0 => plain(
            Packing::Q4_0,
            DType::Int4,
            32,
            q4_0 as fn(&[u8], &mut Block),
        ),
        T::Q4_1 => offset(Packing::Q4_1, DType::Uint4, 32, q4_1),
        T::Q5_0 => plain(Packing::Q5_0, DType::Int8, 32, q5_0),
        T::Q5_1 => offset(Packing::Q5_1, DType::Uint8, 32, q5_1),
        T::Q8_0 => plain(Packing::Q8_0, DType::Int8, 32, q8_0),
        T::Q2K => offset(Packing::Q2K, DType::Uint4, 16, q2_k),
        T::Q3K => plain(Packing::Q3K, DType::Int4, 16, q3_k),
        T::Q4K => offset(Packing::Q4K, DType::Uint4, 32, q4_k),
        T::Q5K => offset(Packing::Q5K, DType::Uint8, 32, q5_k),
        T::Q6K => plain(Packing::Q6K, DType::Int8, 16, q6_k),
        T::Iq4Nl => table(Packing::Iq4Nl, iq4_nl),
        T::Iq4Xs => table(Packing::Iq4Xs, iq4_xs),
        _ => return None,
    })
}

/// Where a block has its fp16 scale and minimum, and the largest magnitudes that a number is of
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Offset, and the largest code times the largest scale of a part of the block.
    pub scale: (usize, f32),
    /// Offset, and the largest minimum of a part of the block.
    pub minimum: Option<(usize, f32)>,
}

/// The bound of the numbers of a block; `None` where the type is not quantised.
pub(crate) fn bound(ty: TensorType) -> Option<Bound> {
    use TensorType as T;
    let (scale, minimum) = match ty {
        T::Q4_0 => ((0, 8.0), None),
        T::Q4_1 => ((0, 15.0), Some((2, 1.0))),
        T::Q5_0 => ((0, 16.0), None),
        T::Q5_1 => ((0, 31.0), Some((2, 1.0))),
        T::Q8_0 => ((0, 128.0), None),
        T::Q2K => ((80, 3.0 * 15.0), Some((82, 15.0))),
        T::Q3K => ((108, 4.0 * 32.0), None),
        T::Q4K => ((0, 15.0 * 63.0), Some((2, 63.0))),
        T::Q5K => ((0, 31.0 * 63.0), Some((2, 63.0))),
        T::Q6K => ((208, 32.0 * 128.0), None),
        T::Iq4Nl => ((0, 127.0), None),
        T::Iq4Xs => ((0, 127.0 * 32.0), None),
        _ => return None,
    };
    Some(Bound { scale, minimum })
}

/// The constants that a quantised tensor becomes.
pub struct Parts {
    /// Codes, packed as MIL packs them.
    pub codes: Data,
    /// One fp32 scale a group.
    pub scales: Data,
    /// One fp32 offset a group.
    pub offsets: Option<Data>,
}

/// Split the blocks of a tensor of type `ty` into constants that are derived when they are read.
pub fn parts(ty: TensorType, layout: Layout, bytes: &Bytes) -> Parts {
    let part = |part| -> Data {
        let (block_len, block_bytes) = (ty.block_len(), ty.block_bytes());
        Data::Source(Arc::new(PartSource {
            layout,
            part,
            block_len,
            block_bytes,
            bytes: bytes.clone(),
        }))
    };
    Parts {
        codes: part(Part::Codes),
        scales: part(Part::Scales),
        offsets: layout.has_offset.then(|| part(Part::Offsets)),
    }
}

/// An fp32 constant that is stored as fp16 or bfloat16.
pub fn widened(ty: TensorType, bytes: &Bytes) -> Option<Data> {
    let packing = match ty {
        TensorType::F16 => Packing::F16,
        TensorType::Bf16 => Packing::Bf16,
        _ => return None,
    };
    Some(Data::Source(Arc::new(WidenedSource {
        packing,
        bytes: bytes.clone(),
    })))
}

/// The numbers of a quantised tensor, as fp32.
pub fn dequantized(ty: TensorType, bytes: &Bytes) -> Option<Data> {
    let layout = layout(ty)?;
    let (block_len, block_bytes) = (ty.block_len(), ty.block_bytes());
    Some(Data::Source(Arc::new(PartSource {
        layout,
        part: Part::Numbers,
        block_len,
        block_bytes,
        bytes: bytes.clone(),
    })))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Codes,
    Scales,
    Offsets,
    /// What the others say together.
    Numbers,
}

struct PartSource {
    layout: Layout,
    part: Part,
    block_len: usize,
    block_bytes: usize,
    bytes: Bytes,
}

impl PartSource {
    /// Bytes that one block contributes.
    fn part_bytes(&self) -> usize {
        match self.part {
            Part::Codes => self.block_len * self.layout.codes.bits() / 8,
            Part::Scales | Part::Offsets => self.block_len / self.layout.group * 4,
            Part::Numbers => self.block_len * 4,
        }
    }

    fn block(&self, block: &[u8], out: &mut [u8]) {
        let mut unpacked = Block {
            codes: [0; MAX_BLOCK],
            scales: [0.0; 16],
            minimums: [0.0; 16],
        };
        (self.layout.unpack)(block, &mut unpacked);
        let groups = unpacked.scales.iter().zip(&unpacked.minimums);
        let (cells, _) = out.as_chunks_mut::<4>();
        match self.part {
            Part::Codes if self.layout.codes.bits() == 4 => {
                for (byte, pair) in out.iter_mut().zip(unpacked.codes.as_chunks::<2>().0) {
                    *byte = (pair[0] & 15).cast_unsigned() | (pair[1] << 4).cast_unsigned();
                }
            }
            Part::Codes => out
                .iter_mut()
                .zip(unpacked.codes)
                .for_each(|(byte, code)| *byte = code.cast_unsigned()),
            Part::Numbers => {
                for (i, (cell, code)) in cells.iter_mut().zip(unpacked.codes).enumerate() {
                    let group = i / self.layout.group;
                    let code = if self.layout.has_table {
                        IQ4_TABLE[usize::from(code.cast_unsigned() & 15)]
                    } else {
                        code
                    };
                    *cell = (unpacked.scales[group] * f32::from(code) + unpacked.minimums[group])
                        .to_le_bytes();
                }
            }
            Part::Scales => cells
                .iter_mut()
                .zip(groups)
                .for_each(|(c, (s, m))| *c = affine(*s, *m).0.to_le_bytes()),
            Part::Offsets => cells
                .iter_mut()
                .zip(groups)
                .for_each(|(c, (s, m))| *c = affine(*s, *m).1.to_le_bytes()),
        }
    }
}

/// Scale and offset that give `scale * code + minimum` as `scale * (code - offset)`.
fn affine(scale: f32, minimum: f32) -> (f32, f32) {
    // 2^30: fp32 has steps of 64 below it, so that a code of at most 31 (no type with minimums has
    // more) is rounded away.
    const HUGE: f32 = (1u64 << 30) as f32;
    if scale == 0.0 && minimum != 0.0 {
        return (minimum.abs() / HUGE, -HUGE.copysign(minimum));
    }
    if minimum == 0.0 {
        return (scale, 0.0);
    }
    (scale, -minimum / scale)
}

impl Source for PartSource {
    fn byte_len(&self) -> usize {
        self.bytes.len() / self.block_bytes * self.part_bytes()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let size = self.part_bytes();
        let mut buffer = [0; 4 * MAX_BLOCK];
        let mut done = 0;
        while done < out.len() {
            let (index, skip) = ((offset + done) / size, (offset + done) % size);
            let n = (size - skip).min(out.len() - done);
            let start = index * self.block_bytes;
            self.block(
                &self.bytes.as_slice()[start..start + self.block_bytes],
                &mut buffer[..size],
            );
            out[done..done + n].copy_from_slice(&buffer[skip..skip + n]);
            done += n;
        }
    }

    fn packed(&self) -> Option<Packed> {
        let packed = Packed {
            packing: self.layout.packing,
            bytes: self.bytes.clone(),
        };
        (self.part != Part::Numbers).then_some(packed)
    }
}

/// fp32 numbers over `divisor`, as fp32 or fp16.
pub fn divided(numbers: Data, divisor: f32, to: DType) -> Data {
    Data::Source(Arc::new(DividedSource {
        numbers,
        divisor,
        to,
    }))
}

struct DividedSource {
    numbers: Data,
    divisor: f32,
    to: DType,
}

impl Source for DividedSource {
    fn byte_len(&self) -> usize {
        self.numbers.byte_len() / 4 * (self.to.bits() / 8)
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let size = self.to.bits() / 8;
        let (first, end) = (offset / size, (offset + out.len()).div_ceil(size));
        let mut stored = vec![0; (end - first) * 4];
        // The caller keeps to the length, and so does this.
        let _ = self.numbers.read(first * 4, &mut stored);
        let numbers = stored
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b) / self.divisor);
        let bytes: Vec<u8> = match self.to {
            DType::Fp16 => numbers
                .flat_map(|v| f64_to_f16(v.into()).to_le_bytes())
                .collect(),
            _ => numbers.flat_map(f32::to_le_bytes).collect(),
        };
        let skip = offset - first * size;
        out.copy_from_slice(&bytes[skip..skip + out.len()]);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

struct WidenedSource {
    packing: Packing,
    bytes: Bytes,
}

impl Source for WidenedSource {
    fn byte_len(&self) -> usize {
        self.bytes.len() * 2
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let stored = self.bytes.as_slice();
        for (i, byte) in out.iter_mut().enumerate() {
            let at = offset + i;
            let bits = u16::from_le_bytes([stored[at / 4 * 2], stored[at / 4 * 2 + 1]]);
            let value = match self.packing {
                Packing::F16 => thane_mil::literal::f16_to_f32(bits),
                _ => f32::from_bits(u32::from(bits) << 16),
            };
            *byte = value.to_le_bytes()[at % 4];
        }
    }

    fn packed(&self) -> Option<Packed> {
        Some(Packed {
            packing: self.packing,
            bytes: self.bytes.clone(),
        })
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    thane_mil::literal::f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// 32 codes of 4 bits: the low nibbles of 16 bytes, then the high ones.
fn nibbles(bytes: &[u8], out: &mut [i8]) {
    for (i, byte) in bytes.iter().enumerate() {
        out[i] = (byte & 15).cast_signed();
        out[i + bytes.len()] = (byte >> 4).cast_signed();
    }
}

/// Add bit `i` of `high` to code `i`, as its fifth bit.
fn fifth_bits(high: &[u8], codes: &mut [i8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((high[i / 8] >> (i % 8) & 1) << 4).cast_signed();
    }
}

fn q4_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[2..18], &mut out.codes);
    out.codes[..32].iter_mut().for_each(|c| *c -= 8);
}

fn q4_1(b: &[u8], out: &mut Block) {
    (out.scales[0], out.minimums[0]) = (half(b, 0), half(b, 2));
    nibbles(&b[4..20], &mut out.codes);
}

fn q5_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[6..22], &mut out.codes);
    fifth_bits(&b[2..6], &mut out.codes[..32]);
    out.codes[..32].iter_mut().for_each(|c| *c -= 16);
}

fn q5_1(b: &[u8], out: &mut Block) {
    (out.scales[0], out.minimums[0]) = (half(b, 0), half(b, 2));
    nibbles(&b[8..24], &mut out.codes);
    fifth_bits(&b[4..8], &mut out.codes[..32]);
}

fn q8_0(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    out.codes
        .iter_mut()
        .zip(&b[2..34])
        .for_each(|(c, byte)| *c = byte.cast_signed());
}

/// 16 scales and minimums of 4 bits; 256 codes of 2 bits, four to a byte at a distance of 32.
fn q2_k(b: &[u8], out: &mut Block) {
    let (d, dmin) = (half(b, 80), half(b, 82));
    for (i, byte) in b[..16].iter().enumerate() {
        out.scales[i] = d * f32::from(byte & 15);
        out.minimums[i] = -dmin * f32::from(byte >> 4);
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code = two_bits(&b[16..80], i).cast_signed();
    }
}

/// The 2-bit code `i` of a block of 256: a half block takes 32 bytes, each quarter of it two bits
/// of every byte.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// 16 signed scales of 6 bits; codes of 2 bits whose third bit, inverted, is in a mask of 32 bytes.
fn q3_k(b: &[u8], out: &mut Block) {
    let (mask, codes, scales, d) = (&b[..32], &b[32..96], &b[96..108], half(b, 108));
    for (i, scale) in out.scales.iter_mut().enumerate() {
        let low = scales[i % 8] >> (i / 8 * 4) & 15;
        let high = scales[8 + i % 4] >> (i / 4 * 2) & 3;
        *scale = d * (f32::from(low | high << 4) - 32.0);
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        let high = mask[i % 32] >> (i / 32) & 1;
        *code = (two_bits(codes, i) | high << 2).cast_signed() - 4;
    }
}

/// 8 scales and 8 minimums of 6 bits in 12 bytes.
fn k_scales(b: &[u8], out: &mut Block) {
    let (d, dmin, s) = (half(b, 0), half(b, 2), &b[4..16]);
    for i in 0..8 {
        let (scale, minimum) = if i < 4 {
            (s[i] & 63, s[i + 4] & 63)
        } else {
            (
                s[i + 4] & 15 | s[i - 4] >> 6 << 4,
                s[i + 4] >> 4 | s[i] >> 6 << 4,
            )
        };
        out.scales[i] = d * f32::from(scale);
        out.minimums[i] = -dmin * f32::from(minimum);
    }
}

fn q4_k(b: &[u8], out: &mut Block) {
    k_scales(b, out);
    for (bytes, codes) in b[16..144].chunks(32).zip(out.codes.chunks_mut(64)) {
        nibbles(bytes, codes);
    }
}

fn q5_k(b: &[u8], out: &mut Block) {
    k_scales(b, out);
    for (bytes, codes) in b[48..176].chunks(32).zip(out.codes.chunks_mut(64)) {
        nibbles(bytes, codes);
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        *code |= ((b[16 + i % 32] >> (i / 32) & 1) << 4).cast_signed();
    }
}

/// 16 scales of 8 bits; the low 4 bits of a half block in 64 bytes, the high 2 in 32.
fn q6_k(b: &[u8], out: &mut Block) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half(b, 208));
    for (scale, byte) in out.scales.iter_mut().zip(scales) {
        *scale = d * f32::from(byte.cast_signed());
    }
    for (i, code) in out.codes.iter_mut().enumerate() {
        let nibble = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        *code = (nibble | two_bits(high, i) << 4).cast_signed() - 32;
    }
}

fn iq4_nl(b: &[u8], out: &mut Block) {
    out.scales[0] = half(b, 0);
    nibbles(&b[2..18], &mut out.codes);
}

fn iq4_xs(b: &[u8], out: &mut Block) {
    let (d, high, low) = (half(b, 0), u16::from_le_bytes([b[2], b[3]]), &b[4..8]);
    for i in 0..8 {
        let scale = low[i / 2] >> (i % 2 * 4) & 15 | ((high >> (2 * i) & 3) << 4) as u8;
        out.scales[i] = d * (f32::from(scale) - 32.0);
    }
    for (bytes, codes) in b[8..136].chunks(16).zip(out.codes.chunks_mut(32)) {
        nibbles(bytes, codes);
    }
}
