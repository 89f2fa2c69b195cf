//! A bounds-checked cursor over the bytes of a GGUF file. Every read names what it reads, for error
//! messages.

use std::fmt;

use thane_mil::data::Bytes;

use super::error::GgufError;

/// What is being read, and for which key or tensor. It is formatted only for an error message.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) what: &'static str,
    pub(super) of: &'a str,
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.of.is_empty() {
            f.write_str(self.what)
        } else {
            write!(f, "{} of {:?}", self.what, self.of)
        }
    }
}

/// A read position in the file.
pub(super) struct Cursor<'a> {
    bytes: &'a Bytes,
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a Bytes) -> Self {
        Self {
            bytes,
            data: bytes.as_slice(),
            at: 0,
        }
    }

    /// Offset of the next byte, from the start of the file.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Number of bytes after the read position.
    fn left(&self) -> u64 {
        (self.data.len() - self.at) as u64
    }

    /// Reads the next `len` bytes.
    pub(super) fn take(&mut self, len: u64, place: Subject<'_>) -> Result<&'a [u8], GgufError> {
        let at = self.at;
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| at.checked_add(len));
        let taken =
            end.and_then(|end| self.data.get(at..end))
                .ok_or_else(|| GgufError::Truncated {
                    what: place.to_string(),
                    at: at as u64,
                    need: len,
                    left: self.left(),
                })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, place: Subject<'_>) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, place)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, place: Subject<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: Subject<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// Reads a count of items that take at least `min_bytes` bytes each; an error if the rest of
    /// the file cannot hold that many items.
    pub(super) fn count(&mut self, min_bytes: u64, place: Subject<'_>) -> Result<u64, GgufError> {
        let at = self.at();
        let count = self.u64(place)?;
        self.check_count(count, min_bytes, at, place)?;
        Ok(count)
    }

    /// Rejects `count`, read at offset `at`, if the rest of the file cannot hold that many items of
    /// at least `min_bytes` bytes.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: u64,
        at: u64,
        place: Subject<'_>,
    ) -> Result<(), GgufError> {
        let left = self.left();
        if count.checked_mul(min_bytes).is_none_or(|need| need > left) {
            return Err(GgufError::Count {
                what: place.to_string(),
                at,
                count,
                min_bytes,
                left,
            });
        }
        Ok(())
    }

    /// Reads a `u64` length and that many bytes.
    pub(super) fn string(&mut self, place: Subject<'_>) -> Result<&'a [u8], GgufError> {
        let len = self.u64(place)?;
        self.take(len, place)
    }

    /// Reads a metadata key or a tensor name: UTF-8, at most 65,535 bytes (the specification's
    /// limit for keys).
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let place = Subject { what, of: "" };
        let at = self.at();
        let name = self.string(place)?;
        if name.len() > usize::from(u16::MAX) {
            return Err(GgufError::NameLength {
                what: what.into(),
                at,
                len: name.len() as u64,
            });
        }
        std::str::from_utf8(name).map_err(|_| GgufError::Utf8 {
            what: what.into(),
            at,
        })
    }

    /// The bytes from offset `start` to the read position, as a slice that outlives the cursor.
    pub(super) fn since(&self, start: u64) -> Bytes {
        let start = usize::try_from(start).unwrap_or(self.at);
        self.bytes
            .slice(start..self.at)
            .expect("the cursor never passes the end of the file")
    }
}
