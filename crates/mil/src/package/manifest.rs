//! `Manifest.json`: which files a package holds, and which of them is the model.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::PackageError;

/// The manifest's name in a package.
pub(super) const FILE_NAME: &str = "Manifest.json";
/// The file that marks a folder as a compiled model, which has no manifest.
pub(super) const DESCRIPTION: &str = "coremldata.bin";
/// The folder of a package that items are in.
pub(super) const DATA: &str = "Data";
/// The author of Core ML's own items.
pub(super) const CORE_ML: &str = "com.apple.CoreML";
const VERSION: &str = "1.0.0";
/// No manifest of sane length is longer.
pub(super) const MAX_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    file_format_version: String,
    item_info_entries: BTreeMap<String, Entry>,
    root_model_identifier: String,
}

/// One item.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub author: String,
    #[serde(default)]
    pub description: String,
    pub name: String,
    pub path: String,
}

impl Manifest {
    /// The manifest of these items, the model first.
    pub fn new(entries: Vec<Entry>) -> Self {
        let root = entries.first().map(id).unwrap_or_default();
        let entries = entries.into_iter().map(|e| (id(&e), e)).collect();
        Self {
            file_format_version: VERSION.to_owned(),
            item_info_entries: entries,
            root_model_identifier: root,
        }
    }

    /// Read and check a manifest; `path` is its own.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, PackageError> {
        let unusable = |reason: String| PackageError::unusable(path, reason);
        let manifest: Self =
            serde_json::from_slice(text).map_err(|e| unusable(format!("is no manifest: {e}")))?;
        let major = manifest.file_format_version.split('.').next();
        if major != Some("1") {
            return Err(unusable(format!(
                "has format version {:?}, 1.0.0 is read",
                manifest.file_format_version
            )));
        }
        for entry in manifest.item_info_entries.values() {
            if !is_inside(Path::new(&entry.path)) {
                return Err(unusable(format!(
                    "names {:?}, which is not below the package's folder {DATA}",
                    entry.path
                )));
            }
        }
        Ok(manifest)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a map of strings is JSON") + "\n"
    }

    /// The model's item.
    pub fn root(&self) -> Option<&Entry> {
        self.item_info_entries.get(&self.root_model_identifier)
    }

    /// Every item.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.item_info_entries.values()
    }
}

/// Whether a relative path stays where it starts, by its words.
pub(super) fn is_inside(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|c| matches!(c, Component::Normal(_)))
}

/// `relative` below `folder`, links followed, unless that is outside of `package`.
pub(super) fn resolve(
    package: &Path,
    folder: &Path,
    relative: &Path,
) -> Result<PathBuf, PackageError> {
    let path = folder.join(relative);
    let outside = |what: &str| {
        let reason = format!(
            "names {}, which {what} the package: copy the package with its links followed",
            relative.display()
        );
        PackageError::unusable(package, reason)
    };
    if !is_inside(relative) {
        return Err(outside("is not a path inside of"));
    }
    let real = path.canonicalize().map_err(PackageError::io(&path))?;
    let root = package.canonicalize().map_err(PackageError::io(package))?;
    if real.starts_with(&root) {
        Ok(real)
    } else {
        Err(outside("is a link out of"))
    }
}

/// An identifier that follows from what it names, so that equal packages are equal bytes: a UUID of
/// version 8.
fn id(entry: &Entry) -> String {
    // FNV-1a of 128 bits.
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
