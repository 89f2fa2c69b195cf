//! The commit of a push: how the Hub stores each file, and the lines that name all of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Mode, Push, PushFile};
use crate::disk;
use crate::download::encode;
use crate::error::HubError;
use crate::http::Client;
use crate::http::send::{Kind, parse};

/// Bytes that the Hub looks at to choose how it stores a file.
const SAMPLE_BYTES: usize = 512;
/// Most files of a request.
const BATCH: usize = 256;
/// Most bytes of a file that is a part of the commit itself. The Hub's own limit is 10 MB.
const MOST_REGULAR_BYTES: u64 = 32 << 20;
/// Most bytes of a commit, which is built in memory.
const MOST_COMMIT_BYTES: usize = 256 << 20;

#[derive(Deserialize)]
struct Answer {
    files: Vec<Stored>,
}

/// How the Hub stores a file.
#[derive(Deserialize)]
struct Stored {
    path: String,
    #[serde(rename = "uploadMode")]
    mode: String,
    /// Hash of the file that the revision has under this path.
    oid: Option<String>,
}

/// The answer to a commit.
#[derive(Debug, Deserialize)]
pub struct Committed {
    #[serde(rename = "commitOid")]
    pub commit: String,
    #[serde(rename = "pullRequestUrl", default)]
    pub pull_request: Option<String>,
}

fn address(push: &Push, endpoint: &str, action: &str) -> String {
    let query = if push.pull_request {
        "?create_pr=1"
    } else {
        ""
    };
    let revision = encode(&push.revision, false);
    format!(
        "{endpoint}/api/models/{}/{action}/{revision}{query}",
        push.repo
    )
}

/// How the Hub wants to have each file, in the order of the files.
pub fn modes(push: &Push, client: &Client, endpoint: &str) -> Result<Vec<Mode>, HubError> {
    let url = address(push, endpoint, "preupload");
    let what = format!("hf:{}", push.repo);
    let mut modes = Vec::new();
    for part in push.files.chunks(BATCH) {
        let files = part.iter().map(|file| {
            let sample = STANDARD.encode(file.content.beginning(SAMPLE_BYTES)?);
            Ok(json!({"path": file.path, "sample": sample, "size": file.bytes}))
        });
        let files: Vec<Value> = files.collect::<Result<_, HubError>>()?;
        let body = json!({"files": files}).to_string();
        let answer: Answer = client.post(&url, Kind::Json, body.as_bytes(), &what)?;
        for file in part {
            let stored = answer.files.iter().find(|stored| stored.path == file.path);
            let mode = stored
                .ok_or_else(|| format!("no answer for {}", file.path))
                .and_then(|stored| mode(file, stored));
            modes.push(mode.map_err(|why| HubError::BadAnswer {
                url: url.clone(),
                why,
            })?);
        }
    }
    Ok(modes)
}

fn mode(file: &PushFile, stored: &Stored) -> Result<Mode, String> {
    let is_large = match stored.mode.as_str() {
        // The store takes no empty files.
        "lfs" => file.bytes > 0,
        "regular" if file.bytes <= MOST_REGULAR_BYTES => false,
        other => {
            return Err(format!(
                "expected `lfs` or `regular` for {} of {} bytes, found `{other}`",
                file.path, file.bytes
            ));
        }
    };
    let own = match is_large {
        true => file.sha256.clone(),
        false => file.content.git_hash().map_err(|e| e.to_string())?,
    };
    Ok(
        match (stored.oid.as_deref() == Some(own.as_str()), is_large) {
            (true, _) => Mode::There,
            (false, true) => Mode::Large,
            (false, false) => Mode::Regular,
        },
    )
}

/// The lines of the commit: a header, and one for each file that the revision does not have.
pub fn lines(push: &Push, modes: &[Mode], parent: Option<&str>) -> Result<Vec<u8>, HubError> {
    let mut header = json!({"summary": push.message, "description": ""});
    if let Some(parent) = parent.filter(|_| !push.pull_request) {
        header["parentCommit"] = parent.into();
    }
    let mut body = Vec::new();
    let mut line = |key: &str, value: Value| {
        body.extend_from_slice(json!({"key": key, "value": value}).to_string().as_bytes());
        body.push(b'\n');
        body.len()
    };
    line("header", header);
    for (file, mode) in push.files.iter().zip(modes) {
        let len = match mode {
            Mode::There => continue,
            Mode::Large => line(
                "lfsFile",
                json!({
                    "path": file.path, "algo": "sha256", "oid": file.sha256, "size": file.bytes,
                }),
            ),
            Mode::Regular => {
                let content = file.content.beginning(MOST_REGULAR_BYTES as usize)?;
                let content = STANDARD.encode(content);
                let path = &file.path;
                line(
                    "file",
                    json!({"content": content, "path": path, "encoding": "base64"}),
                )
            }
        };
        if len > MOST_COMMIT_BYTES {
            return Err(HubError::TooLarge {
                what: format!("the commit of hf:{}", push.repo),
                limit: MOST_COMMIT_BYTES as u64,
                found: Some(len as u64),
            });
        }
    }
    Ok(body)
}

/// Makes the commit. One request: whether a lost answer was a commit, the caller finds out.
pub fn send(
    push: &Push,
    lines: &[u8],
    client: &Client,
    endpoint: &str,
) -> Result<Committed, HubError> {
    let url = address(push, endpoint, "commit");
    let what = format!("hf:{}", push.repo);
    let text = client.post_once(&url, Kind::Lines, lines, &what)?;
    parse(&text, &url)
}

impl super::Content {
    /// The first bytes, at most `most`.
    pub(super) fn beginning(&self, most: usize) -> Result<Vec<u8>, HubError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes[..bytes.len().min(most)].to_vec()),
            Self::File(path) => disk::beginning(path, most as u64),
        }
    }

    /// The hash that git gives to the content.
    pub(super) fn git_hash(&self) -> Result<String, HubError> {
        match self {
            Self::Bytes(bytes) => Ok(disk::git_hash_of(bytes)),
            Self::File(path) => disk::git_hashes(path).map(|[git, _]| git),
        }
    }
}
