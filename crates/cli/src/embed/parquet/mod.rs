//! Parquet: [`read`] takes texts from files, [`write()`] puts vectors into them.
//!
//! The `parquet` crate decodes columns. What a file says of itself is checked before that crate
//! believes it: [`thrift`] walks headers, and [`pages`] unpacks pages to the length that was
//! reserved for them and no further.

mod pages;
pub mod read;
#[cfg(test)]
mod tests;
mod thrift;
mod write;

pub use write::write;
