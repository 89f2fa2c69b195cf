//! The folder layout of Hugging Face's cache, which its own tools share.
//!
//! ```text
//! models--org--name/
//!   refs/main                   the commit that a branch or tag stands for
//!   blobs/<etag>                a file's bytes; `<etag>.incomplete` while they come
//!   snapshots/<commit>/<file>   a link to the blob
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::small::read_small;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::disk;
use crate::error::HubError;
use crate::spec::{RepoSpec, is_inside};

pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
/// Bytes of a shard index at most. An index names every tensor; a million tensors take less.
pub const MAX_INDEX_BYTES: u64 = 128 << 20;

/// One repository's folder in the cache.
pub struct RepoFolder {
    pub path: PathBuf,
    locks: PathBuf,
}

impl RepoFolder {
    pub fn new(hub: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self {
            path: hub.join(&name),
            locks: hub.join(".locks").join(name),
        }
    }

    pub fn blob(&self, etag: &str) -> PathBuf {
        self.path.join("blobs").join(etag)
    }

    pub fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that `revision` named when it was last downloaded.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) && self.snapshot(revision).is_dir() {
            return Some(revision.to_owned());
        }
        let commit = read_small(&self.path.join("refs").join(revision), 1 << 10).ok()?;
        let commit = std::str::from_utf8(&commit).ok()?.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.path.join("refs").join(revision);
        disk::create_folder(path.parent().unwrap_or(&self.path))?;
        disk::write_whole(&path, commit.as_bytes())
    }

    /// Links a complete blob into a snapshot under its file name. A link that is there already is
    /// replaced in one step: another process may be reading through it.
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf, HubError> {
        let name = self.snapshot(commit).join(file);
        disk::create_folder(name.parent().unwrap_or(&self.path))?;
        // From snapshots/<commit>/a/b the blob is three folders up, plus one for each folder in the
        // name.
        let up = "../".repeat(2 + file.matches('/').count());
        let (target, blob) = (PathBuf::from(format!("{up}blobs/{etag}")), self.blob(etag));
        if fs::read_link(&name).is_ok_and(|found| found == target) {
            return Ok(name);
        }
        // The new link begins beside the blob, where what a killed process leaves is removed.
        disk::replace(&name, &blob, |link| link_file(&target, &blob, link))
            .map_err(|e| HubError::disk("write", &name, e))?;
        Ok(name)
    }

    /// The model in the cache, if all of its files are there.
    pub fn cached(&self, spec: &RepoSpec) -> Option<PathBuf> {
        let snapshot = self.snapshot(&self.commit(&spec.revision)?);
        match &spec.file {
            Some(file) => Some(snapshot.join(file)).filter(|path| path.is_file()),
            None => complete_model(&snapshot),
        }
    }

    /// The files of the snapshot that `spec` names, each with the blob behind it.
    pub fn files(&self, spec: &RepoSpec) -> Vec<(PathBuf, PathBuf)> {
        let Some(commit) = self.commit(&spec.revision) else {
            return Vec::new();
        };
        let snapshot = self.snapshot(&commit);
        let names: Vec<PathBuf> = match &spec.file {
            Some(file) => vec![snapshot.join(file)],
            None => files_below(&snapshot, MOST_DEPTH),
        };
        names
            .into_iter()
            .filter_map(|name| fs::canonicalize(&name).ok().map(|blob| (name, blob)))
            .collect()
    }

    /// The snapshots in the cache, complete or not.
    pub fn snapshots(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path.join("snapshots"))
            .into_iter()
            .flatten()
            .flatten();
        let mut paths: Vec<PathBuf> = entries.map(|e| e.path()).filter(|p| p.is_dir()).collect();
        paths.sort();
        paths
    }
}

/// Most folders inside each other of a snapshot: packages have four.
const MOST_DEPTH: usize = 8;

/// The files of a folder and of its folders, `depth` levels down.
fn files_below(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 0 => files_below(&entry.path(), depth - 1),
            Ok(kind) if kind.is_dir() => Vec::new(),
            _ => vec![entry.path()],
        })
        .collect()
}

#[cfg(unix)]
fn link_file(relative: &Path, _blob: &Path, name: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(relative, name)
}

#[cfg(not(unix))]
fn link_file(_relative: &Path, blob: &Path, name: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, name).or_else(|_| fs::copy(blob, name).map(|_| ()))
}

/// Whether a text is a git hash. A server sends it, and it becomes the name of a folder.
pub fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The model in a snapshot folder: the folder itself, or its only GGUF file. `None` if files are
/// missing or several GGUF files are there.
///
/// Weights are downloaded last, so complete weights mean that the small files are there too.
pub fn complete_model(folder: &Path) -> Option<PathBuf> {
    if folder.join("config.json").is_file() {
        let index = folder.join(INDEX);
        let is_complete = if index.is_file() {
            let shards = read_small(&index, MAX_INDEX_BYTES)
                .ok()
                .and_then(|text| shards(&text).ok());
            shards.is_some_and(|shards| shards.iter().all(|shard| folder.join(shard).is_file()))
        } else {
            folder.join(WEIGHTS).is_file()
        };
        if is_complete {
            return Some(folder.to_owned());
        }
    }
    let mut files = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path());
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|e| e == "gguf") && path.is_file();
    let first = files.find(is_gguf)?;
    files.all(|path| !is_gguf(&path)).then_some(first)
}

/// Most shards of a model: each is asked for and downloaded. The largest known models have less
/// than 200.
const MAX_SHARDS: usize = 1000;

/// The files that a shard index names.
pub fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
        #[serde(rename = "metadata")]
        _metadata: Option<IgnoredAny>,
    }
    let index: Index = serde_json::from_slice(index).map_err(|e| e.to_string())?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    match shards
        .iter()
        .find(|shard| !is_inside(shard) || shard.contains('/'))
    {
        Some(bad) => Err(format!("shard `{bad}` is not a plain name")),
        None if shards.is_empty() => Err("the index names no shard".into()),
        None if shards.len() > MAX_SHARDS => Err(format!(
            "expected an index of at most {MAX_SHARDS} shards, found {}",
            shards.len()
        )),
        None => Ok(shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_model_when_every_shard_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        put("config.json", "{}");
        put(
            INDEX,
            r#"{"metadata":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"}}"#,
        );
        put("1.safetensors", "");
        assert_eq!(complete_model(folder.path()), None);
        put("2.safetensors", "");
        assert_eq!(
            complete_model(folder.path()).as_deref(),
            Some(folder.path())
        );
    }

    #[test]
    fn one_gguf_file_is_the_model_and_two_are_ambiguous() {
        let folder = tempfile::tempdir().unwrap();
        let one = folder.path().join("a.gguf");
        fs::write(&one, "").unwrap();
        assert_eq!(complete_model(folder.path()), Some(one));
        fs::write(folder.path().join("b.gguf"), "").unwrap();
        assert_eq!(complete_model(folder.path()), None);
    }

    #[test]
    fn shards_are_bounded() {
        let index = |n: usize| {
            let shard = |i: usize| format!("\"{i}\":\"{i}.safetensors\"");
            let map: Vec<String> = (0..n).map(shard).collect();
            format!("{{\"weight_map\":{{{}}}}}", map.join(","))
        };
        assert_eq!(shards(index(MAX_SHARDS).as_bytes()).unwrap().len(), 1000);
        let said = "expected an index of at most 1000 shards, found 1001";
        assert_eq!(shards(index(MAX_SHARDS + 1).as_bytes()).unwrap_err(), said);
    }

    #[test]
    fn shards_stay_in_their_folder() {
        for bad in ["../x", "a/b", "/x", ""] {
            assert!(
                shards(format!(r#"{{"weight_map":{{"a":"{bad}"}}}}"#).as_bytes()).is_err(),
                "{bad}"
            );
        }
    }
}
