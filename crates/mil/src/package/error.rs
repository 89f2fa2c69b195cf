//! Why a package cannot be read or written.

use std::io;
use std::path::{Path, PathBuf};

use crate::valid::Violation;

/// What is wrong with a package, in which file, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The file system refused.
    #[error("{path}: {fault}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        #[source]
        fault: io::Error,
    },
    /// There is something already where a package is to be written.
    #[error("{path} exists already: remove it or ask for it to be replaced", path = path.display())]
    Exists {
        /// Where the package was to go.
        path: PathBuf,
    },
    /// It is no package, or one whose folder is damaged.
    #[error("{path} {reason}", path = path.display())]
    Unusable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// The model file says something that cannot be.
    #[error("{path}: {place}: {reason}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Function, op and value.
        place: String,
        /// What is wrong, and the remedy where there is one.
        reason: String,
    },
    /// A constant in a weight file is not what the program says.
    #[error("{path}, record at byte {offset}: {reason}", path = path.display())]
    Blob {
        /// The weight file.
        path: PathBuf,
        /// The offset that the program gives.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// Rules of programs or of packages are broken; all of them.
    #[error("{path}: {n} rules are broken\n{list}", path = path.display(), n = violations.len(), list = lines(violations))]
    Invalid {
        /// The package.
        path: PathBuf,
        /// Each rule and its place.
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

    pub(super) fn unusable(path: &Path, reason: impl Into<String>) -> Self {
        PackageError::Unusable {
            path: path.to_owned(),
            reason: reason.into(),
        }
    }
}

fn lines(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(|v| format!("  {v}"))
        .collect::<Vec<_>>()
        .join("\n")
}
