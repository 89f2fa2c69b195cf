//! What is in the caches, and removing it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::context::HubContext;
use super::disk::{self, Lock, folder_bytes};
use super::error::HubError;
use super::layout::{RepoFolder, whole};
use super::spec::{RepoSpec, is_inside, is_near};
use super::store::{Record, Shelf};

/// A model in a cache.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: String,
    /// `catalogue` or `hub`.
    pub source: &'static str,
    pub path: PathBuf,
    /// On the disk, with what is incomplete.
    pub bytes: u64,
    pub pulled_at: SystemTime,
    /// Whether all bytes are there; of a copy they are compared with their sha256 when it is used.
    /// `false` for a pull that was cut off, and for repositories of the Hub that hold no model of
    /// ours.
    pub whole: bool,
}

/// Everything in both caches, by name. A cache that is not there is empty.
pub fn list(ctx: &HubContext) -> Result<Vec<Listed>, HubError> {
    let mut models = Vec::new();
    for path in folders(&ctx.places.cache.join("models"))? {
        models.extend(own(ctx, &path));
    }
    for path in folders(&ctx.places.hub)? {
        models.extend(shared(ctx, &path));
    }
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Names of models in the caches that are like what was typed.
pub fn near(typed: &str, ctx: &HubContext) -> Vec<String> {
    let names = list(ctx)
        .unwrap_or_default()
        .into_iter()
        .map(|model| model.name);
    // Of hf:org/name people remember the name.
    names
        .filter(|name| {
            is_near(
                typed.rsplit('/').next().unwrap_or(typed),
                name.rsplit('/').next().unwrap_or(name),
            )
        })
        .collect()
}

fn not_cached(name: &str, ctx: &HubContext, cache: &Path) -> HubError {
    HubError::NotCached {
        name: name.to_owned(),
        cache: cache.to_owned(),
        near: near(name, ctx),
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

fn own(ctx: &HubContext, path: &Path) -> Option<Listed> {
    let name = path.file_name()?.to_str()?.to_owned();
    let shelf = Shelf::new(&ctx.places.cache, &name);
    let bytes = folder_bytes(path);
    let entry = ctx.catalogue.iter().find(|entry| entry.name == name);
    let record = shelf
        .record()
        .filter(|record| shelf.has_file(&record.file, record.bytes));
    if record.is_none() && bytes == 0 {
        return None;
    }
    let model = match entry {
        Some(entry) => (shelf.has_file(&entry.file, entry.bytes) && shelf.has_small(entry))
            .then(|| entry.path()),
        None => record.as_ref().map(Record::path),
    };
    Some(Listed {
        name,
        source: "catalogue",
        path: model.map_or_else(|| path.to_owned(), |model| path.join(model)),
        bytes,
        pulled_at: record
            .as_ref()
            .and_then(|r| UNIX_EPOCH.checked_add(Duration::from_secs(r.pulled_at)))
            .unwrap_or_else(|| changed(path)),
        whole: model.is_some(),
    })
}

fn shared(ctx: &HubContext, path: &Path) -> Option<Listed> {
    let repo = path
        .file_name()?
        .to_str()?
        .strip_prefix("models--")?
        .replace("--", "/");
    let folder = RepoFolder::new(&ctx.places.hub, &repo);
    let snapshots = folder.snapshots();
    let newest = folder
        .commit("main")
        .map(|commit| folder.snapshot(&commit))
        .or_else(|| snapshots.last().cloned());
    let model = newest.as_deref().and_then(whole);
    Some(Listed {
        name: format!("hf:{repo}"),
        source: "hub",
        pulled_at: changed(newest.as_deref().unwrap_or(path)),
        whole: model.is_some() || newest.as_deref().is_some_and(has_gguf),
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

/// What [`remove`] did.
#[derive(Clone, Debug)]
pub struct Removed {
    pub name: String,
    pub path: PathBuf,
    pub freed: u64,
}

/// Takes a model off the disk, whole or begun: a name, or `hf:org/name` with all its files, or one
/// file of it.
pub fn remove(spec: &str, ctx: &HubContext) -> Result<Removed, HubError> {
    if let Some(rest) = spec.strip_prefix("hf:") {
        return remove_repo(
            &RepoSpec::parse(rest.strip_prefix("//").unwrap_or(rest))?,
            ctx,
        );
    }
    if Path::new(spec).is_absolute() || spec.contains(['/', '\\']) {
        return Err(HubError::Outside {
            path: spec.into(),
            cache: ctx.places.cache.clone(),
        });
    }
    let shelf = Shelf::new(&ctx.places.cache, spec);
    if !is_inside(spec) || fs::symlink_metadata(&shelf.path).is_err() {
        return Err(not_cached(spec, ctx, &ctx.places.cache));
    }
    check_inside(&shelf.path, &ctx.places.cache)?;
    let freed = folder_bytes(&shelf.path);
    let lock = Lock::try_take(&shelf.lock())?.ok_or_else(|| HubError::Busy {
        name: spec.to_owned(),
    })?;
    disk::remove(&shelf.path)?;
    drop(lock);
    Ok(Removed {
        name: spec.to_owned(),
        path: shelf.path,
        freed,
    })
}

fn remove_repo(spec: &RepoSpec, ctx: &HubContext) -> Result<Removed, HubError> {
    let folder = RepoFolder::new(&ctx.places.hub, &spec.repo);
    let missing = || not_cached(&spec.to_string(), ctx, &ctx.places.hub);
    if fs::symlink_metadata(&folder.path).is_err() {
        return Err(missing());
    }
    check_inside(&folder.path, &ctx.places.hub)?;
    let before = folder_bytes(&folder.path);
    let path = match &spec.file {
        None => {
            disk::remove(&folder.path)?;
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
        freed: before.saturating_sub(folder_bytes(&folder.path)),
    })
}

/// Removes a name and, where no other snapshot has it, the blob behind it.
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

/// A link in the cache may lead anywhere: what is removed lies in the cache itself.
fn check_inside(path: &Path, cache: &Path) -> Result<(), HubError> {
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
