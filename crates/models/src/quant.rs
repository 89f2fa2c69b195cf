//! Converts block-quantized tensors to the constants of MIL's constexpr ops.
//!
//! A block type defines `value = scale * code + minimum` with integer codes in small groups. MIL's
//! `constexpr_blockwise_shift_scale` defines `scale * (code - offset)`, so codes, scales and
//! offsets of all blocks become one constant each. The type's row in `thane-blocks`
//! ([`thane_blocks::Codes`]) determines the constants: the element type of the codes, the group
//! length, `offset = -minimum / scale` if the type has minimums, and a `constexpr_lut_to_dense` if
//! the codes are indices into a lookup table. Scales and offsets are fp32.
//!
//! Codes are exact. Scales are exact, because a product of an fp16 number (11 significant bits) and
//! an integer of at most 8 bits fits the 24 bits of fp32. An offset is a quotient that is rounded
//! once to fp32, so `scale * (code - offset)` is three roundings away from `scale * code +
//! minimum`, which the `gguf` Python package rounds once: the two differ by at most 4 * 2^-24 =
//! 2.4e-7 of `|scale * code| + |minimum|`. Types without offsets reproduce the package bit for bit
//! (`tests/quant`). The largest relative errors that `python3 crates/blocks/tests/make_blocks.py`
//! finds in 4,096 random blocks of each type, with arbitrary scales and with scales that are common
//! in weights:
//!
//! | type | any scale | common scale |
//! |---|---|---|
//! | Q4_1 | 1.6e-7 | 1.2e-7 |
//! | Q5_1 | 1.6e-7 | 1.2e-7 |
//! | Q2_K | 1.8e-7 | 1.2e-7 |
//! | Q4_K | 1.8e-7 | 1.2e-7 |
//! | Q5_K | 2.2e-7 | 1.2e-7 |
//!
//! A group with scale 0 and a minimum other than 0 gets the scale `|minimum| * 2^-30` and the
//! offset `-+2^30`: the code is then rounded away, and the value is exactly the minimum.

use std::sync::Arc;

use thane_blocks::{Block, BlockType, CodeType, Codes, MAX_BLOCK_LEN, bf16_to_f32, f16_to_f32};
use thane_mil::data::{Bytes, Data, Packed, Source};
use thane_mil::literal::f64_to_f16;
use thane_mil::types::DType;

use crate::checkpoint::{ScaledParts, TensorType};

/// The constants that represent a quantized tensor.
pub struct QuantizedConstants {
    /// Element type of the codes.
    pub code_type: DType,
    /// Number of elements that share a scale.
    pub group_len: usize,
    /// The lookup table that the codes index.
    pub table: Option<&'static [i8; 16]>,
    /// Codes in MIL's packing.
    pub codes: Data,
    /// One fp32 scale for each group.
    pub scales: Data,
    /// One fp32 offset for each group, if the type has minimums.
    pub offsets: Option<Data>,
}

impl QuantizedConstants {
    /// The constants of a matrix of codes with scales, whose groups have `group_len` columns.
    pub fn of_scaled(parts: ScaledParts, group_len: usize) -> Self {
        Self {
            code_type: parts.code_type,
            group_len,
            table: None,
            codes: parts.codes,
            scales: parts.scales,
            offsets: parts.offsets,
        }
    }
}

/// Splits the blocks of a tensor into constants, which are computed when they are read. `None` if
/// the type is not quantized.
pub fn parts(ty: TensorType, bytes: &Bytes) -> Option<QuantizedConstants> {
    let ty = ty.block_type()?;
    let codes = ty.codes()?;
    let part = |part| -> Data {
        Data::Source(Arc::new(PartSource {
            ty,
            codes,
            part,
            bytes: bytes.clone(),
        }))
    };
    Some(QuantizedConstants {
        code_type: code_type(codes.ty),
        group_len: codes.group_len,
        table: codes.table,
        codes: part(Numbers::Codes),
        scales: part(Numbers::Scales),
        offsets: codes.has_minimum.then(|| part(Numbers::Offsets)),
    })
}

fn code_type(ty: CodeType) -> DType {
    match ty {
        CodeType::Int4 => DType::Int4,
        CodeType::Uint4 => DType::Uint4,
        CodeType::Int8 => DType::Int8,
        CodeType::Uint8 => DType::Uint8,
    }
}

/// The fp32 numbers of a tensor that is stored as fp16 or bfloat16; `None` for other types.
pub fn widened(ty: TensorType, bytes: &Bytes) -> Option<Data> {
    let ty = match ty {
        TensorType::F16 => BlockType::F16,
        TensorType::BF16 => BlockType::Bf16,
        _ => return None,
    };
    Some(Data::Source(Arc::new(WidenedSource {
        ty,
        bytes: bytes.clone(),
    })))
}

/// The fp32 numbers of a quantized tensor; `None` for other types.
pub fn dequantized(ty: TensorType, bytes: &Bytes) -> Option<Data> {
    let ty = ty.block_type()?;
    Some(Data::Source(Arc::new(PartSource {
        ty,
        codes: ty.codes()?,
        part: Numbers::Dequantized,
        bytes: bytes.clone(),
    })))
}

/// A constant that is computed from quantized blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbers {
    Codes,
    Scales,
    Offsets,
    /// The dequantized values.
    Dequantized,
}

/// Computes one constant from the blocks of a tensor.
struct PartSource {
    ty: BlockType,
    codes: &'static Codes,
    part: Numbers,
    bytes: Bytes,
}

impl PartSource {
    fn code_bits(&self) -> usize {
        code_type(self.codes.ty).bits()
    }

    /// Number of bytes of the constant that one block gives.
    fn part_bytes(&self) -> usize {
        let block_len = self.ty.block_len();
        match self.part {
            Numbers::Codes => block_len * self.code_bits() / 8,
            Numbers::Scales | Numbers::Offsets => block_len / self.codes.group_len * 4,
            Numbers::Dequantized => block_len * 4,
        }
    }

    /// Computes the bytes of the constant that one block gives.
    fn block(&self, bytes: &[u8], out: &mut [u8]) {
        let mut block = Block::default();
        self.ty.unpack(bytes, &mut block);
        let groups = block.scales.iter().zip(&block.minimums);
        let (cells, _) = out.as_chunks_mut::<4>();
        match self.part {
            Numbers::Codes if self.code_bits() == 4 => {
                for (byte, pair) in out.iter_mut().zip(block.codes.as_chunks::<2>().0) {
                    *byte = (pair[0] & 15).cast_unsigned() | (pair[1] << 4).cast_unsigned();
                }
            }
            Numbers::Codes => out
                .iter_mut()
                .zip(block.codes)
                .for_each(|(byte, code)| *byte = code.cast_unsigned()),
            Numbers::Dequantized => {
                let mut numbers = [0.0; MAX_BLOCK_LEN];
                block.values(self.codes, &mut numbers[..self.ty.block_len()]);
                for (cell, number) in cells.iter_mut().zip(numbers) {
                    *cell = number.to_le_bytes();
                }
            }
            Numbers::Scales => cells
                .iter_mut()
                .zip(groups)
                .for_each(|(c, (s, m))| *c = affine(*s, *m).0.to_le_bytes()),
            Numbers::Offsets => cells
                .iter_mut()
                .zip(groups)
                .for_each(|(c, (s, m))| *c = affine(*s, *m).1.to_le_bytes()),
        }
    }
}

/// Scale and offset that give `scale * code + minimum` as `scale * (code - offset)`.
fn affine(scale: f32, minimum: f32) -> (f32, f32) {
    // Below 2^30, adjacent fp32 numbers are 64 apart, so a code of at most 31 is rounded away. No
    // type with minimums has greater codes.
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
        self.bytes.len() / self.ty.block_bytes() * self.part_bytes()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let size = self.part_bytes();
        let mut buffer = [0; 4 * MAX_BLOCK_LEN];
        let block_bytes = self.ty.block_bytes();
        let mut done = 0;
        while done < out.len() {
            let (index, skip) = ((offset + done) / size, (offset + done) % size);
            let n = (size - skip).min(out.len() - done);
            let start = index * block_bytes;
            let block = &self.bytes.as_slice()[start..start + block_bytes];
            self.block(block, &mut buffer[..size]);
            out[done..done + n].copy_from_slice(&buffer[skip..skip + n]);
            done += n;
        }
    }

    fn packed(&self) -> Option<Packed> {
        let packed = Packed {
            ty: self.ty,
            bytes: self.bytes.clone(),
        };
        (self.part != Numbers::Dequantized).then_some(packed)
    }
}

/// Divides fp32 numbers by `divisor`; the result is fp32 or fp16.
pub fn divided(numbers: Data, divisor: f32, to: DType) -> Data {
    Data::Source(Arc::new(DividedSource {
        numbers,
        divisor,
        to,
    }))
}

/// Divides numbers when they are read.
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
        // `Source::read` promises that the range is inside the constant.
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

/// Rows of fp32 numbers as int8 codes, and an fp16 scale for each row: number = code * scale, where
/// the scale is the greatest magnitude of the row over 127.
pub fn int8_rows(numbers: Data, n_columns: usize) -> (Data, Data) {
    let part = |scales| {
        Data::Source(Arc::new(Int8Rows {
            numbers: numbers.clone(),
            n_columns: n_columns.max(1),
            scales,
        }))
    };
    (part(false), part(true))
}

/// Codes or scales of rows, computed when they are read.
struct Int8Rows {
    /// fp32.
    numbers: Data,
    n_columns: usize,
    /// Whether it is the scales.
    scales: bool,
}

impl Int8Rows {
    /// The codes of a row, and its scale.
    fn row(&self, idx: usize) -> (Vec<u8>, u16) {
        let mut stored = vec![0; 4 * self.n_columns];
        // A constant that ends early leaves zeros; `Weights::finish` has refused such a tensor.
        let _ = self.numbers.read(idx * stored.len(), &mut stored);
        let numbers = stored.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let most = numbers.clone().fold(0.0f32, |most, x| most.max(x.abs()));
        let scale = f64_to_f16(f64::from(most) / 127.0);
        let step = f16_to_f32(scale);
        let code = |x: f32| {
            let code = if step > 0.0 {
                (x / step).round_ties_even()
            } else {
                0.0
            };
            (code.clamp(-127.0, 127.0) as i8).cast_unsigned()
        };
        (numbers.map(code).collect(), scale)
    }
}

impl Source for Int8Rows {
    fn byte_len(&self) -> usize {
        let n_rows = self.numbers.byte_len() / 4 / self.n_columns;
        n_rows * if self.scales { 2 } else { self.n_columns }
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let size = if self.scales { 2 } else { self.n_columns };
        let mut done = 0;
        while done < out.len() {
            let (idx, skip) = ((offset + done) / size, (offset + done) % size);
            let (codes, scale) = self.row(idx);
            let row = if self.scales {
                scale.to_le_bytes().to_vec()
            } else {
                codes
            };
            let n = (row.len() - skip).min(out.len() - done);
            out[done..done + n].copy_from_slice(&row[skip..skip + n]);
            done += n;
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// Converts fp16 or bfloat16 numbers to fp32 when they are read.
struct WidenedSource {
    ty: BlockType,
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
            let value = match self.ty {
                BlockType::F16 => f16_to_f32(bits),
                _ => bf16_to_f32(bits),
            };
            *byte = value.to_le_bytes()[at % 4];
        }
    }

    fn packed(&self) -> Option<Packed> {
        Some(Packed {
            ty: self.ty,
            bytes: self.bytes.clone(),
        })
    }
}
