//! Publishes files in a repository of the Hub.
//!
//! 1. The Hub says of each file whether the revision has it, and whether it is stored by Git or by
//!    Git LFS ([`commit`]).
//! 2. The store says which of the large files it does not have; those are sent ([`lfs`]). A file
//!    that several paths have is one file there.
//! 3. One commit names every file under each of its paths. The revision changes with it and not
//!    before.
//!
//! A push that was interrupted goes on: what the store has is not sent again.

mod commit;
mod lfs;
mod run;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::PathBuf;

use crate::config::Hub;
use crate::disk;
use crate::error::HubError;
use crate::publication::{MOST_FILES, PublishedFile};
use crate::small::open_regular;
use crate::spec::is_inside;

/// Files to publish, and where.
#[derive(Debug)]
pub struct Push {
    /// `org/name`.
    pub repo: String,
    /// The branch that changes; `main` by default. A branch that does not exist is made.
    pub revision: String,
    /// Whether a repository that does not exist yet becomes private.
    pub private: bool,
    /// Whether the commit becomes a pull request, and the branch stays as it is.
    pub pull_request: bool,
    /// The first line of the commit.
    pub message: String,
    /// The files.
    pub files: Vec<PushFile>,
}

/// A file to publish.
#[derive(Debug)]
pub struct PushFile {
    /// Path in the repository.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// sha256, hexadecimal.
    pub sha256: String,
    /// The bytes.
    pub content: Content,
}

/// The bytes of a file to publish.
#[derive(Debug)]
pub enum Content {
    /// A file on this machine.
    File(PathBuf),
    /// Bytes in memory.
    Bytes(Vec<u8>),
}

impl Content {
    /// The bytes from `from` on.
    fn reader(&self, from: u64) -> Result<Box<dyn Read + '_>, HubError> {
        match self {
            Self::Bytes(bytes) => {
                let mut cursor = Cursor::new(bytes);
                cursor.set_position(from);
                Ok(Box::new(cursor))
            }
            Self::File(path) => {
                let open = || -> std::io::Result<File> {
                    let mut file = open_regular(path)?;
                    file.seek(SeekFrom::Start(from))?;
                    Ok(file)
                };
                Ok(Box::new(
                    open().map_err(|e| HubError::disk("read", path, e))?,
                ))
            }
        }
    }
}

impl PushFile {
    /// A file on this machine under a path in the repository; all of it is read for its hash.
    pub fn from_disk(path: String, from: PathBuf) -> Result<Self, HubError> {
        let (sha256, bytes) = disk::hash_and_length(&from)?;
        Ok(Self {
            path,
            bytes,
            sha256,
            content: Content::File(from),
        })
    }

    /// Bytes in memory under a path in the repository.
    pub fn from_bytes(path: &str, bytes: Vec<u8>) -> Self {
        Self {
            path: path.to_owned(),
            bytes: bytes.len() as u64,
            sha256: disk::hash_of(&bytes),
            content: Content::Bytes(bytes),
        }
    }

    /// The file as a publication lists it.
    pub fn published(&self) -> PublishedFile {
        PublishedFile {
            path: self.path.clone(),
            bytes: self.bytes,
            sha256: self.sha256.clone(),
        }
    }
}

/// The fate of a file in a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The revision has it.
    There,
    /// The store gets it, and the commit names it.
    Large,
    /// It is a part of the commit.
    Regular,
}

/// The files and settings of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushPlan {
    /// Whether the repository exists, with the revision.
    pub exists: bool,
    /// What becomes of each file, in their order; all are large where nobody was asked.
    pub modes: Vec<Mode>,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes of different files: those under several paths count once.
    pub unique_bytes: u64,
    /// Bytes of the bodies of requests with files: uploads and the commit.
    pub wire_bytes: u64,
}

/// A push that was made.
#[derive(Clone, Debug)]
pub struct Pushed {
    /// What was to be sent when the push began.
    pub plan: PushPlan,
    /// The commit; `None` if the revision had every file already.
    pub commit: Option<String>,
    /// Address of the pull request.
    pub pull_request: Option<String>,
    /// Address of the repository.
    pub url: String,
    /// Bytes of files that were sent: uploads and the commit.
    pub sent_bytes: u64,
}

/// A file of which the store has one copy, whatever paths it has.
#[derive(Clone, Copy)]
pub struct Blob<'a> {
    path: &'a str,
    sha256: &'a str,
    bytes: u64,
    content: &'a Content,
}

/// Says what a push would send. Nothing is changed at the Hub. Without a network, or without the
/// repository, every file counts.
pub fn plan(push: &Push, hub: &Hub) -> Result<PushPlan, HubError> {
    check_files(push)?;
    run::Pusher::new(push, hub).plan()
}

/// Finds out whether a push can be made, before its files are: whether the Hub answers, and for
/// more than a plan, whether there is a token and the repository may change. The files do not
/// count. A plan without a network asks nobody.
pub fn begin(push: &Push, is_plan: bool, hub: &Hub) -> Result<(), HubError> {
    match is_plan {
        true if hub.offline => return Ok(()),
        true => {}
        false => check_access(push, hub)?,
    }
    run::Pusher::new(push, hub).begin(is_plan)
}

/// Publishes files.
pub fn push(push: &Push, hub: &Hub) -> Result<Pushed, HubError> {
    check_files(push)?;
    check_access(push, hub)?;
    run::Pusher::new(push, hub).push()
}

fn check_access(push: &Push, hub: &Hub) -> Result<(), HubError> {
    if hub.offline {
        return Err(HubError::Offline {
            what: format!("hf:{}", push.repo),
        });
    }
    if hub.places.token.is_none() {
        return Err(HubError::NoToken {
            endpoint: hub.places.endpoint.clone(),
        });
    }
    Ok(())
}

fn check_files(push: &Push) -> Result<(), HubError> {
    let bad = |why: String| HubError::BadPublication {
        place: format!("hf:{}", push.repo),
        why,
    };
    let n = push.files.len();
    if n == 0 || n > MOST_FILES {
        return Err(bad(format!("expected 1 to {MOST_FILES} files, found {n}")));
    }
    let mut paths = BTreeSet::new();
    for file in &push.files {
        if !is_inside(&file.path) {
            return Err(bad(format!("`{}` is not the path of a file", file.path)));
        }
        if !paths.insert(&file.path) {
            return Err(bad(format!("`{}` is there twice", file.path)));
        }
    }
    Ok(())
}
