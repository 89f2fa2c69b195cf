//! How a caller follows what happens while a model is opened, run or written.

use std::fmt;

/// Follows long operations. Every method does nothing by default, and `&()` is an observer that
/// ignores everything.
pub trait Observer: Sync {
    /// A step begins that may take seconds, such as `reading the model`.
    fn step(&self, _what: &str) {}
    /// How much of a step is done, of how much, in a unit of its own.
    fn progress(&self, _what: &str, _done: u64, _all: u64) {}
    /// Something that the user should know.
    fn note(&self, _note: &Note) {}
    /// Something that a user who asks for details may want to know.
    fn detail(&self, _line: &str) {}
}

impl Observer for () {}

/// Something that the user should know, and that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// How the checkpoint was read.
    Checkpoint(String),
    /// How a bundle of another project is run.
    Bundle(String),
    /// The checkpoint has no tokenizer, so the package that is written cannot tokenize.
    NoTokenizer,
    /// A compiled model is written, which has no place for a tokenizer.
    Compiled,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkpoint(note) | Self::Bundle(note) => note,
            Self::NoTokenizer => {
                "the checkpoint has no tokenizer: the package can be checked and predicted with, \
                 not run"
            }
            Self::Compiled => {
                "a compiled model has no place for a tokenizer: it can be checked and predicted \
                 with, not run"
            }
        })
    }
}
