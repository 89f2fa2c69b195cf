//! The manifest of a folder of packages: one embedding model, a package for each length.

use std::path::{Component, Path};
use std::{fs, io};

use serde::{Deserialize, Serialize};
pub use thane_calls::names::{MANIFEST, MANIFEST_SCHEMA, function_length};
use thane_hub::{PUBLICATION, SIGNATURE};
use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::program::Program;

use crate::contract::{Facts, GENERATOR};
use crate::error::ContractError;
use crate::files::{
    FileHash, first_difference, hash_tree, hash_tree_without, is_list_of_package, read_within,
    replace_file,
};
use crate::recorded::Quality;

/// Files of a publication beside the packages.
const PUBLISHED: [&str; 6] = [
    PUBLICATION,
    SIGNATURE,
    "README.md",
    "LICENSE",
    ".gitattributes",
    "tokenizer.json",
];
/// Bytes of a manifest at most. It has a line or two for each file.
const MOST_BYTES: u64 = 1 << 22;

/// The content of `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`MANIFEST_SCHEMA`].
    pub schema: u32,
    /// The program that wrote the folder.
    pub generator: String,
    /// What the model is.
    pub model: Facts,
    /// The packages.
    pub packages: Vec<Entry>,
    /// Every file except the manifest.
    pub files: Vec<FileHash>,
    /// How far the model is from a reference; absent if nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

/// A package in a folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its folder.
    pub path: String,
    /// Tokens that it takes; null for the package of any length.
    pub tokens: Option<usize>,
}

/// A text and the vector that the model should compute for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Golden {
    /// The text.
    pub text: String,
    /// The vector that the checkpoint computes in fp32, of the text cut to what the package takes;
    /// with all dimensions, not quantized.
    pub vector: Vec<f32>,
    /// The cosine with the vector of the package itself, computed in fp32 when its weights were
    /// compressed; absent where they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

/// Writes the manifest of a folder that has all its packages.
pub fn write_manifest(folder: &Path, model: Facts, packages: Vec<Entry>) -> io::Result<()> {
    let manifest = Manifest {
        schema: MANIFEST_SCHEMA,
        generator: GENERATOR.to_owned(),
        model,
        packages,
        files: hash_tree(folder)?,
        quality: None,
    };
    fs::write(folder.join(MANIFEST), manifest_json(&manifest)?)
}

/// Replaces the manifest of a folder, when the new one is complete.
pub(crate) fn replace_manifest(folder: &Path, manifest: &Manifest) -> io::Result<()> {
    replace_file(&folder.join(MANIFEST), &manifest_json(manifest)?)
}

fn manifest_json(manifest: &Manifest) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(manifest)?;
    text.push(b'\n');
    Ok(text)
}

/// The program of a package in the opset that the program of a folder has: each package is in the
/// oldest one that expresses it.
///
/// # Errors
///
/// The first rule that the program breaks, in words.
pub fn in_one_opset(program: &Program, entry: &Entry) -> Result<Program, String> {
    lower::with_opset(program, Opset::CoreMl8).map_err(|violations| {
        let first = violations.first().map(ToString::to_string);
        format!("`{}`: {}", entry.path, first.unwrap_or_default())
    })
}

/// Whether a path is a folder of packages.
pub fn is_bundle(path: &Path) -> bool {
    path.join(MANIFEST).is_file()
}

/// Reads the manifest of a folder without a check of any other file; `None` if there is none.
pub fn read_manifest(folder: &Path) -> Result<Option<Manifest>, ContractError> {
    if !is_bundle(folder) {
        return Ok(None);
    }
    let file = folder.join(MANIFEST);
    let text = read_within(&file, MOST_BYTES)?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|source| ContractError::Json {
            path: file.clone(),
            source,
        })?;
    if manifest.schema != MANIFEST_SCHEMA {
        return Err(ContractError::Schema {
            path: file,
            expected: MANIFEST_SCHEMA,
            found: Some(u64::from(manifest.schema)),
        });
    }
    let is_plain = |name: &str| {
        let mut parts = Path::new(name).components();
        matches!(
            (parts.next(), parts.next()),
            (Some(Component::Normal(_)), None)
        )
    };
    if let Some(entry) = manifest
        .packages
        .iter()
        .find(|entry| !is_plain(&entry.path))
    {
        let reason = format!("expected packages in the folder, found `{}`", entry.path);
        return Err(ContractError::Bundle { path: file, reason });
    }
    Ok(Some(manifest))
}

/// Whether a file is no part of the packages: the manifest, and what a publication adds to a
/// folder of packages. Compiled models are beside their packages there.
fn is_beside(folder: &Path, name: &str) -> bool {
    let is_published = || folder.join(PUBLICATION).is_file();
    let (first, rest) = name.split_once('/').unwrap_or((name, ""));
    match rest.is_empty() {
        true => first == MANIFEST || PUBLISHED.contains(&first) && is_published(),
        false => (first == ".cache" || first.ends_with(".mlmodelc")) && is_published(),
    }
}

/// Reads the manifest of a folder and compares the hashes of all files; `None` if there is none.
pub fn read_checked_manifest(
    folder: &Path,
) -> Result<Option<(Manifest, Vec<FileHash>)>, ContractError> {
    let Some(mut manifest) = read_manifest(folder)? else {
        return Ok(None);
    };
    manifest.files.retain(|f| !is_list_of_package(&f.path));
    let found: Vec<_> =
        hash_tree_without(folder, |name| is_beside(folder, name)).map_err(|source| {
            ContractError::Read {
                path: folder.to_owned(),
                source,
            }
        })?;
    match first_difference(&found, &manifest.files) {
        Some(file) => Err(ContractError::Changed {
            path: folder.to_owned(),
            file: file.to_owned(),
            by: MANIFEST,
        }),
        None => Ok(Some((manifest, found))),
    }
}
