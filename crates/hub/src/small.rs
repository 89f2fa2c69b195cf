//! Reading small files whole, with a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file for reading.
pub fn open_regular(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// Refuses what is there and is no regular file: opening a pipe would wait for its other end.
pub fn check(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let reason = "expected a regular file, found a folder, a pipe or a device";
            Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
        }
        _ => Ok(()),
    }
}

/// The bytes of a regular file of at most `limit_bytes`. A larger file is an error, and so is
/// anything that is not a regular file: opening a pipe would wait for its writer.
pub fn read_small(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file's own length is not trusted: the file may grow, and files of the system say 0.
    open_regular(path)?
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        let reason = format!("it is larger than the {limit_bytes} bytes that such a file may have");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(bytes)
}
