//! Downloads the files of a bundle: each blob once, over several connections.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{Wanted, place};
use crate::config::Hub;
use crate::disk::{self, Lock, incomplete};
use crate::download::{Download, download_checked};
use crate::error::HubError;
use crate::parallel;
use crate::parts::{Remote, Sum};
use crate::store::Check;
use crate::tree::{self, Entry};

/// The blob of each path.
type Blobs = BTreeMap<String, Entry>;

/// A blob to download, with the paths that it has.
struct Job {
    remote: Remote,
    sha256: Option<String>,
    paths: Vec<String>,
}

/// Downloads what is not in the cache, and links everything into the snapshot. Returns the bytes
/// that were downloaded. With [`Check::Bytes`], the name of a file must lead to its blob. If the
/// list is signed, the bytes of every file that was there are compared with it.
pub fn all(
    download: &Download<'_>,
    commit: &str,
    wanted: &[Wanted],
    (check, is_signed): (Check, bool),
) -> Result<u64, HubError> {
    let blobs = blobs(download, commit, wanted)?;
    let mut jobs: BTreeMap<&str, Job> = BTreeMap::new();
    for file in wanted {
        let entry = &blobs[&file.path];
        let job = jobs.entry(&entry.etag).or_insert_with(|| Job {
            remote: remote(download, commit, &file.path, entry),
            sha256: None,
            paths: Vec::new(),
        });
        let sha256 = file.known.as_ref().map(|(_, sha256)| sha256);
        if let (Some(one), Some(other)) = (&job.sha256, sha256)
            && one != other
        {
            let url = job.remote.url.clone();
            let why = format!("{} and {} are one blob there", job.paths[0], file.path);
            return Err(HubError::BadAnswer { url, why });
        }
        job.sha256 = job.sha256.take().or_else(|| sha256.cloned());
        job.paths.push(file.path.clone());
    }
    let jobs: Vec<Job> = jobs.into_values().collect();
    run(download, commit, jobs, (check, is_signed))
}

/// What the Hub says of each file; a list that says something else is refused before anything is
/// downloaded.
fn blobs(download: &Download<'_>, commit: &str, wanted: &[Wanted]) -> Result<Blobs, HubError> {
    let (hub, repo) = (download.hub, download.repo());
    let listed = match tree::list(&download.client, hub, repo, commit) {
        Ok(listed) => Some(listed),
        // Some mirrors have no such lists.
        Err(HubError::NotFound { .. }) => None,
        Err(e) => return Err(e),
    };
    let mut blobs = Blobs::new();
    for file in wanted {
        let what = format!("{}/{}", download.what(), file.path);
        let url = download.url(commit, &file.path);
        let entry = match &listed {
            Some(listed) => listed.get(&file.path).cloned(),
            None => Some(head(download, &url, &what)?),
        };
        let entry = entry.ok_or_else(|| HubError::BadAnswer {
            url: url.clone(),
            why: "a list of the model's files has it, the commit does not".to_owned(),
        })?;
        download.check_etag(&url, &entry.etag)?;
        if let Some((bytes, sha256)) = &file.known {
            check_known(&what, &url, &entry, (*bytes, sha256))?;
        }
        blobs.insert(file.path.clone(), entry);
    }
    Ok(blobs)
}

fn head(download: &Download<'_>, url: &str, what: &str) -> Result<Entry, HubError> {
    let remote = download.client.head(url, what)?;
    let bytes = remote.bytes.ok_or_else(|| HubError::BadAnswer {
        url: url.to_owned(),
        why: "neither Content-Length nor X-Linked-Size".into(),
    })?;
    Ok(Entry {
        etag: remote.etag,
        bytes,
    })
}

fn check_known(
    what: &str,
    url: &str,
    entry: &Entry,
    (bytes, sha256): (u64, &str),
) -> Result<(), HubError> {
    if entry.bytes != bytes {
        return Err(HubError::WrongSize {
            what: what.to_owned(),
            expected: bytes,
            found: entry.bytes,
        });
    }
    match Sum::of_etag(&entry.etag) {
        Some(Sum::Sha256(there)) if there != sha256 => Err(HubError::BadAnswer {
            url: url.to_owned(),
            why: format!("the file's sha256 there is {there}, expected {sha256}"),
        }),
        _ => Ok(()),
    }
}

fn remote(download: &Download<'_>, commit: &str, path: &str, entry: &Entry) -> Remote {
    Remote {
        url: download.url(commit, path),
        etag: entry.etag.clone(),
        validator: None,
        bytes: Some(entry.bytes),
        commit: Some(commit.to_owned()),
        limit: None,
    }
}

/// Does all jobs, the largest first. Returns the bytes that were downloaded.
fn run(
    download: &Download<'_>,
    commit: &str,
    mut jobs: Vec<Job>,
    (check, is_signed): (Check, bool),
) -> Result<u64, HubError> {
    let len = |job: &Job| job.remote.bytes.unwrap_or_default();
    jobs.retain(|job| is_signed || !is_there(download, commit, job, check));
    jobs.sort_by_key(|job| std::cmp::Reverse(len(job)));
    let total = jobs.iter().map(len).fold(0, u64::saturating_add);
    let bytes = std::sync::atomic::AtomicU64::new(0);
    let what = download.what();
    parallel::each(download.hub, (&what, total), &jobs, |hub, job| {
        let lane = download.with(hub);
        let n = one(&lane, hub, commit, job, is_signed)?;
        bytes.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    })?;
    Ok(bytes.into_inner())
}

/// Whether the snapshot has a blob under all of its paths: nothing is written then, so that a
/// cache may be read-only. With [`Check::Bytes`], these are links to the blob, whose hash was
/// compared with its name.
fn is_there(download: &Download<'_>, commit: &str, job: &Job, check: Check) -> bool {
    let snapshot = download.folder.snapshot(commit);
    let blob = fs::canonicalize(download.folder.blob(&job.remote.etag)).ok();
    job.paths.iter().all(|path| {
        let path = snapshot.join(path);
        let is_blob = || blob.is_some() && fs::canonicalize(&path).ok() == blob;
        let found = fs::metadata(&path);
        found.is_ok_and(|m| m.is_file() && Some(m.len()) == job.remote.bytes)
            && (check == Check::Record || is_blob())
    })
}

fn one(
    download: &Download<'_>,
    hub: &Hub,
    commit: &str,
    job: &Job,
    is_signed: bool,
) -> Result<u64, HubError> {
    let (folder, remote) = (&download.folder, &job.remote);
    let what = format!("{}/{}", download.what(), job.paths[0]);
    let is_damaged = |path: &Path| Ok(is_signed && !has_hash(path, job.sha256.as_deref(), hub)?);
    if is_signed && is_there(download, commit, job, Check::Bytes) {
        let path = folder.snapshot(commit).join(&job.paths[0]);
        if !is_damaged(&path)? {
            return Ok(0);
        }
    }
    let blob = folder.blob(&remote.etag);
    let is_complete = || fs::metadata(&blob).is_ok_and(|m| Some(m.len()) == remote.bytes);
    let _lock = Lock::wait(&folder.lock(&remote.etag), &what, hub)?;
    if is_complete() && is_damaged(&blob)? {
        hub.progress.note(&format!(
            "{what} is damaged in the cache; it is downloaded again"
        ));
        disk::remove(&blob)?;
        // Folders of bundles have other names of the same file.
        place::remove_all(hub, download.repo())?;
    }
    let mut bytes = 0;
    if !is_complete() {
        disk::create_folder(blob.parent().unwrap_or(&folder.path))?;
        let growing = incomplete(&blob);
        let sum = job.sha256.clone().map(Sum::Sha256).or_else(|| remote.sum());
        bytes = download_checked(&download.client, remote, sum, &growing, &what, hub)?;
        fs::rename(&growing, &blob).map_err(|e| HubError::disk("write", &blob, e))?;
    }
    for path in &job.paths {
        folder.link(commit, path, &remote.etag)?;
    }
    Ok(bytes)
}

/// Whether a file that was there has the hash of a signed list.
fn has_hash(path: &Path, sha256: Option<&str>, hub: &Hub) -> Result<bool, HubError> {
    let Some(expected) = sha256 else {
        return Ok(true);
    };
    hub.progress
        .detail(&format!("checking the sha256 of {}", path.display()));
    Ok(disk::hash_file(path)? == expected)
}
