//! Maps files into memory. This is the only module with memory maps.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use memmap2::Mmap;

use super::open::open_regular;
use crate::data::{Bytes, Owner, Truncated};

/// A memory map and its file. Copies read the file, which brings no pages of the map into memory.
struct Mapped {
    map: Mmap,
    file: File,
    path: PathBuf,
    released: RwLock<Vec<Range<usize>>>,
}

impl Owner for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        if read_at(&self.file, offset as u64, out).is_err() {
            out.copy_from_slice(&self.map[offset..offset + out.len()]);
        }
    }

    #[cfg(unix)]
    fn release(&self, range: Range<usize>) {
        self.released
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(range.clone());
        // Later reads of released ranges are single rows; without this advice the system would read
        // ahead around each.
        let _ = self
            .map
            .advise_range(memmap2::Advice::Random, range.start, range.len());
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the map is backed by a file and is never written, so a dropped page is read from
        // the file again with the same content. A failure only keeps the memory.
        #[allow(unsafe_code)]
        let _ = unsafe {
            self.map
                .unchecked_advise_range(advice, range.start, range.len())
        };
    }

    fn is_released(&self, range: Range<usize>) -> bool {
        let released = self.released.read().unwrap_or_else(PoisonError::into_inner);
        released
            .iter()
            .any(|other| other.start < range.end && range.start < other.end)
    }

    fn check_len(&self) -> Result<(), Truncated> {
        let expected = self.map.len() as u64;
        match self.file.metadata().map(|m| m.len()) {
            Ok(found) if found < expected => Err(Truncated {
                path: self.path.clone(),
                expected,
                found,
            }),
            // After a rename over its path, an open file still has its content.
            _ => Ok(()),
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Maps a regular file read-only. The result keeps the map alive.
///
/// While the map exists, no other process may truncate or rewrite the file. Reading a page beyond a
/// truncated end raises SIGBUS, which ends the process. [`Bytes::check_len`] detects a truncation
/// before long work begins; nothing detects a later one. Replacing the file by a rename is
/// harmless.
pub fn map(path: &Path) -> io::Result<Bytes> {
    let file = open_regular(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new(Vec::new()));
    }
    // SAFETY: the map is read-only and private to this process, is exposed only as `&[u8]` (every
    // bit pattern is valid), and lives as long as any `Bytes` of it. No process can rule out that
    // another one truncates or rewrites the file; that is the documented condition of this
    // function.
    #[allow(unsafe_code)]
    let map = unsafe { Mmap::map(&file) }?;
    Ok(Bytes::new(Mapped {
        map,
        file,
        path: path.to_owned(),
        released: RwLock::default(),
    }))
}

/// Reads a regular file of at most `limit_bytes`. Larger files, pipes and devices are errors.
pub fn read_small(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    // The length of the file is not trusted: the file may grow, and files in /proc report 0.
    io::Read::read_to_end(
        &mut io::Read::take(&file, limit_bytes.saturating_add(1)),
        &mut bytes,
    )?;
    if bytes.len() as u64 > limit_bytes {
        let reason = format!("expected at most {limit_bytes} bytes, found more");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    Ok(bytes)
}

/// If a file that starts with `head` is a Git LFS pointer, the rest of an error message that
/// explains it.
pub fn lfs_pointer(head: &[u8]) -> Option<&'static str> {
    let is_pointer = head.starts_with(b"version https://git-lfs.github.com/")
        || head.starts_with(b"version https://hawser");
    is_pointer.then_some(
        "is a Git LFS pointer, not the file itself: run `git lfs pull` in its folder, or \
         download the file itself",
    )
}
