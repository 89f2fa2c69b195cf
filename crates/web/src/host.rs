//! Files that stay with the caller until bytes of them are read.

use std::sync::{Arc, OnceLock};

use thane_mil::data::{Bytes, Owner};

/// What an auditor needs of whoever asks it.
pub trait Host: Send + Sync {
    /// Fills `out` with the bytes of a file from `offset` on. They are within its length.
    ///
    /// A host that cannot do that must not return: in JavaScript it throws.
    fn read(&self, file: usize, offset: usize, out: &mut [u8]);

    /// Hears what is being done, such as `judging`.
    fn hear(&self, phase: &str);
}

/// A file of the host.
struct HostFile {
    host: Arc<dyn Host>,
    file: usize,
    byte_len: usize,
    /// All bytes, once somebody needed them in one piece.
    whole: OnceLock<Vec<u8>>,
}

impl Owner for HostFile {
    fn bytes(&self) -> &[u8] {
        self.whole.get_or_init(|| {
            let mut bytes = vec![0; self.byte_len];
            self.host.read(self.file, 0, &mut bytes);
            bytes
        })
    }

    fn byte_len(&self) -> usize {
        self.byte_len
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        match self.whole.get() {
            Some(bytes) => out.copy_from_slice(&bytes[offset..offset + out.len()]),
            None => self.host.read(self.file, offset, out),
        }
    }
}

/// The bytes of a file of the host, none of which is read yet.
pub fn file(host: &Arc<dyn Host>, file: usize, byte_len: usize) -> Bytes {
    Bytes::new(HostFile {
        host: Arc::clone(host),
        file,
        byte_len,
        whole: OnceLock::new(),
    })
}
