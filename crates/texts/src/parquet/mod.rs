//! Parquet files.
//!
//! The `parquet` crate decodes columns. It trusts sizes in a file, so they are checked before:
//! [`thrift`] parses headers, and [`pages`] decompresses pages up to the length that was reserved.

mod pages;
pub mod read;
#[cfg(test)]
mod tests;
mod thrift;
