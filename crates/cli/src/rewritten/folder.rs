//! Writes every package of a folder again; weights that the packages share stay shared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thane_mil::package::{create_folders, open_regular};
use thane_runtime::RuntimeError;
use thane_runtime::files::{hash, hash_tree, link_equal, walk};
use thane_runtime::manifest::{MANIFEST, Manifest, read_checked_manifest};

use crate::app::App;
use crate::audit::subject::packages_in;
use crate::exit::{Failure, Outcome, other, usage};
use crate::out::{self, file_name};

/// Path of the weights in a package.
const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";

/// Files of fewer bytes are not worth a link.
const LEAST_SHARED: u64 = 4096;

/// A folder of packages that is to be written again, and where to.
#[derive(Clone, Copy)]
pub struct Folders<'a> {
    pub from: &'a Path,
    pub to: &'a Path,
    /// Replace a folder that exists.
    pub force: bool,
    /// What is done to each package, such as `fixed`.
    pub done: &'a str,
}

/// Has `each` write every package of a folder to the path that it is given; it says whether the
/// package changed. Either all of them are written or none, as where none changed.
///
/// # Errors
///
/// As `unfit` if the folder holds no package.
pub fn write(
    folders: &Folders<'_>,
    app: &App,
    unfit: impl FnOnce() -> Failure,
    mut each: impl FnMut(&Path, &Path) -> Result<bool, Failure>,
) -> Outcome {
    let Folders { from, to, .. } = *folders;
    let unwritten = |e: anyhow::Error| other(e.context(format!("{} is not written", to.display())));
    let found = if from.is_dir() {
        packages_in(from).map_err(usage)?
    } else {
        Vec::new()
    };
    if found.is_empty() || super::place::is_text(to) {
        return Err(unfit());
    }
    out::check_outside(to, from)?;
    let manifest = manifest(from)?;
    super::place::write(to, folders.force, |to| {
        let mut is_changed = false;
        for package in &found {
            is_changed |= each(package, &to.join(file_name(package)))?;
        }
        if is_changed {
            finish(folders, to, &found, manifest, app).map_err(unwritten)?;
        }
        Ok(is_changed)
    })
}

/// What packages share, what lies beside them, and their hashes.
fn finish(
    folders: &Folders<'_>,
    to: &Path,
    found: &[PathBuf],
    manifest: Option<Manifest>,
    app: &App,
) -> anyhow::Result<()> {
    let Folders { from, done, .. } = *folders;
    for name in apart(from, to, found)? {
        app.output.say(&format!(
            "{name}: its weights were those of another package; {done} otherwise, they no longer are"
        ));
    }
    share(to, found)?;
    copy_others(from, to, found)?;
    if let Some(manifest) = manifest {
        let files = hash_tree(to)?;
        // The quality was that of the packages before they were fixed.
        let manifest = Manifest {
            files,
            quality: None,
            ..manifest
        };
        let mut text = serde_json::to_vec_pretty(&manifest)?;
        text.push(b'\n');
        fs::write(to.join(MANIFEST), text)?;
    }
    Ok(())
}

/// The manifest of a folder that Thane wrote, after everything that it names was compared.
fn manifest(from: &Path) -> Result<Option<Manifest>, Failure> {
    Ok(read_checked_manifest(from)
        .map_err(RuntimeError::from)?
        .map(|(manifest, _)| manifest))
}

/// The packages whose weights were those of another package, and no longer are.
fn apart(from: &Path, to: &Path, packages: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let (mut kept, mut apart): (Vec<(String, String)>, _) = (Vec::new(), Vec::new());
    let sha256_of = |path: &Path| hash(path, String::new()).map(|file| file.sha256);
    for package in packages {
        let name = package.strip_prefix(from)?;
        let (before, after) = (package.join(WEIGHTS), to.join(name).join(WEIGHTS));
        if !before.is_file() || !after.is_file() {
            continue;
        }
        let (old, new) = (sha256_of(&before)?, sha256_of(&after)?);
        match kept.iter().find(|(other, _)| *other == old) {
            None => kept.push((old, new)),
            Some((_, first)) if *first == new => {}
            Some(_) => apart.push(name.display().to_string()),
        }
    }
    Ok(apart)
}

/// Makes equal files of several packages one: weights, tables that callers look up, and codes.
fn share(to: &Path, packages: &[PathBuf]) -> anyhow::Result<()> {
    let mut known: BTreeMap<u64, Vec<(String, PathBuf)>> = BTreeMap::new();
    for package in packages {
        let package = to.join(file_name(package));
        for (name, found) in walk(&package)? {
            let (path, len) = (package.join(&name), found.len());
            if len < LEAST_SHARED || is_written_in_place(&name) {
                continue;
            }
            let sha256 = hash(&path, String::new())?.sha256;
            let same = known.entry(len).or_default();
            match same.iter().find(|(other, _)| *other == sha256) {
                Some((_, first)) => link_equal(first, &path)?,
                None => same.push((sha256, path)),
            }
        }
    }
    Ok(())
}

/// True for files of a package that other commands replace, each by itself.
fn is_written_in_place(name: &str) -> bool {
    name.ends_with(".json")
}

/// Copy the files beside the packages.
fn copy_others(from: &Path, to: &Path, packages: &[PathBuf]) -> anyhow::Result<()> {
    for (name, _) in walk(from)? {
        let path = from.join(&name);
        if name != MANIFEST && !packages.iter().any(|p| path.starts_with(p)) {
            let copy = to.join(&name);
            if let Some(parent) = copy.parent() {
                create_folders(parent)?;
            }
            io::copy(&mut open_regular(&path)?, &mut fs::File::create(copy)?)?;
        }
    }
    Ok(())
}
