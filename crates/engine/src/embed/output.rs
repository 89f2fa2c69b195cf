//! What becomes of a vector: fewer dimensions, and the formats that embeddings are stored and sent
//! in.
//!
//! Bits have four packings that do not fit each other: they differ in whether zero counts as
//! positive, in the order of the bits of a byte, and in whether the byte is signed. Each is a
//! [`Format`] with a name of its own.

use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::types::DType;

/// A format of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As it is.
    Float32,
    /// Rounded to the nearest fp16, ties to even.
    Float16,
    /// `clamp(round_half_even(tanh(x) * 127), -128, 127)`, pplx-embed's int8.
    Int8,
    /// 1 where `x >= 0`, else -1, as int8: pplx-embed's `binary`.
    PplxBinary,
    /// A bit for each `x >= 0`, the first the highest of its byte: pplx-embed's `ubinary`.
    PplxUbinary,
    /// A bit for each `x > 0`, the first the highest of its byte, less 128, as int8:
    /// sentence-transformers' `binary`.
    SentenceTransformersBinary,
    /// A bit for each `x > 0`, the first the highest of its byte: sentence-transformers' `ubinary`.
    SentenceTransformersUbinary,
    /// A bit for each `x >= 0`, the first the lowest of its byte: `base64_binary` of Perplexity's
    /// API, before base64.
    LsbUbinary,
}

impl Format {
    /// Every format.
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

    /// What kind it is: `float`, `float16`, `int8`, `binary` or `ubinary`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Float32 => "float",
            Self::Float16 => "float16",
            Self::Int8 => "int8",
            Self::PplxBinary | Self::SentenceTransformersBinary => "binary",
            Self::PplxUbinary | Self::SentenceTransformersUbinary | Self::LsbUbinary => "ubinary",
        }
    }

    /// How bits are packed: `pplx`, `sentence-transformers` or `lsb`; none where there are no bits.
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

    /// The type of an element as it is stored.
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

    /// Whether an element holds eight dimensions.
    pub fn is_packed(self) -> bool {
        self.packing().is_some() && self != Self::PplxBinary
    }

    /// Elements that are stored of a vector of `dim` dimensions; bits beyond the last dimension are
    /// zero.
    pub fn stored_len(self, dim: usize) -> usize {
        if self.is_packed() {
            dim.div_ceil(8)
        } else {
            dim
        }
    }

    /// Bytes that are stored of it.
    pub fn stored_bytes(self, dim: usize) -> usize {
        let element = match self {
            Self::Float32 => 4,
            Self::Float16 => 2,
            _ => 1,
        };
        self.stored_len(dim) * element
    }

    /// Add a vector to `out`, little-endian.
    pub fn write(self, vector: &[f32], out: &mut Vec<u8>) {
        let positive = |v: f32| v > 0.0;
        // Negative zero counts as zero, as it does for numpy.
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
            // Less 128 modulo 256 is the highest bit turned over.
            Self::SentenceTransformersBinary => {
                out.extend(bits(vector, positive, msb).map(|byte| byte ^ 0x80))
            }
            Self::LsbUbinary => out.extend(bits(vector, not_negative, lsb)),
        }
    }

    /// The elements of a stored vector as numbers: what [`Format::write`] wrote, without unpacking
    /// bits.
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

/// tanh is taken in f64 and rounded to f32, so that it is the nearest f32 on every machine. torch
/// 2.15 gives the same byte for 21 million random numbers and for all at and beside exact halves;
/// numpy's f32 tanh errs by a bit and gave another for 25 (`tests/oracle/make_embed.py`).
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

/// The first `dim` elements of each row of `row_len` (Matryoshka), brought to length 1 again where
/// `normalize` says so.
///
/// To be done before a [`Format`] is written. Rows that keep all elements, and rows of zeros, stay
/// as they are.
pub fn shorten(rows: Vec<f32>, row_len: usize, dim: usize, normalize: bool) -> Vec<f32> {
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

fn to_unit_length(row: &mut [f32]) {
    let norm = row
        .iter()
        .map(|v| f64::from(*v).powi(2))
        .sum::<f64>()
        .sqrt();
    // The bound of torch's normalize.
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
        assert_eq!(shorten(rows.clone(), 3, 2, false), [3.0, 4.0, 0.0, 0.0]);
        assert_eq!(shorten(rows.clone(), 3, 2, true), [0.6, 0.8, 0.0, 0.0]);
        assert_eq!(shorten(rows.clone(), 3, 3, true), rows);
    }
}
