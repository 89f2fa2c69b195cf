//! Reads packages. The content is not trusted: paths must stay inside the package, sizes must fit
//! the files, and types are inferred again.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use prost::Message;

use super::blob::Storage;
use super::error::PackageError;
use super::lfs_pointer;
use super::manifest::{CORE_ML, DATA, DESCRIPTION, FILE_NAME, MAX_BYTES, Manifest, resolve};
use super::{Interface, Metadata, Package, StoredItem, check, decode, description, proto};
use crate::data::Data;
use crate::program::Program;
use crate::types::TensorType;

/// Maximum length of a model file in bytes. Model files contain no weights; those of large models
/// are a few MB. Decoded messages take up to 60 times their bytes in memory.
pub(super) const MAX_MODEL_BYTES: u64 = 1 << 26;
/// Prefix of weight file names in a program: the folder of the model file.
pub(super) const MODEL_PATH: &str = "@model_path/";

impl Package {
    /// Opens the package (`.mlpackage`) or compiled model (`.mlmodelc`) at `path`. Weights are
    /// mapped: the files must not change while the package or a slice of its weights lives.
    pub fn open(path: &Path) -> Result<Self, PackageError> {
        if path.join(DESCRIPTION).is_file() && !path.join(FILE_NAME).exists() {
            return Self::open_compiled(path);
        }
        let manifest = manifest(path)?;
        let manifest_path = path.join(FILE_NAME);
        let Some(root) = manifest.root() else {
            return Err(PackageError::unusable(
                &manifest_path,
                "does not name the item that is the model",
            ));
        };
        let named = path.join(DATA).join(&root.path);
        let file = resolve(path, &path.join(DATA), Path::new(&root.path))?;
        let model = read_capped(&file, MAX_MODEL_BYTES)?;
        let model = proto::Model::decode(model.as_slice());
        let model = model
            .map_err(|e| PackageError::unusable(&file, format!("is not a Core ML model: {e}")))?;
        // Weights are relative to the model's path in the manifest, even if that path is a link.
        let folder = named.parent().unwrap_or(path);
        package(model, path, &file, Weights::new(path, folder))
    }
}

/// The items of the package at `path` except Core ML's own.
pub fn items(path: &Path) -> Result<Vec<StoredItem>, PackageError> {
    let manifest = manifest(path)?;
    let others = manifest.entries().filter(|e| e.author != CORE_ML);
    let stored = others.map(|e| {
        Ok(StoredItem {
            author: e.author.clone(),
            name: e.name.clone(),
            description: e.description.clone(),
            path: resolve(path, &path.join(DATA), Path::new(&e.path))?,
        })
    });
    stored.collect()
}

fn manifest(path: &Path) -> Result<Manifest, PackageError> {
    if !fs::metadata(path).map_err(PackageError::io(path))?.is_dir() {
        return Err(PackageError::unusable(path, not_a_folder(path)));
    }
    let file = path.join(FILE_NAME);
    if !file.is_file() {
        return Err(PackageError::unusable(
            path,
            format!("has no {FILE_NAME}: it is not a package, or its copy is incomplete"),
        ));
    }
    Manifest::parse(
        &read_capped(&resolve(path, path, Path::new(FILE_NAME))?, MAX_BYTES)?,
        &file,
    )
}

/// Explains why a file is not a package.
fn not_a_folder(path: &Path) -> &'static str {
    match path.extension().and_then(|e| e.to_str()) {
        Some("mil") => "is MIL text, not a package: `thane audit` and `thane bisect` read it",
        Some("mlmodel") => {
            "is a .mlmodel file, the format of neural networks, trees and pipelines, which is not \
             supported: convert the original model with coremltools, convert_to=\"mlprogram\""
        }
        _ => "is a file, expected a folder: a package is a folder",
    }
}

pub(super) fn read_capped(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PackageError> {
    let io = || PackageError::io(path);
    if !fs::metadata(path).map_err(io())?.is_file() {
        return Err(PackageError::unusable(
            path,
            "is not a regular file: copy the package again",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(io())?
        .take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(io())?;
    if bytes.len() as u64 > max_bytes {
        return Err(PackageError::unusable(
            path,
            format!("is longer than {max_bytes} bytes, the limit for such a file"),
        ));
    }
    if let Some(reason) = lfs_pointer(&bytes) {
        return Err(PackageError::unusable(path, reason));
    }
    Ok(bytes)
}

fn package(
    model: proto::Model,
    path: &Path,
    file: &Path,
    mut weights: Weights<'_>,
) -> Result<Package, PackageError> {
    let Some(message) = &model.ml_program else {
        let reason = "holds no ML Program: neural networks, trees and pipelines are not \
                      supported; convert the \
                      original model with coremltools";
        return Err(PackageError::unusable(file, reason));
    };
    if model.is_updatable {
        return Err(PackageError::unusable(
            file,
            "is an updatable model, expected an ML Program, which is never updatable",
        ));
    }
    let described = model.description.unwrap_or_default();
    let order: Vec<&str> = described
        .functions
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    let program = decode::program(message, &order, file, &mut |name, offset, ty| {
        weights
            .constant(name, offset, ty)
            .map_err(|e| e.to_string())
    })?;
    assemble(described, program, path, file)
}

/// Makes and checks a package from a program and its description; `file` is the file of the
/// description.
pub(super) fn assemble(
    described: proto::ModelDescription,
    program: Program,
    path: &Path,
    file: &Path,
) -> Result<Package, PackageError> {
    let default_function = default_function(&described, &program);
    let interfaces = interfaces(&described, &program, &default_function, file)?;
    let m = described.metadata.unwrap_or_default();
    let metadata = Metadata {
        short_description: m.short_description,
        author: m.author,
        license: m.license,
        version: m.version_string,
        user_defined: m.user_defined,
    };
    let package = Package {
        program,
        metadata,
        default_function,
        interfaces,
    };
    check(&package).map_err(|violations| PackageError::Invalid {
        path: path.to_owned(),
        violations,
    })?;
    Ok(package)
}

/// The opened weight files, by the names in the program.
pub(super) struct Weights<'a> {
    path: &'a Path,
    folder: &'a Path,
    files: HashMap<String, Storage>,
}

impl<'a> Weights<'a> {
    /// Weights of the package at `path` with its model in `folder`.
    pub fn new(path: &'a Path, folder: &'a Path) -> Self {
        Self {
            path,
            folder,
            files: HashMap::new(),
        }
    }

    /// The constant at `offset` of the weight file `name`.
    pub fn constant(
        &mut self,
        name: &str,
        offset: u64,
        ty: &TensorType,
    ) -> Result<Data, PackageError> {
        if !self.files.contains_key(name) {
            let Some(relative) = name.strip_prefix(MODEL_PATH) else {
                let reason = format!(
                    "has weights in {name:?}, expected a path that starts with {MODEL_PATH}"
                );
                return Err(PackageError::unusable(self.path, reason));
            };
            let file = resolve(self.path, self.folder, Path::new(relative))?;
            self.files.insert(name.to_owned(), Storage::open(file)?);
        }
        self.files[name].constant(offset, ty)
    }
}

fn default_function(described: &proto::ModelDescription, program: &Program) -> String {
    let named = described.default_function_name.clone();
    match program.functions() {
        _ if !named.is_empty() => named,
        [only] => only.name.clone(),
        _ => "main".to_owned(),
    }
}

fn interfaces(
    described: &proto::ModelDescription,
    program: &Program,
    default_function: &str,
    file: &Path,
) -> Result<BTreeMap<String, Interface>, PackageError> {
    let plain = proto::FunctionDescription {
        name: default_function.to_owned(),
        input: described.input.clone(),
        output: described.output.clone(),
        predicted_feature_name: described.predicted_feature_name.clone(),
        predicted_probabilities_name: described.predicted_probabilities_name.clone(),
        state: described.state.clone(),
    };
    let functions = if described.functions.is_empty() {
        std::slice::from_ref(&plain)
    } else {
        &described.functions
    };
    let mut out = BTreeMap::new();
    for described in functions {
        let fail = |place: String, reason: String| PackageError::Malformed {
            path: file.to_owned(),
            place: format!("function `{}`{place}", described.name),
            reason,
        };
        let f = program.function(&described.name);
        let f = f.ok_or_else(|| {
            fail(
                String::new(),
                "the description has this function, the program does not".to_owned(),
            )
        })?;
        let interface = description::from_proto(f, described);
        out.insert(
            described.name.clone(),
            interface.map_err(|(place, reason)| fail(format!(", {place}"), reason))?,
        );
    }
    Ok(out)
}
