//! Reads rows of texts, as `thane embed` and `thane rerank` take them: from the command line, from
//! lines, JSON lines, CSV and Parquet files, and from stdin.
//!
//! [`rows`] is the entry. [`lines`], [`csv`] and [`parquet`] read a format each, and [`meter`]
//! bounds what a row takes. Errors are sentences that name file, row and remedy; nobody tells them
//! apart, so they are `anyhow` errors. A crate of its own is fuzzed without the command.

mod csv;
mod lines;
mod meter;
mod parquet;
pub mod row;
pub mod rows;
