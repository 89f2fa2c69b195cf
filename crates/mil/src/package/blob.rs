//! Weight blob storage version 2: the file with the large constants of a package.
//!
//! The file is a header of 64 bytes, then for each constant a record of 64 bytes and its data.
//! Records and data start at multiples of 64 bytes. Programs refer to a constant by the absolute
//! offset of its record. Source: coremltools 9, `mlmodel/src/MILBlob/Blob/StorageFormat.hpp`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::PathBuf;

use super::error::PackageError;
use super::map::lfs_pointer;
use crate::data::{Bytes, Data};
use crate::types::{DType, TensorType};

/// Alignment of the header, records and data; also the size of the header and of a record.
const ALIGNMENT: u64 = 64;
const VERSION: u32 = 2;
const SENTINEL: u32 = 0xDEAD_BEEF;
/// Constants are read and written in pieces of this many bytes, so that a computed constant is
/// never in memory as a whole.
const PIECE: usize = 1 << 22;
/// Constants are hashed over this many bytes before they are compared completely.
const SAMPLE: usize = 1 << 12;

/// Apple's numbers of the element types that weight files can hold.
const CODES: &[(DType, u32)] = &[
    (DType::Fp16, 1),
    (DType::Fp32, 2),
    (DType::Uint8, 3),
    (DType::Int8, 4),
    (DType::Bf16, 5),
    (DType::Int16, 6),
    (DType::Uint16, 7),
    (DType::Int4, 8),
    (DType::Uint1, 9),
    (DType::Uint2, 10),
    (DType::Uint4, 11),
    (DType::Uint3, 12),
    (DType::Uint6, 13),
    (DType::Int32, 14),
    (DType::Uint32, 15),
    (DType::Fp8E4M3, 16),
    (DType::Fp8E5M2, 17),
];

/// Apple's number of `dtype`, if a weight file can hold this type.
pub(super) fn code(dtype: DType) -> Option<u32> {
    CODES
        .iter()
        .find(|(d, _)| *d == dtype)
        .map(|(_, code)| *code)
}

/// The layout of a weight file before it is written: its constants and their offsets.
#[derive(Debug, Default)]
pub struct Plan {
    entries: Vec<Entry>,
    end: u64,
    /// Indices of entries by type, byte length and hash of their first bytes.
    known: HashMap<(DType, usize, u64), Vec<usize>>,
}

#[derive(Debug)]
struct Entry {
    offset: u64,
    ty: TensorType,
    data: Data,
}

impl Plan {
    /// Adds a constant and returns the offset of its record. An equal constant that is already
    /// present is reused.
    pub fn place(&mut self, ty: &TensorType, data: &Data) -> u64 {
        let same = self.known.entry(key(ty.dtype, data)).or_default();
        let known = same
            .iter()
            .map(|i| &self.entries[*i])
            .find(|e| e.ty.n_elements() == ty.n_elements() && e.data == *data);
        if let Some(entry) = known {
            return entry.offset;
        }
        same.push(self.entries.len());
        let offset = self.end.max(ALIGNMENT).next_multiple_of(ALIGNMENT);
        self.end = offset
            .saturating_add(ALIGNMENT)
            .saturating_add(data.byte_len() as u64);
        self.entries.push(Entry {
            offset,
            ty: ty.clone(),
            data: data.clone(),
        });
        offset
    }

    /// The constant with its record at `offset`, if it has the type `ty`.
    pub fn get(&self, offset: u64, ty: &TensorType) -> Option<Data> {
        let entry = &self.entries[self
            .entries
            .binary_search_by_key(&offset, |e| e.offset)
            .ok()?];
        let same = entry.ty.dtype == ty.dtype && entry.ty.n_elements() == ty.n_elements();
        same.then(|| entry.data.clone())
    }

    /// The byte of the file where the elements of a constant begin that has these elements; `None`
    /// if there is none.
    pub fn elements_at(&self, dtype: DType, data: &Data) -> Option<u64> {
        let same = self.known.get(&key(dtype, data))?.iter();
        let mut same = same.map(|i| &self.entries[*i]);
        let entry = same.find(|e| e.data == *data)?;
        Some(entry.offset + ALIGNMENT)
    }

    /// Number of constants.
    pub fn n_constants(&self) -> usize {
        self.entries.len()
    }

    /// Writes the file.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let n = u32::try_from(self.entries.len())
            .map_err(|_| io::Error::other("a weight file holds fewer than 2^32 constants"))?;
        let mut header = [0; ALIGNMENT as usize];
        header[..4].copy_from_slice(&n.to_le_bytes());
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&header)?;
        let (mut at, mut piece) = (ALIGNMENT, Vec::new());
        for entry in &self.entries {
            out.write_all(&[0; ALIGNMENT as usize][..(entry.offset - at) as usize])?;
            out.write_all(&record(entry))?;
            write_data(&entry.data, &mut piece, out)?;
            at = entry.offset + ALIGNMENT + entry.data.byte_len() as u64;
        }
        Ok(())
    }
}

/// What equal constants have in common, found without reading all of one.
fn key(dtype: DType, data: &Data) -> (DType, usize, u64) {
    (dtype, data.byte_len(), sample(data))
}

/// The hash of the first bytes of a constant.
fn sample(data: &Data) -> u64 {
    let mut bytes = vec![0; SAMPLE.min(data.byte_len())];
    let mut hasher = DefaultHasher::new();
    (data.read(0, &mut bytes), bytes).hash(&mut hasher);
    hasher.finish()
}

fn record(entry: &Entry) -> [u8; ALIGNMENT as usize] {
    let mut out = [0; ALIGNMENT as usize];
    let size = entry.data.byte_len() as u64;
    out[..4].copy_from_slice(&SENTINEL.to_le_bytes());
    out[4..8].copy_from_slice(&code(entry.ty.dtype).unwrap_or_default().to_le_bytes());
    out[8..16].copy_from_slice(&size.to_le_bytes());
    out[16..24].copy_from_slice(&(entry.offset + ALIGNMENT).to_le_bytes());
    out[24..32].copy_from_slice(&padding_bits(&entry.ty).to_le_bytes());
    out
}

/// Number of unused bits in the last byte.
fn padding_bits(ty: &TensorType) -> u64 {
    let bits = ty.n_elements().unwrap_or(0).wrapping_mul(ty.dtype.bits()) % 8;
    if bits == 0 { 0 } else { 8 - bits as u64 }
}

/// Writes the bytes of a constant, `piece` by piece.
pub(super) fn write_data(data: &Data, piece: &mut Vec<u8>, out: &mut impl Write) -> io::Result<()> {
    for at in (0..data.byte_len()).step_by(PIECE) {
        piece.resize(PIECE.min(data.byte_len() - at), 0);
        if !data.read(at, piece) {
            return Err(io::Error::other("a constant ends before its length"));
        }
        out.write_all(piece)?;
    }
    Ok(())
}

/// A weight file. Constants are slices of its bytes, of which only headers are read here.
pub(super) struct Storage {
    path: PathBuf,
    bytes: Bytes,
}

impl Storage {
    /// A weight file with these bytes; checks its header.
    pub fn open(path: PathBuf, bytes: Bytes) -> Result<Self, PackageError> {
        let mut head = [0; ALIGNMENT as usize];
        let head = &mut head[..bytes.len().min(ALIGNMENT as usize)];
        if bytes.read(0, head)
            && let Some(reason) = lfs_pointer(head)
        {
            return Err(PackageError::unusable(&path, reason));
        }
        let version = head
            .get(4..8)
            .and_then(|b| b.try_into().ok())
            .map(u32::from_le_bytes);
        match version {
            Some(VERSION) if bytes.len() as u64 >= ALIGNMENT => Ok(Self { path, bytes }),
            Some(version) if version != VERSION => {
                let reason = format!(
                    "has weight storage version {version}, expected version {VERSION}: check that \
                     this is a \
                     weight file"
                );
                Err(PackageError::unusable(&path, reason))
            }
            _ => Err(PackageError::unusable(
                &path,
                "is truncated inside its header: copy the package again",
            )),
        }
    }

    /// The constant with its record at `offset`, which must have the type `ty`.
    pub fn constant(&self, offset: u64, ty: &TensorType) -> Result<Data, PackageError> {
        self.checked(offset, ty)
            .map_err(|reason| PackageError::Blob {
                path: self.path.clone(),
                offset,
                reason,
            })
    }

    fn checked(&self, offset: u64, ty: &TensorType) -> Result<Data, String> {
        if !offset.is_multiple_of(ALIGNMENT) || offset < ALIGNMENT {
            return Err(format!(
                "expected a multiple of {ALIGNMENT} after the header"
            ));
        }
        let mut record = [0; ALIGNMENT as usize];
        let is_in_file = usize::try_from(offset).is_ok_and(|at| self.bytes.read(at, &mut record));
        if !is_in_file {
            return Err(format!(
                "the offset is beyond the end of the file of {} bytes",
                self.bytes.len()
            ));
        }
        let u32_at = |at: usize| {
            record[at..at + 4]
                .try_into()
                .map(u32::from_le_bytes)
                .unwrap_or_default()
        };
        let u64_at = |at: usize| {
            record[at..at + 8]
                .try_into()
                .map(u64::from_le_bytes)
                .unwrap_or_default()
        };
        if u32_at(0) != SENTINEL {
            return Err(format!(
                "expected a record that starts with {SENTINEL:#010x}, found {:#010x}",
                u32_at(0)
            ));
        }
        if Some(u32_at(4)) != code(ty.dtype) {
            let stored = CODES
                .iter()
                .find(|(_, c)| *c == u32_at(4))
                .map_or("an unknown type", |(d, _)| d.name());
            return Err(format!(
                "expected {ty} as the program declares, found {stored}"
            ));
        }
        let (size, data) = (u64_at(8), u64_at(16));
        if ty.byte_len().map(|n| n as u64) != Some(size) {
            return Err(format!(
                "expected {ty} as the program declares, found {size} bytes"
            ));
        }
        if data < ALIGNMENT {
            return Err(format!("the data starts at byte {data}, inside the header"));
        }
        let range = usize::try_from(data).ok().zip(usize::try_from(size).ok());
        let range = range.and_then(|(data, size)| Some(data..data.checked_add(size)?));
        let data = range.and_then(|range| self.bytes.slice(range)).ok_or_else(|| {
            format!(
                "the data ({size} bytes from byte {data} on) reaches beyond the end of the file of \
                 {} bytes",
                self.bytes.len()
            )
        })?;
        Ok(Data::Bytes(data))
    }
}

/// Maximum bytes of a constant in a missing weight file: three times the largest known embedding
/// table.
const MAX_MISSING_BYTES: u64 = 1 << 33;
/// The same limit for wide integers, which are indices and sizes.
const MAX_MISSING_INDEX_BYTES: u64 = 1 << 26;

/// A constant of a missing weight file. It takes no memory, but small ones are read where shapes
/// and rules need them.
pub(super) fn zeros(ty: &TensorType) -> Result<Data, String> {
    let len = ty
        .byte_len()
        .ok_or_else(|| format!("has a constant of type {ty}, expected a known size"))?;
    let most = if ty.dtype.is_float() || ty.dtype.bits() <= 8 {
        MAX_MISSING_BYTES
    } else {
        MAX_MISSING_INDEX_BYTES
    };
    if code(ty.dtype).is_none() {
        return Err(format!(
            "has a constant of type {ty}: weight files hold no {}; store another type",
            ty.dtype
        ));
    }
    if len as u64 > most {
        return Err(format!(
            "has a constant of type {ty}, {len} bytes: expected at most {most} bytes where the \
             weight file is missing; put the file beside the text"
        ));
    }
    Ok(Data::zeros(len))
}
