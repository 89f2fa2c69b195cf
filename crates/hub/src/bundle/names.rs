//! What the folders of bundles are called, and the manifest in them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Bundle, MANIFEST};
use crate::config::Hub;
use crate::publication::{Format, MOST_LIST_BYTES, Selection, is_below};
use crate::small::read_small;

/// The name of the folder with every package in the usual form.
pub const WHOLE: &str = "whole";
/// What the name of a folder with one package begins with.
pub const ONLY: &str = "only-";

/// The folder with the bundles of a repository.
pub fn of_repo(hub: &Hub, repo: &str) -> PathBuf {
    let name = format!("models--{}", repo.replace('/', "--"));
    hub.places.cache.join("bundles").join(name)
}

/// The name of the folder with what was asked for.
pub fn key(selection: &Selection, package: Option<&str>) -> String {
    if let Some(package) = package {
        return format!("{ONLY}{}", package.replace('/', "--"));
    }
    let lengths: Vec<String> = selection.buckets.iter().map(u64::to_string).collect();
    let lengths = match lengths.is_empty() {
        true => WHOLE.to_owned(),
        false => lengths.join("-"),
    };
    match selection.format {
        Some(format) => format!("{lengths}.{}", format.extension()),
        None => lengths,
    }
}

/// What becomes of the manifest in the folder of a bundle.
pub enum Manifest {
    /// The folder has the manifest of the repository, or there is none.
    Whole,
    /// The folder has a manifest with the chosen packages only.
    Reduced(Vec<u8>),
    /// The folder has no manifest: it describes packages, and none of them was chosen. Compiled
    /// models have no contract.
    Absent,
}

/// Leaves out of the manifest what was not asked for.
pub fn manifest(snapshot: &Path, bundle: &Bundle) -> Manifest {
    if !bundle.wanted.iter().any(|file| file.path == MANIFEST) {
        return Manifest::Whole;
    }
    let json = read_small(&snapshot.join(MANIFEST), MOST_LIST_BYTES);
    let value = json
        .ok()
        .and_then(|json| serde_json::from_slice(&json).ok());
    value.map_or(Manifest::Whole, |value| reduced(value, &bundle.folders))
}

fn reduced(mut manifest: Value, chosen: &[String]) -> Manifest {
    let Some(packages) = manifest["packages"].as_array_mut() else {
        return Manifest::Whole;
    };
    let is_chosen = |name: &str| chosen.iter().any(|folder| folder == name);
    let n_before = packages.len();
    packages.retain(|package| package["path"].as_str().is_some_and(is_chosen));
    match packages.len() {
        n if n == n_before => return Manifest::Whole,
        0 => return Manifest::Absent,
        _ => {}
    }
    let tokens: Vec<Value> = packages.iter().map(|p| p["tokens"].clone()).collect();
    if let Some(files) = manifest["files"].as_array_mut() {
        files.retain(|file| {
            let path = file["path"].as_str().unwrap_or_default();
            chosen.iter().any(|folder| is_below(path, folder))
        });
    }
    if let Some(buckets) = manifest["model"]["buckets"].as_array_mut() {
        buckets.retain(|bucket| tokens.contains(bucket));
        manifest["model"]["flexible"] = tokens.contains(&Value::Null).into();
    }
    let mut text = serde_json::to_vec_pretty(&manifest).unwrap_or_default();
    text.push(b'\n');
    Manifest::Reduced(text)
}

/// What the name of a folder says was asked for, the reverse of [`key`]. `names` are the files of
/// the snapshot.
pub fn asked_of(key: &str, names: &[String]) -> Option<(Selection, Option<String>)> {
    if let Some(package) = key.strip_prefix(ONLY) {
        let folders = names.iter().flat_map(|name| {
            let ends = name.match_indices('/').map(|(end, _)| end);
            ends.map(|end| &name[..end])
        });
        let mut named = folders.filter(|folder| folder.replace('/', "--") == package);
        return Some((Selection::default(), Some(named.next()?.to_owned())));
    }
    let format = Format::of_folder(key);
    let lengths = match format {
        Some(format) => key.strip_suffix(format.extension())?.strip_suffix('.')?,
        None => key,
    };
    let lengths = lengths.split('-').filter(|text| *text != WHOLE);
    let buckets = lengths
        .map(|text| text.parse().ok())
        .collect::<Option<_>>()?;
    Some((Selection { buckets, format }, None))
}
