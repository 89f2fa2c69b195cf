//! Typed access to GGUF metadata. Errors name the key and the expected type, and a record is kept
//! of the keys that were read.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use super::Gguf;
use super::error::MetadataError;
use super::value::{Array, Strings, Value, ValueType};

impl Gguf {
    /// The value of `key`, of any type.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let value = self.metadata.get(key)?;
        self.read
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.to_owned());
        Some(value)
    }

    /// Whether the key is present. This does not count as reading the key.
    pub fn has(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// Keys that start with `prefix` and were never read, in alphabetical order.
    pub fn unread(&self, prefix: &str) -> Vec<String> {
        let read: &BTreeSet<String> = &self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = self.metadata.keys();
        keys.filter(|key| key.starts_with(prefix) && !read.contains(*key))
            .cloned()
            .collect()
    }

    /// An unsigned 32-bit integer, stored in any width.
    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        required(self.opt_u32(key), key, "an unsigned integer")
    }

    /// Like [`Self::u32`], but `None` if the key is absent.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>, MetadataError> {
        self.value(key)
            .map(|value| integer(key, value, "an unsigned 32-bit integer"))
            .transpose()
    }

    /// A 32-bit integer, stored in any width, or `None` if the key is absent.
    pub fn opt_i32(&self, key: &str) -> Result<Option<i32>, MetadataError> {
        self.value(key)
            .map(|value| integer(key, value, "a 32-bit integer"))
            .transpose()
    }

    /// An unsigned 64-bit integer, stored in any width, or `None` if the key is absent.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>, MetadataError> {
        self.value(key)
            .map(|value| integer(key, value, "an unsigned 64-bit integer"))
            .transpose()
    }

    /// A finite 32-bit float, stored in either width.
    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        required(self.opt_f32(key), key, "a float")
    }

    /// Like [`Self::f32`], but `None` if the key is absent.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>, MetadataError> {
        self.value(key)
            .map(|value| float(key, value, None))
            .transpose()
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, MetadataError> {
        required(self.opt_bool(key), key, "a bool")
    }

    /// Like [`Self::bool`], but `None` if the key is absent.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(type_error(key, other, "a bool")),
        }
    }

    /// A UTF-8 string.
    pub fn str(&self, key: &str) -> Result<&str, MetadataError> {
        required(self.opt_str(key), key, "a string")
    }

    /// Like [`Self::str`], but `None` if the key is absent.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(bytes)) => {
                std::str::from_utf8(bytes.as_slice())
                    .map(Some)
                    .map_err(|_| MetadataError::Utf8 {
                        key: key.into(),
                        index: None,
                    })
            }
            Some(other) => Err(type_error(key, other, "a string")),
        }
    }

    /// The UTF-8 strings of an array; they borrow from the file.
    pub fn strings(&self, key: &str) -> Result<Vec<&str>, MetadataError> {
        required(self.opt_strings(key), key, "an array of strings")
    }

    /// Like [`Self::strings`], but `None` if the key is absent.
    pub fn opt_strings(&self, key: &str) -> Result<Option<Vec<&str>>, MetadataError> {
        let Some(strings) = self.opt_byte_strings(key)? else {
            return Ok(None);
        };
        let checked = strings.enumerate().map(|(index, string)| {
            std::str::from_utf8(string).map_err(|_| MetadataError::Utf8 {
                key: key.into(),
                index: Some(index as u64),
            })
        });
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// The strings of an array as raw bytes, without a list of them in memory, or `None` if the key
    /// is absent.
    pub fn opt_byte_strings(&self, key: &str) -> Result<Option<Strings<'_>>, MetadataError> {
        let expected = "an array of strings";
        let Some(array) = self.array(key, expected)? else {
            return Ok(None);
        };
        if array.element() != ValueType::String && !array.is_empty() {
            return Err(array_type_error(key, array, expected));
        }
        Ok(Some(array.strings()))
    }

    /// The finite floats of an array.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, MetadataError> {
        required(self.opt_f32s(key), key, "an array of floats")
    }

    /// Like [`Self::f32s`], but `None` if the key is absent.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, MetadataError> {
        let Some(array) = self.array(key, "an array of floats")? else {
            return Ok(None);
        };
        let floats = array
            .iter()
            .zip(0..)
            .map(|(value, index)| float(key, &value, Some(index)));
        floats.collect::<Result<_, _>>().map(Some)
    }

    /// The 32-bit integers of an array, stored in any width.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>, MetadataError> {
        required(self.opt_i32s(key), key, "an array of integers")
    }

    /// Like [`Self::i32s`], but `None` if the key is absent.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, MetadataError> {
        let Some(array) = self.array(key, "an array of integers")? else {
            return Ok(None);
        };
        let integers = array
            .iter()
            .map(|value| integer(key, &value, "a 32-bit integer"));
        integers.collect::<Result<_, _>>().map(Some)
    }

    /// The booleans of an array, or `None` if the key is absent.
    pub fn opt_bools(&self, key: &str) -> Result<Option<Vec<bool>>, MetadataError> {
        let expected = "an array of bools";
        let Some(array) = self.array(key, expected)? else {
            return Ok(None);
        };
        let bools = array.iter().map(|value| match value {
            Value::Bool(value) => Ok(value),
            other => Err(type_error(key, &other, expected)),
        });
        bools.collect::<Result<_, _>>().map(Some)
    }

    fn array(&self, key: &str, expected: &'static str) -> Result<Option<&Array>, MetadataError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(type_error(key, other, expected)),
        }
    }
}

fn required<T>(
    value: Result<Option<T>, MetadataError>,
    key: &str,
    expected: &'static str,
) -> Result<T, MetadataError> {
    value?.ok_or_else(|| MetadataError::Missing {
        key: key.into(),
        expected,
    })
}

fn integer<T: TryFrom<i128>>(
    key: &str,
    value: &Value,
    expected: &'static str,
) -> Result<T, MetadataError> {
    let wide = value
        .as_integer()
        .ok_or_else(|| type_error(key, value, expected))?;
    T::try_from(wide).map_err(|_| MetadataError::Range {
        key: key.into(),
        expected,
        value: wide.to_string(),
    })
}

fn float(key: &str, value: &Value, index: Option<u64>) -> Result<f32, MetadataError> {
    let wide = value
        .as_float()
        .ok_or_else(|| type_error(key, value, "a float"))?;
    let narrow = wide as f32;
    if !wide.is_finite() {
        return Err(MetadataError::NotFinite {
            key: key.into(),
            value: wide,
            index,
        });
    }
    if !narrow.is_finite() {
        return Err(MetadataError::Range {
            key: key.into(),
            expected: "a 32-bit float",
            value: wide.to_string(),
        });
    }
    Ok(narrow)
}

fn type_error(key: &str, value: &Value, expected: &'static str) -> MetadataError {
    MetadataError::Type {
        key: key.into(),
        expected,
        found: value.type_name(),
    }
}

fn array_type_error(key: &str, array: &Array, expected: &'static str) -> MetadataError {
    type_error(key, &Value::Array(array.clone()), expected)
}
