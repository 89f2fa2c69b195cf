//! `Manifest.json`: the list of a package's files, and which of them is the model.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::PackageError;

/// File name of the manifest.
pub(super) const FILE_NAME: &str = "Manifest.json";
/// The file that marks a folder as a compiled model, which has no manifest.
pub(super) const DESCRIPTION: &str = "coremldata.bin";
/// Folder of the items in a package.
pub(super) const DATA: &str = "Data";
/// The author of Core ML's own items.
pub(super) const CORE_ML: &str = "com.apple.CoreML";
const VERSION: &str = "1.0.0";
/// Maximum length of a manifest in bytes.
pub(super) const MAX_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    file_format_version: String,
    item_info_entries: BTreeMap<String, Entry>,
    root_model_identifier: String,
}

/// One item of a package.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub author: String,
    #[serde(default)]
    pub description: String,
    pub name: String,
    pub path: String,
}

impl Manifest {
    /// The manifest of these items. The first item is the model.
    pub fn new(entries: Vec<Entry>) -> Self {
        let root = entries.first().map(id).unwrap_or_default();
        let entries = entries.into_iter().map(|e| (id(&e), e)).collect();
        Self {
            file_format_version: VERSION.to_owned(),
            item_info_entries: entries,
            root_model_identifier: root,
        }
    }

    /// Parses and checks a manifest; `path` is its path, for errors.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, PackageError> {
        let unusable = |reason: String| PackageError::unusable(path, reason);
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|e| unusable(format!("is not a valid manifest: {e}")))?;
        let major = manifest.file_format_version.split('.').next();
        if major != Some("1") {
            return Err(unusable(format!(
                "has format version {:?}, expected 1.0.0",
                manifest.file_format_version
            )));
        }
        for entry in manifest.item_info_entries.values() {
            if !is_inside(Path::new(&entry.path)) {
                return Err(unusable(format!(
                    "refers to {:?}, which is not in the package's folder {DATA}",
                    entry.path
                )));
            }
        }
        Ok(manifest)
    }

    /// The JSON text.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a map of strings is JSON") + "\n"
    }

    /// The item of the model.
    pub fn root(&self) -> Option<&Entry> {
        self.item_info_entries.get(&self.root_model_identifier)
    }

    /// All items.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.item_info_entries.values()
    }
}

/// Whether a relative path stays in its folder, judged by its components alone.
pub(super) fn is_inside(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|c| matches!(c, Component::Normal(_)))
}

/// Resolves `relative` below `folder`, links included. The result must be inside `package`.
pub(super) fn resolve(
    package: &Path,
    folder: &Path,
    relative: &Path,
) -> Result<PathBuf, PackageError> {
    let path = folder.join(relative);
    let outside = |what: &str| {
        let reason = format!(
            "refers to {}, which {what} the package: copy the package with links resolved",
            relative.display()
        );
        PackageError::unusable(package, reason)
    };
    if !is_inside(relative) {
        return Err(outside("is not inside"));
    }
    let real = path.canonicalize().map_err(PackageError::io(&path))?;
    let root = package.canonicalize().map_err(PackageError::io(package))?;
    if real.starts_with(&root) {
        Ok(real)
    } else {
        Err(outside("is a link out of"))
    }
}

/// A deterministic identifier of an item, so that equal packages have equal bytes: a UUID of
/// version 8.
fn id(entry: &Entry) -> String {
    // 128-bit FNV-1a.
    let name = format!("{}/{}", entry.author, entry.name);
    let hash = name
        .bytes()
        .fold(0x6c62272e07bb014262b821756295c58d_u128, |h, b| {
            (h ^ u128::from(b)).wrapping_mul(0x0000000001000000000000000000013B)
        });
    let bits = hash & !(0xf << 76) & !(0x3 << 62) | (0x8 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}
