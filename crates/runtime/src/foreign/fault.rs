//! What can be wrong with a bundle of another project.

use std::path::{Path, PathBuf};

/// A fault of a bundle: which file, where in it, what was expected and found, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {place}: {what}", path.display())]
pub struct ForeignError {
    /// The file or folder.
    pub path: PathBuf,
    /// A line and key, or a function and input.
    pub place: String,
    /// What was expected and what was found.
    pub what: String,
    /// What the user can do.
    pub remedy: String,
}

impl ForeignError {
    /// A fault at a place of a file; [`Self::found`] and [`Self::remedy`] say more.
    pub fn new(path: &Path, place: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            place: place.into(),
            what: String::new(),
            remedy: "the bundle as it was published, complete".to_owned(),
        }
    }

    /// What was expected and what was found.
    #[must_use]
    pub fn found(mut self, what: impl Into<String>) -> Self {
        self.what = what.into();
        self
    }

    /// What the user can do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}
