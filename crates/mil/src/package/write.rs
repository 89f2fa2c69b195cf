//! Writes packages. A package is written to a folder beside its path, which is renamed when it is
//! complete.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use prost::Message;

use super::blob::{Plan, write_data};
use super::check::is_plain;
use super::error::PackageError;
use super::manifest::{CORE_ML, DATA, Entry, FILE_NAME, Manifest};
use super::open::open_regular;
use super::partial::Partial;
use super::{Content, Interface, Item, Package, Written, check, description, encode, proto};
use crate::opset::Opset;

/// Sizes of a written package.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of functions.
    pub n_functions: usize,
    /// Number of constants in the weight file; equal constants count once.
    pub n_constants: usize,
    /// Size of the model file in bytes.
    pub model_bytes: u64,
    /// Size of the weight file in bytes; 0 without one.
    pub weight_bytes: u64,
    /// Size of the additional items in bytes.
    pub item_bytes: u64,
}

impl Package {
    /// Writes the package to `path`, where nothing may exist. Equal packages are written as equal
    /// bytes.
    pub fn write(&self, path: &Path, items: &[Item]) -> Result<Summary, PackageError> {
        require_vacant(path)?;
        let (partial, summary) = self.write_partial(path, items)?;
        put_in_place(partial, path)?;
        Ok(summary)
    }

    /// Writes the package to `path` and replaces the package there, if any. The old package stays
    /// until the new one is complete.
    pub fn replace(&self, path: &Path, items: &[Item]) -> Result<Summary, PackageError> {
        require_replaceable(path, FILE_NAME, "package")?;
        let (partial, summary) = self.write_partial(path, items)?;
        partial.replace().map_err(PackageError::io(path))?;
        Ok(summary)
    }

    fn write_partial(
        &self,
        path: &Path,
        items: &[Item],
    ) -> Result<(Partial, Summary), PackageError> {
        check(self).map_err(|violations| PackageError::Invalid {
            path: path.to_owned(),
            violations,
        })?;
        let partial = Partial::folder(path).map_err(PackageError::io(path))?;
        let mut summary = Summary {
            n_functions: self.program.functions().len(),
            ..Summary::default()
        };
        let mut plan = Plan::default();
        let model = model(self, &mut plan).encode_to_vec();
        let folder = partial.path().join(DATA).join(CORE_ML);
        let entry = |author: &str, name: &str, description: &str| Entry {
            author: author.to_owned(),
            description: description.to_owned(),
            name: name.to_owned(),
            path: format!("{author}/{name}"),
        };
        let mut entries = vec![entry(
            CORE_ML,
            "model.mlmodel",
            "CoreML Model Specification",
        )];
        summary.model_bytes = create_in(&partial, &folder.join("model.mlmodel"), |out| {
            out.write_all(&model)
        })?;
        if plan.n_constants() > 0 {
            entries.push(entry(CORE_ML, "weights", "CoreML Model Weights"));
            summary.n_constants = plan.n_constants();
            summary.weight_bytes =
                create_in(&partial, &folder.join("weights/weight.bin"), |out| {
                    plan.write(out)
                })?;
        }
        for item in items {
            check_item_name(item, &entries, path)?;
            entries.push(entry(&item.author, &item.name, &item.description));
            let to = partial
                .path()
                .join(DATA)
                .join(&item.author)
                .join(&item.name);
            summary.item_bytes += match &item.content {
                Content::Bytes(bytes) => create_in(&partial, &to, |out| out.write_all(bytes))?,
                Content::Data(header, parts) => create_in(&partial, &to, |out| {
                    out.write_all(header)?;
                    let mut parts = parts.iter();
                    parts.try_for_each(|data| write_data(data, &mut Vec::new(), out))
                })?,
                Content::Made(make) => {
                    let written = Written {
                        folder: partial.path(),
                        plan: &plan,
                    };
                    let bytes = make(written).map_err(PackageError::io(&to))?;
                    create_in(&partial, &to, |out| out.write_all(&bytes))?
                }
                Content::File(from) => {
                    let mut from_file = open_regular(from).map_err(PackageError::io(from))?;
                    create_in(&partial, &to, |out| {
                        std::io::copy(&mut from_file, out).map(|_| ())
                    })?
                }
            };
        }
        create_in(&partial, &partial.path().join(FILE_NAME), |out| {
            out.write_all(Manifest::new(entries).to_text().as_bytes())
        })?;
        Ok((partial, summary))
    }
}

/// Checks the author and name of an item, which become a folder and a file.
fn check_item_name(item: &Item, entries: &[Entry], path: &Path) -> Result<(), PackageError> {
    let word = |s: &str| !s.is_empty() && s != "." && s != ".." && !s.contains(['/', '\\', '\0']);
    let fail = |reason: &str| {
        Err(PackageError::unusable(
            path,
            format!("item `{}` of `{}` {reason}", item.name, item.author),
        ))
    };
    if !word(&item.author) || !word(&item.name) {
        return fail("must have an author and a name that are valid file names");
    }
    if item.author == CORE_ML {
        return fail("must have another author: this one is reserved for Core ML");
    }
    if entries
        .iter()
        .any(|e| e.author == item.author && e.name == item.name)
    {
        return fail("is listed twice");
    }
    Ok(())
}

/// Renames a partial to its final path, which another writer may have taken in the meantime.
pub(super) fn put_in_place(partial: Partial, path: &Path) -> Result<(), PackageError> {
    partial.put().map_err(|fault| match fault.kind() {
        std::io::ErrorKind::AlreadyExists => PackageError::Exists {
            path: path.to_owned(),
        },
        _ => PackageError::Io {
            path: path.to_owned(),
            fault,
        },
    })
}

/// Returns an error if `path` exists.
pub(super) fn require_vacant(path: &Path) -> Result<(), PackageError> {
    if path.symlink_metadata().is_ok() {
        Err(PackageError::Exists {
            path: path.to_owned(),
        })
    } else {
        Ok(())
    }
}

/// Returns an error if `path` exists and is not a `kind`, which contains the file `file`.
pub(super) fn require_replaceable(path: &Path, file: &str, kind: &str) -> Result<(), PackageError> {
    if path.symlink_metadata().is_err() || path.join(file).is_file() {
        return Ok(());
    }
    Err(PackageError::unusable(
        path,
        format!("exists and is not a {kind}: remove it or write elsewhere"),
    ))
}

/// Writes a file and its folders into a partial. Returns the size in bytes.
pub(super) fn create_in(
    partial: &Partial,
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<u64, PackageError> {
    partial.make_folders(path).map_err(PackageError::io(path))?;
    create(path, write)
}

/// Writes a file into an existing folder. Returns the size in bytes.
pub(super) fn create(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<u64, PackageError> {
    let io = || PackageError::io(path);
    let mut out = BufWriter::new(File::create(path).map_err(io())?);
    write(&mut out).map_err(io())?;
    let file = out.into_inner().map_err(|e| PackageError::Io {
        path: path.to_owned(),
        fault: e.into_error(),
    })?;
    Ok(file.metadata().map_err(io())?.len())
}

/// Encodes the model file. Constants of the weight file are added to `plan`.
pub(super) fn model(package: &Package, plan: &mut Plan) -> proto::Model {
    let opset = package
        .program
        .functions()
        .first()
        .map_or(Opset::CoreMl5, |f| f.opset);
    let plain = Interface::default();
    let features = package
        .program
        .functions()
        .iter()
        .map(|f| description::to_proto(f, package.interfaces.get(&f.name).unwrap_or(&plain)));
    let mut description = proto::ModelDescription {
        metadata: metadata(package),
        ..Default::default()
    };
    if is_plain(package) {
        for f in features {
            description.input = f.input;
            description.output = f.output;
            description.state = f.state;
            description.predicted_feature_name = f.predicted_feature_name;
            description.predicted_probabilities_name = f.predicted_probabilities_name;
        }
    } else {
        description.functions = features.collect();
        description
            .default_function_name
            .clone_from(&package.default_function);
    }
    proto::Model {
        specification_version: encode::specification_version(opset),
        description: Some(description),
        is_updatable: false,
        ml_program: Some(encode::program(&package.program, plan)),
    }
}

fn metadata(package: &Package) -> Option<proto::Metadata> {
    let m = &package.metadata;
    let message = proto::Metadata {
        short_description: m.short_description.clone(),
        version_string: m.version.clone(),
        author: m.author.clone(),
        license: m.license.clone(),
        user_defined: m.user_defined.clone(),
    };
    (message != proto::Metadata::default()).then_some(message)
}
