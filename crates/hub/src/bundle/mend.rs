//! Makes bundles again that differ from their snapshot.

use std::fs;

use super::compare::{bundle_of, differences};
use super::{names, place};
use crate::config::Hub;
use crate::disk;
use crate::error::HubError;
use crate::layout::RepoFolder;
use crate::store::Check;

/// Makes the bundles of a commit again that differ from the snapshot. No request is made. One whose
/// files are not in the snapshot any more is removed, or is an error offline.
pub fn mend(hub: &Hub, repo: &str, commit: &str) -> Result<(), HubError> {
    let snapshot = RepoFolder::new(&hub.places.hub_cache, repo).snapshot(commit);
    let folder = names::of_repo(hub, repo).join(commit);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let at = entry.path();
        let Some(bundle) = bundle_of(hub, (repo, commit), &at) else {
            continue;
        };
        if differences(&at, &snapshot, &bundle, Check::Bytes)?.is_empty() {
            continue;
        }
        let mut sources = bundle.wanted.iter().map(|file| snapshot.join(&file.path));
        match sources.find(|path| !path.is_file()) {
            Some(path) if hub.offline => {
                return Err(HubError::Damaged {
                    path,
                    hash: "sha256",
                });
            }
            Some(_) => disk::remove(&at)?,
            None => {
                let key = at.file_name().unwrap_or_default().to_string_lossy();
                place::place(hub, (repo, commit), (&bundle, &key), Check::Bytes)?;
            }
        }
    }
    Ok(())
}
