//! What can be wrong with a checkpoint as a whole, with the file that is at fault.

use std::io;
use std::path::PathBuf;

use super::config::ConfigError;
use super::folder::{self, IndexFault};
use super::gguf::GgufError;
use super::safetensors::SafetensorsError;

/// Remedy for a file whose bytes contradict one another.
pub(super) const DAMAGED: &str = "the file is truncated or damaged, fetch it again";

/// Why a checkpoint could not be opened; the message names file, place and remedy.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot read {}: {fault}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        fault: io::Error,
    },
    /// The path leads to something that is no checkpoint, or only a part of one.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A GGUF file is refused.
    #[error("{}: {fault}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<GgufError>,
    },
    /// A safetensors file is refused.
    #[error("{}: {fault}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: Box<SafetensorsError>,
    },
    /// `config.json`, an index or another JSON file is refused.
    #[error("{}: {fault}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: ConfigError,
    },
    /// The index and its shards disagree; all disagreements are listed.
    #[error("{}: the index and its shards disagree: {}", path.display(), folder::list_faults(faults))]
    Index {
        /// The index file.
        path: PathBuf,
        /// Every disagreement found.
        faults: Vec<IndexFault>,
    },
}
