//! Opens checkpoints on disk: a GGUF file, a Hugging Face folder with safetensors, or a file of
//! llama2.c.
//!
//! Every weight file is memory-mapped once, and tensors are [`Bytes`] slices of that map. Nothing
//! is copied or converted here. This module knows no architectures: the family of a model decides
//! which tensors and keys the model needs and what they mean. Start reading at
//! [`Checkpoint::open`].
//!
//! Every input may be damaged or hostile: no reader here panics, and none allocates more than a
//! small multiple of the file's size. The `Display` text of an error is the whole message, with
//! file, place and remedy.
//!
//! ```
//! use std::path::Path;
//! use thane_models::checkpoint::{Checkpoint, CheckpointError};
//!
//! # fn main() -> Result<(), CheckpointError> {
//! let checkpoint = Checkpoint::open(Path::new("../../tests/models/tiny/gemma3"))?;
//! let embedding = &checkpoint.tensors["model.embed_tokens.weight"];
//! println!("{} {:?}", embedding.ty, embedding.shape);
//! assert!(checkpoint.hugging_face().is_some());
//! # Ok(())
//! # }
//! ```

mod config;
mod error;
mod folder;
pub mod gguf;
mod json;
pub mod keys;
mod limits;
pub mod llama2c;
mod magic;
mod map;
mod quantized;
mod range;
mod rope;
pub mod safetensors;
mod scaled;
mod sentence;
mod tensor;
mod token_types;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use thane_mil::data::Bytes;

pub use config::{Config, ConfigError};
pub(crate) use config::{as_token_ids, shorten};
pub use error::{CheckpointError, IndexFault};
pub use folder::HuggingFace;
pub use gguf::{Gguf, GgufError, MetadataError};
pub use quantized::QuantizationError;
pub use range::Range;
pub use rope::{Rope, RopeConfig, RopeScaling, Yarn};
pub use safetensors::SafetensorsError;
pub use scaled::{Scaled, ScaledParts};
pub use sentence::{
    Dense, DenseActivation, MaxTokens, PaddingSide, PairMessages, SentenceConfig, Step,
};
pub(crate) use sentence::{RerankConfig, ScoreTokens, is_saved_reranker, read_tokenizer_config};
pub use tensor::{RefusedTensor, Tensor, TensorType};
pub(crate) use token_types::gives_token_types;

/// The tensors of a checkpoint by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// An opened checkpoint: its metadata and its tensors, still in the format of the file.
#[derive(Debug)]
pub struct Checkpoint {
    /// The path that was opened, as the caller gave it.
    pub path: PathBuf,
    /// The metadata, in the form of the checkpoint's format.
    pub source: Source,
    /// All tensors of all weight files, by name.
    pub tensors: Tensors,
    /// Notes for the user on how the weights were read.
    pub notes: Vec<String>,
}

/// The metadata of a checkpoint, by format.
#[derive(Debug)]
pub enum Source {
    /// Header and metadata of a GGUF file.
    Gguf(Gguf),
    /// `config.json` and the other files beside the weights.
    HuggingFace(HuggingFace),
}

impl Checkpoint {
    /// Opens a GGUF file, a Hugging Face folder, a single safetensors file with a `config.json`
    /// beside it, or a file of llama2.c.
    ///
    /// GGUF files are recognized by their magic bytes. Safetensors files have no magic bytes and
    /// are recognized by the extension `.safetensors`. Files of llama2.c are recognized by their
    /// magic bytes or, in the first version, by sizes that give exactly the file's length.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`] names the file, the place in the file and the remedy.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let kind = fs::metadata(path).map_err(|fault| CheckpointError::Io {
            path: path.to_owned(),
            fault,
        })?;
        if kind.is_dir() {
            return llama2c::open_folder(path).unwrap_or_else(|| folder::open_folder(path));
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
        if !gguf && let Some(opened) = llama2c::open(path, &bytes) {
            return opened;
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
            notes: Vec::new(),
        })
    }

    /// The GGUF header and metadata, or `None` for a Hugging Face checkpoint.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::HuggingFace(_) => None,
        }
    }

    /// The Hugging Face files, or `None` for a GGUF file.
    pub fn hugging_face(&self) -> Option<&HuggingFace> {
        match &self.source {
            Source::Gguf(_) => None,
            Source::HuggingFace(folder) => Some(folder),
        }
    }
}
