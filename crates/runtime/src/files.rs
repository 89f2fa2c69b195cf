//! Hashes, lengths and links of the files of packages.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thane_mil::package::{self, Partial};

use crate::error::{ContractError, RuntimeError};

/// Bytes of a JSON file or tokenizer at most; vocabularies take tens of megabytes.
const MOST_BYTES: u64 = 1 << 28;

/// A file and the hash of its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHash {
    /// Path relative to the folder that is described.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// sha256, hexadecimal.
    pub sha256: String,
}

/// Hashes that another thread is computing: hashing a checkpoint takes as long as writing it.
pub type Hashing = JoinHandle<io::Result<Vec<FileHash>>>;

/// Starts to hash files on another thread. Each is named by its file name.
pub fn hash_files(paths: Vec<PathBuf>) -> Hashing {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let one = move |path: &PathBuf| {
        hash(path, name(path))
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    };
    std::thread::spawn(move || paths.iter().map(one).collect())
}

/// Replaces a file, when the new one is complete.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = Partial::file(path)?;
    fs::write(partial.path(), bytes)?;
    partial.replace()
}

/// The hash of a file, described under `name`.
pub fn hash(path: &Path, name: String) -> io::Result<FileHash> {
    let mut file = package::open_regular(path)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    let mut sha = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            break;
        }
        sha.update(&piece[..n]);
        bytes += n as u64;
    }
    let sha256 = sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileHash {
        path: name,
        bytes,
        sha256,
    })
}

/// The hashes of all files below a folder, sorted by path, apart from the list of files that each
/// package has, which coremltools writes anew when it opens one.
pub fn hash_tree(folder: &Path) -> io::Result<Vec<FileHash>> {
    hash_tree_without(folder, |_| false)
}

/// As [`hash_tree`], without files that `is_beside` names.
pub(crate) fn hash_tree_without(
    folder: &Path,
    is_beside: impl Fn(&str) -> bool,
) -> io::Result<Vec<FileHash>> {
    walk(folder)?
        .into_iter()
        .filter(|(name, _)| !is_list_of_package(name) && !is_beside(name))
        .map(|(name, _)| hash(&folder.join(&name), name))
        .collect()
}

/// Whether a file is the list of files of a package.
pub(crate) fn is_list_of_package(name: &str) -> bool {
    name.ends_with("/Manifest.json")
}

/// The files below a folder with their relative paths, sorted.
pub fn walk(folder: &Path) -> io::Result<Vec<(String, Metadata)>> {
    let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(name + "/");
            } else {
                files.push((name, entry.metadata()?));
            }
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// Extensions of the files that models, packages and their tokenizers are made of.
const OF_MODELS: [&str; 12] = [
    "bin",
    "gguf",
    "jinja",
    "json",
    "mil",
    "mlmodel",
    "model",
    "pt",
    "safetensors",
    "txt",
    "yaml",
    "yml",
];
/// Most files of a model, and most folders inside each other: a folder of packages has four.
const MOST_FILES: usize = 10_000;
const MOST_DEPTH: usize = 6;

/// A hash of the names, lengths and modification times of the files of a model, which identifies
/// them without reading them. What lies beside them does not count: files of other kinds, hidden
/// folders, links to folders, and links to nothing.
pub fn fingerprint(path: &Path) -> Result<String, RuntimeError> {
    let mut files = Vec::new();
    let metadata = path.metadata().map_err(|e| unread(path, e))?;
    if metadata.is_dir() {
        collect(path, MOST_DEPTH, &mut files)?;
    } else {
        files.push(facts(path, &metadata)?);
    }
    files.sort();
    let mut sha = Sha256::new();
    for (path, len, time) in files {
        sha.update(format!("{} {len} {time}\n", path.display()));
    }
    Ok(sha.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// The path of a file, its length and its modification time.
type Facts = (PathBuf, u64, u128);

/// The files in a folder and in its folders, `depth` levels down. Links to files are followed, as
/// the cache of the Hub has them.
fn collect(folder: &Path, depth: usize, files: &mut Vec<Facts>) -> Result<(), RuntimeError> {
    let entries = folder.read_dir().map_err(|e| unread(folder, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| unread(folder, e))?;
        let path = entry.path();
        if entry.file_type().map_err(|e| unread(&path, e))?.is_dir() {
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if depth > 0 && !is_hidden {
                collect(&path, depth - 1, files)?;
            }
            continue;
        }
        let extension = path.extension().and_then(|e| e.to_str());
        if !extension.is_some_and(|e| OF_MODELS.contains(&e)) {
            continue;
        }
        let Ok(metadata) = path.metadata() else {
            continue;
        };
        if !metadata.is_file() {
            continue;
        }
        if files.len() == MOST_FILES {
            let what = format!("expected at most {MOST_FILES} files of a model, found more");
            return Err(unread(folder, io::Error::other(what)));
        }
        files.push(facts(&path, &metadata)?);
    }
    Ok(())
}

fn facts(path: &Path, metadata: &Metadata) -> Result<Facts, RuntimeError> {
    let time = metadata.modified().map_err(|e| unread(path, e))?;
    let time = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((path.to_owned(), metadata.len(), time.as_nanos()))
}

fn unread(path: &Path, source: io::Error) -> RuntimeError {
    RuntimeError::Read {
        path: path.to_owned(),
        source,
    }
}

/// The first file that only one list has, or that both have with different bytes.
pub fn first_difference<'a>(a: &'a [FileHash], b: &'a [FileHash]) -> Option<&'a str> {
    let only = |a: &'a [FileHash], b: &[FileHash]| {
        a.iter().find(|f| !b.contains(f)).map(|f| f.path.as_str())
    };
    only(a, b).or_else(|| only(b, a))
}

/// Makes `second` a hard link to `first`, if both have the same bytes and the file system can.
/// Otherwise both stay as they are, which only costs space.
pub fn link_equal(first: &Path, second: &Path) -> io::Result<()> {
    if hash(first, String::new())? != hash(second, String::new())? {
        return Ok(());
    }
    let beside = second.with_extension("link");
    if fs::hard_link(first, &beside).is_ok() {
        fs::rename(&beside, second)?;
    }
    Ok(())
}

/// Bytes of all files below a folder.
pub fn total_bytes(folder: &Path) -> io::Result<u64> {
    Ok(walk(folder)?.iter().map(|(_, m)| m.len()).sum())
}

/// Bytes that the files below a folder take on the disk: hard links to one file count once.
pub fn disk_bytes(folder: &Path) -> io::Result<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let files: std::collections::BTreeMap<u64, u64> = walk(folder)?
            .into_iter()
            .map(|(_, m)| (m.ino(), m.len()))
            .collect();
        Ok(files.values().sum())
    }
    #[cfg(not(unix))]
    total_bytes(folder)
}

/// Reads a file that may have up to 256 MiB.
pub fn read(path: &Path) -> Result<Vec<u8>, ContractError> {
    read_within(path, MOST_BYTES)
}

/// Reads a file that may have `most_bytes`. A pointer of Git LFS is an error that says so.
pub fn read_within(path: &Path, most_bytes: u64) -> Result<Vec<u8>, ContractError> {
    let bytes = package::read_small(path, most_bytes).map_err(|source| ContractError::Read {
        path: path.to_owned(),
        source,
    })?;
    match package::lfs_pointer(&bytes) {
        Some(remedy) => Err(ContractError::LfsPointer {
            path: path.to_owned(),
            remedy,
        }),
        None => Ok(bytes),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_lies_beside_a_model_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let (model, other) = (folder.path().join("model"), folder.path().join("other"));
        fs::create_dir_all(model.join("1_Pooling")).unwrap();
        fs::create_dir(&other).unwrap();
        for name in ["config.json", "model.safetensors", "1_Pooling/config.json"] {
            fs::write(model.join(name), "{}").unwrap();
        }
        // As the cache of the Hub has it.
        fs::write(other.join("blob"), "{}").unwrap();
        symlink("../other/blob", model.join("tokenizer.json")).unwrap();
        let before = fingerprint(&model).unwrap();
        symlink("nowhere", model.join("README.md")).unwrap();
        symlink("nowhere", model.join("x.json")).unwrap();
        symlink(folder.path(), model.join("up")).unwrap();
        symlink("loop", model.join("loop")).unwrap();
        fs::write(model.join("notes.md"), "notes").unwrap();
        fs::create_dir(model.join(".git")).unwrap();
        fs::write(model.join(".git/x.json"), "{}").unwrap();
        assert_eq!(fingerprint(&model).unwrap(), before);
        for name in ["config.json", "1_Pooling/config.json", "tokenizer.json"] {
            let whole = fs::read(model.join(name)).unwrap();
            fs::write(model.join(name), "{  }").unwrap();
            assert_ne!(fingerprint(&model).unwrap(), before, "{name}");
            fs::write(model.join(name), whole).unwrap();
        }
    }

    #[test]
    fn files_of_a_model_are_bounded_and_errors_name_the_path() {
        let folder = tempfile::tempdir().unwrap();
        for i in 0..=MOST_FILES {
            fs::write(folder.path().join(format!("{i}.json")), "").unwrap();
        }
        let place = folder.path().display().to_string();
        let missing = folder.path().join("missing.gguf");
        for (path, said) in [
            (
                folder.path(),
                &["expected at most 10000 files of a model", &place][..],
            ),
            (&missing, &["missing.gguf"]),
        ] {
            let error = with_source(&fingerprint(path).unwrap_err());
            for said in said {
                assert!(error.contains(said), "{error}");
            }
        }
    }

    fn with_source(error: &RuntimeError) -> String {
        let source = std::error::Error::source(error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    }
}
