//! Literal values: constants and attributes that are written into a program.

use crate::data::Data;
use crate::types::{DType, TensorType, Type};

/// A value that is part of the program.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// A tensor or a scalar other than a string. Every dimension is known, and the data has exactly
    /// the bytes of the type.
    Tensor(TensorType, Data),
    /// A string scalar.
    String(String),
    /// A list with its element type, which an empty list could not tell otherwise.
    List(Type, Vec<Literal>),
    /// A fixed sequence.
    Tuple(Vec<Literal>),
    /// A dictionary: key type, value type and entries in their written order.
    Dict(Type, Type, Vec<(Literal, Literal)>),
}

macro_rules! numbers {
    ($($scalar:ident $vector:ident $t:ty, $dtype:expr;)*) => {
        impl Literal {$(
            #[doc = concat!("A scalar `", stringify!($t), "`.")]
            pub fn $scalar(v: $t) -> Self {
                Literal::Tensor(TensorType::scalar($dtype), Data::owned(v.to_le_bytes().to_vec()))
            }

            #[doc = concat!("A vector of `", stringify!($t), "`.")]
            pub fn $vector(v: &[$t]) -> Self {
                let bytes = v.iter().flat_map(|x| x.to_le_bytes()).collect();
                Literal::Tensor(TensorType::new($dtype, [v.len()]), Data::owned(bytes))
            }
        )*}
    };
}

numbers! {
    i32 i32s i32, DType::Int32;
    f32 f32s f32, DType::Fp32;
    u64 u64s u64, DType::Uint64;
}

impl Literal {
    /// A scalar `bool`.
    pub fn bool(v: bool) -> Self {
        Literal::Tensor(
            TensorType::scalar(DType::Bool),
            Data::owned(vec![u8::from(v)]),
        )
    }

    /// A vector of `bool`.
    pub fn bools(v: &[bool]) -> Self {
        let bytes = v.iter().map(|&b| u8::from(b)).collect();
        Literal::Tensor(TensorType::new(DType::Bool, [v.len()]), Data::owned(bytes))
    }

    /// A string.
    pub fn string(v: impl Into<String>) -> Self {
        Literal::String(v.into())
    }

    /// The literal's type.
    pub fn ty(&self) -> Type {
        match self {
            Literal::Tensor(t, _) => Type::Tensor(t.clone()),
            Literal::String(_) => Type::Tensor(TensorType::scalar(DType::String)),
            Literal::List(t, items) => Type::List(Box::new(t.clone()), Some(items.len())),
            Literal::Tuple(items) => Type::Tuple(items.iter().map(Literal::ty).collect()),
            Literal::Dict(k, v, _) => Type::Dict(Box::new(k.clone()), Box::new(v.clone())),
        }
    }

    /// The string, if the literal is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Literal::String(s) => Some(s),
            _ => None,
        }
    }

    /// The elements of a tensor of booleans or integers (8 bits or wider, `uint64` excluded), in
    /// order; `None` for other literals.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        let Literal::Tensor(ty, data) = self else {
            return None;
        };
        let bytes = data.to_vec();
        Some(match ty.dtype {
            DType::Bool | DType::Uint8 => bytes.iter().map(|&b| i64::from(b)).collect(),
            DType::Int8 => bytes.iter().map(|&b| i64::from(b.cast_signed())).collect(),
            DType::Int16 => chunks(&bytes, |b| i64::from(i16::from_le_bytes(b))),
            DType::Uint16 => chunks(&bytes, |b| i64::from(u16::from_le_bytes(b))),
            DType::Int32 => chunks(&bytes, |b| i64::from(i32::from_le_bytes(b))),
            DType::Uint32 => chunks(&bytes, |b| i64::from(u32::from_le_bytes(b))),
            DType::Int64 => chunks(&bytes, i64::from_le_bytes),
            _ => return None,
        })
    }

    /// The elements of an fp16 or fp32 tensor, in order; `None` for other literals.
    pub fn to_floats(&self) -> Option<Vec<f32>> {
        let Literal::Tensor(ty, data) = self else {
            return None;
        };
        match ty.dtype {
            DType::Fp32 => Some(chunks(&data.to_vec(), f32::from_le_bytes)),
            DType::Fp16 => Some(chunks(&data.to_vec(), |b| {
                f16_to_f32(u16::from_le_bytes(b))
            })),
            _ => None,
        }
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| f(*c)).collect()
}

/// The bits of the NaN that MIL text spells `nan`: quiet, positive, without a payload.
pub(crate) fn quiet_nan(dtype: DType) -> Option<u64> {
    match dtype {
        DType::Fp16 => Some(0x7e00),
        DType::Bf16 => Some(0x7fc0),
        DType::Fp32 => Some(0x7fc0_0000),
        DType::Fp64 => Some(0x7ff8_0000_0000_0000),
        _ => None,
    }
}

/// The value of an IEEE binary16 number given by its bits.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = f32::from(bits & 0x3ff);
    match (bits >> 10) & 0x1f {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        e => sign * (1024.0 + fraction) * 2f32.powi(i32::from(e) - 25),
    }
}

/// The IEEE binary16 number nearest to `v`, ties to even, by its bits.
pub fn f64_to_f16(v: f64) -> u16 {
    let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = v.abs();
    if v.is_nan() {
        return sign | 0x7e00;
    }
    // 65520: half-way between the largest finite number and the next power of two.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    if magnitude < 2f64.powi(-14) {
        return sign | (magnitude * 2f64.powi(24)).round_ties_even() as u16;
    }
    let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
    let fraction = (magnitude * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // A fraction that rounds up to 2048 carries into the exponent by the addition.
    sign | ((((exponent + 14) as u16) << 10) + fraction)
}

/// The bfloat16 number nearest to `v` rounded to fp32, ties to even, by its bits.
pub fn f64_to_bf16(v: f64) -> u16 {
    let bits = (v as f32).to_bits();
    if v.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Half of the last place kept, less one where that place is even: a sum that carries is the
    // rounding up. It cannot overflow, since the bits of infinities end in zeros.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_bits_have_their_values() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc100, -2.5),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
        ] {
            assert_eq!(f16_to_f32(bits), value);
        }
        assert_eq!(f16_to_f32(0xfc00), f32::NEG_INFINITY);
        assert!(f16_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn half_precision_round_trips() {
        for bits in (0..=u16::MAX).filter(|b| b & 0x7c00 != 0x7c00) {
            assert_eq!(f64_to_f16(f64::from(f16_to_f32(bits))), bits);
        }
        assert_eq!(f64_to_f16(65519.9), 0x7bff);
        assert_eq!(f64_to_f16(1.0 + 2f64.powi(-11)), 0x3c00, "ties to even");
        assert_eq!(f64_to_f16(2047.9999), 0x6800, "carries");
    }

    #[test]
    fn bfloat16_is_the_nearest() {
        // 1 + 2^-8 lies half-way between 1 (even) and 1 + 2^-7; 1 + 3 * 2^-8 between 1 + 2^-7 and 1
        // + 2^-6 (even).
        for (v, bits) in [
            (1.0, 0x3f80),
            (-2.5, 0xc020),
            (1.0 + 2f64.powi(-8), 0x3f80),
            (1.0 + 3.0 * 2f64.powi(-8), 0x3f82),
        ] {
            assert_eq!(f64_to_bf16(v), bits);
        }
        assert_eq!(f64_to_bf16(f64::NEG_INFINITY), 0xff80);
        assert_eq!(f64_to_bf16(f64::from(f32::MAX)), 0x7f80);
        assert_eq!(f64_to_bf16(f64::NAN) & 0x7fc0, 0x7fc0);
    }

    #[test]
    fn numbers_round_trip() {
        assert_eq!(Literal::i32s(&[3, -7]).to_ints(), Some(vec![3, -7]));
        assert_eq!(
            Literal::f32s(&[0.5, -7.25]).to_floats(),
            Some(vec![0.5, -7.25])
        );
        assert_eq!(Literal::bools(&[true, false]).to_ints(), Some(vec![1, 0]));
        assert_eq!(Literal::f32(1.5).to_ints(), None);
    }
}
