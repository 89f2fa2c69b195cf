//! The files of a package or compiled model: a folder on disk, or bytes in memory by their paths.
//!
//! Paths that a package names are never believed: each must stay inside of it, links followed.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::blob::Storage;
use super::error::PackageError;
use super::manifest::{is_inside, resolve};
use super::map::{lfs_pointer, map};
use crate::data::{Bytes, Data};
use crate::types::TensorType;

/// Model files have no weights in them, and those of large models are a few MB; messages take up to
/// 60 times their bytes in memory.
pub(super) const MAX_MODEL_BYTES: u64 = 1 << 26;
/// What a weight file's name begins with: the folder that the model file is in.
pub(super) const MODEL_PATH: &str = "@model_path/";

/// Where the files of a package are.
#[derive(Clone, Copy)]
pub(super) enum Files<'a> {
    /// In this folder.
    Folder(&'a Path),
    /// In memory, by their paths inside the package; the name is for messages.
    Memory(&'a Path, &'a BTreeMap<String, Bytes>),
}

impl<'a> Files<'a> {
    /// The package's path, or its name.
    pub fn path(&self) -> &'a Path {
        match self {
            Self::Folder(path) | Self::Memory(path, _) => path,
        }
    }

    /// Whether there is a file of this name at the top.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(path) => path.join(name).is_file(),
            Self::Memory(_, files) => files.contains_key(name),
        }
    }

    /// A file of at most `max_bytes`, with its path for messages; `relative` is below `folder`,
    /// which is below the package.
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
                let (file, bytes) = self.stored(folder, relative)?;
                check(&file, bytes.as_slice(), max_bytes)?;
                Ok((file, bytes.as_slice().to_vec()))
            }
        }
    }

    /// A weight file, of which nothing is copied.
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

/// The bytes of a regular file of at most `max_bytes`.
pub(super) fn read_capped(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PackageError> {
    let io = || PackageError::io(path);
    if !fs::metadata(path).map_err(io())?.is_file() {
        return Err(PackageError::unusable(
            path,
            "is no regular file: copy the package again",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(io())?
        .take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(io())?;
    check(path, &bytes, max_bytes)?;
    Ok(bytes)
}

fn check(path: &Path, bytes: &[u8], max_bytes: u64) -> Result<(), PackageError> {
    if bytes.len() as u64 > max_bytes {
        let reason = format!("is longer than {max_bytes} bytes, too long for such a file");
        return Err(PackageError::unusable(path, reason));
    }
    match lfs_pointer(bytes) {
        Some(reason) => Err(PackageError::unusable(path, reason)),
        None => Ok(()),
    }
}

/// The weight files that a program names, opened when a constant in one is first needed.
pub(super) struct Weights<'a> {
    files: Files<'a>,
    /// The folder of the model, below the package.
    folder: PathBuf,
    opened: HashMap<String, Storage>,
}

impl<'a> Weights<'a> {
    /// Weights of a package whose model is in `folder`, below the package.
    pub fn new(files: Files<'a>, folder: &Path) -> Self {
        Self {
            files,
            folder: folder.to_owned(),
            opened: HashMap::new(),
        }
    }

    /// The constant at an offset of a file.
    pub fn constant(
        &mut self,
        name: &str,
        offset: u64,
        ty: &TensorType,
    ) -> Result<Data, PackageError> {
        if !self.opened.contains_key(name) {
            let Some(relative) = name.strip_prefix(MODEL_PATH) else {
                let reason =
                    format!("has its weights in {name:?}, which does not begin with {MODEL_PATH}");
                return Err(PackageError::unusable(self.files.path(), reason));
            };
            let storage = self.files.storage(&self.folder, Path::new(relative))?;
            self.opened.insert(name.to_owned(), storage);
        }
        self.opened[name].constant(offset, ty)
    }
}
