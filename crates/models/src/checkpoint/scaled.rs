//! Matrices whose numbers are codes with scales: `value = scale * (code - offset)`.
//!
//! The methods that quantize Hugging Face checkpoints differ in how they pack codes into words and
//! in what shares a scale. [`Scaled`] describes both by strides, so that codes, scales, offsets
//! and values are computed from the mapped file when they are read. `quantized` makes these
//! matrices from the tensors of a checkpoint. This module knows no methods and no tensor names.

use std::ops::Range;
use std::sync::Arc;

use thane_blocks::{bf16_to_f32, f16_to_f32};
use thane_mil::data::{Bytes, Data, Packed, Source};
use thane_mil::types::DType;

/// What the bits of a code mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// A whole number from 0.
    Unsigned,
    /// A whole number in two's complement.
    Signed,
    /// A whole number to which half of the range was added: 0 means -8 in 4 bits.
    Biased,
    /// A float with 4 bits of exponent, 3 of mantissa, no infinity (`float8_e4m3fn`).
    E4m3,
    /// A float with 5 bits of exponent and 2 of mantissa: the upper half of an IEEE half.
    E5m2,
}

impl Number {
    /// The number with these `bits` bits.
    fn value(self, code: u8, bits: usize) -> f32 {
        match self {
            Self::Unsigned => f32::from(code),
            Self::Signed | Self::Biased => f32::from(self.integer(code, bits).cast_signed()),
            Self::E4m3 => e4m3_to_f32(code),
            Self::E5m2 => f16_to_f32(u16::from(code) << 8),
        }
    }

    /// The whole number, in two's complement if there is a sign.
    fn integer(self, code: u8, bits: usize) -> u8 {
        match self {
            Self::Biased => code.wrapping_sub(1 << (bits - 1)),
            Self::Signed => ((code << (8 - bits)).cast_signed() >> (8 - bits)).cast_unsigned(),
            _ => code,
        }
    }
}

/// The value of an 8-bit float with 4 bits of exponent. Source: OCP 8-bit Floating Point
/// Specification 1.0.
fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The axis along which a word holds several codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Codes of neighboring rows.
    Rows,
    /// Codes of neighboring columns.
    Columns,
}

/// How codes are packed into words.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// Bits of a code: 2, 4 or 8.
    pub bits: usize,
    /// Bytes of a word: 4, or 1 if a word is one code.
    pub word_bytes: usize,
    /// Which codes share a word.
    pub axis: Axis,
    /// Words from one row of words to the next, and from one column of words to the next.
    pub strides: [usize; 2],
    /// The place in the word of each of its codes, if it is not their order.
    pub order: Option<&'static [u8; 8]>,
    /// A number that is added to each word before codes are taken from it.
    pub added: u32,
}

impl Packing {
    /// One code a byte, with these strides.
    pub fn bytes(strides: [usize; 2]) -> Self {
        Self {
            bits: 8,
            word_bytes: 1,
            axis: Axis::Columns,
            strides,
            order: None,
            added: 0,
        }
    }

    /// Codes of `bits` bits in words of 32, lowest bits first.
    pub fn words(bits: usize, axis: Axis, strides: [usize; 2]) -> Self {
        Self {
            bits,
            word_bytes: 4,
            axis,
            strides,
            order: None,
            added: 0,
        }
    }

    /// Codes in a word.
    pub fn per_word(&self) -> usize {
        self.word_bytes * 8 / self.bits
    }

    /// The code at a row and a column; 0 outside of `bytes`, which construction rules out.
    fn code(&self, bytes: &[u8], row: usize, column: usize) -> u8 {
        let per_word = self.per_word();
        let (word_row, word_column, place) = match self.axis {
            Axis::Rows => (row / per_word, column, row % per_word),
            Axis::Columns => (row, column / per_word, column % per_word),
        };
        let at = (word_row * self.strides[0] + word_column * self.strides[1]) * self.word_bytes;
        let word = bytes.get(at..at + self.word_bytes).unwrap_or(&[0; 4]);
        if let &[byte] = word {
            return byte;
        }
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let place = self.order.map_or(place, |order| order[place].into());
        let code = word.wrapping_add(self.added) >> (place * self.bits);
        (code & ((1 << self.bits) - 1)) as u8
    }
}

/// Codes of rows and columns.
#[derive(Clone, Debug)]
pub struct Codes {
    /// The words.
    pub bytes: Bytes,
    /// Where each code is.
    pub packing: Packing,
    /// What the bits of a code mean.
    pub number: Number,
}

impl Codes {
    fn value(&self, bytes: &[u8], row: usize, column: usize) -> f32 {
        let code = self.packing.code(bytes, row, column);
        self.number.value(code, self.packing.bits)
    }
}

/// The type of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleType {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bfloat16.
    Bf16,
}

/// Scales of rows and columns of blocks.
#[derive(Clone, Debug)]
pub struct Scales {
    /// The floats.
    pub bytes: Bytes,
    /// Their type.
    pub ty: ScaleType,
    /// Floats from one row of blocks to the next, and from one column of blocks to the next; 0
    /// where all share one.
    pub strides: [usize; 2],
}

impl Scales {
    /// The scale of a block; 0 outside of `bytes`, which construction rules out.
    fn get(&self, bytes: &[u8], row: usize, column: usize) -> f32 {
        let at = row * self.strides[0] + column * self.strides[1];
        let half = || match bytes.get(2 * at..2 * at + 2) {
            Some(&[a, b]) => u16::from_le_bytes([a, b]),
            _ => 0,
        };
        match self.ty {
            ScaleType::F16 => f16_to_f32(half()),
            ScaleType::Bf16 => bf16_to_f32(half()),
            ScaleType::F32 => match bytes.get(4 * at..4 * at + 4) {
                Some(&[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                _ => 0.0,
            },
        }
    }
}

/// A matrix of codes with scales.
#[derive(Clone, Debug)]
pub struct Scaled {
    /// Rows and columns.
    pub shape: [usize; 2],
    /// The first row, in the stored matrix.
    pub first_row: usize,
    /// Rows and columns that share a scale.
    pub block: [usize; 2],
    /// The codes.
    pub codes: Codes,
    /// The scales; `None` if codes are the values.
    pub scales: Option<Scales>,
    /// The offsets of blocks.
    pub offsets: Option<Codes>,
    /// The column of blocks to which each column belongs, if columns were permuted.
    pub groups: Option<Arc<[u32]>>,
}

/// The constants of MIL that represent a matrix.
pub struct ScaledParts {
    /// Element type of the codes.
    pub code_type: DType,
    /// Rows and columns of scales.
    pub groups: [usize; 2],
    /// Codes in MIL's packing.
    pub codes: Data,
    /// fp32 scales.
    pub scales: Data,
    /// fp32 offsets.
    pub offsets: Option<Data>,
}

impl Scaled {
    /// Some rows of the matrix.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        Self {
            shape: [rows.len(), self.shape[1]],
            first_row: self.first_row + rows.start,
            ..self.clone()
        }
    }

    /// The fp32 values.
    pub fn values(self: &Arc<Self>) -> Data {
        self.part(Numbers::Values)
    }

    /// The constants of `constexpr_blockwise_shift_scale`, which must be whole numbers in equal
    /// blocks; `None` for other matrices.
    pub fn parts(self: &Arc<Self>) -> Option<ScaledParts> {
        let signed = match self.codes.number {
            Number::Unsigned => false,
            Number::Signed | Number::Biased => true,
            Number::E4m3 | Number::E5m2 => return None,
        };
        let code_type = match (self.codes.packing.bits, signed) {
            (8, true) => DType::Int8,
            (8, false) => DType::Uint8,
            (_, true) => DType::Int4,
            (_, false) => DType::Uint4,
        };
        Some(ScaledParts {
            code_type,
            groups: self.grid()?,
            codes: self.part(Numbers::Codes),
            scales: self.part(Numbers::Scales),
            offsets: self.offsets.is_some().then(|| self.part(Numbers::Offsets)),
        })
    }

    /// Row, column and value of the first number that is not below `end` in magnitude.
    pub fn first_beyond(&self, end: f32) -> Option<([usize; 2], f32)> {
        let stored = self.stored();
        let bits = self.codes.packing.bits;
        let (rows, columns) = (self.shape[0], self.shape[1]);
        // A whole number differs from its offset by less than 2^(bits + 1).
        let most = (2_u32 << bits) as f32;
        let is_float = matches!(self.codes.number, Number::E4m3 | Number::E5m2);
        for row in 0..rows {
            let block_row = (self.first_row + row) / self.block[0];
            let n_groups = columns.div_ceil(self.block[1]);
            let is_small = |group| {
                let bound = self.scale(&stored, block_row, group).abs() * most;
                bound < end && bound.is_finite()
            };
            if !is_float && self.groups.is_none() && (0..n_groups).all(is_small) {
                continue;
            }
            for column in 0..columns {
                let value = self.value(&stored, row, column);
                if value.is_nan() || value.abs() >= end {
                    return Some(([row, column], value));
                }
            }
        }
        None
    }

    /// Rows and columns of blocks, if MIL can express the blocks.
    fn grid(&self) -> Option<[usize; 2]> {
        if self.groups.is_some() || self.scales.is_none() {
            return None;
        }
        let [rows, columns] = self.shape;
        let first_block = self.first_row / self.block[0];
        let last_block = (self.first_row + rows.max(1) - 1) / self.block[0];
        let block_rows = if first_block == last_block {
            1
        } else if self.first_row.is_multiple_of(self.block[0]) && rows.is_multiple_of(self.block[0])
        {
            rows / self.block[0]
        } else {
            return None;
        };
        let block_columns = if self.block[1] >= columns {
            1
        } else if columns.is_multiple_of(self.block[1]) {
            columns / self.block[1]
        } else {
            return None;
        };
        Some([block_rows, block_columns])
    }

    fn part(self: &Arc<Self>, part: Numbers) -> Data {
        Data::Source(Arc::new(ScaledSource {
            matrix: Arc::clone(self),
            grid: self.grid().unwrap_or([0, 0]),
            part,
        }))
    }

    fn stored(&self) -> Stored<'_> {
        Stored {
            codes: self.codes.bytes.as_slice(),
            scales: self.scales.as_ref().map_or(&[], |s| s.bytes.as_slice()),
            offsets: self.offsets.as_ref().map_or(&[], |o| o.bytes.as_slice()),
        }
    }

    fn scale(&self, stored: &Stored<'_>, block_row: usize, block_column: usize) -> f32 {
        self.scales
            .as_ref()
            .map_or(1.0, |s| s.get(stored.scales, block_row, block_column))
    }

    fn offset(&self, stored: &Stored<'_>, block_row: usize, block_column: usize) -> f32 {
        self.offsets
            .as_ref()
            .map_or(0.0, |o| o.value(stored.offsets, block_row, block_column))
    }

    fn value(&self, stored: &Stored<'_>, row: usize, column: usize) -> f32 {
        let row = self.first_row + row;
        let block_row = row / self.block[0];
        let block_column = match &self.groups {
            Some(groups) => groups[column] as usize,
            None => column / self.block[1],
        };
        let code = self.codes.value(stored.codes, row, column);
        self.scale(stored, block_row, block_column)
            * (code - self.offset(stored, block_row, block_column))
    }
}

/// The stored bytes of a matrix.
struct Stored<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    offsets: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Codes,
    Scales,
    Offsets,
    Values,
}

/// Computes one constant from a matrix.
struct ScaledSource {
    matrix: Arc<Scaled>,
    /// Rows and columns of blocks.
    grid: [usize; 2],
    part: Numbers,
}

impl ScaledSource {
    fn shape(&self) -> [usize; 2] {
        match self.part {
            Numbers::Codes | Numbers::Values => self.matrix.shape,
            Numbers::Scales | Numbers::Offsets => self.grid,
        }
    }

    /// The code at an index of row-major order, in the low bits; 0 behind the last.
    fn code(&self, stored: &Stored<'_>, at: usize) -> u8 {
        let (m, columns) = (&self.matrix, self.matrix.shape[1].max(1));
        if at >= m.shape[0] * m.shape[1] {
            return 0;
        }
        let (row, column) = (m.first_row + at / columns, at % columns);
        let code = m.codes.packing.code(stored.codes, row, column);
        m.codes.number.integer(code, m.codes.packing.bits)
    }

    /// The float at an index of row-major order.
    fn float(&self, stored: &Stored<'_>, at: usize) -> f32 {
        let columns = self.shape()[1].max(1);
        let (m, row, column) = (&self.matrix, at / columns, at % columns);
        let first_block = m.first_row / m.block[0];
        match self.part {
            Numbers::Scales => m.scale(stored, first_block + row, column),
            Numbers::Offsets => m.offset(stored, first_block + row, column),
            _ => m.value(stored, row, column),
        }
    }
}

impl Source for ScaledSource {
    fn byte_len(&self) -> usize {
        let [rows, columns] = self.shape();
        match self.part {
            Numbers::Codes if self.matrix.codes.packing.bits == 8 => rows * columns,
            Numbers::Codes => (rows * columns).div_ceil(2),
            _ => 4 * rows * columns,
        }
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let stored = self.matrix.stored();
        if self.part == Numbers::Codes && self.matrix.codes.packing.bits == 8 {
            for (i, byte) in out.iter_mut().enumerate() {
                *byte = self.code(&stored, offset + i);
            }
        } else if self.part == Numbers::Codes {
            for (i, byte) in out.iter_mut().enumerate() {
                let at = 2 * (offset + i);
                *byte = self.code(&stored, at) & 15 | self.code(&stored, at + 1) << 4;
            }
        } else {
            let mut done = 0;
            while done < out.len() {
                let (at, skip) = ((offset + done) / 4, (offset + done) % 4);
                let n = (4 - skip).min(out.len() - done);
                let float = self.float(&stored, at).to_le_bytes();
                out[done..done + n].copy_from_slice(&float[skip..skip + n]);
                done += n;
            }
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}
