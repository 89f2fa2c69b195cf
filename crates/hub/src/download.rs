//! A download from one repository of the Hub: its files, one by one, into the shared cache.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config::Hub;
use crate::disk::{self, Growing, Lock, incomplete};
use crate::error::HubError;
use crate::http::Client;
use crate::layout::{INDEX, RepoFolder};
use crate::parts::{Remote, Sum};
use crate::small::read_small;
use crate::spec::RepoSpec;

/// A finished download.
#[derive(Debug)]
pub struct Fetched {
    /// The model's file or folder.
    pub path: PathBuf,
    /// Bytes that were downloaded by this call.
    pub bytes: u64,
}

/// A download of one repository.
pub struct Download<'a> {
    pub client: Client<'a>,
    pub folder: RepoFolder,
    pub spec: &'a RepoSpec,
    pub hub: &'a Hub,
}

impl<'a> Download<'a> {
    pub fn new(spec: &'a RepoSpec, hub: &'a Hub) -> Self {
        Self {
            client: Client::new(hub),
            folder: RepoFolder::new(&hub.places.hub_cache, &spec.repo),
            spec,
            hub,
        }
    }

    /// The same download with another hub, which has its own progress.
    pub fn with<'b>(&'b self, hub: &'b Hub) -> Download<'b> {
        Download::new(self.spec, hub)
    }

    pub fn repo(&self) -> &str {
        &self.spec.repo
    }

    /// The name of the repository in messages.
    pub fn what(&self) -> String {
        format!("hf:{}", self.spec.repo)
    }

    pub fn no_model(&self, why: String) -> HubError {
        HubError::NoModel {
            repo: self.spec.repo.clone(),
            why,
        }
    }

    pub fn unsigned(&self, why: &str) -> HubError {
        HubError::Unsigned {
            what: self.what(),
            why: why.to_owned(),
        }
    }

    /// A small file of a commit, downloaded unless it is there. A longer one is refused before it
    /// is downloaded.
    pub fn read(&self, commit: &str, file: &str, most_bytes: u64) -> Result<Vec<u8>, HubError> {
        let path = self.folder.snapshot(commit).join(file);
        if !path.is_file() {
            let mut remote = self.head(commit, file)?;
            remote.limit = Some(most_bytes);
            self.download_file(commit, file, remote)?;
        }
        let found = fs::metadata(&path).map(|found| found.len()).ok();
        if found.is_some_and(|found| found > most_bytes) {
            return Err(HubError::TooLarge {
                what: format!("{}/{file}", self.what()),
                limit: most_bytes,
                found,
            });
        }
        read_small(&path, most_bytes).map_err(|e| HubError::disk("read", &path, e))
    }

    /// Downloads a file of a commit, unless it is there. Returns the bytes that came.
    pub fn fetch(&self, commit: &str, file: &str) -> Result<u64, HubError> {
        // The files of a commit never change, so a file that is there needs no request.
        if self.folder.snapshot(commit).join(file).is_file() {
            return Ok(0);
        }
        let remote = self.head(commit, file)?;
        self.download_file(commit, file, remote)
    }

    fn head(&self, commit: &str, file: &str) -> Result<Remote, HubError> {
        let what = format!("{}/{file}", self.what());
        self.client.head(&self.url(commit, file), &what)
    }

    /// Downloads the missing bytes of one file and links it into the snapshot.
    pub fn download_file(
        &self,
        commit: &str,
        file: &str,
        mut remote: Remote,
    ) -> Result<u64, HubError> {
        let what = format!("hf:{}/{file}", self.spec.repo);
        // Weights may be as long as the Hub says. Every other file is read into memory as a whole,
        // so its length has a limit.
        match (remote.limit.or(small_limit(file)), remote.bytes) {
            (Some(limit), Some(got)) if got > limit => {
                return Err(HubError::TooLarge {
                    what,
                    limit,
                    found: Some(got),
                });
            }
            (None, None) => {
                return Err(HubError::BadAnswer {
                    url: remote.url,
                    why: "neither Content-Length nor X-Linked-Size".into(),
                });
            }
            (limit, _) => remote.limit = limit,
        }
        let etag = &remote.etag;
        self.check_etag(&remote.url, etag)?;
        let blob = self.folder.blob(etag);
        let is_complete =
            || fs::metadata(&blob).is_ok_and(|m| remote.bytes.is_none_or(|bytes| m.len() == bytes));
        let name = self.folder.snapshot(commit).join(file);
        if is_complete() && name.is_file() {
            return Ok(0);
        }
        let _lock = Lock::wait(&self.folder.lock(etag), &what, self.hub)?;
        let mut bytes = 0;
        if !is_complete() {
            disk::create_folder(blob.parent().unwrap_or(&self.folder.path))?;
            bytes = download_checked(
                &self.client,
                &remote,
                remote.sum(),
                &incomplete(&blob),
                &what,
                self.hub,
            )?;
            fs::rename(incomplete(&blob), &blob).map_err(|e| HubError::disk("write", &blob, e))?;
        }
        self.folder.link(commit, file, etag)?;
        Ok(bytes)
    }

    /// Refuses an ETag that cannot be the name of a file.
    pub fn check_etag(&self, url: &str, etag: &str) -> Result<(), HubError> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if !etag.is_empty() && etag.len() <= 255 && etag.bytes().all(is_plain) {
            return Ok(());
        }
        Err(HubError::BadAnswer {
            url: url.to_owned(),
            why: format!("expected an ETag of letters, digits, `-` and `_`, found `{etag}`"),
        })
    }

    pub fn url(&self, revision: &str, file: &str) -> String {
        file_url(&self.hub.places.endpoint, &self.spec.repo, revision, file)
    }
}

/// The address of a file of a revision.
pub fn file_url(endpoint: &str, repo: &str, revision: &str, file: &str) -> String {
    format!(
        "{endpoint}/{repo}/resolve/{}/{}",
        encode(revision, false),
        encode(file, true)
    )
}

/// Downloads a file to `path` and compares its hash; the caller renames it.
///
/// Bytes that an earlier run left are kept and continued. If the hash is wrong then, those bytes
/// may be to blame, and the download starts again from the first byte.
pub fn download_checked(
    client: &Client,
    remote: &Remote,
    sum: Option<Sum>,
    path: &Path,
    what: &str,
    hub: &Hub,
) -> Result<u64, HubError> {
    let mut bytes = 0;
    loop {
        let mut growing = Growing::open(path, remote.bytes)?;
        let had = growing.len();
        hub.progress.start(what, remote.bytes, had);
        let done = client.download(remote, &mut growing, what, sum.is_some());
        hub.progress.finish();
        done?;
        bytes += growing.len().saturating_sub(had);
        let got = growing.seal()?;
        let wrong = sum
            .as_ref()
            .map(|sum| mismatch(sum, path, Some(got)))
            .transpose()?
            .flatten();
        let Some(Mismatch {
            hash,
            expected,
            got,
        }) = wrong
        else {
            return Ok(bytes);
        };
        disk::remove(path)?;
        if had == 0 {
            return Err(HubError::WrongHash {
                what: what.to_owned(),
                hash,
                expected,
                found: got,
            });
        }
        hub.progress.note(&format!(
            "{what}: the incomplete file of an earlier pull is damaged; starting over"
        ));
    }
}

/// A file whose bytes do not have the expected hash.
pub struct Mismatch {
    pub hash: &'static str,
    expected: String,
    got: String,
}

/// Compares the hash of a file. `sha256` is the file's own, where it was computed already.
pub fn mismatch(
    sum: &Sum,
    path: &Path,
    sha256: Option<String>,
) -> Result<Option<Mismatch>, HubError> {
    let (hash, expected, got) = match sum {
        Sum::Sha256(expected) => (
            "sha256",
            expected,
            sha256.map_or_else(|| disk::hash_file(path), Ok)?,
        ),
        Sum::Git(expected) => {
            let [git, sha1] = disk::git_hashes(path)?;
            (
                "git hash",
                expected,
                if sha1 == *expected { sha1 } else { git },
            )
        }
    };
    Ok((*expected != got).then(|| Mismatch {
        hash,
        expected: expected.clone(),
        got,
    }))
}

/// Most bytes of a file that is read into memory as a whole. The largest known tokenizer.json has
/// 35 MB, other files less than 1 MB. `None` for weights.
fn small_limit(file: &str) -> Option<u64> {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name.rsplit('.').next() {
        Some("gguf" | "safetensors") => None,
        _ if name.starts_with("tokenizer") || file == INDEX => Some(128 << 20),
        _ => Some(16 << 20),
    }
}

/// Percent-encodes all but letters, digits and `-._~`, and `/` where it separates folders.
pub fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte))
            }
            b'/' if keep_slash => out.push('/'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_read_whole_have_a_limit() {
        assert_eq!(small_limit("1_Pooling/config.json"), Some(16 << 20));
        assert_eq!(small_limit("tokenizer.json"), Some(128 << 20));
        assert_eq!(
            [
                small_limit("2_Dense/model.safetensors"),
                small_limit("a/b.gguf")
            ],
            [None, None]
        );
    }

    #[test]
    fn addresses_are_encoded() {
        let url = file_url("http://h", "o/n", "refs/pr/1", "a b/c+d.gguf");
        assert_eq!(url, "http://h/o/n/resolve/refs%2Fpr%2F1/a%20b/c%2Bd.gguf");
    }
}
