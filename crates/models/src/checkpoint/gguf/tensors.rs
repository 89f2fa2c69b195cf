//! Reads the tensor list of a GGUF file and checks it against the data that follows.

use std::collections::BTreeMap;

use thane_mil::data::Bytes;

use super::cursor::{Cursor, Subject};
use super::error::GgufError;
use crate::checkpoint::Tensors;
use crate::checkpoint::tensor::{RefusedTensor, Tensor, TensorType, refused_gguf_name};

/// Largest number of dimensions that GGUF allows.
const MAX_RANK: u32 = 4;

/// One entry of the tensor list.
pub(super) struct Entry {
    name: String,
    /// Outermost dimension first.
    shape: Vec<usize>,
    type_id: u32,
    /// Bytes from the start of the data.
    offset: u64,
}

/// A tensor with its type and its size in bytes.
struct SizedEntry {
    entry: Entry,
    ty: TensorType,
    byte_len: usize,
}

/// Reads the tensor list, which has `count` entries.
pub(super) fn read_entries(
    cursor: &mut Cursor<'_>,
    count: u64,
) -> Result<BTreeMap<String, Entry>, GgufError> {
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let at = cursor.at();
        let entry = read_entry(cursor)?;
        if let Some(first) = entries.insert(entry.name.clone(), entry) {
            return Err(GgufError::DuplicateTensor {
                name: first.name,
                at,
            });
        }
    }
    Ok(entries)
}

fn read_entry(cursor: &mut Cursor<'_>) -> Result<Entry, GgufError> {
    let name = cursor.name("tensor name")?;
    let at = cursor.at();
    let rank = cursor.u32(Subject {
        what: "rank of tensor",
        of: name,
    })?;
    if rank > MAX_RANK {
        return Err(GgufError::Rank {
            name: name.into(),
            rank,
            at,
        });
    }
    let mut shape = Vec::new();
    for _ in 0..rank {
        shape.insert(
            0,
            cursor.u64(Subject {
                what: "dimension of tensor",
                of: name,
            })?,
        );
    }
    let type_id = cursor.u32(Subject {
        what: "type of tensor",
        of: name,
    })?;
    let offset = cursor.u64(Subject {
        what: "offset of tensor",
        of: name,
    })?;
    Ok(Entry {
        name: name.into(),
        shape: to_usize(name, shape)?,
        type_id,
        offset,
    })
}

/// Converts the dimensions to `usize`; an error if a dimension or the number of elements overflows.
fn to_usize(name: &str, shape: Vec<u64>) -> Result<Vec<usize>, GgufError> {
    let dims: Option<Vec<usize>> = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    let dims = dims.filter(|dims| {
        dims.iter()
            .try_fold(1_usize, |count, &dim| count.checked_mul(dim))
            .is_some()
    });
    dims.ok_or_else(|| GgufError::Elements {
        name: name.into(),
        shape,
    })
}

/// Finds the bytes of every tensor. The data starts at the first multiple of `alignment` at or
/// after `list_end`.
pub(super) fn locate(
    bytes: &Bytes,
    list_end: u64,
    alignment: u64,
    entries: BTreeMap<String, Entry>,
) -> Result<Tensors, GgufError> {
    let sized = size_all(entries)?;
    let data_start = u128::from(list_end).next_multiple_of(u128::from(alignment));
    check_bounds(&sized, data_start, alignment, bytes.len() as u64)?;

    let mut located = Vec::with_capacity(sized.len());
    for SizedEntry {
        entry,
        ty,
        byte_len,
    } in sized
    {
        let start = usize::try_from(data_start + u128::from(entry.offset)).unwrap_or(usize::MAX);
        let slice = bytes
            .slice(start..start.saturating_add(byte_len))
            .expect("`check_bounds` found the end in the file");
        located.push((
            start,
            Tensor {
                name: entry.name,
                ty,
                shape: entry.shape,
                bytes: slice,
                scaled: None,
            },
        ));
    }
    check_overlap(&mut located)?;
    Ok(located
        .into_iter()
        .map(|(_, tensor)| (tensor.name.clone(), tensor))
        .collect())
}

/// Determines types and sizes in bytes. One error lists all tensors of unsupported types.
fn size_all(entries: BTreeMap<String, Entry>) -> Result<Vec<SizedEntry>, GgufError> {
    let refused: Vec<RefusedTensor> = entries
        .values()
        .filter(|entry| TensorType::from_gguf(entry.type_id).is_none())
        .map(|entry| RefusedTensor {
            name: entry.name.clone(),
            ty: refused_gguf_name(entry.type_id),
        })
        .collect();
    let mut sized = Vec::with_capacity(entries.len());
    for entry in entries.into_values() {
        let Some(ty) = TensorType::from_gguf(entry.type_id) else {
            continue;
        };
        let row_len = entry.shape.last().copied().unwrap_or(1);
        if !row_len.is_multiple_of(ty.block_len()) {
            return Err(GgufError::Blocks {
                name: entry.name,
                ty: ty.name(),
                row_len,
                block_len: ty.block_len(),
            });
        }
        let Some(byte_len) = ty.byte_len(entry.shape.iter().product()) else {
            let shape = entry.shape.iter().map(|&dim| dim as u64).collect();
            return Err(GgufError::Elements {
                name: entry.name,
                shape,
            });
        };
        sized.push(SizedEntry {
            entry,
            ty,
            byte_len,
        });
    }
    if refused.is_empty() {
        Ok(sized)
    } else {
        Err(GgufError::Types { refused })
    }
}

/// Checks that every tensor is aligned and lies inside of the file.
fn check_bounds(
    sized: &[SizedEntry],
    data_start: u128,
    alignment: u64,
    file_len: u64,
) -> Result<(), GgufError> {
    if let Some(SizedEntry { entry, .. }) = sized
        .iter()
        .find(|sized| !sized.entry.offset.is_multiple_of(alignment))
    {
        return Err(GgufError::Unaligned {
            name: entry.name.clone(),
            offset: entry.offset,
            alignment,
        });
    }
    let start = |sized: &SizedEntry| data_start + u128::from(sized.entry.offset);
    let end = |sized: &SizedEntry| start(sized) + sized.byte_len as u128;
    let past_end: Vec<&SizedEntry> = sized
        .iter()
        .filter(|sized| end(sized) > u128::from(file_len))
        .collect();
    match past_end.iter().min_by_key(|sized| start(sized)) {
        None => Ok(()),
        Some(first) => Err(GgufError::PastEnd {
            name: first.entry.name.clone(),
            start: start(first),
            end: end(first),
            file_len,
            count: past_end.len(),
            total: sized.len(),
        }),
    }
}

/// Checks that no two tensors share a byte.
fn check_overlap(located: &mut [(usize, Tensor)]) -> Result<(), GgufError> {
    located.sort_by_key(|(start, _)| *start);
    let mut last: Option<(usize, &Tensor)> = None;
    for (start, tensor) in located
        .iter()
        .filter(|(_, tensor)| !tensor.bytes.is_empty())
    {
        if let Some((end, first)) = last
            && end > *start
        {
            return Err(GgufError::Overlap {
                first: first.name.clone(),
                second: tensor.name.clone(),
                at: *start as u64,
            });
        }
        last = Some((start + tensor.bytes.len(), tensor));
    }
    Ok(())
}
