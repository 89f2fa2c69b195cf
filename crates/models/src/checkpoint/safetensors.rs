//! Reads the safetensors format: a `u64` header length, a JSON header, and the tensors' bytes
//! without gaps.
//!
//! The reader is as strict as the reference implementation: the header has at most 100,000,000
//! bytes and starts with `{`, and the tensors cover the data exactly, without holes, overlaps or
//! trailing bytes. It is stricter in one point: repeated names are an error.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use thane_mil::data::Bytes;

use super::json::{self, UniqueMap};
use super::limits::DAMAGED;
pub use super::limits::MAX_HEADER_LEN;
use super::tensor::{self, RefusedTensor, Tensor, TensorType};
use super::{Tensors, magic};

/// Bytes of the header length that precedes the header.
const LENGTH_BYTES: usize = 8;

/// Why a safetensors file is not valid. Offsets count bytes from the start of the data unless the
/// message says otherwise.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum SafetensorsError {
    #[error("not a safetensors file: {looks_like}")]
    Magic { looks_like: String },
    #[error("expected at least 10 bytes, found a file of {len}: {DAMAGED}")]
    Short { len: u64 },
    #[error("expected a header of at most {MAX_HEADER_LEN} bytes, found {header_len}: {DAMAGED}")]
    HeaderLength { header_len: u64 },
    #[error(
        "the header should end at file offset {end} but the file ends at {file_len}: {DAMAGED}"
    )]
    HeaderTruncated { end: u64, file_len: u64 },
    #[error(
        "the header, which starts at file offset 8, is not valid at line {line} column {column}: \
         {fault}; {DAMAGED}"
    )]
    Header {
        line: usize,
        column: usize,
        fault: String,
    },
    #[error(
        "these tensors have types that are not supported: {}; use a F32, F16 or BF16 version of \
         the model",
        tensor::list_refused(refused)
    )]
    Types { refused: Vec<RefusedTensor> },
    #[error("tensor {name:?} has a start offset {start} after its end offset {end}: {DAMAGED}")]
    Reversed { name: String, start: u64, end: u64 },
    #[error("tensor {name:?} has shape {shape:?}, whose number of elements overflows: {DAMAGED}")]
    Elements { name: String, shape: Vec<usize> },
    #[error(
        "tensor {name:?} of type {ty} and shape {shape:?}: expected {need} bytes, found {have}: \
         {DAMAGED}"
    )]
    Size {
        name: String,
        ty: TensorType,
        shape: Vec<usize>,
        need: u64,
        have: u64,
    },
    #[error("tensor {name:?} ends at data offset {end} but the data ends at {data_len}: {DAMAGED}")]
    PastEnd {
        name: String,
        end: u64,
        data_len: u64,
    },
    #[error("tensor {name:?} overlaps the tensor before it at data offset {at}: {DAMAGED}")]
    Overlap { name: String, at: u64 },
    #[error("there is a hole of {len} bytes before tensor {name:?} at data offset {at}: {DAMAGED}")]
    Hole { name: String, at: u64, len: u64 },
    #[error("the last tensor ends at data offset {end} but {len} more bytes follow: {DAMAGED}")]
    Tail { end: u64, len: u64 },
}

/// The tensors of a safetensors file, and its `__metadata__`.
#[derive(Debug)]
pub struct Safetensors {
    /// All tensors by name.
    pub tensors: Tensors,
    /// The member `__metadata__`: free text from the program that wrote the file.
    pub metadata: BTreeMap<String, String>,
}

/// Parses a whole safetensors file. The tensors are slices of `bytes`.
///
/// # Errors
///
/// [`SafetensorsError`] says what is wrong and at which offset.
pub fn parse(bytes: &Bytes) -> Result<Safetensors, SafetensorsError> {
    let (header, data_start) = read_header(bytes.as_slice())?;
    let data_len = (bytes.len() - data_start) as u64;
    let mut entries: Vec<(String, Entry)> = header.tensors.into_iter().collect();
    refuse_types(&entries)?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let mut tensors = Tensors::new();
    let mut covered = 0;
    for (name, entry) in entries {
        let ty = check(&name, &entry, covered, data_len)?;
        let [start, end] = entry.data_offsets;
        covered = end;
        let range = data_start + start as usize..data_start + end as usize;
        let bytes = bytes
            .slice(range)
            .expect("`check` found the end within the data");
        tensors.insert(
            name.clone(),
            Tensor {
                name,
                ty,
                shape: entry.shape,
                bytes,
                scaled: None,
            },
        );
    }
    if covered != data_len {
        return Err(SafetensorsError::Tail {
            end: covered,
            len: data_len - covered,
        });
    }
    Ok(Safetensors {
        tensors,
        metadata: header.metadata,
    })
}

/// Parses the header and returns it with the file offset of the data.
fn read_header(file: &[u8]) -> Result<(Header, usize), SafetensorsError> {
    let file_len = file.len() as u64;
    let Some((header_len, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(SafetensorsError::Short { len: file_len });
    };
    let header_len = u64::from_le_bytes(*header_len);
    // This check precedes the check of the length, because the first bytes of a web page or a Git
    // LFS pointer give an absurd length and deserve a better message.
    if !rest.is_empty() && !rest.starts_with(b"{") {
        return Err(SafetensorsError::Magic {
            looks_like: magic::describe(&file[..file.len().min(512)]),
        });
    }
    if header_len > MAX_HEADER_LEN {
        return Err(SafetensorsError::HeaderLength { header_len });
    }
    let header_len = header_len as usize; // at most 100,000,000
    let Some(text) = rest.get(..header_len) else {
        return Err(SafetensorsError::HeaderTruncated {
            end: (LENGTH_BYTES + header_len) as u64,
            file_len,
        });
    };
    let header = serde_json::from_slice(text).map_err(|fault| SafetensorsError::Header {
        line: fault.line(),
        column: fault.column(),
        fault: fault.to_string(),
    })?;
    Ok((header, LENGTH_BYTES + header_len))
}

/// Rejects all tensors of unsupported types in one error.
fn refuse_types(entries: &[(String, Entry)]) -> Result<(), SafetensorsError> {
    let refused: Vec<RefusedTensor> = entries
        .iter()
        .filter(|(_, entry)| TensorType::from_safetensors(&entry.dtype).is_none())
        .map(|(name, entry)| RefusedTensor {
            name: name.clone(),
            ty: entry.dtype.clone(),
        })
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(SafetensorsError::Types { refused })
    }
}

/// Checks one entry against the data, whose first `covered` bytes belong to the entries before it.
fn check(
    name: &str,
    entry: &Entry,
    covered: u64,
    data_len: u64,
) -> Result<TensorType, SafetensorsError> {
    let name = || name.to_owned();
    let [start, end] = entry.data_offsets;
    let Some(ty) = TensorType::from_safetensors(&entry.dtype) else {
        let refused = vec![RefusedTensor {
            name: name(),
            ty: entry.dtype.clone(),
        }];
        return Err(SafetensorsError::Types { refused });
    };
    let Some(have) = end.checked_sub(start) else {
        return Err(SafetensorsError::Reversed {
            name: name(),
            start,
            end,
        });
    };
    let count = entry
        .shape
        .iter()
        .try_fold(1_usize, |count, &dim| count.checked_mul(dim));
    let Some(need) = count.and_then(|count| ty.byte_len(count)) else {
        return Err(SafetensorsError::Elements {
            name: name(),
            shape: entry.shape.clone(),
        });
    };
    if need as u64 != have {
        return Err(SafetensorsError::Size {
            name: name(),
            ty,
            shape: entry.shape.clone(),
            need: need as u64,
            have,
        });
    }
    if end > data_len {
        return Err(SafetensorsError::PastEnd {
            name: name(),
            end,
            data_len,
        });
    }
    if start < covered {
        return Err(SafetensorsError::Overlap {
            name: name(),
            at: start,
        });
    }
    if start > covered {
        return Err(SafetensorsError::Hole {
            name: name(),
            at: start,
            len: start - covered,
        });
    }
    Ok(ty)
}

/// The entry of one tensor in the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

struct Header {
    tensors: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one member for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Header, A::Error> {
        let mut tensors = BTreeMap::new();
        let mut metadata = None;
        while let Some(name) = access.next_key::<String>()? {
            if tensors.contains_key(&name) || (name == "__metadata__" && metadata.is_some()) {
                return Err(json::repeated(&name));
            }
            if name == "__metadata__" {
                metadata = Some(access.next_value::<UniqueMap<String>>()?.0);
            } else {
                tensors.insert(name, access.next_value()?);
            }
        }
        Ok(Header {
            tensors,
            metadata: metadata.unwrap_or_default(),
        })
    }
}
