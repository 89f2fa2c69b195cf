//! Metadata values. Arrays stay in the bytes of the file and are decoded during iteration, so the
//! 262,144 tokens of a large vocabulary take no memory here.

use thane_mil::data::Bytes;

use super::cursor::{Cursor, Subject};
use super::error::GgufError;
use crate::checkpoint::limits::MAX_ARRAY_DEPTH;

/// A metadata value.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // each variant is named after its GGUF type
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    /// Raw bytes. The format requires UTF-8, which is checked when the string is read as text.
    String(Bytes),
    Array(Array),
}

impl Value {
    /// Name of the type for error messages.
    pub fn type_name(&self) -> String {
        match self {
            Self::U8(_) => ValueType::U8.name().into(),
            Self::I8(_) => ValueType::I8.name().into(),
            Self::U16(_) => ValueType::U16.name().into(),
            Self::I16(_) => ValueType::I16.name().into(),
            Self::U32(_) => ValueType::U32.name().into(),
            Self::I32(_) => ValueType::I32.name().into(),
            Self::U64(_) => ValueType::U64.name().into(),
            Self::I64(_) => ValueType::I64.name().into(),
            Self::F32(_) => ValueType::F32.name().into(),
            Self::F64(_) => ValueType::F64.name().into(),
            Self::Bool(_) => ValueType::Bool.name().into(),
            Self::String(_) => ValueType::String.name().into(),
            Self::Array(array) => format!("an array of {} x {}", array.len, array.element.name()),
        }
    }

    /// The value as an integer, if it has an integer type of any width.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// The value as a float, if it has a float type of either width. It may be infinite or NaN.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(value) => Some(value.into()),
            Self::F64(value) => Some(value),
            _ => None,
        }
    }
}

/// The type of a metadata value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each variant is named after its GGUF type
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// The type with this number in the file.
    fn from_id(type_id: u32) -> Option<Self> {
        Some(match type_id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The name in the GGUF specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::U16 => "uint16",
            Self::I16 => "int16",
            Self::U32 => "uint32",
            Self::I32 => "int32",
            Self::F32 => "float32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "uint64",
            Self::I64 => "int64",
            Self::F64 => "float64",
        }
    }

    /// Bytes of the shortest value of this type: a string has at least a length, an array at least
    /// a type and a length.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// An array of values of one type, still encoded.
#[derive(Debug, Clone)]
pub struct Array {
    element: ValueType,
    len: u64,
    bytes: Bytes,
}

impl Array {
    /// The type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order, decoded one at a time.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        let mut cursor = Cursor::new(&self.bytes);
        // Every element was checked when the file was opened, so `ok` drops no error here.
        (0..self.len).map_while(move |_| read_value(&mut cursor, self.element, "", 0).ok())
    }

    /// The raw bytes of the strings in order; empty for an array of another type. Borrows from the
    /// map of the file.
    pub fn strings(&self) -> Strings<'_> {
        let left = if self.element == ValueType::String {
            self.len
        } else {
            0
        };
        Strings {
            rest: self.bytes.as_slice(),
            left,
        }
    }
}

/// The strings of an array, as raw bytes.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: u64,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (len, rest) = self.rest.split_first_chunk::<8>()?;
        let (string, rest) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.rest = rest;
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The array was checked to fit its file, and each string takes at least 8 bytes of the
        // file, so the length is not huge.
        let left = usize::try_from(self.left).unwrap_or(0);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// Reads the type and the value of the metadata entry `key`.
pub(super) fn read_typed(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufError> {
    let ty = read_type(cursor, key)?;
    read_value(cursor, ty, key, 0)
}

fn read_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, GgufError> {
    let at = cursor.at();
    let type_id = cursor.u32(Subject {
        what: "value type",
        of: key,
    })?;
    ValueType::from_id(type_id).ok_or_else(|| GgufError::ValueType {
        key: key.into(),
        type_id,
        at,
    })
}

fn read_value(
    cursor: &mut Cursor<'_>,
    ty: ValueType,
    key: &str,
    depth: usize,
) -> Result<Value, GgufError> {
    let place = Subject {
        what: "value",
        of: key,
    };
    let at = cursor.at();
    // Widens the little-endian bytes of every fixed-size type to eight bytes; each type then takes
    // its own part.
    let mut fixed = || -> Result<u64, GgufError> {
        let mut wide = [0; 8];
        let bytes = cursor.take(ty.min_bytes(), place)?;
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(u64::from_le_bytes(wide))
    };
    Ok(match ty {
        ValueType::U8 => Value::U8(fixed()? as u8),
        ValueType::I8 => Value::I8(fixed()? as i8),
        ValueType::U16 => Value::U16(fixed()? as u16),
        ValueType::I16 => Value::I16(fixed()? as i16),
        ValueType::U32 => Value::U32(fixed()? as u32),
        ValueType::I32 => Value::I32(fixed()? as i32),
        ValueType::U64 => Value::U64(fixed()?),
        ValueType::I64 => Value::I64(fixed()? as i64),
        ValueType::F32 => Value::F32(f32::from_bits(fixed()? as u32)),
        ValueType::F64 => Value::F64(f64::from_bits(fixed()?)),
        ValueType::Bool => match fixed()? {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            byte => {
                return Err(GgufError::Bool {
                    key: key.into(),
                    byte: byte as u8,
                    at,
                });
            }
        },
        ValueType::String => {
            cursor.string(place)?;
            Value::String(cursor.since(at + 8))
        }
        ValueType::Array => Value::Array(read_array(cursor, key, depth)?),
    })
}

/// Checks a whole array and remembers where its bytes are.
fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, GgufError> {
    if depth >= MAX_ARRAY_DEPTH {
        return Err(GgufError::Depth {
            key: key.into(),
            at: cursor.at(),
        });
    }
    let element = read_type(cursor, key)?;
    let place = Subject {
        what: "array length",
        of: key,
    };
    let len = cursor.count(element.min_bytes(), place)?;
    let start = cursor.at();
    match element {
        ValueType::String => {
            for _ in 0..len {
                cursor.string(Subject {
                    what: "array element",
                    of: key,
                })?;
            }
        }
        ValueType::Array => {
            for _ in 0..len {
                read_array(cursor, key, depth + 1)?;
            }
        }
        ValueType::Bool => {
            for _ in 0..len {
                read_value(cursor, element, key, depth)?;
            }
        }
        fixed => {
            // `count` has checked that this does not overflow
            let bytes = len.saturating_mul(fixed.min_bytes());
            cursor.take(bytes, place)?;
        }
    }
    Ok(Array {
        element,
        len,
        bytes: cursor.since(start),
    })
}
