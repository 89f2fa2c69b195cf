//! What can be wrong with a checkpoint as a whole, with the file that is at fault.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::config::ConfigError;
use super::gguf::GgufError;
use super::safetensors::SafetensorsError;

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
    #[error("{}: the index and its shards disagree: {}", path.display(), list_faults(faults))]
    Index {
        /// The index file.
        path: PathBuf,
        /// Every disagreement found.
        faults: Vec<IndexFault>,
    },
}

/// One disagreement between an index and its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexFault {
    /// The index names a file that leaves the folder.
    Escapes {
        /// The file as named.
        shard: String,
    },
    /// A shard is not on disk.
    MissingShard {
        /// The file as named.
        shard: String,
    },
    /// The index places a tensor in a shard that does not have it.
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The shard that should have it.
        shard: String,
    },
    /// A tensor is in two shards.
    Repeated {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
    /// A shard has a tensor that the index does not list.
    Unlisted {
        /// The tensor.
        tensor: String,
        /// The shard that has it.
        shard: String,
    },
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Escapes { shard } => write!(f, "shard {shard:?} is not a path within the folder"),
            Self::MissingShard { shard } => write!(f, "shard {shard:?} is not on disk, fetch it"),
            Self::MissingTensor { tensor, shard } => {
                write!(f, "tensor {tensor:?} is not in {shard:?}")
            }
            Self::Repeated {
                tensor,
                first,
                second,
            } => {
                write!(
                    f,
                    "tensor {tensor:?} is both in {first:?} and in {second:?}"
                )
            }
            Self::Unlisted { tensor, shard } => {
                write!(f, "tensor {tensor:?} in {shard:?} is not listed")
            }
        }
    }
}

fn list_faults(faults: &[IndexFault]) -> String {
    faults
        .iter()
        .map(IndexFault::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}
