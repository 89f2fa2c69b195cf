//! Where models come from: a path as it is, a repository on the Hub, or a name of the catalogue.
//!
//! Start at [`resolve`]. Nothing here prints or reads the environment: [`HubContext`] has all of
//! that. What is fetched is named only when it is whole and checked, so an end at any moment leaves
//! nothing that passes for a model; the next pull goes on from there.

pub mod catalogue;
mod context;
mod disk;
mod error;
mod http;
mod layout;
mod pip;
mod remote;
mod shelf;
mod spec;
mod store;

use std::path::PathBuf;

pub use context::{HubContext, Places, Progress};
pub use error::HubError;
pub use shelf::{Listed, list, remove};
pub use spec::Spec;
pub use store::Check;

use self::layout::RepoFolder;
use self::remote::Fetched;
use self::spec::RepoSpec;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFiles {
    /// As the user would ask for it again.
    pub name: String,
    /// A GGUF file, or a folder with `config.json`, weights and tokenizer.
    pub path: PathBuf,
    /// Known for the catalogue's models.
    pub licence: Option<String>,
    /// Bytes that were fetched to have it; 0 when it was there.
    pub fetched: u64,
}

/// Finds a model, and fetches it when it is not on this machine.
///
/// A model of the Hub that is in the cache is taken as it is, without a request; [`pull`] brings it
/// up to date.
pub fn resolve(spec: &str, ctx: &HubContext) -> Result<ModelFiles, HubError> {
    match parse(spec, ctx)? {
        Spec::Path(path) => Ok(ModelFiles {
            name: spec.to_owned(),
            path,
            licence: None,
            fetched: 0,
        }),
        Spec::Hub(repo) => match RepoFolder::new(&ctx.places.hub, &repo.repo).cached(&repo) {
            Some(path) => Ok(hub_files(&repo, Fetched { path, bytes: 0 })),
            None => pull_repo(&repo, ctx),
        },
        Spec::Name(name) => pull_entry(&name, Check::Record, ctx),
    }
}

/// Whether this is the name of a model, of the catalogue or of the Hub, and no file.
pub fn is_model_name(spec: &str, ctx: &HubContext) -> bool {
    matches!(parse(spec, ctx), Ok(Spec::Name(_) | Spec::Hub(_)))
}

/// Fetches a model, or brings it up to date.
pub fn pull(spec: &str, check: Check, ctx: &HubContext) -> Result<ModelFiles, HubError> {
    let wanted = parse(spec, ctx)?;
    if let (Spec::Hub(repo), Check::Bytes) = (&wanted, check) {
        remote::check(repo, ctx)?;
    }
    match wanted {
        Spec::Path(_) => Err(HubError::BadSpec {
            spec: spec.to_owned(),
            why: "it is a path, so there is nothing to pull".into(),
        }),
        Spec::Hub(repo) if ctx.offline => {
            match RepoFolder::new(&ctx.places.hub, &repo.repo).cached(&repo) {
                Some(path) => Ok(hub_files(&repo, Fetched { path, bytes: 0 })),
                None => Err(HubError::Offline {
                    what: repo.to_string(),
                }),
            }
        }
        Spec::Hub(repo) => pull_repo(&repo, ctx),
        Spec::Name(name) => pull_entry(&name, check, ctx),
    }
}

/// What is asked for; of a name that nobody knows the error has the near ones, of the catalogue and
/// in the caches.
fn parse(spec: &str, ctx: &HubContext) -> Result<Spec, HubError> {
    Spec::parse(spec, &ctx.catalogue).map_err(|error| match error {
        HubError::UnknownName { name, near, known } => {
            let cached = shelf::near(&name, ctx)
                .into_iter()
                .filter(|other| !near.contains(other));
            HubError::UnknownName {
                near: near.iter().cloned().chain(cached).collect(),
                name,
                known,
            }
        }
        other => other,
    })
}

fn pull_repo(repo: &RepoSpec, ctx: &HubContext) -> Result<ModelFiles, HubError> {
    if ctx.offline {
        return Err(HubError::Offline {
            what: repo.to_string(),
        });
    }
    remote::pull(repo, ctx).map(|fetched| hub_files(repo, fetched))
}

fn pull_entry(name: &str, check: Check, ctx: &HubContext) -> Result<ModelFiles, HubError> {
    let entry = ctx.catalogue.iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| HubError::UnknownName {
        name: name.to_owned(),
        near: vec![],
        known: vec![],
    })?;
    let fetched = store::pull(entry, check, ctx)?;
    Ok(ModelFiles {
        name: name.to_owned(),
        path: fetched.path,
        licence: Some(entry.licence.clone()),
        fetched: fetched.bytes,
    })
}

fn hub_files(repo: &RepoSpec, fetched: Fetched) -> ModelFiles {
    ModelFiles {
        name: repo.to_string(),
        path: fetched.path,
        licence: None,
        fetched: fetched.bytes,
    }
}

/// Length of a model on the disk: of the file, or of a folder's files with links followed.
pub fn bytes_of(path: &std::path::Path) -> u64 {
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => meta.len(),
        Ok(_) => std::fs::read_dir(path).map_or(0, |entries| {
            let files = entries
                .flatten()
                .filter_map(|e| std::fs::metadata(e.path()).ok());
            files.filter(|m| m.is_file()).map(|m| m.len()).sum()
        }),
        Err(_) => 0,
    }
}
