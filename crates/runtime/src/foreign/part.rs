//! A package of a bundle.

use std::path::{Path, PathBuf};

use thane_mil::package::Package;
use thane_mil::program::{Function, Program};
use thane_mil::types::{TensorType, Type};

use super::fault::ForeignError;
use crate::error::RuntimeError;
use crate::opened::is_package;

/// A package of a bundle.
pub struct ForeignPart {
    /// What the part is, as an identifier: `embeddings`, `chunk1`, `head`.
    pub name: String,
    /// The package or compiled model.
    pub path: PathBuf,
    /// Its content.
    pub package: Package,
    /// Whether `thane run` runs it.
    pub is_run: bool,
}

/// An input, state or output of a function.
pub(super) struct Port<'a> {
    pub name: &'a str,
    pub ty: &'a TensorType,
    pub is_state: bool,
}

impl Port<'_> {
    /// A dimension, if it is known.
    pub fn dim(&self, axis: usize) -> Option<usize> {
        self.ty.shape.get(axis)?.known()
    }

    /// The last dimension, if it is known.
    pub fn width(&self) -> Option<usize> {
        self.ty.shape.last()?.known()
    }
}

impl ForeignPart {
    /// Opens the package `file` of a bundle. Layouts name compiled models, `.mlmodelc`; a package
    /// of the same stem, `.mlpackage`, takes its place where only that is there.
    pub(super) fn open(folder: &Path, name: &str, file: &str) -> Result<Self, RuntimeError> {
        let stem = file
            .strip_suffix(".mlmodelc")
            .or_else(|| file.strip_suffix(".mlpackage"))
            .unwrap_or(file);
        let path = find(folder, stem).ok_or_else(|| {
            ForeignError::new(folder, format!("part `{name}`"))
                .found(format!(
                    "expected {stem}.mlmodelc or {stem}.mlpackage, found neither"
                ))
                .remedy(format!(
                    "{stem}.mlmodelc from where the bundle was published; unpack it if it is a .zip"
                ))
        })?;
        Ok(Self {
            name: name.to_owned(),
            package: Package::open(&path)?,
            path,
            is_run: true,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.package.program
    }

    /// The file name.
    pub fn file(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// The function `name`; of a package with one function, `main` is taken for it.
    pub(super) fn function(&self, name: &str) -> Option<&Function> {
        let functions = self.program().functions();
        let only = match functions {
            [only] if only.name == "main" => Some(only),
            _ => None,
        };
        functions.iter().find(|f| f.name == name).or(only)
    }

    /// The function `name`, or an error that lists the functions that are there.
    pub(super) fn need(&self, name: &str) -> Result<&Function, ForeignError> {
        self.function(name).ok_or_else(|| {
            let names: Vec<&str> = self
                .program()
                .functions()
                .iter()
                .map(|f| &*f.name)
                .collect();
            ForeignError::new(&self.path, "functions").found(format!(
                "expected the function `{name}`, found {}",
                names.join(", ")
            ))
        })
    }

    /// The name of a function in the program of all parts.
    pub fn joined_name(&self, function: &Function) -> String {
        match &*function.name {
            "main" => self.name.clone(),
            other => format!("{}_{other}", self.name),
        }
    }

    /// A fault of a function of this package.
    pub(super) fn fault(&self, function: &Function, what: impl Into<String>) -> ForeignError {
        ForeignError::new(&self.path, format!("function `{}`", function.name)).found(what)
    }
}

/// The compiled model or package with this stem.
pub(super) fn find(folder: &Path, stem: &str) -> Option<PathBuf> {
    let kinds = ["mlmodelc", "mlpackage"].iter();
    kinds
        .map(|kind| folder.join(format!("{stem}.{kind}")))
        .find(|path| is_package(path))
}

/// The inputs and states of a function that are tensors.
pub(super) fn inputs(f: &Function) -> impl Iterator<Item = Port<'_>> {
    f.body().inputs.iter().filter_map(|v| port(f, *v))
}

/// The outputs of a function that are tensors.
pub(super) fn outputs(f: &Function) -> impl Iterator<Item = Port<'_>> {
    f.body().outputs.iter().filter_map(|v| port(f, *v))
}

/// The input or state of this name.
pub(super) fn input<'a>(f: &'a Function, name: &str) -> Option<Port<'a>> {
    inputs(f).find(|port| port.name == name)
}

/// The output of this name.
pub(super) fn output<'a>(f: &'a Function, name: &str) -> Option<Port<'a>> {
    outputs(f).find(|port| port.name == name)
}

/// The names of all outputs, for errors.
pub(super) fn output_names(f: &Function) -> String {
    let names: Vec<&str> = outputs(f).map(|port| port.name).collect();
    names.join(", ")
}

fn port(f: &Function, id: thane_mil::program::ValueId) -> Option<Port<'_>> {
    let value = f.value(id);
    Some(Port {
        name: &value.name,
        ty: value.ty.tensor_or_state()?,
        is_state: matches!(value.ty, Type::State(_)),
    })
}
