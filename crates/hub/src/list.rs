//! Lists and removes the models in the caches.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bundle::{names, place};
use crate::caches::Cache;
use crate::config::Hub;
use crate::disk::{self, Lock, folder_bytes};
use crate::error::HubError;
use crate::known::HUB_NAMES;
use crate::layout::{RepoFolder, complete_model};
use crate::similar::is_similar;
use crate::spec::{RepoSpec, is_inside};
use crate::store::{ModelFolder, Record};

/// A model in a cache.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name by which the model can be asked for.
    pub name: String,
    /// Which cache has it.
    pub source: Cache,
    /// The model's file or folder.
    pub path: PathBuf,
    /// Bytes on the disk, incomplete files included.
    pub bytes: u64,
    /// When it was last downloaded.
    pub pulled_at: SystemTime,
    /// Whether all files of a model are there. `false` after a download that was interrupted, and
    /// for repositories of the Hub without a model in a known format. Hashes are not compared
    /// here but when the model is used.
    pub is_complete: bool,
}

/// Every model in both caches, sorted by name. A cache folder that does not exist is empty.
pub fn list(hub: &Hub) -> Result<Vec<Listed>, HubError> {
    let mut models = Vec::new();
    for path in folders(&hub.places.cache.join("models"))? {
        models.extend(in_own_cache(hub, &path));
    }
    for path in folders(&hub.places.hub_cache)? {
        models.extend(in_hub_cache(hub, &path));
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Names of models in the caches that may have been meant.
pub fn similar(typed: &str, hub: &Hub) -> Vec<String> {
    let names = list(hub)
        .unwrap_or_default()
        .into_iter()
        .map(|model| model.name);
    // Of `hf:org/name`, people remember the name.
    names
        .filter(|name| {
            is_similar(
                typed.rsplit('/').next().unwrap_or(typed),
                name.rsplit('/').next().unwrap_or(name),
            )
        })
        .collect()
}

fn not_cached(name: &str, hub: &Hub, cache: &Path) -> HubError {
    HubError::NotCached {
        name: name.to_owned(),
        cache: cache.to_owned(),
        similar: similar(name, hub),
    }
}

fn folders(path: &Path) -> Result<Vec<PathBuf>, HubError> {
    match fs::read_dir(path) {
        Ok(entries) => Ok(entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.is_dir())
            .collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(HubError::disk("read", path, e)),
    }
}

fn in_own_cache(hub: &Hub, path: &Path) -> Option<Listed> {
    let name = path.file_name()?.to_str()?.to_owned();
    let folder = ModelFolder::new(&hub.places.cache, &name);
    let bytes = folder_bytes(path);
    let entry = hub.catalog.iter().find(|entry| entry.name == name);
    let record = folder
        .record()
        .filter(|record| folder.has_file(&record.file, record.bytes));
    if record.is_none() && bytes == 0 {
        return None;
    }
    let model = match entry {
        Some(entry) => (folder.has_file(&entry.file, entry.bytes) && folder.has_small(entry))
            .then(|| entry.path()),
        None => record.as_ref().map(Record::path),
    };
    Some(Listed {
        name,
        source: Cache::Own,
        path: model.map_or_else(|| path.to_owned(), |model| path.join(model)),
        bytes,
        pulled_at: record
            .as_ref()
            .and_then(|r| UNIX_EPOCH.checked_add(Duration::from_secs(r.pulled_at)))
            .unwrap_or_else(|| changed(path)),
        is_complete: model.is_some(),
    })
}

fn in_hub_cache(hub: &Hub, path: &Path) -> Option<Listed> {
    let repo = path
        .file_name()?
        .to_str()?
        .strip_prefix("models--")?
        .replace("--", "/");
    let folder = RepoFolder::new(&hub.places.hub_cache, &repo);
    let snapshots = folder.snapshots();
    let newest = folder
        .commit("main")
        .map(|commit| folder.snapshot(&commit))
        .or_else(|| snapshots.last().cloned());
    let spec = RepoSpec {
        repo: repo.clone(),
        file: None,
        revision: "main".to_owned(),
    };
    let model = newest.as_deref().and_then(complete_model);
    let model = model.or_else(|| place::found(hub, &spec));
    Some(Listed {
        name: format!("hf:{repo}"),
        source: Cache::Hub,
        pulled_at: changed(newest.as_deref().unwrap_or(path)),
        is_complete: model.is_some()
            || newest.as_deref().is_some_and(has_gguf)
            || place::is_cached(hub, &spec),
        path: model.or(newest).unwrap_or_else(|| path.to_owned()),
        bytes: folder_bytes(path),
    })
}

fn has_gguf(snapshot: &Path) -> bool {
    let mut files = fs::read_dir(snapshot)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path());
    files.any(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file())
}

fn changed(path: &Path) -> SystemTime {
    fs::metadata(path)
        .and_then(|m| m.modified())
        .unwrap_or(UNIX_EPOCH)
}

/// A model that was removed.
#[derive(Clone, Debug)]
pub struct Removed {
    /// Name that was asked for.
    pub name: String,
    /// File or folder that was removed.
    pub path: PathBuf,
    /// Bytes that the disk has more now.
    pub freed_bytes: u64,
}

/// Removes a model, also an incomplete one: a name of the catalog, `hf:org/name` with all its
/// files, or one file of a repository.
pub fn remove(spec: &str, hub: &Hub) -> Result<Removed, HubError> {
    if let Some(named) = HUB_NAMES.iter().find(|named| named.name == spec) {
        return remove_repo(&named.spec(), hub);
    }
    if let Some(rest) = spec.strip_prefix("hf:") {
        return remove_repo(
            &RepoSpec::parse(rest.strip_prefix("//").unwrap_or(rest))?,
            hub,
        );
    }
    if Path::new(spec).is_absolute() || spec.contains(['/', '\\']) {
        return Err(HubError::Outside {
            path: spec.into(),
            cache: hub.places.cache.clone(),
        });
    }
    let folder = ModelFolder::new(&hub.places.cache, spec);
    if !is_inside(spec) || fs::symlink_metadata(&folder.path).is_err() {
        return Err(not_cached(spec, hub, &hub.places.cache));
    }
    check_inside(&folder.path, &hub.places.cache)?;
    let freed = folder_bytes(&folder.path);
    let lock = Lock::try_take(&folder.lock())?.ok_or_else(|| HubError::Busy {
        name: spec.to_owned(),
    })?;
    disk::remove(&folder.path)?;
    drop(lock);
    Ok(Removed {
        name: spec.to_owned(),
        path: folder.path,
        freed_bytes: freed,
    })
}

fn remove_repo(spec: &RepoSpec, hub: &Hub) -> Result<Removed, HubError> {
    let folder = RepoFolder::new(&hub.places.hub_cache, &spec.repo);
    let missing = || not_cached(&spec.to_string(), hub, &hub.places.hub_cache);
    if fs::symlink_metadata(&folder.path).is_err() {
        return Err(missing());
    }
    check_inside(&folder.path, &hub.places.hub_cache)?;
    let before = folder_bytes(&folder.path);
    let path = match &spec.file {
        None => {
            disk::remove(&folder.path)?;
            disk::remove(&names::of_repo(hub, &spec.repo))?;
            folder.path.clone()
        }
        Some(file) => {
            let commit = folder.commit(&spec.revision).ok_or_else(missing)?;
            remove_file(&folder, &folder.snapshot(&commit).join(file), file)?.ok_or_else(missing)?
        }
    };
    Ok(Removed {
        name: spec.to_string(),
        path,
        freed_bytes: before.saturating_sub(folder_bytes(&folder.path)),
    })
}

/// Removes a file of a snapshot and, where no other snapshot has it, the blob behind it.
fn remove_file(folder: &RepoFolder, name: &Path, file: &str) -> Result<Option<PathBuf>, HubError> {
    if fs::symlink_metadata(name).is_err() {
        return Ok(None);
    }
    let blob = fs::canonicalize(name).ok();
    disk::remove(name)?;
    let shared = |blob: &PathBuf| {
        folder
            .snapshots()
            .iter()
            .any(|s| fs::canonicalize(s.join(file)).is_ok_and(|other| other == *blob))
    };
    if let Some(blob) = blob.filter(|blob| !shared(blob)) {
        check_inside(&blob, &folder.path)?;
        disk::remove(&blob)?;
    }
    Ok(Some(name.to_owned()))
}

/// Refuses a path outside of the cache: a symbolic link in it may lead anywhere.
pub fn check_inside(path: &Path, cache: &Path) -> Result<(), HubError> {
    let real = |path: &Path| fs::canonicalize(path).map_err(|e| HubError::disk("read", path, e));
    let (inner, outer) = (real(path)?, real(cache)?);
    if inner.starts_with(&outer) && inner != outer {
        return Ok(());
    }
    Err(HubError::Outside {
        path: inner,
        cache: outer,
    })
}
