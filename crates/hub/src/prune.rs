//! Care for the caches: what no name leads to is removed, and what is there is verified.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bundle::{compare, names};
use crate::config::Hub;
use crate::disk::{self, Lock, folder_bytes, is_incomplete};
use crate::error::HubError;
use crate::layout::{RepoFolder, is_commit};
use crate::list::check_inside;
use crate::parts::Sum;

/// A repository of the shared cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    /// `hf:org/name`.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
    /// Branches and tags, each with its commit.
    pub refs: Vec<(String, String)>,
    /// Commits of which files are there.
    pub commits: Vec<String>,
    /// Number of files that were not downloaded to the end.
    pub n_incomplete: usize,
    /// Bytes on the disk.
    pub bytes: u64,
    /// Bytes of them that [`prune`] removes.
    pub unused_bytes: u64,
}

/// The files that were removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Bytes of them.
    pub bytes: u64,
}

/// What was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of files whose hash was compared.
    pub n_files: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Files that are not what their names say.
    pub damaged: Vec<PathBuf>,
    /// Names in snapshots that lead to no file, and files that bundles lack.
    pub missing: Vec<PathBuf>,
    /// Number of files whose names are no hashes, which nobody can verify.
    pub n_unknown: usize,
}

/// The repositories of the shared cache, by name.
pub fn repos(hub: &Hub) -> Result<Vec<CachedRepo>, HubError> {
    let names = names(hub)?;
    Ok(names.iter().map(|name| repo(hub, name)).collect())
}

fn repo(hub: &Hub, name: &str) -> CachedRepo {
    let folder = RepoFolder::new(&hub.places.hub_cache, name);
    let unused = unused(hub, name, &folder);
    CachedRepo {
        name: format!("hf:{name}"),
        refs: refs(&folder),
        commits: folder
            .snapshots()
            .iter()
            .map(|path| last_name(path))
            .collect(),
        n_incomplete: blobs(&folder)
            .iter()
            .filter(|blob| is_incomplete(blob))
            .count(),
        bytes: folder_bytes(&folder.path),
        unused_bytes: unused.iter().map(|path| bytes_freed(path)).sum(),
        path: folder.path,
    }
}

/// The repositories in the shared cache, as `org/name`.
fn names(hub: &Hub) -> Result<Vec<String>, HubError> {
    let cache = &hub.places.hub_cache;
    let entries = match fs::read_dir(cache) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(HubError::disk("read", cache, e)),
    };
    let names = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_prefix("models--")?.replace("--", "/")))
        .collect();
    names.sort();
    Ok(names)
}

/// Removes what no branch or tag leads to: snapshots of earlier commits, blobs that no snapshot
/// has, files that were not downloaded to the end, and folders of bundles without their snapshot.
/// With `is_dry`, nothing is removed.
pub fn prune(hub: &Hub, is_dry: bool) -> Result<Pruned, HubError> {
    let mut pruned = Pruned::default();
    for name in names(hub)? {
        let folder = RepoFolder::new(&hub.places.hub_cache, &name);
        pruned.paths.extend(unused(hub, &name, &folder));
    }
    // Before anything is removed: a file whose other name is gone would count again.
    pruned.bytes = pruned.paths.iter().map(|path| bytes_freed(path)).sum();
    if !is_dry {
        pruned.paths.iter().try_for_each(|path| remove(path, hub))?;
    }
    Ok(pruned)
}

fn remove(path: &Path, hub: &Hub) -> Result<(), HubError> {
    let cache = match path.starts_with(&hub.places.hub_cache) {
        true => &hub.places.hub_cache,
        false => &hub.places.cache,
    };
    check_inside(path.parent().unwrap_or(path), cache)?;
    disk::remove(path)
}

/// Bytes that the disk has more without a path: blobs with other names stay.
fn bytes_freed(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => disk::own_bytes(path),
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    }
}

fn unused(hub: &Hub, name: &str, folder: &RepoFolder) -> Vec<PathBuf> {
    let named: BTreeSet<String> = refs(folder).into_iter().map(|(_, commit)| commit).collect();
    // Somebody who asked for a commit has no branch.
    let is_kept = |path: &Path| named.is_empty() || named.contains(&last_name(path));
    let (kept, mut unused): (Vec<_>, Vec<_>) = folder
        .snapshots()
        .into_iter()
        .partition(|path| is_kept(path));
    let mut linked = BTreeSet::new();
    for snapshot in &kept {
        for file in disk::files_below(snapshot).unwrap_or_default() {
            linked.extend(fs::canonicalize(snapshot.join(file)));
        }
    }
    let is_used = |blob: &PathBuf| {
        let real = fs::canonicalize(blob);
        match is_incomplete(blob) {
            // A lock that is held means that somebody downloads it.
            true => !can_lock(folder, blob),
            false => real.is_ok_and(|real| linked.contains(&real)),
        }
    };
    unused.extend(blobs(folder).into_iter().filter(|blob| !is_used(blob)));
    let bundles = names::of_repo(hub, name);
    let bundles = fs::read_dir(bundles).into_iter().flatten().flatten();
    let stays = |commit: &str| kept.iter().any(|path| last_name(path) == commit);
    let gone = bundles.map(|entry| entry.path());
    unused.extend(gone.filter(|path| path.is_dir() && !stays(&last_name(path))));
    unused
}

fn can_lock(folder: &RepoFolder, blob: &Path) -> bool {
    let name = last_name(blob);
    let etag = name.split('.').next().unwrap_or_default();
    matches!(Lock::try_take(&folder.lock(etag)), Ok(Some(_)))
}

fn last_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn blobs(folder: &RepoFolder) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path.join("blobs"));
    let mut blobs: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    blobs.sort();
    blobs
}

/// Branches, tags and pull requests with their commits.
fn refs(folder: &RepoFolder) -> Vec<(String, String)> {
    let names = disk::files_below(&folder.path.join("refs")).unwrap_or_default();
    let names = names.into_iter().filter(|name| !is_incomplete(name));
    let named = names.filter_map(|name| {
        let name = name.to_str()?.replace('\\', "/");
        let commit = folder.commit(&name).filter(|commit| is_commit(commit))?;
        Some((name, commit))
    });
    named.collect()
}

/// Reads every blob of the shared cache, or of one repository, compares its hash with its name, and
/// compares the bundles that were made of the blobs.
/// Nothing is removed: `pull --check` brings what is damaged again.
pub fn verify(hub: &Hub, only: Option<&str>) -> Result<Verified, HubError> {
    let mut verified = Verified::default();
    for name in names(hub)? {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let folder = RepoFolder::new(&hub.places.hub_cache, &name);
        for blob in blobs(&folder) {
            if !is_incomplete(&blob) {
                verify_blob(&blob, hub, &mut verified)?;
            }
        }
        for snapshot in folder.snapshots() {
            for bundle in compare::of_commit(hub, &name, &last_name(&snapshot))? {
                verified.n_files += bundle.n_read;
                verified.bytes += bundle.bytes_read;
                verified.damaged.extend(bundle.damaged);
                verified.missing.extend(bundle.missing);
            }
            for file in disk::files_below(&snapshot)? {
                let path = snapshot.join(file);
                if !path.exists() {
                    verified.missing.push(path);
                }
            }
        }
    }
    Ok(verified)
}

fn verify_blob(blob: &Path, hub: &Hub, verified: &mut Verified) -> Result<(), HubError> {
    let name = last_name(blob);
    hub.check_wanted(&name)?;
    let is_right = match Sum::of_etag(&name) {
        Some(Sum::Sha256(expected)) => disk::hash_file(blob)? == expected,
        Some(Sum::Git(expected)) => disk::git_hashes(blob)?.contains(&expected),
        None => {
            verified.n_unknown += 1;
            return Ok(());
        }
    };
    verified.n_files += 1;
    verified.bytes += fs::metadata(blob).map_or(0, |found| found.len());
    if !is_right {
        verified.damaged.push(blob.to_owned());
    }
    Ok(())
}
