//! Reads files: weights are memory-mapped, small text files are read into memory.

use std::io::ErrorKind;
use std::path::Path;

use thane_mil::data::Bytes;
use thane_mil::package::lfs_pointer;

use super::error::CheckpointError;

/// Memory-maps a regular file read-only. The result keeps the map alive.
pub(super) fn map(path: &Path) -> Result<Bytes, CheckpointError> {
    let io = |fault| CheckpointError::Io {
        path: path.to_owned(),
        fault,
    };
    thane_mil::package::map(path).map_err(|fault| match fault.kind() {
        ErrorKind::InvalidInput => CheckpointError::Unusable {
            path: path.to_owned(),
            reason: "expected a regular file or a folder, found a device or a pipe, which cannot \
                be mapped: copy it to a file first"
                .into(),
        },
        _ => io(fault),
    })
}

/// Reads a small regular file into memory; an error if the file has more than `max_bytes` bytes or
/// is a Git LFS pointer.
pub(super) fn read_small(path: &Path, max_bytes: u64) -> Result<Vec<u8>, CheckpointError> {
    let unusable = |reason| CheckpointError::Unusable {
        path: path.to_owned(),
        reason,
    };
    let text =
        thane_mil::package::read_small(path, max_bytes).map_err(|fault| match fault.kind() {
            ErrorKind::InvalidData => unusable(format!("{fault}: fetch the file again")),
            _ => CheckpointError::Io {
                path: path.to_owned(),
                fault,
            },
        })?;
    match lfs_pointer(&text) {
        Some(pointer) => Err(unusable(pointer.to_owned())),
        None => Ok(text),
    }
}
