//! Core ML packages (`.mlpackage`): folders with a program, its weights and a description, in the
//! format of Core ML and coremltools.
//!
//! [`Package::open`] maps the weights without copying them, [`Package::from_files`] reads a package
//! that is in memory, and [`Package::write`] writes the weights in pieces. Start reading at
//! [`Package`]. `read` and `write` handle the folder, `files` the source of its bytes, `manifest`
//! its list of items, `blob` the weight file, `proto` the wire format, `encode` and `decode` the
//! program, `value` types and literals, `state` updates of states, `description` inputs and
//! outputs, `compiled` and `report` compiled models, `source` single files of MIL text, and
//! `memory` what a file takes once it is decoded.
//! `partial` makes writes atomic, `map` maps files and `open` opens them.
//!
//! This is the only module of the crate that reads and writes files.
//!
//! ```
//! use thane_mil::package::Package;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("relu.mlpackage");
//! let text = "program(1.3) { func main<ios15>(tensor<fp32, [2, 3]> x) { \
//!             tensor<fp32, [2, 3]> y = relu(x = x); } -> (y); }";
//! let program = thane_mil::text::parse(text, &|_, _, _| None).unwrap();
//! Package::new(program).write(&path, &[])?;
//! let package = Package::open(&path)?;
//! assert_eq!(package.default_function, "main");
//! # Ok::<(), thane_mil::package::PackageError>(())
//! ```

pub(crate) mod blob;
mod check;
mod compiled;
mod decode;
mod description;
mod encode;
mod error;
mod files;
mod kind;
mod manifest;
mod map;
mod memory;
mod open;
mod partial;
// Public for the tests of this crate, which damage model files; no part of the API.
#[doc(hidden)]
pub mod proto;
mod read;
mod report;
mod source;
mod state;
mod value;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use check::check;
pub use description::{
    ColorSpace, DefaultValue, Feature, Image, ImageSizes, Interface, Metadata, Shape, SizeRange,
};
pub use error::PackageError;
pub use map::{lfs_pointer, map, read_small};
pub use open::{
    check_own_folder, create_private_folders, open_regular, open_regular_with, private_options,
};
pub use partial::{Partial, create_folders, final_path};
pub use read::{items, program_without_weights};
pub use source::{
    SourceFile, read_lines, read_source, source_from_files, source_weights, write_source,
};
pub use write::Summary;

// What tests reach inside for; no part of the API.
#[doc(hidden)]
pub use blob::Plan as BlobPlan;
#[doc(hidden)]
pub use partial::{Rename, swap};
#[doc(hidden)]
pub use report::base64;

use files::Files;

use crate::data::{Bytes, Data};
use crate::lower::with_opset;
use crate::opset::Opset;
use crate::program::Program;
use crate::types::DType;
use crate::watch::Watch;

/// A program, its metadata and the description of its inputs and outputs.
#[derive(Clone, Debug)]
pub struct Package {
    /// The program.
    pub program: Program,
    /// Author, license, version and other metadata of the model.
    pub metadata: Metadata,
    /// The function that runs if the caller names none.
    pub default_function: String,
    /// Descriptions of the functions' inputs and outputs, by function name. Functions without an
    /// entry are described by their types.
    pub interfaces: BTreeMap<String, Interface>,
}

impl Package {
    /// Opens the package (`.mlpackage`) or compiled model (`.mlmodelc`) at `path`. Weights are
    /// mapped: the files must not change while the package or a slice of its weights lives.
    pub fn open(path: &Path) -> Result<Self, PackageError> {
        Self::read(Files::Folder(path), &Watch::new(&|| false))
    }

    /// Opens a package or compiled model whose files are in memory. `files` maps paths inside the
    /// package, such as `Manifest.json`, to their bytes; `name` names the package in messages.
    /// Constants are slices of these bytes.
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
        let files = Files::Memory(Path::new(name), files);
        Self::read(files, &Watch::new(interrupted))
    }

    /// At least as many bytes as [`Self::from_files`] allocates, from the files alone. Ends if
    /// `interrupted`, as [`Self::from_files_until`] does.
    ///
    /// # Errors
    ///
    /// Where the files have no model, as of [`Self::from_files`].
    pub fn bytes_of_files(
        name: &str,
        files: &BTreeMap<String, Bytes>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<usize, PackageError> {
        let (files, watch) = (
            Files::Memory(Path::new(name), files),
            Watch::new(interrupted),
        );
        let n_bytes = if compiled::is_compiled(files) {
            compiled::decoded_bytes(files, &watch)?
        } else {
            read::decoded_bytes(files)?
        };
        PackageError::interrupted(files.path(), &watch)?;
        Ok(n_bytes)
    }

    fn read(files: Files<'_>, watch: &Watch<'_>) -> Result<Self, PackageError> {
        if compiled::is_compiled(files) {
            compiled::open(files, watch)
        } else {
            read::open(files, watch)
        }
    }

    /// A package of `program` without metadata. The first function is the default one.
    pub fn new(program: Program) -> Self {
        let default_function = program
            .functions()
            .first()
            .map(|f| f.name.clone())
            .unwrap_or_default();
        Self {
            program,
            metadata: Metadata::default(),
            default_function,
            interfaces: BTreeMap::new(),
        }
    }

    /// The same package in the oldest opset that can express it, so that the oldest possible
    /// systems can run it.
    pub fn in_lowest_opset(self) -> Self {
        let lowest = Opset::ALL.iter().find_map(|opset| {
            let program = with_opset(&self.program, *opset).ok()?;
            Some(Self {
                program,
                ..self.clone()
            })
            .filter(|package| check(package).is_ok())
        });
        lowest.unwrap_or(self)
    }
}

/// An additional file in a package, at `Data/<author>/<name>`.
pub struct Item {
    /// The program that the file is for, such as `ai.thane`; `com.apple.CoreML` is reserved.
    pub author: String,
    /// File name.
    pub name: String,
    /// A short description.
    pub description: String,
    /// The content.
    pub content: Content,
}

/// What is written of a package when the bytes of an item are computed.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// The folder that the package is written to.
    pub folder: &'a Path,
    /// The constants in its weight file.
    plan: &'a BlobPlan,
}

impl Written<'_> {
    /// The byte of the weight file where the elements of a constant begin that has these elements;
    /// `None` if the file has no such constant.
    pub fn elements_at(&self, dtype: DType, data: &Data) -> Option<u64> {
        self.plan.elements_at(dtype, data)
    }
}

/// Computes the bytes of an item.
pub type Make = Box<dyn Fn(Written<'_>) -> io::Result<Vec<u8>>>;

/// Where an item's bytes come from.
pub enum Content {
    /// The bytes of the file.
    Bytes(Vec<u8>),
    /// A file to copy.
    File(PathBuf),
    /// A header, followed by the bytes of constants.
    Data(Vec<u8>, Vec<Data>),
    /// A function that computes the bytes. It runs when the model, its weights and all previous
    /// items are in the folder.
    Made(Make),
}

/// An item found in a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// The program that the file is for.
    pub author: String,
    /// File name.
    pub name: String,
    /// A short description.
    pub description: String,
    /// The path of the file inside the package, with links resolved.
    pub path: PathBuf,
}
