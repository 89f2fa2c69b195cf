//! The file beside an output that keeps what is done, so that a run that was killed goes on where
//! it stopped. The first line has the settings of the run as JSON; what follows is the verb's.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use thane_mil::package::{open_regular_with, private_options};

use crate::exit::Failure;
use crate::output::{Output, counted};

/// Most bytes of the first line.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// Settings of a run, by flag. A run only continues with equal settings.
pub type Settings = BTreeMap<String, String>;

/// What a verb writes, and the version of the format.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub verb: &'static str,
    pub version: u32,
}

/// Prints how many texts an earlier run has finished, if there was one.
pub fn say_resumed(n: u64, what: &str, path: &Path, output: &Output) {
    if n > 0 {
        let (done, path) = (counted(n, what), path.display());
        output.say(&format!("thane: resuming after {done} in {path}"));
    }
}

/// An open file.
pub struct Begun {
    pub file: File,
    /// Bytes of the first line.
    pub start: u64,
    /// Whether there may be something behind the first line.
    pub goes_on: bool,
}

/// Creates the file, or opens an existing one, which no other process may be writing and which was
/// begun with equal settings.
pub fn open(path: &Path, kind: Kind, settings: &Settings) -> Result<Begun, Failure> {
    let in_file = || path.display().to_string();
    let mut file = locked(path)?;
    if file.metadata().with_context(in_file)?.len() == 0 {
        let mut head = json!({key(kind): kind.version, "settings": settings}).to_string();
        head.push('\n');
        file.write_all(head.as_bytes()).with_context(in_file)?;
        let start = head.len() as u64;
        return Ok(Begun {
            file,
            start,
            goes_on: false,
        });
    }
    let mut reader = BufReader::new(&file);
    let head = read_line(&mut reader).with_context(in_file)?;
    check(
        head.as_ref().map(|(line, _)| &line[..]),
        path,
        kind,
        settings,
    )?;
    let start = reader.stream_position().with_context(in_file)?;
    Ok(Begun {
        file,
        start,
        goes_on: true,
    })
}

fn key(kind: Kind) -> String {
    format!("thane_{}", kind.verb)
}

fn locked(path: &Path) -> Result<File, Failure> {
    let refuse = |what: &str| Err(usage!("{} {what}", path.display()).remedy("another --out"));
    let found = path.symlink_metadata();
    if found.as_ref().is_ok_and(|found| found.is_symlink()) {
        return refuse("is a link, and texts are kept in a file of that name alone: remove it");
    }
    if found.is_ok_and(|found| !found.is_file()) {
        return refuse("is no regular file, which keeps what is done");
    }
    let mut options = private_options();
    options.read(true).write(true).create(true).truncate(false);
    let file = open_regular_with(&mut options, path);
    let file = file.with_context(|| path.display().to_string())?;
    if !is_at(&file, path) {
        return refuse("became another file while it was opened");
    }
    match lock_soon(&file) {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => refuse("is being written by another thane"),
        Err(TryLockError::Error(e)) => {
            let error = anyhow::Error::new(e).context(path.display().to_string());
            Err(error.into())
        }
    }
}

/// Whether a path names this very file, and no link to it.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (here, there) = (file.metadata(), path.symlink_metadata());
    here.ok().map(place) == there.ok().map(place)
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Locks a file, within a second: a process that is being started holds the locks of the one that
/// starts it until it runs its own program.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    const ATTEMPTS: u32 = 20;
    for _ in 1..ATTEMPTS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            other => return other,
        }
    }
    file.try_lock()
}

/// Refuses a file with another first line.
fn check(head: Option<&[u8]>, path: &Path, kind: Kind, settings: &Settings) -> Result<(), Failure> {
    let path = path.display();
    let anew = format!("remove {path}, to start over");
    let head = head.and_then(|line| serde_json::from_slice::<Value>(line).ok());
    let head = head.filter(|head| head[key(kind)] == kind.version);
    let before = head.and_then(|mut head| serde_json::from_value(head["settings"].take()).ok());
    let Some(before) = before else {
        let verb = kind.verb;
        return Err(usage!("{path} is not what this version of thane {verb} writes").remedy(anew));
    };
    let differ = differences(&before, settings);
    if differ.is_empty() {
        return Ok(());
    }
    Err(
        usage!("{path} was started with other flags: {}", differ.join(", "))
            .remedy("the flags that it was started with")
            .remedy(anew),
    )
}

/// The settings that differ between two runs.
fn differences(before: &Settings, now: &Settings) -> Vec<String> {
    let value = |settings: &Settings, key: &str| {
        settings
            .get(key)
            .cloned()
            .unwrap_or_else(|| "nothing".to_owned())
    };
    let keys = before
        .keys()
        .chain(now.keys().filter(|key| !before.contains_key(*key)));
    let differ = keys.filter(|key| before.get(*key) != now.get(*key));
    differ
        .map(|key| {
            format!(
                "{key} was {}, now it is {}",
                value(before, key),
                value(now, key)
            )
        })
        .collect()
}

/// A line and its length with the line break; `None` at the end or if the line is incomplete.
pub fn read_line(reader: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, u64)>> {
    let mut line = Vec::new();
    let n = reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    Ok(line.ends_with(b"\n").then_some((line, n as u64)))
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::exit::Code;

    /// Journals hold texts and answers, so only their user may read them. A pipe in the place of a
    /// journal is refused, because opening it would wait for ever.
    #[test]
    fn files_are_for_this_user_alone_and_regular() {
        let kind = Kind {
            verb: "embed",
            version: 1,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.partial");
        drop(open(&path, kind, &Settings::new()).unwrap());
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Somebody else may have put a link there, to a file of this user.
        let (link, kept) = (
            folder.path().join("link.partial"),
            folder.path().join("kept"),
        );
        for exists in [true, false] {
            if exists {
                std::fs::write(&kept, "").unwrap();
            }
            std::os::unix::fs::symlink(&kept, &link).unwrap();
            let Err(refused) = open(&link, kind, &Settings::new()) else {
                panic!("expected a refusal");
            };
            let said = refused.error().to_string();
            assert!(said.contains("link.partial is a link"), "{said}");
            assert_eq!(kept.metadata().is_ok_and(|kept| kept.len() == 0), exists);
            std::fs::remove_file(&link).unwrap();
            let _ = std::fs::remove_file(&kept);
        }
        let pipe = folder.path().join("pipe.partial");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let refused = open(&pipe, kind, &Settings::new());
        assert_eq!(
            refused.err().map(|failure| failure.code()),
            Some(Code::Usage)
        );
    }
}
