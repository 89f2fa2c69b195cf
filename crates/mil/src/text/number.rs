//! Reads numbers from text.

use crate::literal::{f64_to_bf16, f64_to_f16, quiet_nan};
use crate::types::DType;

/// Packs elements of a tensor as they are read.
pub struct Elements {
    /// Element type.
    pub dtype: DType,
    /// The packed bytes so far.
    pub bytes: Vec<u8>,
    n: usize,
}

impl Elements {
    /// No elements yet.
    pub fn new(dtype: DType) -> Self {
        Self {
            dtype,
            bytes: Vec::new(),
            n: 0,
        }
    }

    /// Appends the number written as `word`; `None` if `word` is not a number of this type.
    pub fn push(&mut self, word: &str) -> Option<()> {
        let bits = match self.dtype {
            DType::Bool => u64::from(word.parse::<bool>().ok()?),
            DType::Fp16 | DType::Bf16 | DType::Fp32 | DType::Fp64 => float_bits(word, self.dtype)?,
            DType::Int4 | DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => {
                let (v, shift) = (word.parse::<i64>().ok()?, 64 - self.dtype.bits());
                if (v << shift) >> shift != v {
                    return None;
                }
                v.cast_unsigned()
            }
            DType::Fp8E4M3 | DType::Fp8E5M2 | DType::String => return None,
            _ => word
                .parse::<u64>()
                .ok()
                .filter(|v| v.leading_zeros() as usize >= 64 - self.dtype.bits())?,
        };
        for i in 0..self.dtype.bits() {
            let bit = self.n * self.dtype.bits() + i;
            if bit.is_multiple_of(8) {
                self.bytes.push(0);
            }
            self.bytes[bit / 8] |= u8::from(bits >> i & 1 == 1) << (bit % 8);
        }
        self.n += 1;
        Some(())
    }
}

/// The bits of `word` as a number of type `dtype`. Digits that overflow the type are not a number
/// of the type; infinity and NaN are spelled out, as Apple's compiler does.
fn float_bits(word: &str, dtype: DType) -> Option<u64> {
    let (negative, name) = signed(word)?;
    let sign = u64::from(negative) << (dtype.bits() - 1);
    if name == "nan" {
        return Some(quiet_nan(dtype)? | sign);
    }
    let v = if name == "inf" {
        f64::INFINITY
    } else {
        float(name)?
    };
    let (bits, is_finite) = match dtype {
        DType::Fp16 => (u64::from(f64_to_f16(v)), f64_to_f16(v) & 0x7c00 != 0x7c00),
        DType::Bf16 => (u64::from(f64_to_bf16(v)), f64_to_bf16(v) & 0x7f80 != 0x7f80),
        DType::Fp32 => (u64::from((v as f32).to_bits()), (v as f32).is_finite()),
        DType::Fp64 => (v.to_bits(), v.is_finite()),
        _ => return None,
    };
    (is_finite == v.is_finite()).then_some(bits | sign)
}

/// Whether `word` is negative, and `word` without its sign.
fn signed(word: &str) -> Option<(bool, &str)> {
    Some(match word.as_bytes().first()? {
        b'-' => (true, &word[1..]),
        b'+' => (false, &word[1..]),
        _ => (false, word),
    })
}

/// Parses a finite number in decimal or C99 hexadecimal form.
pub fn float(word: &str) -> Option<f64> {
    let (negative, digits) = signed(word)?;
    let v = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        Some(hex) => hex_float(hex)?,
        None if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            digits.parse().ok()?
        }
        None => return None,
    };
    v.is_finite().then_some(if negative { -v } else { v })
}

fn hex_float(hex: &str) -> Option<f64> {
    let (mantissa, exponent) = hex.split_once(['p', 'P'])?;
    let exponent: i32 = exponent
        .parse()
        .ok()
        .filter(|e: &i32| (-5000..=5000).contains(e))?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() || whole.len() + fraction.len() > 15 {
        return None;
    }
    let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).ok()?;
    // Scale in two steps: a subnormal result needs a power of two that is itself out of range.
    let scale = exponent - 4 * fraction.len() as i32;
    Some(digits as f64 * 2f64.powi(scale / 2) * 2f64.powi(scale - scale / 2))
}
