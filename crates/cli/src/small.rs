//! Files that a person wrote: options, keys, certificates.

use std::io::Read;
use std::path::Path;

use crate::exit::{Code, Failure};

/// Most bytes of such a file.
const MAX_BYTES: u64 = 1 << 20;

/// Begins files of some editors, and is no part of their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes of a small file.
pub fn read_small(path: &Path) -> Result<Vec<u8>, Failure> {
    let refused = |text: String| {
        let error = anyhow::anyhow!("{}: {text}", path.display());
        Failure::new(Code::Usage, error)
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
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
