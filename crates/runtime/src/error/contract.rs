//! What can be wrong with the files that Thane writes beside a program.

use std::io;
use std::path::PathBuf;

/// What is wrong with the contract or the manifest of a package, or with what they describe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// A file of the package cannot be read.
    #[error("{}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not the JSON that it should be.
    #[error("{}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A file is only a pointer that Git LFS left in its place.
    #[error("{} {remedy}", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
        /// What the file is and what to do.
        remedy: &'static str,
    },
    /// The version of the format is another one.
    #[error("{}: expected schema {expected}, found {}", path.display(), schema_text(*expected, *found))]
    Schema {
        /// The file.
        path: PathBuf,
        /// The version that this program reads.
        expected: u32,
        /// The version in the file.
        found: Option<u64>,
    },
    /// A file is missing, was added, or has another hash.
    #[error("{}: `{file}` is not what {by} says: it was changed or damaged; convert again", path.display())]
    Changed {
        /// The package or folder.
        path: PathBuf,
        /// The file in it.
        file: String,
        /// What has the hashes: `the contract` or `manifest.json`.
        by: &'static str,
    },
    /// The functions of the program are not those of the contract.
    #[error("{}: the functions are not what the contract says; convert again", path.display())]
    Functions {
        /// The package.
        path: PathBuf,
    },
    /// The scales of an int8 table do not fit it.
    #[error(
        "{}: expected {expected} rows of one scale, found {} of {}; convert again",
        path.display(), found.0, found.1
    )]
    Table {
        /// The file.
        path: PathBuf,
        /// Rows of the table.
        expected: usize,
        /// Rows and columns of the scales.
        found: (usize, usize),
    },
    /// A table of floats has scales, which only int8 has.
    #[error(
        "{}: expected int8, since the file of its scales is beside it, found {dtype}; convert again",
        path.display()
    )]
    ScalesOfFloats {
        /// The file.
        path: PathBuf,
        /// Element type of the table.
        dtype: &'static str,
    },
    /// A number of the model, or a table, is not what the program needs.
    #[error("{}: contract.json: {what}; convert again", path.display())]
    Model {
        /// The package.
        path: PathBuf,
        /// What was expected and what was found.
        what: String,
    },
    /// A tokenizer file is missing.
    #[error("{}: there is no {missing} beside it", path.display())]
    Missing {
        /// The file that refers to the missing one.
        path: PathBuf,
        /// The missing file.
        missing: &'static str,
    },
    /// An input or output has no known role.
    #[error("function `{function}`: expected a known input or output name, found `{value}`")]
    Role {
        /// The function.
        function: String,
        /// The input, output or state.
        value: String,
    },
    /// An input or output is not a tensor.
    #[error("function `{function}`: expected `{value}` to be a tensor, found {ty}")]
    NotATensor {
        /// The function.
        function: String,
        /// The input, output or state.
        value: String,
        /// Its type.
        ty: String,
    },
    /// A folder of packages is not whole or does not fit together.
    #[error("{}: {reason}", path.display())]
    Bundle {
        /// The folder, or a package in it.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The pooling in the contract is unknown.
    #[error("expected a known pooling in the contract, found `{0}`")]
    Pooling(String),
}

/// The version that was found, and what helps.
fn schema_text(expected: u32, found: Option<u64>) -> String {
    match found {
        Some(found) if found > u64::from(expected) => {
            format!("{found}: a newer thane wrote it; update thane")
        }
        Some(found) => format!("{found}: convert again"),
        None => "none: convert again".to_owned(),
    }
}
