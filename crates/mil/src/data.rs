//! The bytes of constants: owned, a slice of a shared map, or computed on demand from another
//! layout.
//!
//! This module knows nothing of files or checkpoints. A checkpoint reader passes [`Bytes`] that
//! keep its memory map alive. A tensor whose layout in the file differs from MIL's (interleaved
//! quantization blocks, bfloat16) implements [`Source`]: it writes MIL's layout and names its own
//! layout, so that a backend can use the stored bytes directly.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use thane_blocks::BlockType;

/// Holds bytes in memory or in a map.
pub trait Owner: Send + Sync {
    /// All bytes. An owner that fetches bytes when they are wanted brings all of them into memory
    /// here, so that who needs a part [reads](Self::read) it instead.
    fn bytes(&self) -> &[u8];

    /// Number of bytes.
    fn byte_len(&self) -> usize {
        self.bytes().len()
    }

    /// Copies the bytes from `offset` on. The caller ensures that `offset + out.len()` is within
    /// the length.
    ///
    /// The owner of a map may read the file instead, so that bytes that are only copied take no
    /// memory of this process.
    fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes()[offset..offset + out.len()]);
    }

    /// A hint that the range will hardly be read again. The owner of a map may release its memory
    /// until it is.
    fn release(&self, _range: Range<usize>) {}

    /// Whether memory of the range was released.
    fn is_released(&self, _range: Range<usize>) -> bool {
        false
    }

    /// Checks that the file behind a map is as long as the map.
    fn check_len(&self) -> Result<(), Truncated> {
        Ok(())
    }
}

/// A mapped file became shorter. Reading the missing part would end the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: expected {expected} bytes, as when it was opened, found {found}: another process \
     truncated the file; restore it and begin again", path.display()
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

/// A shared, immutable range of bytes. Cloning is cheap and copies no bytes.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn Owner>,
    range: Range<usize>,
}

impl Bytes {
    /// All bytes of `owner`, which lives as long as the result or a slice of it.
    pub fn new(owner: impl Owner + 'static) -> Self {
        let len = owner.byte_len();
        Self {
            owner: Arc::new(owner),
            range: 0..len,
        }
    }

    /// The bytes in `range`, or `None` if it reaches past the end.
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

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// A hint that these bytes will hardly be read again; reading them remains possible.
    pub fn release(&self) {
        self.owner.release(self.range.clone());
    }

    /// Whether some of these bytes were released, so that small parts should be [read](Self::read)
    /// instead of accessed in the map.
    pub fn is_released(&self) -> bool {
        self.owner.is_released(self.range.clone())
    }

    /// Copies the bytes from `offset` on into `out`, without bringing other parts of a mapped file
    /// into memory. If the range reaches past the end, returns `false` and leaves `out` unchanged.
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

    /// Checks that the mapped file, if any, is as long as when it was opened. Call it before long
    /// work.
    ///
    /// The check costs one system call. If the file is truncated later, while it is read, the
    /// process still ends with SIGBUS.
    pub fn check_len(&self) -> Result<(), Truncated> {
        self.owner.check_len()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // An owner that shrinks between calls has a bug; the empty slice avoids a panic.
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

/// The identity of the bytes behind a constant: equal for clones and for equal ranges of one owner.
///
/// It keeps the bytes alive, so that no other bytes ever get the same identity.
#[derive(Clone)]
pub struct DataId(Data);

impl DataId {
    fn parts(&self) -> (usize, Range<usize>) {
        match &self.0 {
            Data::Bytes(bytes) => (
                Arc::as_ptr(&bytes.owner).cast::<()>().addr(),
                bytes.range.clone(),
            ),
            Data::Source(source) => (Arc::as_ptr(source).cast::<()>().addr(), 0..0),
        }
    }
}

impl PartialEq for DataId {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for DataId {}

impl Hash for DataId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl fmt::Debug for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataId({:?})", self.0)
    }
}

/// The stored form of a constant that is computed from it.
///
/// Several constants may come from one stored tensor: codes, scales and offsets of quantization
/// blocks. A backend that finds them together under one op may use `bytes` instead, which encode
/// the op's result.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Layout of `bytes`.
    pub ty: BlockType,
    /// The stored bytes, row by row.
    pub bytes: Bytes,
}

/// Bytes of a constant that are computed on demand from another layout.
pub trait Source: Send + Sync {
    /// Number of bytes in MIL's layout.
    fn byte_len(&self) -> usize;

    /// Writes the bytes from `offset` on into `out`. The caller ensures `offset + out.len() <=
    /// byte_len()`.
    fn read(&self, offset: usize, out: &mut [u8]);

    /// The stored form, if a backend may use it instead.
    fn packed(&self) -> Option<Packed>;

    /// Whether all bytes are known to be 0 without reading them.
    fn is_zeros(&self) -> bool {
        false
    }

    /// Whether all bytes are computed when the first one is read, which takes long. Equal bytes of
    /// such sources are one source, so that nobody has to read them to compare them.
    fn is_late(&self) -> bool {
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

/// The bytes of a constant.
#[derive(Clone)]
pub enum Data {
    /// Bytes in MIL's layout.
    Bytes(Bytes),
    /// Computed on demand.
    Source(Arc<dyn Source>),
}

impl Data {
    /// Owned bytes.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Data::Bytes(Bytes::new(bytes))
    }

    /// `byte_len` zero bytes, which take no memory.
    pub fn zeros(byte_len: usize) -> Self {
        Data::Source(Arc::new(Zeros(byte_len)))
    }

    /// Whether the data is [`Data::zeros`].
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

    /// Copies the bytes from `offset` on into `out`. If the range reaches past the end, returns
    /// `false` and leaves `out` unchanged.
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

    /// [`Bytes::check_len`] of the stored bytes.
    pub fn check_len(&self) -> Result<(), Truncated> {
        match self {
            Data::Bytes(bytes) => bytes.check_len(),
            Data::Source(source) => source
                .packed()
                .map_or(Ok(()), |packed| packed.bytes.check_len()),
        }
    }

    /// Which bytes these are, without looking at them.
    pub fn id(&self) -> DataId {
        DataId(self.clone())
    }

    /// Whether both refer to the same stored bytes, without comparing content.
    pub fn is_same(&self, other: &Data) -> bool {
        match (self, other) {
            (Data::Bytes(a), Data::Bytes(_)) => self.id() == other.id() && !a.is_empty(),
            (Data::Source(a), Data::Source(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl PartialEq for Data {
    /// Compares the content in MIL's layout, piece by piece, so that no large buffer is allocated.
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
