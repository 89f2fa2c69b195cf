//! Downloads models from the Hub into the shared cache: which files of a repository are needed, and
//! the requests for them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::bundle::{self, Asked, place};
use crate::config::Hub;
use crate::disk::{self, Lock};
use crate::download::{Download, Fetched, mismatch};
use crate::error::HubError;
use crate::layout::{INDEX, MAX_INDEX_BYTES, RepoFolder, WEIGHTS, is_commit, shards};
use crate::parts::Sum;
use crate::publication::Format;
use crate::small::read_small;
use crate::spec::{RepoSpec, is_inside};
use crate::store::Check;

/// The answer of `GET /api/models/{repo}/revision/{revision}`.
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

/// Brings a model in the cache up to date with the Hub.
pub fn pull(
    spec: &RepoSpec,
    (asked, check): (&Asked, Check),
    hub: &Hub,
) -> Result<Fetched, HubError> {
    let download = Download::new(spec, hub);
    match spec.file.as_ref().filter(|file| !is_package(file)) {
        Some(file) => {
            asked.check_plain(&spec.to_string())?;
            download.pull_file(file, check)
        }
        None => download.pull_repo(asked, check),
    }
}

fn is_package(file: &str) -> bool {
    Format::of_folder(file).is_some()
}

/// Reads every byte of a model in the cache and removes damaged files, so that the next download
/// brings them again. Offline, a damaged file is an error and stays.
///
/// The names of blobs are their hashes: sha256 for large files, git's hash for small ones.
pub fn check(spec: &RepoSpec, hub: &Hub) -> Result<(), HubError> {
    let folder = RepoFolder::new(&hub.places.hub_cache, &spec.repo);
    let mut blobs: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for (name, blob) in folder.files(spec) {
        blobs.entry(blob).or_default().push(name);
    }
    for (blob, names) in blobs {
        let etag = blob.file_name().and_then(|n| n.to_str());
        let (Some(sum), Some(name)) = (Sum::of_etag(etag.unwrap_or_default()), names.first())
        else {
            continue;
        };
        hub.progress
            .detail(&format!("checking the hash of {}", name.display()));
        let wrong = || match mismatch(&sum, &blob, None) {
            // Another process found it damaged and removed it.
            Err(_) if !blob.exists() => Ok(None),
            compared => compared,
        };
        let Some(found) = wrong()? else {
            continue;
        };
        let damaged = HubError::Damaged {
            path: name.clone(),
            hash: found.hash,
        };
        if hub.offline {
            return Err(damaged);
        }
        let lock = folder.lock(etag.unwrap_or_default());
        let _lock = Lock::wait(&lock, &spec.to_string(), hub)?;
        if wrong()?.is_none() {
            continue;
        }
        names.iter().try_for_each(|name| disk::remove(name))?;
        disk::remove(&blob)?;
        // Folders of bundles have other names of the same files.
        place::remove_all(hub, &spec.repo)?;
        hub.progress.note(&format!("{damaged}; it was removed"));
    }
    Ok(())
}

impl Download<'_> {
    /// With [`Check::Bytes`], removes what is damaged of a commit.
    fn check(&self, commit: &str, check: Check) -> Result<(), HubError> {
        let file = self.spec.file.as_deref().filter(|file| !is_package(file));
        match check {
            Check::Bytes => self.remove_damaged(commit, file),
            Check::Record => Ok(()),
        }
    }

    /// Removes what is damaged of a commit, or one file of it.
    pub fn remove_damaged(&self, commit: &str, file: Option<&str>) -> Result<(), HubError> {
        let spec = RepoSpec {
            repo: self.spec.repo.clone(),
            file: file.map(str::to_owned),
            revision: commit.to_owned(),
        };
        check(&spec, self.hub)
    }

    fn pull_file(&self, file: &str, check: Check) -> Result<Fetched, HubError> {
        let what = self.spec.to_string();
        let url = self.url(&self.spec.revision, file);
        let remote = self.client.head(&url, &what)?;
        let commit = remote.commit.clone().filter(|commit| is_commit(commit));
        let commit = commit.ok_or(HubError::BadAnswer {
            url,
            why: "no X-Repo-Commit".into(),
        })?;
        self.check(&commit, check)?;
        let bytes = self.download_file(&commit, file, remote)?;
        self.folder.set_commit(&self.spec.revision, &commit)?;
        Ok(Fetched {
            path: self.folder.snapshot(&commit).join(file),
            bytes,
        })
    }

    fn pull_repo(&self, asked: &Asked, check: Check) -> Result<Fetched, HubError> {
        let (repo, revision) = (&self.spec.repo, self.spec.revision.replace('/', "%2F"));
        let path = format!("/api/models/{repo}/revision/{revision}");
        let listing: Listing = self.client.json(&path, &self.spec.to_string())?;
        if !is_commit(&listing.sha) {
            let url = format!("{}{path}", self.hub.places.endpoint);
            let found: String = listing.sha.chars().take(80).collect();
            return Err(HubError::BadAnswer {
                url,
                why: format!("expected a commit, found `{found}`"),
            });
        }
        self.check(&listing.sha, check)?;
        let files: Vec<String> = listing.siblings.into_iter().map(|s| s.rfilename).collect();
        let package = self.spec.file.as_deref();
        let found = bundle::pull(self, &listing.sha, &files, (asked, package, check))?;
        if let Some(fetched) = found {
            if check == Check::Bytes {
                bundle::mend::mend(self.hub, repo, &listing.sha)?;
            }
            self.folder.set_commit(&self.spec.revision, &listing.sha)?;
            return Ok(fetched);
        }
        asked.check_plain(&self.what())?;
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

    /// The files with the weights. A shard index, which was downloaded before, names the shards.
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
}

/// Most files beside the weights of a model. Each takes a request or two; known models have less
/// than 20.
const MOST_SMALL: usize = 200;

/// The files of a repository that are downloaded.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    small: Vec<String>,
    /// `model.safetensors`, its index (whose shards follow), or a GGUF file.
    weights: String,
    is_gguf: bool,
}

/// Chooses the files of a model: safetensors with a `config.json`, or else the only GGUF file.
fn choose(repo: &str, files: &[String]) -> Result<Choice, HubError> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if has("config.json") && (has(WEIGHTS) || has(INDEX)) {
        let is_sharded = !has(WEIGHTS);
        let is_needed = |file: &&String| is_small(file) || is_sharded && *file == INDEX;
        let small: Vec<String> = files.iter().filter(is_needed).cloned().collect();
        if small.len() > MOST_SMALL {
            let why = format!(
                "expected at most {MOST_SMALL} files beside the weights, found {}",
                small.len()
            );
            let repo = repo.to_owned();
            return Err(HubError::NoModel { repo, why });
        }
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
            // A listing may have any number of them.
            let others: Vec<&str> = others.map(String::as_str).take(5).collect();
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

/// Whether a file is configuration, tokenizer or chat template in the top folder, a further chat
/// template, or a file that sentence-transformers needs.
fn is_small(file: &str) -> bool {
    let exact = [
        "config.json",
        "generation_config.json",
        "added_tokens.json",
        // Models with an adapter are refused.
        "adapter_config.json",
        "special_tokens_map.json",
        "modules.json",
        "config_sentence_transformers.json",
    ];
    let begins = ["tokenizer", "chat_template"];
    // sentence_bert_config.json; old models have their own kind in place of `bert`.
    let is_sentence = file.starts_with("sentence_") && file.ends_with("_config.json");
    let is_top = exact.contains(&file) || is_sentence || begins.iter().any(|b| file.starts_with(b));
    is_inside(file)
        && file.split_once('/').map_or(is_top, |(folder, name)| {
            is_of_module(folder, name) || is_template(folder, name)
        })
}

/// Whether a file is a chat template beside the default one, such as the one for tools.
fn is_template(folder: &str, name: &str) -> bool {
    folder == "additional_chat_templates" && name.ends_with(".jinja") && !name.contains('/')
}

/// Whether a file belongs to a module of sentence-transformers. A module's folder is its number and
/// name, such as `1_Pooling`; the folder of a dense layer has weights.
fn is_of_module(folder: &str, name: &str) -> bool {
    let is_numbered = folder
        .split_once('_')
        .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    is_numbered && ["config.json", WEIGHTS].contains(&name)
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
            "adapter_config.json",
            "config.json",
            "tokenizer.json",
            "tokenizer.model",
            "chat_template.jinja",
            "additional_chat_templates/tool_use.jinja",
            "additional_chat_templates/README.md",
            "additional_chat_templates/old/rag.jinja",
            WEIGHTS,
            "x.gguf",
            "onnx/config.json",
        ];
        assert_eq!(
            choice(&full),
            ok(
                "adapter_config.json config.json tokenizer.json tokenizer.model \
                 chat_template.jinja \
                 additional_chat_templates/tool_use.jinja",
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
        let many = choice(&["a.bin"; 10_000]).unwrap_err();
        assert!(many.len() < 200, "{many}");
        assert!(choice(&[]).is_err());
    }

    #[test]
    fn a_listing_that_has_too_many_small_files_is_refused() {
        let files = |n: usize| -> Vec<String> {
            let some = (0..n).map(|i| format!("tokenizer{i}"));
            some.chain(["config.json", WEIGHTS].map(str::to_owned))
                .collect()
        };
        let error = choose("o/r", &files(MOST_SMALL)).unwrap_err();
        assert!(error.to_string().contains("at most 200 files"), "{error}");
        assert!(choose("o/r", &files(MOST_SMALL - 1)).is_ok());
    }
}
