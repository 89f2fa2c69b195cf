//! Files as bytes: weights mapped, small text files read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use thane_mil::data::Bytes;

use super::error::CheckpointError;

/// Maps a whole regular file read-only; the result keeps the map alive.
pub(super) fn map(path: &Path) -> Result<Bytes, CheckpointError> {
    let io = |fault| CheckpointError::Io { path: path.to_owned(), fault };
    // A pipe would block on open and a device has no length: neither can be mapped.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(CheckpointError::Unusable {
            path: path.to_owned(),
            reason: "is neither a regular file nor a folder, so it cannot be mapped: copy it to a file first".into(),
        });
    }
    thane_mil::package::map(path).map_err(io)
}

/// Reads a small file whole, refusing one longer than `max_bytes`.
pub(super) fn read_small(path: &Path, max_bytes: u64) -> Result<Vec<u8>, CheckpointError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?.take(max_bytes + 1).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|fault| CheckpointError::Io { path: path.to_owned(), fault })?;
    if text.len() as u64 > max_bytes {
        return Err(CheckpointError::Unusable {
            path: path.to_owned(),
            reason: format!("is longer than {max_bytes} bytes, too long for such a file: fetch it again"),
        });
    }
    Ok(text)
}
