//! Folders of bundles in Thane's own cache.
//!
//! ```text
//! bundles/models--org--name/<commit>/
//!   whole/            every package; 512-1024 or whole.mlmodelc for a part or another form
//!   .whole.partial    while it is made
//!   .whole.old        while another one takes its place
//! ```
//!
//! Files are hard links to blobs of the shared cache: readers of packages, Thane's own among them,
//! do not follow symbolic links out of a package, and the disk has the bytes once. Where the two
//! caches are on different disks, files are copies. A folder gets its name when every file is
//! there.

use std::fs;
use std::path::{Path, PathBuf};

use super::names::{Manifest, ONLY, WHOLE, key, manifest, of_repo};
use super::{Bundle, DESCRIPTIONS, MANIFEST, Wanted, compare, of_list};
use crate::config::Hub;
use crate::disk::{self, Lock};
use crate::error::HubError;
use crate::layout::RepoFolder;
use crate::publication::{Format, MOST_LIST_BYTES, PUBLICATION, Selection};
use crate::small::read_small;
use crate::spec::RepoSpec;
use crate::store::Check;

/// The file in the folder of a repository that is locked while a bundle is made or removed.
const LOCK: &str = ".lock";
/// Makes the folder of a bundle whose files are in a snapshot of the shared cache, unless it is
/// there and is what it should be, as far as `check` says. Returns the model in it.
pub fn place(
    hub: &Hub,
    (repo, commit): (&str, &str),
    (bundle, key): (&Bundle, &str),
    check: Check,
) -> Result<PathBuf, HubError> {
    let snapshot = RepoFolder::new(&hub.places.hub_cache, repo).snapshot(commit);
    let what = format!("hf:{repo}");
    let repo = of_repo(hub, repo);
    let folder = repo.join(commit);
    let at = folder.join(key);
    let is_right = || compare::is_right(&at, &snapshot, bundle, check);
    if is_right()? {
        return Ok(model_in(&at));
    }
    let _lock = Lock::wait(&repo.join(LOCK), &what, hub)?;
    if is_right()? {
        return Ok(model_in(&at));
    }
    let [partial, old] = ["partial", "old"].map(|end| folder.join(format!(".{key}.{end}")));
    disk::remove(&partial)?;
    disk::remove(&old)?;
    make(&partial, &snapshot, bundle)?;
    if at.is_dir() {
        hub.progress.note(&format!(
            "{} has missing or changed files; it is made again",
            at.display()
        ));
        fs::rename(&at, &old).map_err(|e| HubError::disk("rename", &at, e))?;
    }
    fs::rename(&partial, &at).map_err(|e| HubError::disk("write", &at, e))?;
    disk::remove(&old)?;
    Ok(model_in(&at))
}

/// Links the files of a bundle into a folder that is new.
fn make(folder: &Path, snapshot: &Path, bundle: &Bundle) -> Result<(), HubError> {
    disk::create_folder(folder)?;
    let manifest = manifest(snapshot, bundle);
    for file in &bundle.wanted {
        let to = folder.join(&file.path);
        match &manifest {
            Manifest::Absent if file.path == MANIFEST => {}
            Manifest::Reduced(text) if file.path == MANIFEST => disk::write_whole(&to, text)?,
            _ => link(&snapshot.join(&file.path), &to)?,
        }
    }
    Ok(())
}

/// Removes every bundle of a repository. The lock stays: another process may wait for it.
pub fn remove_all(hub: &Hub, repo: &str) -> Result<(), HubError> {
    let folder = of_repo(hub, repo);
    if !folder.is_dir() {
        return Ok(());
    }
    let _lock = Lock::wait(&folder.join(LOCK), &format!("hf:{repo}"), hub)?;
    let entries = fs::read_dir(&folder).map_err(|e| HubError::disk("read", &folder, e))?;
    let mut bundles = entries.flatten().filter(|entry| entry.file_name() != LOCK);
    bundles.try_for_each(|entry| disk::remove(&entry.path()))
}

/// A hard link to a file, or a copy where there can be none.
fn link(from: &Path, to: &Path) -> Result<(), HubError> {
    if let Some(folder) = to.parent() {
        disk::create_folder(folder)?;
    }
    let blob = fs::canonicalize(from).map_err(|e| HubError::disk("read", from, e))?;
    fs::hard_link(&blob, to)
        .or_else(|_| fs::copy(&blob, to).map(drop))
        .map_err(|e| HubError::disk("write", to, e))
}

/// Copies a bundle or a package that was pulled to `to`, as files that belong to nobody else.
pub fn copy(from: &Path, to: &Path) -> Result<(), HubError> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(HubError::Exists {
            path: to.to_owned(),
        });
    }
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let partial = to.with_file_name(format!(".{name}.partial"));
    disk::remove(&partial)?;
    let copy_file = |from: &Path, to: &Path| {
        disk::create_folder(to.parent().unwrap_or(to))?;
        fs::copy(from, to).map_err(|e| HubError::disk("write", to, e))
    };
    match from.is_dir() {
        true => disk::files_below(from)?
            .iter()
            .try_for_each(|path| copy_file(&from.join(path), &partial.join(path)).map(drop))?,
        false => drop(copy_file(from, &partial)?),
    }
    fs::rename(&partial, to).map_err(|e| HubError::disk("write", to, e))
}

/// The model in a folder: the folder where something describes it, or the only package in it.
fn model_in(folder: &Path) -> PathBuf {
    let has = |name: &&str| folder.join(name).is_file();
    if has(&MANIFEST) || DESCRIPTIONS.iter().any(has) {
        return folder.to_owned();
    }
    let mut found = Vec::new();
    packages_below(folder, 3, &mut found);
    match &mut found[..] {
        [only] => std::mem::take(only),
        _ => folder.to_owned(),
    }
}

fn packages_below(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !path.is_dir() {
            continue;
        }
        if Format::of_folder(&entry.file_name().to_string_lossy()).is_some() {
            found.push(path);
        } else if depth > 0 {
            packages_below(&path, depth - 1, found);
        }
    }
}

/// The model of a repository in the caches, if all of its files are there: every package, or what
/// was pulled last of it, or a snapshot of another program, which gets a folder then.
pub fn cached(hub: &Hub, spec: &RepoSpec) -> Option<PathBuf> {
    found(hub, spec).or_else(|| {
        let shared = RepoFolder::new(&hub.places.hub_cache, &spec.repo);
        let commit = shared.commit(&spec.revision)?;
        let bundle = complete(&shared.snapshot(&commit)).filter(|_| spec.file.is_none())?;
        let at = (&spec.repo[..], &commit[..]);
        place(hub, at, (&bundle, WHOLE), Check::Record).ok()
    })
}

/// Whether [`cached`] finds the model. Nothing is written.
pub fn is_cached(hub: &Hub, spec: &RepoSpec) -> bool {
    let shared = RepoFolder::new(&hub.places.hub_cache, &spec.repo);
    let snapshot = || Some(shared.snapshot(&shared.commit(&spec.revision)?));
    found(hub, spec).is_some() || snapshot().is_some_and(|at| complete(&at).is_some())
}

/// The folder that a model has already.
pub fn found(hub: &Hub, spec: &RepoSpec) -> Option<PathBuf> {
    let shared = RepoFolder::new(&hub.places.hub_cache, &spec.repo);
    let folder = of_repo(hub, &spec.repo).join(shared.commit(&spec.revision)?);
    if let Some(package) = &spec.file {
        let at = folder.join(key(&Selection::default(), Some(package)));
        return at.is_dir().then(|| model_in(&at));
    }
    let whole = folder.join(WHOLE);
    if whole.is_dir() {
        return Some(model_in(&whole));
    }
    let parts = fs::read_dir(&folder).into_iter().flatten().flatten();
    let is_part = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        !name.starts_with('.') && !name.starts_with(ONLY)
    };
    let newest = parts
        .filter(is_part)
        .max_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok());
    newest.map(|newest| model_in(&newest.path()))
}

/// What a snapshot has of its publication; `None` unless every file is there with the right length.
/// Another program may have downloaded it.
fn complete(snapshot: &Path) -> Option<Bundle> {
    let json = read_small(&snapshot.join(PUBLICATION), MOST_LIST_BYTES).ok()?;
    let bundle = of_list(&json, PUBLICATION, &Selection::default()).ok()?;
    let is_there = |file: &Wanted| {
        let found = fs::metadata(snapshot.join(&file.path));
        let bytes = file.known.as_ref().map(|(bytes, _)| *bytes);
        found.is_ok_and(|m| m.is_file() && bytes.is_none_or(|bytes| m.len() == bytes))
    };
    bundle.wanted.iter().all(is_there).then_some(bundle)
}
