//! Reads GGUF versions 2 and 3, little-endian: header, metadata, tensor list, data.
//!
//! Layout: the magic bytes, a `u32` version, and two `u64` counts (tensors, then metadata entries).
//! Each metadata entry is a key, a `u32` type and a value. Each tensor entry is a name, a `u32`
//! rank, `u64` dimensions (innermost first), a `u32` type and a `u64` offset into the data. The
//! data starts at the next multiple of `general.alignment`. Start reading at [`parse`].

mod cursor;
mod error;
mod getters;
mod tensors;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use thane_mil::data::Bytes;

use super::{Tensors, magic};
use cursor::{Cursor, Subject};

pub use error::{GgufError, MetadataError};
pub use value::{Array, Strings, Value, ValueType};

/// The first four bytes of every GGUF file.
pub const MAGIC: &[u8] = b"GGUF";

/// Alignment of tensor data in bytes if the file does not name one.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Bytes of the shortest metadata entry: the length of an empty key, a type, a one-byte value.
const MIN_ENTRY_BYTES: u64 = 13;

/// Bytes of the shortest tensor entry: the length of an empty name, rank 0, type, offset.
const MIN_TENSOR_BYTES: u64 = 24;

/// Header and metadata of a GGUF file.
#[derive(Debug)]
pub struct Gguf {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Every tensor starts at a multiple of this many bytes.
    pub alignment: u64,
    /// All metadata by key. The typed getters record which keys were read; a direct lookup here
    /// does not.
    pub metadata: BTreeMap<String, Value>,
    read: Mutex<BTreeSet<String>>,
}

/// Parses a whole GGUF file. The tensors are slices of `bytes`.
///
/// # Errors
///
/// [`GgufError`] says what is wrong and at which offset.
pub fn parse(bytes: &Bytes) -> Result<(Gguf, Tensors), GgufError> {
    let data = bytes.as_slice();
    if !data.starts_with(MAGIC) {
        return Err(GgufError::Magic {
            looks_like: magic::describe(&data[..data.len().min(512)]),
        });
    }
    let mut cursor = Cursor::new(bytes);
    cursor.take(
        MAGIC.len() as u64,
        Subject {
            what: "magic",
            of: "",
        },
    )?;
    let version = read_version(&mut cursor)?;
    let tensors_at = cursor.at();
    let tensors_place = Subject {
        what: "tensor count",
        of: "",
    };
    let tensor_count = cursor.u64(tensors_place)?;
    let entry_count = cursor.count(
        MIN_ENTRY_BYTES,
        Subject {
            what: "metadata count",
            of: "",
        },
    )?;
    cursor.check_count(tensor_count, MIN_TENSOR_BYTES, tensors_at, tensors_place)?;

    let metadata = read_metadata(&mut cursor, entry_count)?;
    let mut gguf = Gguf {
        version,
        alignment: DEFAULT_ALIGNMENT,
        metadata,
        read: Mutex::default(),
    };
    gguf.alignment = read_alignment(&gguf)?;
    if let Some(parts) = gguf.opt_u64("split.count")?.filter(|&parts| parts > 1) {
        return Err(GgufError::Split { parts });
    }
    let entries = tensors::read_entries(&mut cursor, tensor_count)?;
    let tensors = tensors::locate(bytes, cursor.at(), gguf.alignment, entries)?;
    Ok((gguf, tensors))
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let version = cursor.u32(Subject {
        what: "version",
        of: "",
    })?;
    match version {
        2 | 3 => Ok(version),
        swapped if (1..=0xffff).contains(&swapped.swap_bytes()) => Err(GgufError::BigEndian {
            version: swapped.swap_bytes(),
        }),
        version => Err(GgufError::Version { version }),
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<BTreeMap<String, Value>, GgufError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let at = cursor.at();
        let key = cursor.name("metadata key")?;
        let value = value::read_typed(cursor, key)?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(GgufError::DuplicateKey {
                key: key.into(),
                at,
            });
        }
    }
    Ok(metadata)
}

/// The alignment of tensor data. The specification asks for a multiple of 8, and with less, 64-bit
/// elements would be unaligned in the map.
fn read_alignment(gguf: &Gguf) -> Result<u64, GgufError> {
    match gguf.opt_u64("general.alignment")? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() && alignment >= 8 => Ok(alignment),
        Some(alignment) => Err(GgufError::Alignment { alignment }),
    }
}
