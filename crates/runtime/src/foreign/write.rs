//! Writes a checkpoint as a bundle of another project: in one opset, and complete or not at all.

use std::io;
use std::path::Path;

use thane_mil::opset::Opset;
use thane_mil::package::{Partial, Summary};
use thane_mil::program::Program;
use thane_models::checkpoint::{HuggingFace, Source};
use thane_models::{AneDecoder, Interface, Options};

use super::ForeignLayout;
use crate::error::RuntimeError;
use crate::interface::put;
use crate::observer::{Note, Observer};
use crate::opened::Model;
use crate::package_writer::WrittenPackage;
use crate::passes::{compile, in_opset};

/// How Thane writes bundles of a layout.
#[derive(Debug)]
pub struct ForeignWriter {
    /// The name of the project.
    pub project: &'static str,
    /// The word for such a bundle in `thane convert --form`.
    pub form: &'static str,
    /// Whose names, shapes and calls the functions of a bundle have.
    pub interface: &'static Interface,
    /// Names of the files that a bundle may have besides its packages.
    pub(super) files: &'static [&'static str],
    /// Writes packages and files into an empty folder.
    pub(super) write: fn(&Writing<'_>, &Path, &dyn Observer) -> Result<Summary, RuntimeError>,
}

impl ForeignWriter {
    /// Whether a folder is a bundle, and a file of this name belongs to such bundles.
    pub fn owns(&self, folder: &Path, name: &str) -> bool {
        let layout = ForeignLayout::of(folder);
        layout.is_some_and(|layout| layout.name == self.project) && self.files.contains(&name)
    }
}

/// A checkpoint that becomes a bundle.
pub(super) struct Writing<'a> {
    pub model: &'a Model,
    /// The files of the checkpoint.
    pub source: &'a HuggingFace,
    pub lowered: &'a thane_models::Model,
    pub program: &'a Program,
    /// The failure of a file of the bundle.
    pub failed: &'a dyn Fn(io::Error) -> RuntimeError,
}

/// How a bundle is written.
#[derive(Clone, Debug, Default)]
pub struct ForeignOptions {
    /// Whether a bundle that exists is replaced. It stays until the new one is complete.
    pub replace: bool,
    /// Tokens that the KV cache holds; `None` for the model's own limit, at most 8192.
    pub context: Option<usize>,
    /// The form of the functions; their interface is that of such bundles in any case.
    pub ane: AneDecoder,
}

impl Model {
    /// Writes the model as a bundle, a folder at `out`. It must be a Hugging Face folder.
    pub fn write_foreign(
        &self,
        writer: &ForeignWriter,
        out: &Path,
        options: &ForeignOptions,
        observer: &dyn Observer,
    ) -> Result<WrittenPackage, RuntimeError> {
        let checkpoint = self.checkpoint()?;
        let path = &checkpoint.path;
        let Source::HuggingFace(source) = &checkpoint.source else {
            return Err(RuntimeError::BundleOfFile {
                path: self.path.clone(),
                project: writer.project,
            });
        };
        let ane = AneDecoder {
            interface: writer.interface,
            ..options.ane.clone()
        };
        let options_of_model = Options {
            context: options.context,
            ane: Some(ane),
            ..Options::default()
        };
        let refused = |e| RuntimeError::model(path, e);
        let mut lowered = thane_models::build(checkpoint, &options_of_model).map_err(refused)?;
        thane_models::check_numbers(&lowered.stored).map_err(refused)?;
        for note in std::mem::take(&mut lowered.notes) {
            observer.note(&Note::Checkpoint(note));
        }
        let program = compile(std::mem::take(&mut lowered.program), path, observer)?;
        observer.step("writing the packages");
        let program = in_opset(&program, Some(Opset::CoreMl8))?;
        let failed = RuntimeError::write(out);
        let partial = Partial::folder(out).map_err(&failed)?;
        let writing = Writing {
            model: self,
            source,
            lowered: &lowered,
            program: &program,
            failed: &failed,
        };
        let summary = (writer.write)(&writing, partial.path(), observer)?;
        put(partial, options.replace).map_err(&failed)?;
        let functions = program.functions().iter();
        Ok(WrittenPackage {
            opset: Opset::CoreMl8.name(),
            functions: functions.map(|f| f.name.clone()).collect(),
            context: lowered.info.context,
            summary,
            compressed: None,
        })
    }
}
