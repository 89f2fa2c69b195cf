//! A checked walk over the bytes of a GGUF file: every read says what it is for, and no read goes
//! past the end.

use std::fmt;

use thane_mil::data::Bytes;

use super::error::GgufError;

/// What is being read, and of which key or tensor; a string is made of it only for an error.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) what: &'static str,
    pub(super) of: &'a str,
}

impl fmt::Display for Place<'_> {
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

    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    fn left(&self) -> u64 {
        (self.data.len() - self.at) as u64
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, place: Place<'_>) -> Result<&'a [u8], GgufError> {
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

    fn array<const N: usize>(&mut self, place: Place<'_>) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, place)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, place: Place<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: Place<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `min_bytes` each, refused when the rest of the file
    /// cannot hold them.
    pub(super) fn count(&mut self, min_bytes: u64, place: Place<'_>) -> Result<u64, GgufError> {
        let at = self.at();
        let count = self.u64(place)?;
        self.check_count(count, min_bytes, at, place)?;
        Ok(count)
    }

    /// Refuses a count, read at `at`, of more things than the rest of the file can hold.
    pub(super) fn check_count(
        &self,
        count: u64,
        min_bytes: u64,
        at: u64,
        place: Place<'_>,
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

    /// A length and that many bytes.
    pub(super) fn string(&mut self, place: Place<'_>) -> Result<&'a [u8], GgufError> {
        let len = self.u64(place)?;
        self.take(len, place)
    }

    /// A key or a tensor's name: UTF-8, at most 65,535 bytes (the specification's bound for keys).
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let place = Place { what, of: "" };
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

    /// The bytes from `start` to here, as a slice of the file that outlives the cursor.
    pub(super) fn since(&self, start: u64) -> Bytes {
        let start = usize::try_from(start).unwrap_or(self.at);
        self.bytes
            .slice(start..self.at)
            .expect("the cursor never passes the end of the file")
    }
}
