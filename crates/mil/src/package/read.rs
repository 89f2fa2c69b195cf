//! Reads packages. The content is not trusted: paths must stay inside the package, sizes must fit
//! the files, and types are inferred again.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Read;
use std::path::Path;

use prost::Message;

use super::blob::zeros;
use super::error::PackageError;
use super::files::{Files, MAX_MODEL_BYTES, Weights};
use super::manifest::{CORE_ML, DATA, FILE_NAME, MAX_BYTES, Manifest, resolve};
use super::open::open_regular;
use super::{
    Interface, Metadata, Package, StoredItem, check, decode, description, kind, memory, proto,
};
use crate::program::{Function, Program};
use crate::watch::Watch;

/// Bytes that the model file of a package takes once it is read and decoded.
pub(super) fn decoded_bytes(files: Files<'_>) -> Result<usize, PackageError> {
    let root = root(files)?;
    let (_, model) = files.stored_within(Path::new(DATA), Path::new(&root), MAX_MODEL_BYTES)?;
    // As messages, with copies of the description, and as a program that is made of them.
    const COPIES: usize = 4;
    let messages = memory::decoded_bytes(memory::Kind::Model, model.as_slice());
    Ok(model.len() + messages.saturating_mul(COPIES))
}

/// The path of the model in the folder of the items.
fn root(files: Files<'_>) -> Result<String, PackageError> {
    let manifest = manifest(files)?;
    let root = manifest.root().map(|root| root.path.clone());
    root.ok_or_else(|| {
        let file = files.path().join(FILE_NAME);
        PackageError::unusable(&file, "does not name the item that is the model")
    })
}

/// Reads a package.
pub(super) fn open(files: Files<'_>, watch: &Watch<'_>) -> Result<Package, PackageError> {
    let path = files.path();
    let root = root(files)?;
    let named = Path::new(DATA).join(&root);
    let (file, model) = files.read(Path::new(DATA), Path::new(&root), MAX_MODEL_BYTES)?;
    // Weights are relative to the model's path in the manifest, even if that path is a link.
    let folder = named.parent().unwrap_or(Path::new(""));
    let model = decoded(model.as_slice(), &file)?;
    PackageError::interrupted(path, watch)?;
    package(model, path, &file, (Weights::new(files, folder), watch))
}

/// The program of a model without its weight files and its description: constants that are stored
/// there are zeros. `name` names the model in messages. Types are inferred;
/// [`check`](crate::valid::check) checks the rest.
pub fn program_without_weights(
    name: &str,
    model: &proto::Program,
) -> Result<Program, PackageError> {
    let file = Path::new(name);
    let watch = Watch::new(&|| false);
    decode::program(model, &[], file, (&mut |_, _, ty| zeros(ty), &watch))
}

/// The items of the package at `path` except Core ML's own.
pub fn items(path: &Path) -> Result<Vec<StoredItem>, PackageError> {
    let manifest = manifest(Files::Folder(path))?;
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

fn manifest(files: Files<'_>) -> Result<Manifest, PackageError> {
    let path = files.path();
    if let Files::Folder(path) = files
        && !fs::metadata(path).map_err(PackageError::io(path))?.is_dir()
    {
        return Err(PackageError::unusable(path, not_a_folder(path)));
    }
    if !files.has(FILE_NAME) {
        let what = packages_in(path).unwrap_or_else(|| {
            format!("has no {FILE_NAME}: it is not a package, or its copy is incomplete")
        });
        return Err(PackageError::unusable(path, what));
    }
    let (_, text) = files.read(Path::new(""), Path::new(FILE_NAME), MAX_BYTES)?;
    Manifest::parse(&text, &path.join(FILE_NAME))
}

/// Explains that a folder has packages, if it has some.
fn packages_in(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".mlpackage")).collect();
    names.sort_unstable();
    let n_more = names.len().saturating_sub(3);
    names.truncate(3);
    let more = match n_more {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let listed = names.join(", ");
    (!names.is_empty()).then(|| format!("is a folder of packages, expected one: {listed}{more}"))
}

/// Explains why a file is not a package.
fn not_a_folder(path: &Path) -> String {
    match path.extension().and_then(|e| e.to_str()) {
        Some("mil") => "is MIL text, not a package".into(),
        Some("mlmodel") => {
            format!(
                "is a .mlmodel file, which {}",
                kind::refusal(&beginning(path))
            )
        }
        Some("onnx") => "is an ONNX model, expected a Core ML package: no command reads ONNX; \
                         convert the model that it was exported from with coremltools, or give \
                         Thane its checkpoint"
            .into(),
        _ => "is a file, expected a folder: a package is a folder".into(),
    }
}

/// The beginning of a model file, which says what kind of model it is.
fn beginning(path: &Path) -> Vec<u8> {
    /// A description is rarely larger.
    const MOST: u64 = 1 << 20;
    let mut bytes = Vec::new();
    if let Ok(file) = open_regular(path) {
        // What cannot be read is no ML Program.
        let _ = file.take(MOST).read_to_end(&mut bytes);
    }
    bytes
}

fn decoded(model: &[u8], file: &Path) -> Result<proto::Model, PackageError> {
    let decoded = proto::Model::decode(model)
        .map_err(|e| PackageError::unusable(file, format!("is not a Core ML model: {e}")))?;
    if decoded.ml_program.is_none() {
        return Err(PackageError::unusable(file, kind::refusal(model)));
    }
    Ok(decoded)
}

fn ml_program<'m>(
    model: &'m proto::Model,
    file: &Path,
) -> Result<&'m proto::Program, PackageError> {
    let program = model.ml_program.as_ref();
    program.ok_or_else(|| PackageError::unusable(file, kind::refusal(&[])))
}

fn package(
    model: proto::Model,
    path: &Path,
    file: &Path,
    (mut weights, watch): (Weights<'_>, &Watch<'_>),
) -> Result<Package, PackageError> {
    let message = ml_program(&model, file)?;
    if model.is_updatable {
        return Err(PackageError::unusable(
            file,
            "is an updatable model, expected an ML Program, which is never updatable",
        ));
    }
    let described = model.description.clone().unwrap_or_default();
    let order: Vec<&str> = described
        .functions
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    let constant: decode::Resolve<'_> = &mut |name, offset, ty| {
        let found = weights.constant(name, offset, ty);
        found.map_err(|e| e.to_string())
    };
    let program = decode::program(message, &order, file, (constant, watch))?;
    PackageError::interrupted(path, watch)?;
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
    let own = program.functions().iter();
    let own: HashMap<&str, &Function> = own.map(|f| (f.name.as_str(), f)).collect();
    let mut out = BTreeMap::new();
    for described in functions {
        let fail = |place: String, reason: String| PackageError::Malformed {
            path: file.to_owned(),
            place: format!("function `{}`{place}", described.name),
            reason,
        };
        let f = own.get(described.name.as_str());
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
