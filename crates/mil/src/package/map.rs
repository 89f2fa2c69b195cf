//! Files as bytes: the one place that maps memory.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

use crate::data::Bytes;

/// Map a whole regular file read-only; the result keeps the map alive.
///
/// Another process must not truncate or rewrite the file meanwhile: that is the condition of mapping it.
pub fn map(path: &Path) -> io::Result<Bytes> {
    // A pipe would block on open and a device has no length: neither can be mapped.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new(Vec::new()));
    }
    // SAFETY: the map is read-only and private to this process, is handed out as `&[u8]` of plain bytes only (every
    // bit pattern is valid), and lives as long as any `Bytes` of it. What no process can rule out is that another one
    // truncates or rewrites the file meanwhile; that is the documented condition above.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }?;
    Ok(Bytes::new(map))
}
