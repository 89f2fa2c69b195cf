//! The files of a model, found and opened, before anything is made of them.

use std::path::{Path, PathBuf};

use thane_hub::{Hub, ModelFiles};
use thane_models::checkpoint::Checkpoint;

use crate::contract::Facts;
use crate::error::{RuntimeError, Task};
use crate::files::fingerprint;
use crate::foreign::ForeignLayout;
use crate::manifest::{is_bundle, read_manifest};
use crate::observer::Observer;
use crate::package_contents::read_facts;

/// A model whose files were found and opened: a checkpoint, a Core ML package, or a folder of
/// packages.
///
/// [`Model::language_model`] and [`Model::embedding_model`] make programs of it;
/// [`Model::generator`] and [`Model::embedder`] also run them.
pub struct Model {
    /// The name by which the user can ask for this model again.
    pub name: String,
    /// The file or folder.
    pub path: PathBuf,
    /// License of the model; known for models of the catalog only.
    pub license: Option<String>,
    /// What the files are.
    pub files: Files,
}

/// What the files of a model are.
pub enum Files {
    /// A GGUF file or a Hugging Face folder.
    Checkpoint(Box<Checkpoint>),
    /// A Core ML package or a compiled model, which is read when its program is needed.
    Package,
    /// A folder of packages of one model, which is read when its program is needed.
    Bundle,
    /// A bundle of another project, which is read when its program is needed.
    Foreign(&'static ForeignLayout),
}

impl Model {
    /// Finds a model by name or path, downloads it if it is not on this machine, and opens it.
    pub fn open(spec: &str, hub: &Hub, observer: &dyn Observer) -> Result<Self, RuntimeError> {
        let files = hub.resolve(spec)?;
        observer.detail(&format!("reading {}", files.path.display()));
        observer.step("reading the model");
        Self::from_files(files)
    }

    /// Opens files that were found before.
    pub fn from_files(files: ModelFiles) -> Result<Self, RuntimeError> {
        let path = files.path;
        let content = if is_package(&path) {
            Files::Package
        } else if is_bundle(&path) {
            Files::Bundle
        } else if let Some(layout) = ForeignLayout::of(&path) {
            Files::Foreign(layout)
        } else {
            Files::Checkpoint(Box::new(Checkpoint::open(&path)?))
        };
        Ok(Self {
            name: files.name,
            path,
            license: files.license,
            files: content,
        })
    }

    /// The checkpoint. A package is an error.
    pub fn checkpoint(&self) -> Result<&Checkpoint, RuntimeError> {
        match &self.files {
            Files::Checkpoint(checkpoint) => Ok(checkpoint),
            Files::Package | Files::Bundle | Files::Foreign(_) => {
                Err(RuntimeError::ExpectedCheckpoint {
                    path: self.path.clone(),
                })
            }
        }
    }

    /// Whether the model scores pairs of texts: [`Model::reranker`] starts it.
    pub fn is_reranker(&self) -> Result<bool, RuntimeError> {
        match &self.files {
            Files::Checkpoint(checkpoint) => thane_models::is_classifier(checkpoint)
                .map_err(|e| RuntimeError::model(&self.path, e)),
            Files::Package | Files::Bundle | Files::Foreign(_) => Ok(false),
        }
    }

    /// A hash of the names, lengths and modification times of the model's files, which identifies
    /// the files without reading them.
    pub fn fingerprint(&self) -> Result<String, RuntimeError> {
        fingerprint(&self.path)
    }

    /// What the model does, unless it is a reranker.
    pub fn task(&self) -> Result<Task, RuntimeError> {
        if self.is_reranker()? {
            return Err(RuntimeError::Reranks {
                path: self.path.clone(),
            });
        }
        let embeds = match &self.files {
            Files::Checkpoint(checkpoint) => thane_models::is_embedding_model(checkpoint)
                .map_err(|e| RuntimeError::model(&self.path, e))?,
            Files::Package => matches!(read_facts(&self.path)?, Some(Facts::Embed(_))),
            Files::Bundle => {
                let manifest = read_manifest(&self.path)?;
                manifest.is_some_and(|m| matches!(m.model, Facts::Embed(_)))
            }
            Files::Foreign(_) => false,
        };
        Ok(if embeds { Task::Embed } else { Task::Generate })
    }
}

/// Whether a path is a Core ML package or a compiled model.
pub fn is_package(path: &Path) -> bool {
    path.join("Manifest.json").is_file() || path.join("coremldata.bin").is_file()
}
