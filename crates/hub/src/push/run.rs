//! The steps of a push.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use serde_json::json;

use super::commit::{self, Committed};
use super::lfs::{Missing, Store};
use super::{Blob, Mode, Push, PushPlan, Pushed};
use crate::config::Hub;
use crate::download::encode;
use crate::error::HubError;
use crate::http::Client;
use crate::http::send::Kind;
use crate::layout::is_commit;
use crate::parallel;
use crate::tree;

/// What the Hub says about a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
    private: Option<bool>,
}

pub struct Pusher<'a> {
    push: &'a Push,
    hub: &'a Hub,
    client: Client<'a>,
    what: String,
}

/// What the Hub said about the files of a push.
struct Asked<'a> {
    plan: PushPlan,
    missing: Vec<Missing<'a>>,
    lines: Vec<u8>,
}

impl<'a> Pusher<'a> {
    pub fn new(push: &'a Push, hub: &'a Hub) -> Self {
        Self {
            push,
            hub,
            client: Client::new(hub),
            what: format!("hf:{}", push.repo),
        }
    }

    /// Asks the Hub for the revision, and whether it may change.
    pub fn begin(&self, is_plan: bool) -> Result<(), HubError> {
        match self.revision()?.filter(|_| !is_plan) {
            Some(found) => self.checked(found).map(drop),
            None => Ok(()),
        }
    }

    /// The files that a push would send.
    pub fn plan(&self) -> Result<PushPlan, HubError> {
        let parent = match self.hub.offline {
            true => None,
            false => self.parent()?,
        };
        match parent {
            Some(parent) => Ok(self.ask(&parent)?.plan),
            None => {
                let modes = vec![Mode::Large; self.push.files.len()];
                let wire_bytes = self.blobs(&modes).iter().map(|blob| blob.bytes).sum();
                Ok(self.plan_of(modes, false, wire_bytes))
            }
        }
    }

    /// Sends what the Hub does not have, and commits.
    pub fn push(&self) -> Result<Pushed, HubError> {
        let mut parent = self.prepare()?;
        let (mut first, mut sent_bytes, mut failed) = (None, 0, 0);
        loop {
            let asked = self.ask(&parent)?;
            let plan = first.get_or_insert_with(|| asked.plan.clone()).clone();
            let url = format!("{}/{}", self.hub.places.endpoint, self.push.repo);
            let pushed = |commit, sent_bytes, pull_request| Pushed {
                plan,
                commit,
                pull_request,
                url,
                sent_bytes,
            };
            if asked.plan.modes.iter().all(|mode| *mode == Mode::There) {
                // The answer to a commit may have been lost.
                let commit = (failed > 0).then_some(parent);
                return Ok(pushed(commit, sent_bytes, None));
            }
            sent_bytes += self.upload(&asked.missing)?;
            sent_bytes += asked.lines.len() as u64;
            self.hub.check_wanted(&self.what)?;
            match self.commit(&asked.lines) {
                Ok(made) => {
                    self.check(&made.commit)?;
                    return Ok(pushed(Some(made.commit), sent_bytes, made.pull_request));
                }
                // Nobody knows whether a pull request was opened: a second one would be wrong.
                Err(e) if self.push.pull_request || !may_be_repeated(&e) => return Err(e),
                Err(e) => {
                    failed += 1;
                    if failed >= self.hub.attempts.max(1) {
                        return Err(e);
                    }
                    self.client.wait(e, failed, &self.what)?;
                    parent = self.prepare()?;
                }
            }
        }
    }

    fn address(&self, action: &str) -> String {
        let endpoint = &self.hub.places.endpoint;
        let revision = encode(&self.push.revision, false);
        format!(
            "{endpoint}/api/models/{}/{action}/{revision}",
            self.push.repo
        )
    }

    /// What the Hub says about the revision; `None` if there is no such repository or revision.
    fn revision(&self) -> Result<Option<Revision>, HubError> {
        let (repo, revision) = (&self.push.repo, encode(&self.push.revision, false));
        let path = format!("/api/models/{repo}/revision/{revision}");
        match self.client.json::<Revision>(&path, &self.what) {
            Ok(found) if is_commit(&found.sha) => Ok(Some(found)),
            Ok(_) => Err(self.bad("revision", "expected a commit as `sha`".to_owned())),
            Err(HubError::NotFound { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The commit of the revision; `None` if there is no such repository or revision.
    fn parent(&self) -> Result<Option<String>, HubError> {
        Ok(self.revision()?.map(|found| found.sha))
    }

    /// Makes the repository and the branch where they do not exist. Returns the commit of the
    /// branch.
    fn prepare(&self) -> Result<String, HubError> {
        if let Some(found) = self.revision()? {
            return self.checked(found);
        }
        let (organization, name) = self.push.repo.split_once('/').unwrap_or_default();
        let mut body = json!({"name": name, "organization": organization, "type": "model"});
        if self.push.private {
            // The field's earlier name, and the present one.
            body["private"] = true.into();
            body["visibility"] = "private".into();
        }
        let endpoint = &self.hub.places.endpoint;
        self.create(&format!("{endpoint}/api/repos/create"), &body.to_string())?;
        if self.push.revision != "main" && self.parent()?.is_none() {
            self.create(&self.address("branch"), "{}")?;
        }
        let made = self.revision()?.ok_or_else(|| HubError::NotFound {
            what: self.what.clone(),
            endpoint: endpoint.clone(),
        })?;
        self.checked(made)
    }

    /// The commit of a repository, which is private if that was asked for.
    fn checked(&self, found: Revision) -> Result<String, HubError> {
        if self.push.private && found.private != Some(true) {
            return Err(HubError::NoSuchPart {
                place: self.what.clone(),
                expected: "a private repository".to_owned(),
                found: "a public one; nothing was sent".to_owned(),
            });
        }
        Ok(found.sha)
    }

    /// Makes something that may have been made meanwhile.
    fn create(&self, url: &str, body: &str) -> Result<(), HubError> {
        let made = self.client.retrying(&self.what, || {
            let body = body.as_bytes();
            self.client.post_once(url, Kind::Json, body, &self.what)
        });
        match made {
            Ok(_) | Err(HubError::Status { status: 409, .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Asks which files the revision and the store have.
    fn ask(&self, parent: &str) -> Result<Asked<'a>, HubError> {
        let endpoint = &self.hub.places.endpoint;
        let modes = commit::modes(self.push, &self.client, endpoint)?;
        let blobs = self.blobs(&modes);
        let missing = self.store(&self.client).missing(&blobs)?;
        let lines = match modes.iter().all(|mode| *mode == Mode::There) {
            true => Vec::new(),
            false => commit::lines(self.push, &modes, Some(parent))?,
        };
        let bytes: u64 = missing.iter().map(|(blob, _)| blob.bytes).sum();
        let plan = self.plan_of(modes, true, bytes + lines.len() as u64);
        Ok(Asked {
            plan,
            missing,
            lines,
        })
    }

    fn plan_of(&self, modes: Vec<Mode>, exists: bool, wire_bytes: u64) -> PushPlan {
        let files = &self.push.files;
        let unique: BTreeMap<&str, u64> = files
            .iter()
            .map(|file| (file.sha256.as_str(), file.bytes))
            .collect();
        PushPlan {
            exists,
            modes,
            bytes: files.iter().map(|file| file.bytes).sum(),
            unique_bytes: unique.values().sum(),
            wire_bytes,
        }
    }

    /// The large files, each once, the largest first: the last upload should be a short one.
    fn blobs(&self, modes: &[Mode]) -> Vec<Blob<'a>> {
        let files = self.push.files.iter().zip(modes);
        let large = files.filter(|(_, mode)| **mode == Mode::Large);
        let unique: BTreeMap<&str, Blob<'a>> = large
            .map(|(file, _)| {
                let blob = Blob {
                    path: &file.path,
                    sha256: &file.sha256,
                    bytes: file.bytes,
                    content: &file.content,
                };
                (blob.sha256, blob)
            })
            .collect();
        let mut blobs: Vec<Blob> = unique.into_values().collect();
        blobs.sort_by_key(|blob| std::cmp::Reverse(blob.bytes));
        blobs
    }

    fn store<'c>(&'c self, client: &'c Client<'c>) -> Store<'c> {
        Store {
            client,
            endpoint: &self.hub.places.endpoint,
            repo: &self.push.repo,
            revision: &self.push.revision,
        }
    }

    /// Sends files over several connections. Returns the bytes that were sent.
    fn upload(&self, missing: &[Missing<'_>]) -> Result<u64, HubError> {
        let total = missing.iter().map(|(blob, _)| blob.bytes).sum();
        let all_sent = AtomicU64::new(0);
        let what = &self.what;
        parallel::each(self.hub, (what, total), missing, |hub, (blob, actions)| {
            let client = Client::new(hub);
            let done = Cell::new(0);
            hub.progress.start(blob.path, Some(blob.bytes), 0);
            let sent = |n: u64| {
                all_sent.fetch_add(n, Ordering::Relaxed);
                done.set(done.get() + n);
                hub.progress.set(done.get().min(blob.bytes));
            };
            self.store(&client).upload(blob, actions, &sent)?;
            hub.progress.finish();
            Ok(())
        })?;
        Ok(all_sent.into_inner())
    }

    fn commit(&self, lines: &[u8]) -> Result<Committed, HubError> {
        let made = commit::send(self.push, lines, &self.client, &self.hub.places.endpoint)?;
        match is_commit(&made.commit) {
            true => Ok(made),
            false => Err(self.bad("commit", "expected a commit as `commitOid`".to_owned())),
        }
    }

    /// Compares what the commit has with what was sent.
    fn check(&self, made: &str) -> Result<(), HubError> {
        let there = tree::list(&self.client, self.hub, &self.push.repo, made)?;
        for file in &self.push.files {
            let entry = there.get(&file.path);
            let entry = entry.ok_or_else(|| {
                self.bad("commit", format!("the commit does not have {}", file.path))
            })?;
            let is_hash = |own: &str| entry.etag == own;
            let is_same = entry.bytes == file.bytes
                && (is_hash(&file.sha256) || is_hash(&file.content.git_hash()?));
            if !is_same {
                let (path, bytes) = (&file.path, file.bytes);
                return Err(self.bad(
                    "commit",
                    format!(
                        "expected {path} of {bytes} bytes in the commit, found {} bytes with the \
                         hash {}",
                        entry.bytes, entry.etag
                    ),
                ));
            }
        }
        Ok(())
    }

    fn bad(&self, action: &str, why: String) -> HubError {
        HubError::BadAnswer {
            url: self.address(action),
            why,
        }
    }
}

/// Whether a commit may be tried again after an error: the line dropped, or the branch has another
/// commit than before.
fn may_be_repeated(error: &HubError) -> bool {
    error.is_transient()
        || matches!(
            error,
            HubError::Status {
                status: 409 | 412,
                ..
            }
        )
}
