//! Finds the checkpoint that a package was made of.

use std::path::{Path, PathBuf};

use thane_hub::{Hub, ModelFiles};
use thane_models::checkpoint::Checkpoint;

use crate::contract::Source;
use crate::error::RuntimeError;
use crate::files::hash;
use crate::interface::weight_files;
use crate::manifest::read_manifest;
use crate::package_contents::contract_of;

/// The checkpoint that the package or folder of packages at `path` was made of; `None` if it is not
/// on this machine, or its weights are no longer what the contract says. A name of the contract is
/// looked for in the caches, a file name beside the package and in the current folder. Nothing is
/// downloaded.
///
/// # Errors
///
/// If the contract of the package cannot be read.
pub fn find_source(path: &Path, hub: &Hub) -> Result<Option<ModelFiles>, RuntimeError> {
    let Some(source) = source_of(path)? else {
        return Ok(None);
    };
    let here = Hub {
        offline: true,
        ..hub.clone()
    };
    let beside = path.parent().map(|folder| folder.join(&source.model));
    let names = [Some(PathBuf::from(&source.model)), beside];
    let found = names.into_iter().flatten().find_map(|name| {
        let files = here.resolve(&name.to_string_lossy()).ok()?;
        is_source(&files.path, &source).then_some(files)
    });
    Ok(found)
}

/// What the contract of a package, or of the first package of a folder, says about the checkpoint.
fn source_of(path: &Path) -> Result<Option<Source>, RuntimeError> {
    let package = match read_manifest(path)? {
        Some(manifest) => manifest
            .packages
            .first()
            .map(|entry| path.join(&entry.path)),
        None => Some(path.to_owned()),
    };
    let contract = package.map(|package| contract_of(&package)).transpose()?;
    Ok(contract.flatten().map(|contract| contract.source))
}

/// Whether the weights of the checkpoint at `path` are those that a contract names.
fn is_source(path: &Path, source: &Source) -> bool {
    let Some(files) = Checkpoint::open(path)
        .ok()
        .and_then(|c| weight_files(&c).ok())
    else {
        return false;
    };
    let is_same = |(file, expected): (&PathBuf, &crate::files::FileHash)| {
        hash(file, String::new()).is_ok_and(|found| found.sha256 == expected.sha256)
    };
    files.len() == source.files.len() && files.iter().zip(&source.files).all(is_same)
}
