//! Literal values: constants and attributes that are written into a program.

pub use thane_blocks::{f16_to_f32, f64_to_bf16, f64_to_f16};

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
