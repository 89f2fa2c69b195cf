//! Reading small files whole, with a limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of a regular file of at most `limit_bytes`. A larger file is an error, and so is
/// anything that is not a regular file: opening a pipe would wait for its writer.
pub fn read_small(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let invalid = |reason: String| Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    if !std::fs::metadata(path)?.is_file() {
        return invalid("it is no regular file".into());
    }
    let mut bytes = Vec::new();
    // The file's own length is not trusted: the file may grow, and files of the system say 0.
    File::open(path)?
        .take(limit_bytes.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return invalid(format!(
            "it is larger than the {limit_bytes} bytes that such a file may have"
        ));
    }
    Ok(bytes)
}
