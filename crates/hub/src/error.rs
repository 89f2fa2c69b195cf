//! What can go wrong between the name of a model and its files.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::caches::Cache;
use crate::shown::{one_line, shown_url};

/// Where the caches are if nothing names a folder for them: a place where nothing can be, so that
/// nothing is found there, and [`HubError::NoCache`] comes of writing.
pub(crate) const NOWHERE: &str = "/dev/null/no-cache";

/// Why a model could not be found, downloaded, listed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The catalog has no model of this name, and there is no such file.
    #[error("unknown model `{name}`{}", did_you_mean(similar))]
    UnknownName {
        /// The name that was asked for.
        name: String,
        /// Names that may have been meant.
        similar: Vec<String>,
        /// Every name of the catalog.
        known: Vec<String>,
        /// Repositories of the Hub that may have been meant, as `org/name`.
        repos: &'static [&'static str],
    },
    /// Nobody waits for a download any more. What is there is kept for the next one.
    #[error("{what}: the download ended because nobody waits for it")]
    Unwanted {
        /// The file.
        what: String,
    },
    /// A file has no certificates to trust, or cannot be read.
    #[error("cannot take certificates from {}: {why}", path.display())]
    BadCertificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What was asked for looks like a path, and nothing is there.
    #[error("no such file or folder: {}", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// The name is not written as a model name is.
    #[error("`{spec}` is not a model's name: {why}")]
    BadSpec {
        /// What was asked for.
        spec: String,
        /// What is wrong with it.
        why: String,
    },
    /// A catalog file cannot be read or has a bad entry.
    #[error("cannot read the catalog {}: {why}", path.display())]
    BadCatalog {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There is no connection to a server, or it broke.
    #[error("cannot reach {}: {reason}", shown_url(url))]
    Unreachable {
        /// Address without its query.
        url: String,
        /// What failed.
        reason: String,
        /// Whether the same request may work a moment later.
        transient: bool,
    },
    /// A server answered with an error status.
    #[error("{} answered {status}{}{}", shown_url(url), message_text(message.as_deref()), wait_text(*wait))]
    Status {
        /// Address without its query.
        url: String,
        /// HTTP status.
        status: u16,
        /// The server's `X-Error-Message`.
        message: Option<String>,
        /// How long the server asks to wait (`Retry-After`).
        wait: Option<Duration>,
    },
    /// The owner of the repository wants its terms accepted first.
    #[error("{repo} is gated: its owner wants you to accept terms first")]
    Gated {
        /// `org/name`.
        repo: String,
        /// Address of the Hub.
        endpoint: String,
    },
    /// The Hub has no such repository, revision or file, or does not show it without a token.
    #[error("{what} does not exist at {}, or is private", shown_url(endpoint))]
    NotFound {
        /// Repository or file.
        what: String,
        /// Address of the Hub.
        endpoint: String,
    },
    /// A server's answer breaks the protocol.
    #[error("{} sent an invalid answer: {}", shown_url(url), one_line(why))]
    BadAnswer {
        /// Address.
        url: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The repository has several GGUF files, and none was named.
    #[error("{repo} has several models; name one")]
    Choose {
        /// `org/name`.
        repo: String,
        /// The GGUF files.
        files: Vec<String>,
    },
    /// A list of files is of a version that this program does not know.
    #[error("{place}: expected schema {}, found {found}", schema_text(*newest))]
    Schema {
        /// The list.
        place: String,
        /// The newest version that is read.
        newest: u32,
        /// What was found.
        found: String,
        /// Whether that is a later version.
        is_newer: bool,
    },
    /// A list of files cannot be used.
    #[error("{place}: {}", one_line(why))]
    BadPublication {
        /// The list.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// A publication does not have the packages that were asked for.
    #[error("{place}: expected {expected}, found {found}")]
    NoSuchPart {
        /// The publication.
        place: String,
        /// What it has.
        expected: String,
        /// What was asked for.
        found: String,
    },
    /// A publication is not signed with the key that was asked for.
    #[error("{what} is not signed as asked: {why}; nothing of it was used")]
    Unsigned {
        /// The repository.
        what: String,
        /// What is missing.
        why: String,
    },
    /// A file or text is no key.
    #[error("cannot use the key {key}: {why}")]
    BadKey {
        /// The file or text.
        key: String,
        /// Whether it is to sign with; otherwise signatures are checked with it.
        signs: bool,
        /// What is wrong with it.
        why: String,
    },
    /// Something is to be published, and there is no token.
    #[error("expected a token for {}, found none", shown_url(endpoint))]
    NoToken {
        /// Address of the Hub.
        endpoint: String,
    },
    /// The store does not take a file.
    #[error("{what} was not taken: {}", one_line(why))]
    Refused {
        /// The file.
        what: String,
        /// The store's words.
        why: String,
    },
    /// Something is where a copy is to be made.
    #[error("{} exists already", path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The repository has no weights in a known format.
    #[error("{repo} has nothing that can be run: {}", one_line(why))]
    NoModel {
        /// `org/name`.
        repo: String,
        /// What was looked for and what was found.
        why: String,
    },
    /// The bytes of a file are not those that its hash promises.
    #[error("{what} is damaged: expected {hash} {expected}, found {found}; the file was removed")]
    WrongHash {
        /// The file.
        what: String,
        /// Name of the hash, such as `sha256`.
        hash: &'static str,
        /// The hash that the file should have, hexadecimal.
        expected: String,
        /// The hash that the bytes have, hexadecimal.
        found: String,
    },
    /// A file in the cache does not have the bytes that its hash promises.
    #[error("{} is damaged: its {hash} is not the one that it should have", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Name of the hash, such as `sha256`.
        hash: &'static str,
    },
    /// A small file, such as a configuration, is longer than such files may be.
    #[error("{what}: expected at most {limit} bytes, found {}", found_text(*found))]
    TooLarge {
        /// The file.
        what: String,
        /// Bytes that it may have.
        limit: u64,
        /// Bytes that it has, where the server says so.
        found: Option<u64>,
    },
    /// A file does not have the length that is known of it.
    #[error("{what}: expected {expected} bytes, found {found}")]
    WrongSize {
        /// The file.
        what: String,
        /// Bytes expected.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A wheel is damaged or does not have the file that it should.
    #[error("cannot read {}: {why}", path.display())]
    BadWheel {
        /// The wheel.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No command starts pip.
    #[error("no pip on this machine: tried {}", tried.join(", "))]
    NoPip {
        /// The commands that were tried.
        tried: Vec<String>,
    },
    /// pip ended with an error.
    #[error("`{command}` failed ({status}){}", tail_text(tail))]
    Pip {
        /// The command.
        command: String,
        /// How the process ended.
        status: String,
        /// Last lines of its output.
        tail: Vec<String>,
    },
    /// Nothing names a folder for the cache.
    #[error(
        "expected HOME or XDG_CACHE_HOME to be an absolute path, found none: models have no folder"
    )]
    NoCache,
    /// The file system refused.
    #[error("cannot {action} {}{}", path.display(), needed_text(*needed))]
    Disk {
        /// What was to be done, such as `write`.
        action: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The cache that the file or folder is in; `None` for other places.
        cache: Option<Cache>,
        /// Bytes that the file has in the end, where known.
        needed: Option<u64>,
        /// The system's error.
        source: io::Error,
    },
    /// The model must be downloaded, and the caller does not allow requests.
    #[error("{what} is not in the cache and the network is switched off")]
    Offline {
        /// Model or file.
        what: String,
    },
    /// Every source of a model of the catalog failed.
    #[error("cannot get {}: it is not in the cache and no source worked{}", .0.name, tried_text(&.0.tried))]
    NoSource(Box<NoSource>),
    /// Another process is downloading the model.
    #[error("{name} is being pulled by another process")]
    Busy {
        /// Name of the catalog.
        name: String,
    },
    /// What is to be removed is not in the cache.
    #[error("{name} is not in the cache {}{}", cache.display(), did_you_mean(similar))]
    NotCached {
        /// The name that was asked for.
        name: String,
        /// The cache that was looked at.
        cache: PathBuf,
        /// Names in the caches that may have been meant.
        similar: Vec<String>,
    },
    /// What is to be removed lies outside of the cache.
    #[error("{} is outside the cache {}: nothing was removed", path.display(), cache.display())]
    Outside {
        /// The path.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
    },
}

/// A model of the catalog that no source has, and where its files could be put by hand.
#[derive(Debug)]
pub struct NoSource {
    /// Name of the catalog.
    pub name: String,
    /// Each source and why it failed.
    pub tried: Vec<(String, String)>,
    /// Whether requests were forbidden.
    pub is_offline: bool,
    /// The model's file, or its folder, by its name in the cache.
    pub path: String,
    /// Whether the model is a folder of files.
    pub is_folder: bool,
    /// pip requirements of the wheels that hold the model, per pip source.
    pub wheels: Vec<Vec<String>>,
    /// The folder in which wheels are looked for.
    pub wheels_folder: PathBuf,
}

fn message_text(message: Option<&str>) -> String {
    message
        .map(|m| format!(": {}", one_line(m)))
        .unwrap_or_default()
}

fn wait_text(wait: Option<Duration>) -> String {
    wait.map(|wait| format!("; it asks to wait {} s", wait.as_secs()))
        .unwrap_or_default()
}

fn schema_text(newest: u32) -> String {
    match newest {
        1 => "1".to_owned(),
        newest => format!("1 to {newest}"),
    }
}

fn found_text(found: Option<u64>) -> String {
    found.map_or_else(|| "more".to_owned(), |found| found.to_string())
}

fn needed_text(needed: Option<u64>) -> String {
    needed
        .map(|n| format!(" ({n} bytes needed)"))
        .unwrap_or_default()
}

fn did_you_mean(similar: &[String]) -> String {
    match similar {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

fn tail_text(tail: &[String]) -> String {
    tail.iter().map(|line| format!("\n    {line}")).collect()
}

fn tried_text(tried: &[(String, String)]) -> String {
    tried
        .iter()
        .map(|(source, why)| format!("\n  tried {source}: {why}"))
        .collect()
}

impl HubError {
    pub(crate) fn disk(action: &'static str, path: &Path, source: io::Error) -> Self {
        if path.starts_with(NOWHERE) {
            return Self::NoCache;
        }
        Self::Disk {
            action,
            path: path.to_owned(),
            cache: None,
            needed: None,
            source,
        }
    }

    /// Says which cache the path of the error is in.
    pub(crate) fn in_caches(mut self, mut caches: [(Cache, &Path); 2]) -> Self {
        if let Self::Disk { path, cache, .. } = &mut self {
            // The shared cache may be a folder of Thane's own, or the other way round.
            caches.sort_by_key(|(_, folder)| folder.components().count());
            let inner = caches
                .iter()
                .rev()
                .find(|(_, folder)| path.starts_with(folder));
            *cache = inner.map(|(name, _)| *name);
        }
        self
    }

    /// Whether the same request may work a moment later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { transient, .. } => *transient,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether another source of the same model would fail in the same way, or need not be asked.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Disk { .. } | Self::NoCache | Self::Busy { .. } | Self::Unwanted { .. }
        )
    }
}
