//! The source of a package's files: a folder on disk, or bytes in memory.
//!
//! Paths that a package contains are not trusted: each must stay inside the package, with links
//! resolved.

use std::collections::{BTreeMap, HashMap};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::blob::Storage;
use super::error::PackageError;
use super::manifest::{is_inside, resolve};
use super::map::{lfs_pointer, map};
use super::open::open_regular;
use crate::data::{Bytes, Data};
use crate::shorten::shorten;
use crate::types::TensorType;

/// Maximum length of a model file in bytes. Model files contain no weights; those of large models
/// are a few MB. Decoded messages take up to 60 times their bytes in memory.
pub(super) const MAX_MODEL_BYTES: u64 = 1 << 26;
/// Prefix of weight file names in a program: the folder of the model file.
pub(super) const MODEL_PATH: &str = "@model_path/";

/// The source of the files of a package or compiled model.
#[derive(Clone, Copy)]
pub(super) enum Files<'a> {
    /// A folder.
    Folder(&'a Path),
    /// Bytes in memory by their path inside the package. The first field is the package's name, for
    /// messages.
    Memory(&'a Path, &'a BTreeMap<String, Bytes>),
}

impl<'a> Files<'a> {
    /// The path of the package, or its name.
    pub fn path(&self) -> &'a Path {
        match self {
            Self::Folder(path) | Self::Memory(path, _) => path,
        }
    }

    /// Whether the package has a file called `name` at its top level.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(path) => path.join(name).is_file(),
            Self::Memory(_, files) => files.contains_key(name),
        }
    }

    /// Reads the file `relative` in `folder`, a folder of the package. Returns its path, for
    /// messages, and at most `max_bytes` of content; a longer file is an error.
    pub fn read(
        &self,
        folder: &Path,
        relative: &Path,
        max_bytes: u64,
    ) -> Result<(PathBuf, Vec<u8>), PackageError> {
        match self {
            Self::Folder(path) => {
                let file = resolve(path, &path.join(folder), relative)?;
                let bytes = read_capped(&file, max_bytes)?;
                Ok((file, bytes))
            }
            Self::Memory(..) => {
                let (file, bytes) = self.stored_within(folder, relative, max_bytes)?;
                Ok((file, bytes.as_slice().to_vec()))
            }
        }
    }

    /// Opens a weight file without copying it.
    fn storage(&self, folder: &Path, relative: &Path) -> Result<Storage, PackageError> {
        let (file, bytes) = match self {
            Self::Folder(path) => {
                let file = resolve(path, &path.join(folder), relative)?;
                let bytes = map(&file).map_err(PackageError::io(&file))?;
                (file, bytes)
            }
            Self::Memory(..) => self.stored(folder, relative)?,
        };
        Storage::open(file, bytes)
    }

    /// What [`Self::read`] reads of files in memory, without a copy.
    pub fn stored_within(
        &self,
        folder: &Path,
        relative: &Path,
        max_bytes: u64,
    ) -> Result<(PathBuf, Bytes), PackageError> {
        let (file, bytes) = self.stored(folder, relative)?;
        check_len(&file, bytes.len(), max_bytes)?;
        check_pointer(&file, bytes.as_slice())?;
        Ok((file, bytes))
    }

    /// The bytes of a file in memory.
    fn stored(&self, folder: &Path, relative: &Path) -> Result<(PathBuf, Bytes), PackageError> {
        let inner = folder.join(relative);
        let words: Vec<_> = inner.iter().map(|word| word.to_string_lossy()).collect();
        let key = words.join("/");
        let found = match self {
            Self::Memory(_, files) if is_inside(relative) => files.get(&key),
            _ => None,
        };
        let missing = || PackageError::unusable(self.path(), format!("has no file {key}"));
        let bytes = found.ok_or_else(missing)?;
        Ok((self.path().join(&key), bytes.clone()))
    }
}

/// Reads a regular file of at most `max_bytes`.
pub(super) fn read_capped(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PackageError> {
    let io = || PackageError::io(path);
    let file = open_regular(path).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => {
            PackageError::unusable(path, "is not a regular file: copy the package again")
        }
        _ => PackageError::io(path)(e),
    })?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(io())?;
    check_len(path, bytes.len(), max_bytes)?;
    check_pointer(path, &bytes)?;
    Ok(bytes)
}

/// Rejects a file that is too long, before it is read if its length is known.
fn check_len(path: &Path, len: usize, max_bytes: u64) -> Result<(), PackageError> {
    if len as u64 > max_bytes {
        let reason = format!("is longer than {max_bytes} bytes, the limit for such a file");
        return Err(PackageError::unusable(path, reason));
    }
    Ok(())
}

/// Rejects a Git LFS pointer.
fn check_pointer(path: &Path, bytes: &[u8]) -> Result<(), PackageError> {
    match lfs_pointer(bytes) {
        Some(reason) => Err(PackageError::unusable(path, reason)),
        None => Ok(()),
    }
}

/// Longest path of a weight file, as of a path on Linux.
const MAX_PATH_BYTES: usize = 4096;

/// The weight files of a program. Each file is opened when a constant in it is first needed.
pub(super) struct Weights<'a> {
    files: Files<'a>,
    /// The folder of the model, relative to the package.
    folder: PathBuf,
    opened: HashMap<String, Storage>,
}

impl<'a> Weights<'a> {
    /// Weight files of a package whose model is in `folder`, relative to the package.
    pub fn new(files: Files<'a>, folder: &Path) -> Self {
        Self {
            files,
            folder: folder.to_owned(),
            opened: HashMap::new(),
        }
    }

    /// The constant of type `ty` at `offset` of the weight file `name`.
    pub fn constant(
        &mut self,
        name: &str,
        offset: u64,
        ty: &TensorType,
    ) -> Result<Data, PackageError> {
        if !self.opened.contains_key(name) {
            let relative = name.strip_prefix(MODEL_PATH);
            let Some(relative) = relative.filter(|_| name.len() <= MAX_PATH_BYTES) else {
                let reason = shorten(format_args!(
                    "has weights in {name:?}, expected a path of at most {MAX_PATH_BYTES} bytes \
                     that starts with {MODEL_PATH}"
                ));
                return Err(PackageError::unusable(self.files.path(), reason));
            };
            let storage = self.files.storage(&self.folder, Path::new(relative))?;
            self.opened.insert(name.to_owned(), storage);
        }
        self.opened[name].constant(offset, ty)
    }
}
