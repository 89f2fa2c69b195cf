//! The error type of reading and writing packages.

use std::io;
use std::path::{Path, PathBuf};

use crate::valid::{MAX_VIOLATIONS, Violation};
use crate::watch::Watch;

use super::partial::final_path;

/// What is wrong with a package, in which file, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A file operation failed.
    #[error("{path}: {fault}", path = final_path(path).display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        fault: io::Error,
    },
    /// The path to write to already exists.
    #[error("{path} already exists: remove it or choose to replace it", path = path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The path is not a package, or its folder is damaged.
    #[error("{path} {reason}", path = path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// The content of the model file is inconsistent.
    #[error("{path}: {place}: {reason}", path = path.display())]
    Malformed {
        /// The model file.
        path: PathBuf,
        /// The function, op and value.
        place: String,
        /// What is wrong and, where known, how to fix it.
        reason: String,
    },
    /// A constant in a weight file differs from what the program declares.
    #[error("{path}, record at byte {offset}: {reason}", path = path.display())]
    Blob {
        /// The weight file.
        path: PathBuf,
        /// The offset in the program, in bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The caller interrupted.
    #[error("{path}: reading was interrupted: nobody waits for it any more", path = path.display())]
    Interrupted {
        /// The package.
        path: PathBuf,
    },
    /// Rules of programs or packages are violated; all violations are listed.
    #[error("{path} {list}", path = path.display(), list = list(violations))]
    Invalid {
        /// The package.
        path: PathBuf,
        /// The violations and their places.
        violations: Vec<Violation>,
    },
}

impl PackageError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |fault| PackageError::Io {
            path: path.to_owned(),
            fault,
        }
    }

    /// An error if the watch ends the work on the package at `path`.
    pub(super) fn interrupted(path: &Path, watch: &Watch<'_>) -> Result<(), Self> {
        match watch.ask() {
            true => Err(PackageError::Interrupted {
                path: path.to_owned(),
            }),
            false => Ok(()),
        }
    }

    pub(super) fn unusable(path: &Path, reason: impl Into<String>) -> Self {
        PackageError::Unusable {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

/// The number of violations, and each one on an indented line.
fn list(violations: &[Violation]) -> String {
    let n = violations.len();
    let rules = if n == 1 { "rule" } else { "rules" };
    let least = if n < MAX_VIOLATIONS { "" } else { "at least " };
    let lines: Vec<String> = violations.iter().map(|v| format!("  {v}")).collect();
    format!("violates {least}{n} {rules}\n{}", lines.join("\n"))
}
