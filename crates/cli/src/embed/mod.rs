//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! [`rows`] reads texts, by [`lines`], [`csv`] and [`parquet`], and [`meter`] bounds what a row
//! takes. [`job`] embeds texts window by window, [`journal`] keeps what
//! is done so that a run that was killed goes on, and [`files`] and [`parquet`] write the results.

pub mod bundle;
mod csv;
pub mod files;
pub mod job;
pub mod journal;
pub mod lengths;
mod lines;
mod meter;
pub mod parquet;
pub mod row;
pub mod rows;
pub mod table;
