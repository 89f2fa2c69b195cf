//! Core ML packages: folders with a program, its weights and what they are for, as Core ML and
//! coremltools read and write them.
//!
//! [`Package::open`] maps the weights and copies none, [`Package::from_files`] reads a package that
//! is in memory, and [`Package::write`] writes the weights in pieces. Start at [`Package`]; `read`
//! and `write` know the folder, `files` where the bytes come from, `encode` and `decode` the
//! program, `description` how it looks from outside, `compiled` and `report` know compiled models,
//! `value` types and literals, `source` single files of MIL text, `state` updates of states, `blob`
//! the weight file, `manifest` the list of items, `proto` the wire format. This is the one place of
//! the crate that reads and writes files.

pub(crate) mod blob;
mod check;
mod compiled;
mod decode;
mod description;
mod encode;
mod error;
mod files;
mod manifest;
mod map;
mod partial;
mod proto;
mod read;
mod report;
mod source;
mod state;
#[cfg(test)]
mod tests;
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
pub use partial::{Partial, create_folders};
pub use read::items;
pub use source::{SourceFile, read_lines, read_source, source_weights, write_source};
pub use write::Summary;

use files::Files;

use crate::data::Bytes;
use crate::lower::with_opset;
use crate::opset::Opset;
use crate::program::Program;

/// A program and what a package says of it.
#[derive(Clone, Debug)]
pub struct Package {
    /// What it computes.
    pub program: Program,
    /// What it says of itself.
    pub metadata: Metadata,
    /// The function that runs if nobody names one.
    pub default_function: String,
    /// How functions look from outside, by their names; what is not here looks as its type says.
    pub interfaces: BTreeMap<String, Interface>,
}

impl Package {
    /// Read the package, or the compiled model, at `path`. Weights are mapped: the files must not
    /// change while the package or a slice of its weights lives.
    pub fn open(path: &Path) -> Result<Self, PackageError> {
        Self::read(Files::Folder(path))
    }

    /// Read a package, or a compiled model, whose files are in memory, by their paths inside of it,
    /// such as `Manifest.json`; `name` is for messages. Constants are slices of these bytes.
    pub fn from_files(name: &str, files: &BTreeMap<String, Bytes>) -> Result<Self, PackageError> {
        Self::read(Files::Memory(Path::new(name), files))
    }

    fn read(files: Files<'_>) -> Result<Self, PackageError> {
        if compiled::is_compiled(files) {
            compiled::open(files)
        } else {
            read::open(files)
        }
    }

    /// A package of a program, without a word about it; its first function is the default one.
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

    /// The same package in the oldest opset that can say it, so that the oldest system can run it.
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

/// A file that travels in a package beside the model, at `Data/<author>/<name>`.
pub struct Item {
    /// Who it is for, such as `ai.thane`; Core ML's own name is taken.
    pub author: String,
    /// File name.
    pub name: String,
    /// A few words.
    pub description: String,
    /// What is in it.
    pub content: Content,
}

/// Makes an item from the folder that the package is written to.
pub type Make = Box<dyn Fn(&Path) -> io::Result<Vec<u8>>>;

/// Where an item's bytes come from.
pub enum Content {
    /// These.
    Bytes(Vec<u8>),
    /// A copy of this file.
    File(PathBuf),
    /// Made from the package's folder once the model, its weights and the items before this one are
    /// in it.
    Made(Make),
}

/// An item that a package holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// Who it is for.
    pub author: String,
    /// File name.
    pub name: String,
    /// A few words.
    pub description: String,
    /// Where it is; inside of the package, links followed.
    pub path: PathBuf,
}
