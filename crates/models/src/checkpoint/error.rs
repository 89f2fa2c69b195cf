//! Errors that concern a checkpoint as a whole, with the file at fault.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::config::ConfigError;
use super::gguf::GgufError;
use super::quantized::QuantizationError;
use super::safetensors::SafetensorsError;

/// Why a checkpoint cannot be opened. The message names file, place and remedy.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system reported an error.
    #[error("cannot read {}: {fault}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        fault: io::Error,
    },
    /// The path does not lead to a whole checkpoint.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What was expected and found, and what to do.
        reason: String,
    },
    /// A GGUF file is not valid.
    #[error("{}: {fault}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The error within the file.
        fault: Box<GgufError>,
    },
    /// A safetensors file is not valid.
    #[error("{}: {fault}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The error within the file.
        fault: Box<SafetensorsError>,
    },
    /// `config.json`, an index or another JSON file is not valid.
    #[error("{}: {fault}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The error within the file.
        fault: ConfigError,
    },
    /// The weights are quantized in a way that is not supported, or their tensors do not fit.
    #[error("{}: {fault}", path.display())]
    Quantization {
        /// The folder.
        path: PathBuf,
        /// The error within its files.
        fault: Box<QuantizationError>,
    },
    /// The index and the shards disagree. The message lists the first disagreements and counts the
    /// rest.
    #[error("{}: the index and its shards disagree: {}", path.display(), list_faults(faults))]
    Index {
        /// The index file.
        path: PathBuf,
        /// Every disagreement found.
        faults: Vec<IndexFault>,
    },
}

impl CheckpointError {
    /// The file or folder that is at fault.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::Unusable { path, .. }
            | Self::Gguf { path, .. }
            | Self::Safetensors { path, .. }
            | Self::Config { path, .. }
            | Self::Quantization { path, .. }
            | Self::Index { path, .. } => path,
        }
    }
}

/// One disagreement between an index and its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexFault {
    /// The index names a file outside of the folder.
    Escapes {
        /// The file name in the index.
        shard: String,
    },
    /// The folder does not contain a shard that the index names.
    MissingShard {
        /// The file name in the index.
        shard: String,
    },
    /// A shard does not contain a tensor that the index assigns to it.
    MissingTensor {
        /// Name of the tensor.
        tensor: String,
        /// Name of the shard.
        shard: String,
    },
    /// Two shards contain the same tensor.
    Repeated {
        /// Name of the tensor.
        tensor: String,
        /// Name of the first shard.
        first: String,
        /// Name of the second shard.
        second: String,
    },
    /// A shard contains a tensor that the index does not list.
    Unlisted {
        /// Name of the tensor.
        tensor: String,
        /// Name of the shard.
        shard: String,
    },
}

impl fmt::Display for IndexFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Escapes { shard } => {
                write!(f, "shard {shard:?} is not a path inside of the folder")
            }
            Self::MissingShard { shard } => write!(f, "shard {shard:?} is missing: fetch it"),
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
                write!(f, "tensor {tensor:?} in {shard:?} is not in the index")
            }
        }
    }
}

fn list_faults(faults: &[IndexFault]) -> String {
    const MOST_LISTED: usize = 20;
    let listed = faults.iter().take(MOST_LISTED).map(IndexFault::to_string);
    let listed = listed.collect::<Vec<_>>().join("; ");
    match faults.len().saturating_sub(MOST_LISTED) {
        0 => listed,
        rest => format!("{listed}; and {rest} more"),
    }
}
