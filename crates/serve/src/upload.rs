//! Unpacks a zip archive of a Core ML package in memory. Nothing of it is written to a disk, and
//! all of it is gone with the answer.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes as Body;
use axum::http::StatusCode;
use thane_mil::budget::{Budget, Reservation};
use thane_mil::data::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zip::ZipArchive;
use zip::read::ZipFile;

use crate::apart::Freed;
use crate::error::ApiError;

/// Most entries of an archive; packages have fewer than twenty.
const MAX_ENTRIES: usize = 4096;
/// Begins each entry of the directory of an archive.
const ENTRY: &[u8] = b"PK\x01\x02";
/// A file that only a package or only a compiled model has in its folder.
const MARKERS: [&str; 2] = ["Manifest.json", "coremldata.bin"];

/// Limits of uploads.
pub(crate) struct Uploads {
    pub max_bytes: usize,
    pub budget: Budget,
    /// Most time of an audit.
    pub answer_time: Option<Duration>,
    /// One upload at a time.
    pub turn: Arc<Semaphore>,
}

/// The files of a package, by their paths inside it.
#[derive(Debug)]
pub(crate) struct Unpacked {
    pub name: String,
    pub files: BTreeMap<String, Bytes>,
    _held: Reservation,
}

impl Uploads {
    /// The turn of an upload that is there, or a refusal if another one is in work.
    pub fn turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.turn).try_acquire_owned().map_err(|_| {
            let message = "another package is being audited, and one is audited at a time";
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).retry_after(5)
        })
    }
}

/// The refusal of a package that takes too much.
pub(crate) fn too_large(what: &str, max_bytes: usize) -> ApiError {
    let most = max_bytes >> 20;
    let message = format!(
        "expected {what} of at most {most} MiB, found more: run `thane audit` on the package"
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Unpacks the only package of an archive.
pub(crate) fn unpack(
    archive: &Body,
    max_bytes: usize,
    budget: &Budget,
) -> Result<Unpacked, ApiError> {
    // The reader takes memory for each entry before it can be asked how many there are.
    let (n_entries, directory_bytes) = directory(archive);
    if n_entries > MAX_ENTRIES {
        let message = format!("expected at most {MAX_ENTRIES} files, found {n_entries}");
        return Err(ApiError::invalid(message));
    }
    let what = || "the directory of an archive".to_owned();
    let of_directory = budget.reserve(directory_bytes, what);
    // Also if the archive cannot be read.
    let _of_directory = Freed(of_directory?);
    let mut zip = ZipArchive::new(Cursor::new(archive)).map_err(|e| unreadable(&e))?;
    let names: Result<Vec<_>, _> = zip.file_names().collect();
    let names = names.map_err(|e| unreadable(&e))?;
    let (root, name) = root(names.iter().map(AsRef::as_ref))?;
    let mut held = budget.reserve(0, String::new)?;
    let mut files = BTreeMap::new();
    for idx in 0..zip.len() {
        let mut entry = zip.by_index(idx).map_err(|e| unreadable(&e))?;
        let Some(path) = path_inside(&entry, &root)? else {
            continue;
        };
        let n = usize::try_from(entry.size()).unwrap_or(usize::MAX);
        if n > max_bytes - held.bytes() {
            return Err(too_large("a package that unpacks to files", max_bytes));
        }
        held.grow(n, || format!("the file {path} of the upload"))?;
        let bytes = read(&mut entry, n, &path)?;
        if files.insert(path.clone(), Bytes::new(bytes)).is_some() {
            let message = format!("the archive has two files {path}");
            return Err(ApiError::invalid(message));
        }
    }
    Ok(Unpacked {
        name,
        files,
        _held: held,
    })
}

/// The number of entries of the directory of an archive, and bytes that the reader takes for them,
/// or more: whatever it takes for an entry begins with [`ENTRY`], wherever it finds it.
fn directory(archive: &[u8]) -> (usize, usize) {
    /// Where an entry has the lengths of its name, its extra fields and its comment.
    const LENGTHS_AT: usize = 28;
    /// Beside these. The reader has some 300 bytes for it, in a list that grows.
    const OF_ENTRY: usize = 1 << 10;
    /// Of a byte of a name or a comment: as it is, as UTF-8, which has up to three bytes for it,
    /// and what is read of it elsewhere.
    const OF_TEXT: usize = 8;
    /// Of a byte of an extra field, whose head of four bytes becomes a value of up to 64, in a list
    /// that grows.
    const OF_EXTRA: usize = 40;
    let starts = archive.windows(ENTRY.len()).enumerate();
    let starts = starts.filter(|(_, window)| *window == ENTRY);
    let bytes_of = |(start, _): (usize, _)| {
        let lengths = archive[start..].get(LENGTHS_AT..LENGTHS_AT + 6);
        let lengths = lengths.map_or([0; 3], |lengths| {
            let (lengths, _) = lengths.as_chunks::<2>();
            [0, 1, 2].map(|idx| usize::from(u16::from_le_bytes(lengths[idx])))
        });
        let [name, extra, comment] = lengths;
        OF_ENTRY + OF_TEXT * (name + comment) + OF_EXTRA * extra
    };
    starts.map(bytes_of).fold((0, 0), |(n, sum), n_bytes| {
        (n + 1, sum.saturating_add(n_bytes))
    })
}

fn unreadable(error: &zip::result::ZipError) -> ApiError {
    ApiError::invalid(format!(
        "expected a zip archive of a .mlpackage or .mlmodelc, found one that cannot be read: {error}"
    ))
}

/// The folder of the archive that is the package, with a slash at its end unless it is the
/// archive itself, and its name.
fn root<'a>(names: impl Iterator<Item = &'a str>) -> Result<(String, String), ApiError> {
    let is_noise = |name: &str| name.starts_with("__MACOSX/");
    let folder = |name: &'a str| {
        let marker = MARKERS.iter().find_map(|m| name.strip_suffix(m));
        marker.filter(|folder| folder.is_empty() || folder.ends_with('/'))
    };
    let mut roots: Vec<&str> = names.filter(|n| !is_noise(n)).filter_map(folder).collect();
    roots.sort_by_key(|folder| folder.len());
    roots.dedup();
    // A compiled model holds such a file in folders of its own too.
    let outer: Vec<&str> = match roots.first() {
        Some(first) => roots
            .iter()
            .filter(|r| !r.starts_with(first))
            .copied()
            .collect(),
        None => Vec::new(),
    };
    match (roots.first(), outer.as_slice()) {
        (Some(root), []) => {
            let name = root.trim_end_matches('/').rsplit('/').next();
            let name = name.filter(|name| !name.is_empty()).unwrap_or("upload");
            Ok(((*root).to_owned(), name.to_owned()))
        }
        (None, _) => Err(ApiError::invalid(
            "expected an archive of a .mlpackage (with Manifest.json) or a .mlmodelc (with \
             coremldata.bin), found neither file",
        )),
        (Some(first), [other, ..]) => Err(ApiError::invalid(format!(
            "expected one package, found {first} and {other}: upload one at a time"
        ))),
    }
}

/// The path of a file inside the package; `None` for folders and what is beside the package.
fn path_inside<R: Read>(entry: &ZipFile<'_, R>, root: &str) -> Result<Option<String>, ApiError> {
    let name = entry.name().map_err(|e| unreadable(&e))?;
    let Some(inside) = name.strip_prefix(root) else {
        return Ok(None);
    };
    if entry.is_dir() || inside.ends_with(".DS_Store") || name.starts_with("__MACOSX/") {
        return Ok(None);
    }
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_path = inside.split('/').all(is_plain) && !inside.contains(['\\', '\0']);
    if entry.is_symlink() || !entry.is_file() || !is_path {
        let message = format!("expected files inside the package, found {name:?}");
        return Err(ApiError::invalid(message));
    }
    Ok(Some(inside.to_owned()))
}

/// Reads a file of `n` bytes.
fn read(entry: &mut impl Read, n: usize, path: &str) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::with_capacity(n);
    let found = entry.take(n as u64 + 1).read_to_end(&mut bytes);
    let damaged = |what: &str| ApiError::invalid(format!("{path}: the archive is damaged: {what}"));
    found.map_err(|e| damaged(&e.to_string()))?;
    if bytes.len() != n {
        return Err(damaged("its length is not the one that is declared"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::response::IntoResponse;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    const MAX_BYTES: usize = 10_000;

    fn archive(names: &[&str], content: &[u8]) -> Body {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for name in names {
            let options = SimpleFileOptions::default();
            match name.strip_suffix('@') {
                Some(link) => zip.add_symlink(link, "/etc/passwd", options).unwrap(),
                None => {
                    zip.start_file(*name, options).unwrap();
                    zip.write_all(content).unwrap();
                }
            }
        }
        zip.finish().unwrap().into_inner().into()
    }

    fn unpacked(archive: &Body) -> Result<Unpacked, ApiError> {
        unpack(archive, MAX_BYTES, &Budget::unlimited())
    }

    /// The status and message of a refusal.
    fn refusal(archive: &Body) -> (u16, String) {
        let error = unpacked(archive).unwrap_err();
        let message = error.body()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        (error.into_response().status().as_u16(), message)
    }

    #[test]
    fn files_have_their_paths_inside_the_package() {
        for (root, name) in [
            ("a.mlpackage/", "a.mlpackage"),
            ("", "upload"),
            ("x/y/", "y"),
        ] {
            let inside = ["Manifest.json", "Data/w.bin", ".DS_Store"];
            let names = inside.map(|name| format!("{root}{name}"));
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.push("__MACOSX/Manifest.json");
            let found = unpacked(&archive(&names, b"hi")).unwrap();
            assert_eq!(found.name, name);
            let files: Vec<&str> = found.files.keys().map(String::as_str).collect();
            assert_eq!(files, ["Data/w.bin", "Manifest.json"], "{root}");
            assert_eq!(found._held.bytes(), 4);
        }
        // A compiled model has such a file in a folder of its own too.
        let names = [
            "m.mlmodelc/coremldata.bin",
            "m.mlmodelc/analytics/coremldata.bin",
        ];
        let found = unpacked(&archive(&names, b"hi")).unwrap();
        assert!(found.files.contains_key("analytics/coremldata.bin"));
    }

    #[test]
    fn archives_that_reach_elsewhere_or_take_too_much_are_refused() {
        let manifest = "a.mlpackage/Manifest.json";
        for (names, said) in [
            (
                vec![manifest, "a.mlpackage/../../x"],
                "expected files inside",
            ),
            (vec![manifest, "a.mlpackage//x"], "expected files inside"),
            (vec![manifest, "a.mlpackage/b\\c"], "expected files inside"),
            (vec![manifest, "a.mlpackage/link@"], "expected files inside"),
            (
                vec![manifest, "b.mlpackage/Manifest.json"],
                "expected one package",
            ),
            (vec!["a.txt"], "found neither file"),
        ] {
            let (status, message) = refusal(&archive(&names, b"x"));
            assert!(
                status == 400 && message.contains(said),
                "{names:?}: {message}"
            );
        }
        // Zeros become a thousand times as many.
        let bomb = archive(&[manifest], &vec![0; MAX_BYTES + 1]);
        assert!(bomb.len() < 1000);
        assert_eq!(refusal(&bomb).0, 413);
        let two = archive(&[manifest, "a.mlpackage/w"], &vec![0; MAX_BYTES / 2 + 1]);
        assert_eq!(refusal(&two).0, 413);
        let names: Vec<String> = (0..=MAX_ENTRIES).map(|i| i.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_, message) = refusal(&archive(&names, b""));
        assert!(
            message.starts_with("expected at most 4096 files"),
            "{message}"
        );
    }

    /// An archive whose directory has `n` files without content, each with a name, an extra field
    /// and a comment of so many bytes.
    fn long_directory(n: usize, n_bytes: u16) -> Body {
        let mut directory = Vec::new();
        for idx in 0..n {
            let mut head = [0; 46];
            head[..4].copy_from_slice(ENTRY);
            for at in [28, 30, 32] {
                head[at..at + 2].copy_from_slice(&n_bytes.to_le_bytes());
            }
            let long = usize::from(n_bytes);
            directory.extend(head);
            directory.extend(format!("{idx:0long$}").bytes());
            // An unknown field that takes the rest.
            directory.extend([0x99, 0x99]);
            directory.extend((n_bytes - 4).to_le_bytes());
            directory.extend(vec![b'e'; 2 * long - 4]);
        }
        let mut end = vec![0; 22];
        end[..4].copy_from_slice(b"PK\x05\x06");
        for at in [8, 10] {
            end[at..at + 2].copy_from_slice(&(n as u16).to_le_bytes());
        }
        end[12..16].copy_from_slice(&(directory.len() as u32).to_le_bytes());
        [directory, end].concat().into()
    }

    #[test]
    fn the_directory_of_an_archive_counts_before_it_is_read() {
        let archive = long_directory(20, 1000);
        let (status, message) = refusal(&archive);
        let said = "expected an archive of a .mlpackage";
        assert!(status == 400 && message.starts_with(said), "{message}");
        // As much as its bytes is not enough.
        let budget = Budget::new(archive.len());
        let error = unpack(&archive, MAX_BYTES, &budget).unwrap_err();
        let said = "the directory of an archive needs";
        assert!(error.message.starts_with(said), "{}", error.message);
        let held = Budget::new(50 * archive.len());
        assert!(unpack(&archive, MAX_BYTES, &held).is_err());
        assert_eq!((budget.used_bytes(), held.used_bytes()), (0, 0));
    }

    #[test]
    fn damaged_archives_are_refused() {
        let whole = archive(&["Manifest.json", "w"], &[7; 300]);
        for n in 0..whole.len() {
            let cut = unpacked(&whole.slice(..n));
            assert!(cut.is_err(), "{n} of {} bytes", whole.len());
            let mut changed = whole.to_vec();
            changed[n] ^= 0x55;
            // Some bytes change nothing: those of dates, for example.
            drop(unpacked(&changed.into()));
        }
    }
}
