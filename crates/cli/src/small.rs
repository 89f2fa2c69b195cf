//! Files that a person wrote: options, keys, certificates.

use std::io::{self, Read};
use std::path::Path;

use crate::exit::Failure;

/// Most bytes of such a file.
const MAX_BYTES: u64 = 1 << 20;

/// Begins files of some editors, and is no part of their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes of a small file.
pub fn read_small(path: &Path) -> Result<Vec<u8>, Failure> {
    let refused = |text: String| usage!("{}: {text}", path.display());
    let mut bytes = Vec::new();
    let file = refuse_named_pipe(path).and_then(|()| std::fs::File::open(path));
    let read = file.and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|e| refused(e.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        let text = format!("expected at most {MAX_BYTES} bytes, found more");
        return Err(refused(text));
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

/// Refuses a pipe that has a name: opening it would wait for its other end. Pipes that the program
/// has already (`/dev/stdout`, or `/dev/fd/63` of a shell's `<(..)`) have both.
pub fn refuse_named_pipe(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let found = std::fs::metadata(path).map(|found| found.file_type());
        if !path.starts_with("/dev") && found.is_ok_and(|found| found.is_fifo()) {
            let reason = "expected a regular file, found a pipe";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
