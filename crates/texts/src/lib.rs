//! Reads rows of texts, as `thane embed` and `thane rerank` take them: from the command line, from
//! lines, JSON lines, CSV and Parquet files, and from stdin.
//!
//! [`rows`] is the entry, and [`files`] tells what a file is. [`lines`], [`csv`] and [`parquet`]
//! read a format each, [`chain`] several files, [`meter`] bounds what a row takes, and
//! [`faults`] counts what is wrong. Errors are sentences that name file, row and remedy; nobody
//! tells them apart, so they are `anyhow` errors. A crate of its own is fuzzed without the command.

mod chain;
mod csv;
mod faults;
pub mod files;
mod lines;
mod meter;
mod parquet;
pub mod row;
pub mod rows;
