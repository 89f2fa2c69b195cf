//! What packages say about themselves to Core ML: the shapes of inputs and the metadata.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use thane_calls::names::TARGETS;
use thane_mil::package::{
    Feature, Interface, Item, Metadata, Package, Partial, Shape, SizeRange, Summary,
};
use thane_mil::program::Function;
use thane_mil::types::{Dim, Type};
use thane_models::checkpoint::Checkpoint;

use crate::contract::GENERATOR;
use crate::error::RuntimeError;

/// The interface of a function: an open dimension of an input takes 1 to `most` elements.
pub fn interface(f: &Function, most: usize) -> Interface {
    let open = f
        .body()
        .inputs
        .iter()
        .map(|v| f.value(*v))
        .filter_map(|v| match &v.ty {
            Type::Tensor(t) if t.known_shape().is_none() => Some((v.name.clone(), t)),
            _ => None,
        });
    let features = open.map(|(name, ty)| {
        let size = |d: &Dim| d.known().unwrap_or(1);
        let range = |d: &Dim| match d.known() {
            Some(n) => SizeRange {
                lower: n,
                upper: Some(n),
            },
            None => SizeRange {
                lower: 1,
                upper: Some(most),
            },
        };
        let shape = Shape::Ranges {
            default: ty.shape.iter().map(size).collect(),
            ranges: ty.shape.iter().map(range).collect(),
        };
        let feature = Feature {
            shape,
            ..Feature::default()
        };
        (name, feature)
    });
    Interface {
        features: features.collect(),
        ..Interface::default()
    }
}

/// Metadata of a package of the model `source` that is for these targets.
pub fn metadata(
    short_description: String,
    license: Option<&String>,
    (source, targets): (&str, &[String]),
) -> Metadata {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut user_defined = BTreeMap::from([
        pair("ai.thane.generator", GENERATOR),
        pair("ai.thane.source", source),
    ]);
    if !targets.is_empty() {
        user_defined.extend([pair(TARGETS, &targets.join(","))]);
    }
    Metadata {
        short_description,
        license: license.cloned().unwrap_or_default(),
        user_defined,
        ..Metadata::default()
    }
}

/// How a package names the model that it is made of. Of a path only the last part is kept, so that
/// the same model gives the same bytes wherever it is.
pub fn source_name(name: &str, path: &Path) -> String {
    if Path::new(name) != path {
        return name.to_owned();
    }
    let last = |path: &Path| Some(path.file_name()?.to_string_lossy().into_owned());
    // `.` and `..` have no last part of their own.
    last(path)
        .or_else(|| last(&path.canonicalize().ok()?))
        .unwrap_or_else(|| name.to_owned())
}

/// Writes a package with these items, in the place of the one at `out` if `replace` says so.
pub fn write_package(
    package: &Package,
    (out, replace): (&Path, bool),
    items: &[Item],
) -> Result<Summary, RuntimeError> {
    let written = if replace {
        package.replace(out, items)
    } else {
        package.write(out, items)
    };
    written.map_err(RuntimeError::write_package(out))
}

/// Gives an output that is complete its name.
pub fn put(partial: Partial, replace: bool) -> io::Result<()> {
    if replace {
        partial.replace()
    } else {
        partial.put()
    }
}

/// The files that the weights of a checkpoint are read from, sorted.
pub fn weight_files(checkpoint: &Checkpoint) -> Result<Vec<PathBuf>, RuntimeError> {
    if !checkpoint.path.is_dir() {
        return Ok(vec![checkpoint.path.clone()]);
    }
    let entries = std::fs::read_dir(&checkpoint.path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|source| RuntimeError::Read {
            path: checkpoint.path.clone(),
            source,
        })?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|e| e.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    files.sort();
    Ok(files)
}
