//! Converts vectors for storage: fewer dimensions, and the formats in which embeddings are stored
//! and sent.
//!
//! There are four incompatible ways to pack bits. They differ in whether zero counts as positive,
//! in the order of bits within a byte, and in whether the byte is signed. Each is a [`Format`] with
//! its own name.

use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

/// A storage format of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// fp32, unchanged.
    Float32,
    /// Rounded to the nearest fp16, ties to even.
    Float16,
    /// `clamp(round_half_even(tanh(x) * 127), -128, 127)`, the int8 of pplx-embed.
    Int8,
    /// 1 if `x >= 0`, otherwise -1, as int8: `binary` of pplx-embed.
    PplxBinary,
    /// One bit for each `x >= 0`, the first in the highest bit of its byte: `ubinary` of
    /// pplx-embed.
    PplxUbinary,
    /// One bit for each `x > 0`, the first in the highest bit of its byte, minus 128, as int8:
    /// `binary` of sentence-transformers.
    SentenceTransformersBinary,
    /// One bit for each `x > 0`, the first in the highest bit of its byte: `ubinary` of
    /// sentence-transformers.
    SentenceTransformersUbinary,
    /// One bit for each `x >= 0`, the first in the lowest bit of its byte: `base64_binary` of
    /// Perplexity's API, before base64.
    LsbUbinary,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 8] = [
        Self::Float32,
        Self::Float16,
        Self::Int8,
        Self::PplxBinary,
        Self::PplxUbinary,
        Self::SentenceTransformersBinary,
        Self::SentenceTransformersUbinary,
        Self::LsbUbinary,
    ];

    /// Kind and packing of vectors where nobody names them; `quantizes` says whether the model was
    /// trained for int8.
    pub fn usual(quantizes: bool) -> (&'static str, &'static str) {
        match quantizes {
            true => ("int8", "pplx"),
            false => ("float", "sentence-transformers"),
        }
    }

    /// The kind of the format: `float`, `float16`, `int8`, `binary` or `ubinary`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Float32 => "float",
            Self::Float16 => "float16",
            Self::Int8 => "int8",
            Self::PplxBinary | Self::SentenceTransformersBinary => "binary",
            Self::PplxUbinary | Self::SentenceTransformersUbinary | Self::LsbUbinary => "ubinary",
        }
    }

    /// The packing of bits: `pplx`, `sentence-transformers` or `lsb`; `None` for formats that are
    /// not bits.
    pub fn packing(self) -> Option<&'static str> {
        match self {
            Self::Float32 | Self::Float16 | Self::Int8 => None,
            Self::PplxBinary | Self::PplxUbinary => Some("pplx"),
            Self::SentenceTransformersBinary | Self::SentenceTransformersUbinary => {
                Some("sentence-transformers")
            }
            Self::LsbUbinary => Some("lsb"),
        }
    }

    /// The element type in storage.
    pub fn dtype(self) -> DType {
        match self {
            Self::Float32 => DType::Fp32,
            Self::Float16 => DType::Fp16,
            Self::Int8 | Self::PplxBinary | Self::SentenceTransformersBinary => DType::Int8,
            Self::PplxUbinary | Self::SentenceTransformersUbinary | Self::LsbUbinary => {
                DType::Uint8
            }
        }
    }

    /// Whether one stored element holds eight dimensions.
    pub fn is_packed(self) -> bool {
        self.packing().is_some() && self != Self::PplxBinary
    }

    /// The number of stored elements of a vector with `dim` dimensions. Bits beyond the last
    /// dimension are zero.
    pub fn stored_len(self, dim: usize) -> usize {
        if self.is_packed() {
            dim.div_ceil(8)
        } else {
            dim
        }
    }

    /// The number of stored bytes of a vector with `dim` dimensions.
    pub fn stored_bytes(self, dim: usize) -> usize {
        let element = match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
            _ => 1,
        };
        self.stored_len(dim) * element
    }

    /// Appends a vector to `out`, little-endian.
    pub fn write(self, vector: &[f32], out: &mut Vec<u8>) {
        let positive = |v: f32| v > 0.0;
        // Negative zero counts as zero, like in numpy.
        let not_negative = |v: f32| v >= 0.0;
        match self {
            Self::Float32 => out.extend(vector.iter().flat_map(|v| v.to_le_bytes())),
            Self::Float16 => out.extend(
                vector
                    .iter()
                    .flat_map(|v| f64_to_f16(f64::from(*v)).to_le_bytes()),
            ),
            Self::Int8 => out.extend(vector.iter().map(|v| int8(*v).cast_unsigned())),
            Self::PplxBinary => {
                out.extend(
                    vector
                        .iter()
                        .map(|v| (if not_negative(*v) { 1i8 } else { -1 }).cast_unsigned()),
                );
            }
            Self::PplxUbinary => out.extend(bits(vector, not_negative, msb)),
            Self::SentenceTransformersUbinary => out.extend(bits(vector, positive, msb)),
            // Subtracting 128 modulo 256 flips the highest bit.
            Self::SentenceTransformersBinary => {
                out.extend(bits(vector, positive, msb).map(|byte| byte ^ 0x80))
            }
            Self::LsbUbinary => out.extend(bits(vector, not_negative, lsb)),
        }
    }

    /// The elements of a stored vector as numbers. This reverses [`Format::write`] but does not
    /// unpack bits.
    pub fn read(self, stored: &[u8]) -> Vec<f32> {
        match self {
            Self::Float32 => stored
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
            Self::Float16 => stored
                .as_chunks()
                .0
                .iter()
                .map(|b| f16_to_f32(u16::from_le_bytes(*b)))
                .collect(),
            _ if self.dtype() == DType::Int8 => {
                stored.iter().map(|b| f32::from(b.cast_signed())).collect()
            }
            _ => stored.iter().map(|b| f32::from(*b)).collect(),
        }
    }
}

/// Computes tanh in f64 and rounds to f32, so that the result is the nearest f32 on every machine.
/// torch 2.15 gives the same byte for 21 million random numbers and for all numbers at and beside
/// exact halves; numpy's f32 tanh is off by one bit and gave another byte for 25 numbers
/// (`tests/oracle/make_embed.py`).
fn int8(v: f32) -> i8 {
    let soft = f64::from(v).tanh() as f32;
    (soft * 127.0).round_ties_even().clamp(-128.0, 127.0) as i8
}

fn msb(place: usize) -> u8 {
    0x80 >> place
}

fn lsb(place: usize) -> u8 {
    1 << place
}

fn bits(
    vector: &[f32],
    is_set: impl Fn(f32) -> bool,
    bit: fn(usize) -> u8,
) -> impl Iterator<Item = u8> {
    vector.chunks(8).map(move |eight| {
        let set = eight.iter().enumerate().filter(|(_, v)| is_set(**v));
        set.fold(0, |byte, (place, _)| byte | bit(place))
    })
}

/// How many elements of a vector to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Number of elements.
    pub dim: usize,
    /// Whether what is kept is brought to length 1.
    pub normalize: bool,
}

/// Keeps the first elements of each row of `row_len` elements (Matryoshka).
///
/// This must happen before [`Format::write`]. Rows that keep all elements, and rows of zeros, are
/// unchanged.
pub fn shorten(rows: Vec<f32>, row_len: usize, Kept { dim, normalize }: Kept) -> Vec<f32> {
    if dim >= row_len {
        return rows;
    }
    let mut out: Vec<f32> = rows
        .chunks_exact(row_len)
        .flat_map(|row| &row[..dim])
        .copied()
        .collect();
    if normalize {
        out.chunks_exact_mut(dim.max(1)).for_each(to_unit_length);
    }
    out
}

/// Normalizes a vector to length 1; a vector of zeros stays as it is.
pub fn to_unit_length(row: &mut [f32]) {
    let norm = row
        .iter()
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt();
    // The lower bound in torch's `normalize`.
    let norm = norm.max(1e-12);
    row.iter_mut()
        .for_each(|v| *v = (f64::from(*v) / norm) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_has_its_length() {
        let vector: Vec<f32> = (0..13).map(|i| i as f32 - 6.0).collect();
        for format in Format::ALL {
            let mut out = Vec::new();
            format.write(&vector, &mut out);
            assert_eq!(out.len(), format.stored_bytes(13), "{format:?}");
            assert_eq!(format.read(&out).len(), format.stored_len(13), "{format:?}");
        }
        let mut out = Vec::new();
        Format::Float32.write(&vector, &mut out);
        assert_eq!(Format::Float32.read(&out), vector);
    }

    #[test]
    fn rows_are_cut_and_brought_to_length_1() {
        let rows = vec![3.0, 4.0, 12.0, 0.0, 0.0, 5.0];
        let kept = |dim, normalize| shorten(rows.clone(), 3, Kept { dim, normalize });
        assert_eq!(kept(2, false), [3.0, 4.0, 0.0, 0.0]);
        assert_eq!(kept(2, true), [0.6, 0.8, 0.0, 0.0]);
        assert_eq!(kept(3, true), rows);
    }
}
