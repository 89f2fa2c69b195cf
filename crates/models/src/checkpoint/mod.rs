//! Checkpoints on disk, read as they are: a GGUF file, or a Hugging Face folder with safetensors.
//!
//! Every weight file is mapped once and handed out as [`Bytes`] slices of the map; nothing is
//! copied or converted here. Knows nothing of architectures: which tensors and keys a model needs,
//! and what they mean, is the business of its family. Start at [`Checkpoint::open`].
//!
//! All input is taken for damaged or hostile until checked: no reader here panics, and none
//! allocates more than a small multiple of the bytes that the file really has. Errors hold the
//! whole message in their `Display`.

mod config;
mod error;
mod folder;
pub mod gguf;
mod json;
mod limits;
mod magic;
mod map;
mod rope;
pub mod safetensors;
mod sentence;
mod tensor;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use thane_mil::data::Bytes;

pub use config::{Config, ConfigError};
pub use error::{CheckpointError, IndexFault};
pub use folder::HuggingFace;
pub use gguf::{Gguf, GgufError, MetadataError};
pub use rope::{Rope, RopeConfig, RopeScaling};
pub use safetensors::SafetensorsError;
pub use sentence::{Dense, Sentence};
pub use tensor::{RefusedTensor, Tensor, TensorType};

/// The tensors of a checkpoint by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A model as its file or folder has it: what it says about itself, and its tensors.
#[derive(Debug)]
pub struct Checkpoint {
    /// What was opened, as given.
    pub path: PathBuf,
    /// The metadata, in the form that the format has.
    pub source: Source,
    /// All tensors of all files, by name.
    pub tensors: Tensors,
}

/// The metadata of a checkpoint by format.
#[derive(Debug)]
pub enum Source {
    /// Header and metadata of a GGUF file.
    Gguf(Gguf),
    /// `config.json` and the files beside the weights.
    HuggingFace(HuggingFace),
}

impl Checkpoint {
    /// Opens a GGUF file, a Hugging Face folder, or a single safetensors file with `config.json`
    /// beside it.
    ///
    /// A file's kind is told by its content; only a safetensors file, which has no magic, is known
    /// by its name.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let kind = fs::metadata(path).map_err(|fault| CheckpointError::Io {
            path: path.to_owned(),
            fault,
        })?;
        if kind.is_dir() {
            return folder::open_folder(path);
        }
        let bytes = map::map(path)?;
        let gguf = bytes.as_slice().starts_with(gguf::MAGIC);
        if !gguf
            && path
                .extension()
                .is_some_and(|extension| extension == "safetensors")
        {
            return folder::open_file(path, bytes);
        }
        Self::open_gguf(path, bytes)
    }

    fn open_gguf(path: &Path, bytes: Bytes) -> Result<Self, CheckpointError> {
        let (gguf, tensors) = gguf::parse(&bytes).map_err(|fault| CheckpointError::Gguf {
            path: path.to_owned(),
            fault: Box::new(fault),
        })?;
        Ok(Self {
            path: path.to_owned(),
            source: Source::Gguf(gguf),
            tensors,
        })
    }

    /// The GGUF metadata, when this is a GGUF file.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::HuggingFace(_) => None,
        }
    }

    /// The Hugging Face files, when this is a folder or safetensors file.
    pub fn hugging_face(&self) -> Option<&HuggingFace> {
        match &self.source {
            Source::Gguf(_) => None,
            Source::HuggingFace(folder) => Some(folder),
        }
    }
}
