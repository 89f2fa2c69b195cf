//! Finds the files of a model by its name, and downloads them where they are not on this machine.
//!
//! A model is named by a path, by a repository of the Hugging Face Hub (`hf:org/name`), or by a
//! short name of the [`catalog`]. Start at [`Hub`].
//!
//! This crate prints nothing and reads no environment variable: the caller hands over folders,
//! endpoint, token and proxy as [`Places`], and follows downloads through [`Progress`]. It knows
//! nothing of what is in the files. A file gets its final name only after all of its bytes were
//! written and its hash was compared, so a process that is killed leaves nothing that looks like a
//! model; the next download continues where the last one stopped.
#![deny(missing_docs)]

mod bundle;
mod caches;
pub mod catalog;
mod config;
mod disk;
mod download;
mod error;
mod http;
pub mod known;
mod layout;
mod list;
mod parallel;
mod parts;
mod paths;
mod pip;
mod prune;
mod publication;
mod push;
mod remote;
mod shown;
mod sign;
mod similar;
mod small;
mod spec;
mod store;
mod tls;
mod tree;

use std::path::{Path, PathBuf};

pub use bundle::Asked;
pub use caches::Cache;
pub use config::{Children, Hub, Places, Progress, Proxy, Silent, Unattended};
pub use error::HubError;
pub use error::NoSource;
pub use list::{Listed, Removed};
pub use prune::{CachedRepo, Pruned, Verified};
pub use publication::{
    Format, PUBLICATION, Publication, PublishedFile, PublishedPackage, SCHEMA, SIGNATURE, Selection,
};
pub use push::{Content, Mode, Push, PushFile, PushPlan, Pushed};
pub use shown::{one_line, shown_url};
pub use sign::{PublicKey, SigningKey};
pub use spec::{RepoSpec, Spec};
pub use store::Check;

use crate::download::Fetched;
use crate::layout::RepoFolder;

/// The files of a model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// The name by which the user can ask for this model again.
    pub name: String,
    /// A GGUF file, a folder with `config.json`, weights and tokenizer, or the path that was given.
    pub path: PathBuf,
    /// License of the model; known for models of the catalog only.
    pub license: Option<String>,
    /// Bytes that were downloaded by this call; 0 when the files were there.
    pub downloaded_bytes: u64,
}

impl Hub {
    /// Finds a model, and downloads it when it is not on this machine.
    ///
    /// A repository of the Hub that is in the cache is used without a request; [`Hub::pull`] brings
    /// it up to date.
    pub fn resolve(&self, spec: &str) -> Result<ModelFiles, HubError> {
        let found = match self.parse(spec)? {
            Spec::Path(path) => Ok(ModelFiles {
                name: spec.to_owned(),
                path,
                license: None,
                downloaded_bytes: 0,
            }),
            Spec::Hub(repo) => match self.cached(&repo) {
                Some(path) => Ok(repo_files(&repo, Fetched { path, bytes: 0 })),
                None => self.pull_repo(&repo, Check::Record, &Asked::default()),
            },
            Spec::Name(name) => self.pull_entry(&name, Check::Record),
        };
        found.map_err(|error| error.in_caches(self.places.caches()))
    }

    /// Whether `spec` names a model of the catalog or of the Hub, rather than a file.
    pub fn is_model_name(&self, spec: &str) -> bool {
        matches!(self.parse(spec), Ok(Spec::Name(_) | Spec::Hub(_)))
    }

    /// Downloads a model, or brings it up to date.
    pub fn pull(&self, spec: &str, check: Check) -> Result<ModelFiles, HubError> {
        self.pull_part(spec, check, &Asked::default())
    }

    /// Downloads the packages of a model that are asked for, or brings them up to date.
    pub fn pull_part(
        &self,
        spec: &str,
        check: Check,
        asked: &Asked,
    ) -> Result<ModelFiles, HubError> {
        let pulled = match self.parse(spec)? {
            Spec::Path(_) => Err(HubError::BadSpec {
                spec: spec.to_owned(),
                why: "it is a path, so there is nothing to pull".into(),
            }),
            Spec::Hub(repo) if self.offline => self.pull_offline(&repo, check, asked),
            Spec::Hub(repo) => self.pull_repo(&repo, check, asked),
            Spec::Name(name) => {
                let plain = asked.check_plain(&name);
                plain.and_then(|()| self.pull_entry(&name, check))
            }
        };
        pulled.map_err(|error| error.in_caches(self.places.caches()))
    }

    /// Copies a model that was pulled to a path where nothing is, as files of their own.
    pub fn copy(&self, model: &ModelFiles, to: &Path) -> Result<(), HubError> {
        bundle::place::copy(&model.path, to)
    }

    /// Finds out whether a push can be made, before its files are made: whether the Hub answers and
    /// may be changed, or only the first for a plan.
    pub fn begin_push(&self, push: &Push, is_plan: bool) -> Result<(), HubError> {
        push::begin(push, is_plan, self)
    }

    /// Says what a push would send; nothing is changed.
    pub fn plan_push(&self, push: &Push) -> Result<PushPlan, HubError> {
        push::plan(push, self)
    }

    /// Publishes files in a repository of the Hub, in one commit.
    pub fn push(&self, push: &Push) -> Result<Pushed, HubError> {
        push::push(push, self)
    }

    /// The repositories of the shared cache, by name.
    pub fn cached_repos(&self) -> Result<Vec<CachedRepo>, HubError> {
        prune::repos(self)
    }

    /// Removes from the shared cache what no branch or tag leads to; with `is_dry` it only says
    /// what that is.
    pub fn prune(&self, is_dry: bool) -> Result<Pruned, HubError> {
        prune::prune(self, is_dry).map_err(|error| error.in_caches(self.places.caches()))
    }

    /// Compares the hash of every file in the shared cache, or of one repository of it, and the
    /// bundles that were made of these files.
    pub fn verify(&self, only: Option<&RepoSpec>) -> Result<Verified, HubError> {
        prune::verify(self, only.map(|spec| spec.repo.as_str()))
    }

    /// Every model in both caches, sorted by name. A cache folder that does not exist is empty.
    pub fn list(&self) -> Result<Vec<Listed>, HubError> {
        list::list(self)
    }

    /// Removes a model from the disk, also one whose download did not finish: a name of the
    /// catalog, `hf:org/name` with all its files, or one file of a repository.
    pub fn remove(&self, spec: &str) -> Result<Removed, HubError> {
        list::remove(spec, self).map_err(|error| error.in_caches(self.places.caches()))
    }

    /// Parses what was asked for. The error of an unknown name lists similar names of the catalog
    /// and of the caches.
    fn parse(&self, spec: &str) -> Result<Spec, HubError> {
        Spec::parse(spec, &self.catalog).map_err(|error| match error {
            HubError::UnknownName {
                name,
                mut similar,
                known,
                repos,
            } => {
                for other in list::similar(&name, self) {
                    if !similar.contains(&other) {
                        similar.push(other);
                    }
                }
                HubError::UnknownName {
                    name,
                    similar,
                    known,
                    repos,
                }
            }
            other => other,
        })
    }

    fn cached(&self, repo: &RepoSpec) -> Option<PathBuf> {
        let folder = RepoFolder::new(&self.places.hub_cache, &repo.repo);
        folder
            .cached(repo)
            .or_else(|| bundle::place::cached(self, repo))
    }

    fn pull_repo(
        &self,
        repo: &RepoSpec,
        check: Check,
        asked: &Asked,
    ) -> Result<ModelFiles, HubError> {
        if self.offline {
            return Err(offline(repo));
        }
        remote::pull(repo, (asked, check), self).map(|fetched| repo_files(repo, fetched))
    }

    /// The model in the cache. With [`Check::Bytes`], a damaged blob is an error, and a bundle that
    /// differs from the blobs is made again.
    fn pull_offline(
        &self,
        repo: &RepoSpec,
        check: Check,
        asked: &Asked,
    ) -> Result<ModelFiles, HubError> {
        if check == Check::Bytes {
            remote::check(repo, self)?;
            let shared = RepoFolder::new(&self.places.hub_cache, &repo.repo);
            if let Some(commit) = shared.commit(&repo.revision) {
                bundle::mend::mend(self, &repo.repo, &commit)?;
            }
        }
        match self.cached(repo).filter(|_| asked.is_default()) {
            Some(path) => Ok(repo_files(repo, Fetched { path, bytes: 0 })),
            None => Err(offline(repo)),
        }
    }

    fn pull_entry(&self, name: &str, check: Check) -> Result<ModelFiles, HubError> {
        let entry = self.catalog.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| HubError::UnknownName {
            name: name.to_owned(),
            similar: vec![],
            known: vec![],
            repos: &[],
        })?;
        let fetched = store::pull(entry, check, self)?;
        Ok(ModelFiles {
            name: name.to_owned(),
            path: fetched.path,
            license: Some(entry.license.clone()),
            downloaded_bytes: fetched.bytes,
        })
    }
}

fn offline(repo: &RepoSpec) -> HubError {
    HubError::Offline {
        what: repo.to_string(),
    }
}

fn repo_files(repo: &RepoSpec, fetched: Fetched) -> ModelFiles {
    ModelFiles {
        name: repo.to_string(),
        path: fetched.path,
        license: None,
        downloaded_bytes: fetched.bytes,
    }
}

/// Bytes of a model on the disk: the length of a file, or of the files below a folder, links
/// followed.
pub fn model_bytes(path: &Path) -> u64 {
    let len = |path: PathBuf| match std::fs::metadata(path) {
        Ok(found) if found.is_file() => found.len(),
        _ => 0,
    };
    match path.is_dir() {
        true => {
            let files = disk::files_below(path).unwrap_or_default();
            files.into_iter().map(|file| len(path.join(file))).sum()
        }
        false => len(path.to_owned()),
    }
}
