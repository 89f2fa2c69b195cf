//! Models on the Hub: which files of a repository are needed, and fetching them into the shared
//! cache.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thane_mil::package::read_small;

use super::context::HubContext;
use super::disk::{self, Growing, Lock, incomplete};
use super::error::HubError;
use super::http::{Client, Remote, Sum};
use super::layout::{INDEX, MAX_INDEX_BYTES, RepoFolder, WEIGHTS, is_commit, shards};
use super::spec::{RepoSpec, is_inside};

/// Of `GET /api/models/{repo}/revision/{revision}`.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A finished pull.
#[derive(Debug)]
pub struct Fetched {
    pub path: PathBuf,
    /// Bytes that came over the network this time.
    pub bytes: u64,
}

/// Brings the cache up to what the Hub has now.
pub fn pull(spec: &RepoSpec, ctx: &HubContext) -> Result<Fetched, HubError> {
    let job = Job {
        client: Client::new(ctx),
        folder: RepoFolder::new(&ctx.places.hub, &spec.repo),
        spec,
        ctx,
    };
    match &spec.file {
        Some(file) => job.pull_file(file),
        None => job.pull_repo(),
    }
}

/// Reads every byte of a model that is in the cache; what is damaged is removed, for the next pull
/// to fetch again.
///
/// Files have their hashes for names: sha256 of large ones, git's hash of small ones.
pub fn check(spec: &RepoSpec, ctx: &HubContext) -> Result<(), HubError> {
    let folder = RepoFolder::new(&ctx.places.hub, &spec.repo);
    for (name, blob) in folder.files(spec) {
        let etag = blob
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        let Some(sum) = Sum::of_etag(etag) else {
            continue;
        };
        ctx.progress
            .detail(&format!("checking the hash of {}", name.display()));
        if let Some(wrong) = mismatch(&sum, &blob, None)? {
            let hash = wrong.hash;
            ctx.progress.note(&format!(
                "{} is damaged: its {hash} is not the one that it should have",
                name.display()
            ));
            disk::remove(&name)?;
            disk::remove(&blob)?;
        }
    }
    Ok(())
}

struct Job<'a> {
    client: Client<'a>,
    folder: RepoFolder,
    spec: &'a RepoSpec,
    ctx: &'a HubContext,
}

impl Job<'_> {
    fn pull_file(&self, file: &str) -> Result<Fetched, HubError> {
        let what = self.spec.to_string();
        let url = self.url(&self.spec.revision, file);
        let remote = self.client.head(&url, &what)?;
        let commit = remote.commit.clone().filter(|commit| is_commit(commit));
        let commit = commit.ok_or(HubError::BadAnswer {
            url,
            why: "no X-Repo-Commit".into(),
        })?;
        let bytes = self.take(&commit, file, remote)?;
        self.folder.set_commit(&self.spec.revision, &commit)?;
        Ok(Fetched {
            path: self.folder.snapshot(&commit).join(file),
            bytes,
        })
    }

    fn pull_repo(&self) -> Result<Fetched, HubError> {
        let (repo, revision) = (&self.spec.repo, self.spec.revision.replace('/', "%2F"));
        let path = format!("/api/models/{repo}/revision/{revision}");
        let listing: Listing = self.client.json(&path, &self.spec.to_string())?;
        if !is_commit(&listing.sha) {
            let url = format!("{}{path}", self.ctx.places.endpoint);
            return Err(HubError::BadAnswer {
                url,
                why: format!("`{}` is no commit", listing.sha),
            });
        }
        let files: Vec<String> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
        let choice = choose(repo, &files)?;
        let mut bytes = 0;
        for file in &choice.small {
            bytes += self.fetch(&listing.sha, file)?;
        }
        for file in self.weights(&choice, &listing.sha)? {
            bytes += self.fetch(&listing.sha, &file)?;
        }
        self.folder.set_commit(&self.spec.revision, &listing.sha)?;
        let snapshot = self.folder.snapshot(&listing.sha);
        let path = if choice.is_gguf {
            snapshot.join(&choice.weights)
        } else {
            snapshot
        };
        Ok(Fetched { path, bytes })
    }

    /// The files with the weights; the index, which is fetched by now, names the shards.
    fn weights(&self, choice: &Choice, commit: &str) -> Result<Vec<String>, HubError> {
        if choice.weights != INDEX {
            return Ok(vec![choice.weights.clone()]);
        }
        let path = self.folder.snapshot(commit).join(INDEX);
        let text =
            read_small(&path, MAX_INDEX_BYTES).map_err(|e| HubError::disk("read", &path, e))?;
        let shards = shards(&text).map_err(|why| HubError::NoModel {
            repo: self.spec.repo.clone(),
            why,
        })?;
        Ok(shards.into_iter().collect())
    }

    fn fetch(&self, commit: &str, file: &str) -> Result<u64, HubError> {
        // A commit never changes: a file that is there needs no request.
        if self.folder.snapshot(commit).join(file).is_file() {
            return Ok(0);
        }
        let what = format!("hf:{}/{file}", self.spec.repo);
        let remote = self.client.head(&self.url(commit, file), &what)?;
        self.take(commit, file, remote)
    }

    /// Fetches what is missing of one file and gives it its name.
    fn take(&self, commit: &str, file: &str, mut remote: Remote) -> Result<u64, HubError> {
        let what = format!("hf:{}/{file}", self.spec.repo);
        // Weights are as long as the Hub says; all else is read whole, so it has a length that may
        // be read.
        match (small_limit(file), remote.bytes) {
            (Some(limit), Some(got)) if got > limit => {
                return Err(HubError::TooLarge {
                    what,
                    limit,
                    got: Some(got),
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
        if etag.is_empty()
            || !etag
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        {
            return Err(HubError::BadAnswer {
                url: remote.url.clone(),
                why: format!("odd ETag `{etag}`"),
            });
        }
        let blob = self.folder.blob(etag);
        let is_whole =
            || fs::metadata(&blob).is_ok_and(|m| remote.bytes.is_none_or(|bytes| m.len() == bytes));
        let name = self.folder.snapshot(commit).join(file);
        if is_whole() && name.is_file() {
            return Ok(0);
        }
        let _lock = Lock::wait(&self.folder.lock(etag), &what, self.ctx)?;
        let mut bytes = 0;
        if !is_whole() {
            disk::create_folder(blob.parent().unwrap_or(&self.folder.path))?;
            bytes = fetch_whole(
                &self.client,
                &remote,
                remote.sum(),
                &incomplete(&blob),
                &what,
                self.ctx,
            )?;
            fs::rename(incomplete(&blob), &blob).map_err(|e| HubError::disk("write", &blob, e))?;
        }
        self.folder.link(commit, file, etag)?;
        Ok(bytes)
    }

    fn url(&self, revision: &str, file: &str) -> String {
        file_url(&self.ctx.places.endpoint, &self.spec.repo, revision, file)
    }
}

/// Where the Hub has a file of a revision.
pub fn file_url(endpoint: &str, repo: &str, revision: &str, file: &str) -> String {
    format!(
        "{endpoint}/{repo}/resolve/{}/{}",
        encode(revision, false),
        encode(file, true)
    )
}

/// Grows `path` until it is whole and checked; the caller renames it.
///
/// What an earlier run left is kept and added to. When the sum is wrong then, the leftover may be
/// to blame: once more from the first byte.
pub fn fetch_whole(
    client: &Client,
    remote: &Remote,
    sum: Option<Sum>,
    path: &Path,
    what: &str,
    ctx: &HubContext,
) -> Result<u64, HubError> {
    let mut bytes = 0;
    loop {
        let mut growing = Growing::open(path, remote.bytes)?;
        let had = growing.len();
        ctx.progress.start(what, remote.bytes, had);
        let done = client.download(remote, &mut growing, what);
        ctx.progress.finish();
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
                got,
            });
        }
        ctx.progress.note(&format!(
            "{what}: what an earlier pull left is damaged, starting over"
        ));
    }
}

/// A file whose bytes are not those that were promised.
struct Mismatch {
    hash: &'static str,
    expected: String,
    got: String,
}

/// Compares a file with its sum; `sha256` is the file's, where it is known already.
fn mismatch(sum: &Sum, path: &Path, sha256: Option<String>) -> Result<Option<Mismatch>, HubError> {
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

/// The bytes that a file may have which is read whole: the largest tokenizer.json known has 35 MB,
/// other files less than 1. None for weights.
fn small_limit(file: &str) -> Option<u64> {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name.rsplit('.').next() {
        Some("gguf" | "safetensors") => None,
        _ if name.starts_with("tokenizer") || file == INDEX => Some(128 << 20),
        _ => Some(16 << 20),
    }
}

/// What of a repository is fetched.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    small: Vec<String>,
    /// `model.safetensors`, its index (whose shards follow), or a GGUF file.
    weights: String,
    is_gguf: bool,
}

/// Safetensors with their configuration before GGUF; of several GGUF files the user names one.
fn choose(repo: &str, files: &[String]) -> Result<Choice, HubError> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if has("config.json") && (has(WEIGHTS) || has(INDEX)) {
        let is_sharded = !has(WEIGHTS);
        let is_needed = |file: &&String| is_small(file) || is_sharded && *file == INDEX;
        let small = files.iter().filter(is_needed).cloned().collect();
        let weights = if is_sharded { INDEX } else { WEIGHTS };
        return Ok(Choice {
            small,
            weights: weights.into(),
            is_gguf: false,
        });
    }
    let ggufs: Vec<&String> = files
        .iter()
        .filter(|f| f.ends_with(".gguf") && is_inside(f))
        .collect();
    match ggufs[..] {
        [one] => Ok(Choice {
            small: Vec::new(),
            weights: one.clone(),
            is_gguf: true,
        }),
        [] => {
            let others = files
                .iter()
                .filter(|f| f.ends_with(".bin") || f.ends_with(".pt") || f.ends_with(".pth"));
            let others: Vec<&str> = others.map(String::as_str).collect();
            let why = match others[..] {
                [] => "no model.safetensors with a config.json, and no GGUF file".to_owned(),
                _ => format!(
                    "its weights are neither safetensors nor GGUF ({})",
                    others.join(", ")
                ),
            };
            Err(HubError::NoModel {
                repo: repo.to_owned(),
                why,
            })
        }
        _ => Err(HubError::Choose {
            repo: repo.to_owned(),
            files: ggufs.into_iter().cloned().collect(),
        }),
    }
}

/// Configuration, tokenizer and chat template, in the top folder; and what sentence-transformers
/// needs.
fn is_small(file: &str) -> bool {
    let exact = [
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "modules.json",
        "config_sentence_transformers.json",
    ];
    let begins = ["tokenizer", "chat_template"];
    // sentence_bert_config.json; old models have their own kind in place of `bert`.
    let is_sentence = file.starts_with("sentence_") && file.ends_with("_config.json");
    let is_top = exact.contains(&file) || is_sentence || begins.iter().any(|b| file.starts_with(b));
    is_inside(file)
        && file
            .split_once('/')
            .map_or(is_top, |(folder, name)| is_of_module(folder, name))
}

/// A module's folder is its number and name, as in `1_Pooling`; a dense layer has weights in it.
fn is_of_module(folder: &str, name: &str) -> bool {
    let is_numbered = folder
        .split_once('_')
        .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    is_numbered && ["config.json", WEIGHTS].contains(&name)
}

/// Percent-encodes all but letters, digits and `-._~`, and `/` where it separates folders.
fn encode(text: &str, keep_slash: bool) -> String {
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

    fn choice(files: &[&str]) -> Result<(String, String), String> {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        choose("o/n", &files)
            .map(|c| (c.small.join(" "), c.weights))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn files_of_a_repository() {
        let ok = |small: &str, weights: &str| Ok((small.to_owned(), weights.to_owned()));
        let full = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "chat_template.jinja",
            WEIGHTS,
            "x.gguf",
            "onnx/config.json",
        ];
        assert_eq!(
            choice(&full),
            ok(
                "config.json tokenizer.json tokenizer.model chat_template.jinja",
                WEIGHTS
            )
        );
        let sentence = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "2_Dense/onnx/config.json",
            "config.json",
            "config_sentence_transformers.json",
            "modules.json",
            "sentence_bert_config.json",
            "train_config.json",
            "onnx/model.safetensors",
            WEIGHTS,
        ];
        let small = "1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors config.json \
                     config_sentence_transformers.json modules.json sentence_bert_config.json";
        assert_eq!(choice(&sentence), ok(small, WEIGHTS));
        assert_eq!(
            choice(&["config.json", INDEX, "model-1.safetensors"]),
            ok(&format!("config.json {INDEX}"), INDEX)
        );
        assert_eq!(choice(&["a.gguf", "config.json"]), ok("", "a.gguf"));
        assert_eq!(
            choice(&["a.gguf", "b/c.gguf"]),
            Err("o/n has several models; name one".into())
        );
        let bin = choice(&["config.json", "pytorch_model.bin"]).unwrap_err();
        assert!(
            bin.contains("neither safetensors nor GGUF (pytorch_model.bin)"),
            "{bin}"
        );
        assert!(choice(&[]).is_err());
    }

    #[test]
    fn what_is_read_whole_has_a_limit() {
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
