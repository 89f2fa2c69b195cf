//! Errors in a GGUF file, or in a metadata key that a family reads.

use crate::checkpoint::limits::{DAMAGED, MAX_ARRAY_DEPTH};
use crate::checkpoint::tensor::{self, RefusedTensor};

/// Why a GGUF file is not valid. Offsets count bytes from the start of the file.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum GgufError {
    #[error("not a GGUF file: {looks_like}")]
    Magic { looks_like: String },
    #[error(
        "GGUF version {version} is written for a big-endian machine: convert it with \
         gguf_convert_endian.py of gguf-py"
    )]
    BigEndian { version: u32 },
    #[error(
        "expected GGUF version 2 or 3 at offset 4, found {version}: convert the model again with \
         a current llama.cpp"
    )]
    Version { version: u32 },
    #[error(
        "{what} at offset {at} needs {need} bytes, but only {left} bytes are left in the file: \
         {DAMAGED}"
    )]
    Truncated {
        what: String,
        at: u64,
        need: u64,
        left: u64,
    },
    #[error(
        "{what} at offset {at} is {count}, with at least {min_bytes} bytes each, but only {left} \
         bytes are left in the file: {DAMAGED}"
    )]
    Count {
        what: String,
        at: u64,
        count: u64,
        min_bytes: u64,
        left: u64,
    },
    #[error("{what} at offset {at} is not valid UTF-8: {DAMAGED}")]
    Utf8 { what: String, at: u64 },
    #[error("{what} at offset {at}: expected at most 65535 bytes, found {len}: {DAMAGED}")]
    NameLength { what: String, at: u64, len: u64 },
    #[error(
        "key {key:?} at offset {at}: expected a value type from 0 to 12, found {type_id}: {DAMAGED}"
    )]
    ValueType { key: String, type_id: u32, at: u64 },
    #[error(
        "key {key:?} at offset {at}: expected a bool of 0 or 1, found the byte {byte}: {DAMAGED}"
    )]
    Bool { key: String, byte: u8, at: u64 },
    #[error(
        "key {key:?} nests arrays deeper than {MAX_ARRAY_DEPTH} levels at offset {at}: {DAMAGED}"
    )]
    Depth { key: String, at: u64 },
    #[error("key {key:?} is repeated at offset {at}: convert the model again")]
    DuplicateKey { key: String, at: u64 },
    #[error("tensor {name:?} is repeated at offset {at}: convert the model again")]
    DuplicateTensor { name: String, at: u64 },
    #[error(
        "key \"general.alignment\": expected a power of two of at least 8, found {alignment}: \
         convert the model again"
    )]
    Alignment { alignment: u64 },
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error(
        "the file is one part of a model split in {parts} (key \"split.count\"): merge the parts \
         with `llama-gguf-split --merge` first"
    )]
    Split { parts: u64 },
    #[error(
        "tensor {name:?} at offset {at}: expected at most 4 dimensions, found {rank}: {DAMAGED}"
    )]
    Rank { name: String, rank: u32, at: u64 },
    #[error("tensor {name:?} has shape {shape:?}, whose number of elements overflows: {DAMAGED}")]
    Elements { name: String, shape: Vec<u64> },
    #[error(
        "tensor {name:?} of type {ty} has rows of {row_len} elements, not a multiple of its block \
         length {block_len}: convert the model again"
    )]
    Blocks {
        name: String,
        ty: &'static str,
        row_len: usize,
        block_len: usize,
    },
    #[error(
        "these tensors have types that are not supported: {}; use another quantization of the \
         model, such as Q8_0 or Q4_K_M",
        tensor::list_refused(refused)
    )]
    Types { refused: Vec<RefusedTensor> },
    #[error(
        "tensor {name:?} starts at data offset {offset}, which is not a multiple of the alignment \
         {alignment}: {DAMAGED}"
    )]
    Unaligned {
        name: String,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "tensor {name:?} needs the bytes {start} to {end} but the file ends at {file_len} \
         ({count} of {total} tensors reach past the end): {DAMAGED}"
    )]
    PastEnd {
        name: String,
        start: u128,
        end: u128,
        file_len: u64,
        count: usize,
        total: usize,
    },
    #[error("tensors {first:?} and {second:?} overlap at offset {at}: {DAMAGED}")]
    Overlap {
        first: String,
        second: String,
        at: u64,
    },
}

/// Why a metadata key cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // the messages describe the fields
pub enum MetadataError {
    #[error(
        "key {key:?} is missing: expected {expected}; convert the model again with a current \
         llama.cpp"
    )]
    Missing { key: String, expected: &'static str },
    #[error(
        "llama.cpp's converter always writes these keys for this architecture, and they are \
         missing: {}; convert the model again with a current llama.cpp", .keys.join(", ")
    )]
    NotWritten { keys: Vec<String> },
    #[error("key {key:?}: expected {expected}, found {found}; convert the model again")]
    Type {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("key {key:?}: expected {expected}, found {value}; convert the model again")]
    Range {
        key: String,
        expected: &'static str,
        value: String,
    },
    #[error("key {key:?}: expected a finite number, found {value}{}; convert the model \
        again", element(*index))]
    NotFinite {
        key: String,
        value: f64,
        index: Option<u64>,
    },
    #[error("key {key:?} is not valid UTF-8{}: {DAMAGED}", element(*index))]
    Utf8 { key: String, index: Option<u64> },
}

fn element(index: Option<u64>) -> String {
    index.map_or_else(String::new, |index| format!(" at element {index}"))
}
