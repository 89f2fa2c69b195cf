//! What can go wrong between a name and a model's files, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exit::{Code, Failure};
use crate::output::bytes;

/// Why a model could not be found, fetched, listed or removed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("unknown model `{name}`{}", near_text(near))]
    UnknownName {
        name: String,
        near: Vec<String>,
        known: Vec<String>,
    },
    #[error("no such file or folder: {}", path.display())]
    NoSuchPath { path: PathBuf },
    #[error("`{spec}` is not a model's name: {why}")]
    BadSpec { spec: String, why: String },
    #[error("cannot read the catalogue {}: {why}", path.display())]
    BadCatalogue { path: PathBuf, why: String },
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        url: String,
        reason: String,
        passing: bool,
    },
    #[error("{url} answered {status}{}{}", message_text(message.as_deref()), wait_text(*wait))]
    Status {
        url: String,
        status: u16,
        message: Option<String>,
        /// How long the server asks to wait (`Retry-After`).
        wait: Option<Duration>,
    },
    #[error("{repo} is gated: its owner wants you to accept terms first")]
    Gated { repo: String, endpoint: String },
    #[error("{what} does not exist at {endpoint}, or is private")]
    NotFound { what: String, endpoint: String },
    #[error("{url} sent an answer that makes no sense: {why}")]
    BadAnswer { url: String, why: String },
    #[error("{repo} has several models; name one")]
    Choose { repo: String, files: Vec<String> },
    #[error("{repo} has nothing that can be run: {why}")]
    NoModel { repo: String, why: String },
    #[error(
        "{what} is not what it should be: {hash} is {got}, expected {expected}; the file was removed"
    )]
    WrongHash {
        what: String,
        hash: &'static str,
        expected: String,
        got: String,
    },
    #[error("{what} is larger than the {limit} bytes that such a file may have{}", found_text(*got))]
    TooLarge {
        what: String,
        limit: u64,
        got: Option<u64>,
    },
    #[error("{what} is {got} bytes long, expected {expected}")]
    WrongSize {
        what: String,
        expected: u64,
        got: u64,
    },
    #[error("cannot read {}: {why}", path.display())]
    BadWheel { path: PathBuf, why: String },
    #[error("no pip on this machine: tried {}", tried.join(", "))]
    NoPip { tried: Vec<String> },
    #[error("`{command}` failed ({status}){}", tail_text(tail))]
    Pip {
        command: String,
        status: String,
        tail: Vec<String>,
    },
    #[error("cannot {action} {}{}", path.display(), needed.map(|n| format!(" ({n} bytes needed)")).unwrap_or_default())]
    Disk {
        action: &'static str,
        path: PathBuf,
        needed: Option<u64>,
        source: io::Error,
    },
    #[error(
        "{what} is not in the cache and the network is switched off (--offline or HF_HUB_OFFLINE)"
    )]
    Offline { what: String },
    #[error(
        "cannot get {name}: it is not in the cache and no source worked{}",
        tried_text(tried)
    )]
    NoSource {
        name: String,
        tried: Vec<(String, String)>,
        remedies: Vec<String>,
    },
    #[error("{name} is being pulled by another process")]
    Busy { name: String },
    #[error("{name} is not in the cache {}{}", cache.display(), near_text(near))]
    NotCached {
        name: String,
        cache: PathBuf,
        near: Vec<String>,
    },
    #[error("{} is outside the cache {}: nothing was removed", path.display(), cache.display())]
    Outside { path: PathBuf, cache: PathBuf },
}

fn message_text(message: Option<&str>) -> String {
    message.map(|m| format!(": {m}")).unwrap_or_default()
}

fn wait_text(wait: Option<Duration>) -> String {
    wait.map(|wait| format!("; it asks to wait {} s", wait.as_secs()))
        .unwrap_or_default()
}

fn found_text(got: Option<u64>) -> String {
    got.map(|got| format!(": found {got}")).unwrap_or_default()
}

fn near_text(near: &[String]) -> String {
    match near {
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
    pub fn disk(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Disk {
            action,
            path: path.to_owned(),
            needed: None,
            source,
        }
    }

    /// Whether the same request may well work a moment later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { passing, .. } => *passing,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            _ => false,
        }
    }

    /// Whether another source of the same model would meet the same end.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::Busy { .. })
    }

    pub fn code(&self) -> Code {
        match self {
            Self::UnknownName { .. }
            | Self::NoSuchPath { .. }
            | Self::BadSpec { .. }
            | Self::BadCatalogue { .. }
            | Self::Choose { .. }
            | Self::NoModel { .. }
            | Self::NotCached { .. }
            | Self::Outside { .. } => Code::Usage,
            Self::Disk { .. } | Self::Busy { .. } => Code::Other,
            _ => Code::Network,
        }
    }

    /// What the user can do, a line each.
    pub fn remedies(&self) -> Vec<String> {
        match self {
            Self::UnknownName { known, .. } => vec![
                format!("a name of the catalogue: {}", known.join(", ")),
                "a path to a GGUF file or a Hugging Face folder, or hf:org/name".into(),
            ],
            Self::NotCached { .. } => vec!["thane ls, which lists what is in the caches".into()],
            Self::NoSuchPath { path } => hub_hint(path),
            Self::BadSpec { .. } => {
                vec!["hf:org/name, hf:org/name/file.gguf, hf:org/name@revision".into()]
            }
            Self::Choose { repo, files } => files
                .iter()
                .map(|file| format!("hf:{repo}/{file}"))
                .collect(),
            Self::Gated { repo, endpoint } => {
                vec![format!(
                    "accept the terms at {endpoint}/{repo}, then set HF_TOKEN to a token of yours"
                )]
            }
            Self::NotFound { endpoint, .. } => vec![
                "check the spelling of organisation, name, file and revision".into(),
                format!("set HF_TOKEN if it is private at {endpoint}"),
            ],
            Self::Status {
                wait: Some(wait), ..
            } => vec![format!("the same again in {} s", wait.as_secs())],
            Self::Status {
                status: 401 | 403, ..
            } => vec!["set HF_TOKEN to a token that may read this".into()],
            Self::Unreachable { .. } => vec![
                "set HF_ENDPOINT to a mirror, or HTTPS_PROXY if you are behind a proxy".into(),
                "give a path to a file that you have".into(),
            ],
            Self::Offline { .. } => {
                vec!["the same without --offline or HF_HUB_OFFLINE, or a path to a file".into()]
            }
            Self::NoSource { remedies, .. } => remedies.clone(),
            Self::Disk {
                path,
                needed,
                source,
                ..
            } => disk_remedies(path, *needed, source),
            Self::TooLarge { .. } => {
                vec!["another repository: this one is damaged or is not what it says".into()]
            }
            Self::WrongHash { .. } => {
                vec!["pull again; if it happens again, the source is not to be trusted".into()]
            }
            _ => Vec::new(),
        }
    }
}

fn hub_hint(path: &Path) -> Vec<String> {
    let text = path.to_string_lossy();
    match text.split('/').collect::<Vec<_>>()[..] {
        [org, name] if !org.is_empty() && !org.starts_with('.') && !name.is_empty() => {
            vec![format!("hf:{text} if you mean a model on the Hub")]
        }
        _ => Vec::new(),
    }
}

fn disk_remedies(path: &Path, needed: Option<u64>, source: &io::Error) -> Vec<String> {
    use io::ErrorKind as Kind;
    match source.kind() {
        Kind::StorageFull | Kind::FileTooLarge | Kind::QuotaExceeded => vec![
            match needed {
                Some(n) => format!(
                    "free {} on the disk of {}, then the same again: it goes on where it stopped",
                    bytes(n),
                    path.display()
                ),
                None => format!(
                    "free space on the disk of {}, then the same again: it goes on where it stopped",
                    path.display()
                ),
            },
            "or set THANE_CACHE to a folder on a larger disk; `thane rm` removes what was begun"
                .into(),
        ],
        Kind::ReadOnlyFilesystem | Kind::PermissionDenied => {
            vec!["set THANE_CACHE to a folder that you may write to".into()]
        }
        _ => Vec::new(),
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let (code, remedies) = (error.code(), error.remedies());
        remedies
            .into_iter()
            .fold(Failure::new(code, error), Failure::remedy)
    }
}
