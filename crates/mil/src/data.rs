//! The bytes of constants: owned, a slice of a shared map, or derived on demand from bytes in
//! another layout.
//!
//! Knows nothing of files or checkpoints. A checkpoint reader hands over [`Bytes`] that keep its
//! memory map alive; a tensor whose file layout is not MIL's (interleaved quantized blocks,
//! bfloat16) implements [`Source`], which can both write MIL's layout and name the layout that it
//! has, so that a backend can use the bytes as they are.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use thane_blocks::BlockType;

/// What holds bytes, all of them in memory or mapped.
pub trait Owner: Send + Sync {
    /// All of them.
    fn bytes(&self) -> &[u8];

    /// Copy those from `offset` on; the caller keeps `offset + out.len()` within the length.
    ///
    /// The owner of a map may read the file instead, so that what is only copied takes no memory of
    /// this process.
    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes()[offset..offset + out.len()]);
    }

    /// Those of the range will hardly be read again: the owner of a map may give their memory back
    /// until they are.
    fn release(&self, _range: Range<usize>) {}

    /// Whether memory of the range was given back.
    fn is_released(&self, _range: Range<usize>) -> bool {
        false
    }

    /// Whether the file behind a map is still as long as the map.
    fn check_len(&self) -> Result<(), Truncated> {
        Ok(())
    }
}

/// A mapped file became shorter: reading what is gone would end the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: expected {expected} bytes, as when it was opened, found {found}: another process truncated the file; restore it and \
     begin again", path.display()
)]
pub struct Truncated {
    /// The file.
    pub path: PathBuf,
    /// Bytes when it was opened.
    pub expected: u64,
    /// Bytes now.
    pub found: u64,
}

impl<T: AsRef<[u8]> + Send + Sync> Owner for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// A shared, immutable run of bytes; cloning it is cheap and copies nothing.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn Owner>,
    range: Range<usize>,
}

impl Bytes {
    /// All bytes of `owner`, kept alive as long as the result or a slice of it.
    pub fn new(owner: impl Owner + 'static) -> Self {
        let len = owner.bytes().len();
        Self {
            owner: Arc::new(owner),
            range: 0..len,
        }
    }

    /// The bytes `range` of this run, or `None` when it reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self {
            owner: Arc::clone(&self.owner),
            range: start..start + range.len(),
        })
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Say that these will hardly be read again; they can be.
    pub fn release(&self) {
        self.owner.release(self.range.clone());
    }

    /// Whether they, or some of them, were released, so that few of them had better be
    /// [read](Self::read).
    pub fn is_released(&self) -> bool {
        self.owner.is_released(self.range.clone())
    }

    /// Copy those from `offset` on into `out`, and of a mapped file nothing else into memory; a
    /// range past the end leaves `out` as it is and gives `false`.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        let fits = offset
            .checked_add(out.len())
            .is_some_and(|end| end <= self.len());
        if fits {
            self.owner.read(self.range.start + offset, out);
        }
        fits
    }

    /// Whether the file that they are mapped from, if any, is still as long as when it was opened;
    /// asked before long work.
    ///
    /// It costs one system call. A file that is truncated later, while it is read, still ends the
    /// process with SIGBUS.
    pub fn check_len(&self) -> Result<(), Truncated> {
        self.owner.check_len()
    }

    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        // An owner that shrinks between calls is a bug of the owner; the empty slice keeps it from
        // becoming a panic.
        self.owner
            .bytes()
            .get(self.range.clone())
            .unwrap_or_default()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} at {})", self.len(), self.range.start)
    }
}

/// The stored form of a constant that is derived from it.
///
/// Several constants may come from one stored tensor (codes, scales and offsets of quantisation
/// blocks); a backend that finds them together under one op may use `bytes` instead, which then say
/// the same as the op's result.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Layout of `bytes`.
    pub ty: BlockType,
    /// The stored bytes, row after row.
    pub bytes: Bytes,
}

/// Constant bytes that are computed from bytes in another layout when they are asked for.
pub trait Source: Send + Sync {
    /// Number of bytes in MIL's layout.
    fn byte_len(&self) -> usize;

    /// Write the bytes from `offset` on into `out`; the caller keeps
    /// `offset + out.len() <= byte_len()`.
    fn read(&self, offset: usize, out: &mut [u8]);

    /// The stored form, where a backend may use it instead.
    fn packed(&self) -> Option<Packed>;

    /// Whether all bytes are known to be 0 without a look at them.
    fn is_zeros(&self) -> bool {
        false
    }
}

struct Zeros(usize);

impl Source for Zeros {
    fn byte_len(&self) -> usize {
        self.0
    }

    fn read(&self, _: usize, out: &mut [u8]) {
        out.fill(0);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }

    fn is_zeros(&self) -> bool {
        true
    }
}

/// The content of a constant.
#[derive(Clone)]
pub enum Data {
    /// In MIL's own layout.
    Bytes(Bytes),
    /// Derived on demand.
    Source(Arc<dyn Source>),
}

impl Data {
    /// Owned bytes.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Data::Bytes(Bytes::new(bytes))
    }

    /// So many bytes of 0, which take no memory.
    pub fn zeros(byte_len: usize) -> Self {
        Data::Source(Arc::new(Zeros(byte_len)))
    }

    /// Whether these are [`Data::zeros`].
    pub fn is_zeros(&self) -> bool {
        matches!(self, Data::Source(source) if source.is_zeros())
    }

    /// Number of bytes in MIL's layout.
    pub fn byte_len(&self) -> usize {
        match self {
            Data::Bytes(b) => b.len(),
            Data::Source(s) => s.byte_len(),
        }
    }

    /// Write the bytes from `offset` on into `out`; a range past the end leaves `out` as it is and
    /// gives `false`.
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        match self {
            Data::Bytes(b) => b.read(offset, out),
            Data::Source(s) => {
                let fits = offset
                    .checked_add(out.len())
                    .is_some_and(|end| end <= s.byte_len());
                if fits {
                    s.read(offset, out);
                }
                fits
            }
        }
    }

    /// All bytes in one allocation.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.byte_len()];
        let read = self.read(0, &mut out);
        debug_assert!(read, "the whole range is in range");
        out
    }

    /// [`Bytes::check_len`] of what it is stored in.
    pub fn check_len(&self) -> Result<(), Truncated> {
        match self {
            Data::Bytes(bytes) => bytes.check_len(),
            Data::Source(source) => source
                .packed()
                .map_or(Ok(()), |packed| packed.bytes.check_len()),
        }
    }

    /// Whether both are the same stored bytes, without looking at them.
    pub fn is_same(&self, other: &Data) -> bool {
        match (self, other) {
            (Data::Bytes(a), Data::Bytes(b)) => {
                std::ptr::eq(a.as_slice(), b.as_slice()) && !a.is_empty()
            }
            (Data::Source(a), Data::Source(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl PartialEq for Data {
    /// Equal content, whatever the layout behind it; compared in pieces, so that nothing large is
    /// allocated.
    fn eq(&self, other: &Data) -> bool {
        const PIECE: usize = 1 << 16;
        if self.is_same(other) {
            return true;
        }
        let len = self.byte_len();
        if len != other.byte_len() {
            return false;
        }
        if self.is_zeros() && other.is_zeros() {
            return true;
        }
        let (mut a, mut b) = (vec![0; PIECE.min(len)], vec![0; PIECE.min(len)]);
        (0..len).step_by(PIECE).all(|at| {
            let n = PIECE.min(len - at);
            self.read(at, &mut a[..n]) && other.read(at, &mut b[..n]) && a[..n] == b[..n]
        })
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(b) => write!(f, "{b:?}"),
            Data::Source(s) => write!(
                f,
                "Source({} bytes as {:?})",
                s.byte_len(),
                s.packed().map(|p| p.ty)
            ),
        }
    }
}
