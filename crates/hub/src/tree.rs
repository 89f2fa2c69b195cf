//! The list of the files of a commit, with their lengths and hashes.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::Hub;
use crate::error::HubError;
use crate::http::Client;

/// Most pages of a list. A page of the Hub has 1000 entries.
const MOST_PAGES: usize = 100;
/// Most entries of a list.
const MOST_ENTRIES: usize = 100_000;

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of its blob: sha256 of a large file, git's hash of a small one.
    pub etag: String,
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Every file of a commit by its path.
pub fn list(
    client: &Client,
    hub: &Hub,
    repo: &str,
    commit: &str,
) -> Result<BTreeMap<String, Entry>, HubError> {
    let what = format!("hf:{repo}");
    let first = format!("/api/models/{repo}/tree/{commit}?recursive=true");
    let mut files = BTreeMap::new();
    let mut next = Some(first.clone());
    for _ in 0..MOST_PAGES {
        let Some(path) = next else { return Ok(files) };
        let (entries, more): (Vec<Raw>, _) = client.json_page(&path, &what)?;
        let entries = entries.into_iter().filter(|entry| entry.kind == "file");
        files.extend(entries.map(|raw| {
            let (etag, bytes) = raw
                .lfs
                .map_or((raw.oid, raw.size), |lfs| (lfs.oid, lfs.size));
            (raw.path, Entry { etag, bytes })
        }));
        if files.len() > MOST_ENTRIES {
            break;
        }
        next = more;
    }
    let url = format!("{}{first}", hub.places.endpoint);
    let why = format!("expected at most {MOST_ENTRIES} files in {MOST_PAGES} pages, found more");
    Err(HubError::BadAnswer { url, why })
}
