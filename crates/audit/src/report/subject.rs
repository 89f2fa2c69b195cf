//! What a report is about: one program, or several that belong together.

use std::collections::BTreeMap;

use thane_mil::data::Bytes;
use thane_mil::package::{Interface, Package, PackageError};
use thane_mil::program::Program;

use super::chain::ChainCall;

/// A program that loads by itself.
#[derive(Debug)]
pub struct Part {
    /// Name of the package in its folder; empty where there is only one program.
    pub package: String,
    /// The program.
    pub program: Program,
    /// The shapes that functions declare, by function name.
    pub interfaces: BTreeMap<String, Interface>,
    /// The function that takes inputs too long for the others, by what was written with the
    /// program. It has no fixed shape and is not meant for the Neural Engine.
    pub catch_all: Option<String>,
}

/// What is audited.
#[derive(Debug)]
pub struct Subject {
    /// The name that the user gave.
    pub name: String,
    /// `package`, `compiled`, `text`, `folder`, `bundle`, `decoder` or `encoder`.
    pub kind: &'static str,
    /// What was built, if the subject is a checkpoint.
    pub built: Option<String>,
    /// Constants of a MIL text whose weight file is missing.
    pub n_absent: usize,
    /// Its programs.
    pub parts: Vec<Part>,
    /// Bytes on disk; of a checkpoint, those of the weights and tables that are written.
    pub disk_bytes: u64,
    /// Bytes of the tables beside the programs, which the caller maps.
    pub table_bytes: u64,
    /// How the functions of a language model are called.
    pub calls: Vec<ChainCall>,
    /// Bytes of the output matrix, if the caller computes the logits of a token.
    pub host_bytes: f64,
}

impl Part {
    /// A program that stands alone, with nothing declared beside it.
    pub fn new(program: Program) -> Self {
        Self {
            package: String::new(),
            program,
            interfaces: BTreeMap::new(),
            catch_all: None,
        }
    }
}

impl From<Package> for Part {
    fn from(package: Package) -> Self {
        Self {
            interfaces: package.interfaces,
            ..Self::new(package.program)
        }
    }
}

impl Subject {
    /// Some programs under the name of what they come from.
    pub fn new(name: &str, kind: &'static str, parts: Vec<Part>) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            built: None,
            n_absent: 0,
            disk_bytes: 0,
            table_bytes: 0,
            parts,
            calls: Vec::new(),
            host_bytes: 0.0,
        }
    }

    /// A Core ML package or compiled model from the bytes of its files, by their paths inside the
    /// package, such as `Manifest.json` or `Data/com.apple.CoreML/model.mlmodel`.
    ///
    /// [`Package::bytes_of_files`] says before how much memory that takes.
    pub fn from_files(name: &str, files: &BTreeMap<String, Bytes>) -> Result<Self, PackageError> {
        Self::from_files_until(name, files, &|| false)
    }

    /// As [`Self::from_files`]; ends with [`PackageError::Interrupted`] if `interrupted` returns
    /// true, which is asked after some thousand tokens of a text, or as many ops.
    pub fn from_files_until(
        name: &str,
        files: &BTreeMap<String, Bytes>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, PackageError> {
        let package = Package::from_files_until(name, files, interrupted)?;
        let kind = if files.contains_key("Manifest.json") {
            "package"
        } else {
            "compiled"
        };
        Ok(Self::new(name, kind, vec![package.into()]))
    }
}
