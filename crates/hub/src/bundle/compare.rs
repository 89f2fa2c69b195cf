//! Compares the folder of a bundle with the list of its files, and with the files of the snapshot
//! that it was made of.
//!
//! A file that is another name of its blob needs no reading: whoever asks for every byte compares
//! the blobs first.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use super::names::{self, Manifest};
use super::{Asked, Bundle, MANIFEST, Wanted};
use crate::config::Hub;
use crate::disk;
use crate::download::Download;
use crate::error::HubError;
use crate::layout::RepoFolder;
use crate::parts::Sum;
use crate::publication::MOST_LIST_BYTES;
use crate::small::read_small;
use crate::spec::RepoSpec;
use crate::store::Check;

/// How a folder differs from what it should be.
#[derive(Debug, Default)]
pub struct Differences {
    /// Files with other bytes.
    pub damaged: Vec<PathBuf>,
    /// Files that are not there.
    pub missing: Vec<PathBuf>,
    /// Number of files that were read.
    pub n_read: usize,
    /// Bytes of them.
    pub bytes_read: u64,
}

impl Differences {
    pub(super) fn is_empty(&self) -> bool {
        self.damaged.is_empty() && self.missing.is_empty()
    }
}

/// Whether the folder of a bundle is there and is what it should be. With [`Check::Bytes`], it may
/// have no other files either.
pub fn is_right(
    at: &Path,
    snapshot: &Path,
    bundle: &Bundle,
    check: Check,
) -> Result<bool, HubError> {
    if !at.is_dir() || !differences(at, snapshot, bundle, check)?.is_empty() {
        return Ok(false);
    }
    let wanted: BTreeSet<&Path> = bundle.wanted.iter().map(|w| Path::new(&w.path)).collect();
    Ok(check == Check::Record
        || disk::files_below(at)?
            .iter()
            .all(|file| wanted.contains(file.as_path())))
}

/// The files of a bundle that are not what they should be: by their lengths, or with
/// [`Check::Bytes`] by their bytes.
pub fn differences(
    at: &Path,
    snapshot: &Path,
    bundle: &Bundle,
    check: Check,
) -> Result<Differences, HubError> {
    let mut all = Differences::default();
    let manifest = names::manifest(snapshot, bundle);
    for file in &bundle.wanted {
        let path = at.join(&file.path);
        let is_right = match &manifest {
            Manifest::Absent if file.path == MANIFEST => continue,
            Manifest::Reduced(text) if file.path == MANIFEST => {
                read_small(&path, MOST_LIST_BYTES).is_ok_and(|found| found == *text)
            }
            _ => is_file_right(&path, &snapshot.join(&file.path), (file, check), &mut all)?,
        };
        if !is_right {
            let there = fs::symlink_metadata(&path).is_ok();
            let list = if there {
                &mut all.damaged
            } else {
                &mut all.missing
            };
            list.push(path);
        }
    }
    Ok(all)
}

/// Whether a file of a bundle has the bytes of the list, or else those of the snapshot.
fn is_file_right(
    path: &Path,
    source: &Path,
    (file, check): (&Wanted, Check),
    all: &mut Differences,
) -> Result<bool, HubError> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => found,
        _ => return Ok(false),
    };
    let blob = fs::canonicalize(source).ok();
    let meta = blob.as_deref().and_then(|blob| fs::metadata(blob).ok());
    let known = file.known.as_ref().map(|(bytes, _)| *bytes);
    let bytes = known.or(meta.as_ref().map(|meta| meta.len()));
    if bytes.is_some_and(|bytes| bytes != found.len()) {
        return Ok(false);
    }
    let is_same = meta.as_ref().is_some_and(|meta| is_same_file(meta, &found));
    let was_compared = is_same && blob.as_deref().is_some_and(has_hash_for_a_name);
    if check == Check::Record || was_compared {
        return Ok(true);
    }
    let expected = match (&file.known, blob) {
        (Some((_, sha256)), _) => sha256.clone(),
        (None, Some(blob)) => disk::hash_file(&blob)?,
        (None, None) => return Ok(true),
    };
    all.n_read += 1;
    all.bytes_read += found.len();
    match disk::hash_file(path) {
        // Another process makes the bundle again.
        Err(_) if !path.exists() => Ok(false),
        found => Ok(found? == expected),
    }
}

fn has_hash_for_a_name(blob: &Path) -> bool {
    let name = blob.file_name().and_then(|name| name.to_str());
    name.and_then(Sum::of_etag).is_some()
}

#[cfg(unix)]
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &Metadata, _: &Metadata) -> bool {
    false
}

/// What the bundles of a commit differ in, by every byte.
pub fn of_commit(hub: &Hub, repo: &str, commit: &str) -> Result<Vec<Differences>, HubError> {
    let folder = names::of_repo(hub, repo).join(commit);
    let snapshot = RepoFolder::new(&hub.places.hub_cache, repo).snapshot(commit);
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let at = entry.path();
        if let Some(bundle) = bundle_of(hub, (repo, commit), &at) {
            all.push(differences(&at, &snapshot, &bundle, Check::Bytes)?);
        }
    }
    Ok(all)
}

/// What the folder of a bundle was made of, as far as the snapshot still says it.
pub(super) fn bundle_of(hub: &Hub, (repo, commit): (&str, &str), at: &Path) -> Option<Bundle> {
    let key = at.file_name()?.to_str()?;
    if key.starts_with('.') || !at.is_dir() {
        return None;
    }
    let hub = Hub {
        offline: true,
        ..hub.clone()
    };
    let spec = RepoSpec {
        repo: repo.to_owned(),
        file: None,
        revision: commit.to_owned(),
    };
    let download = Download::new(&spec, &hub);
    let snapshot = download.folder.snapshot(commit);
    let files = disk::files_below(&snapshot).ok()?.into_iter();
    // What is read of the snapshot is there, so that nothing is asked for.
    let files = files.filter(|file| snapshot.join(file).is_file());
    let names: Vec<String> = files
        .filter_map(|file| Some(file.to_str()?.replace('\\', "/")))
        .collect();
    let (selection, package) = names::asked_of(key, &names)?;
    let asked = Asked {
        selection,
        key: None,
    };
    super::find(&download, commit, &names, (&asked, package.as_deref())).ok()?
}
