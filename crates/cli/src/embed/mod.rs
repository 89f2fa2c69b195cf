//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! [`rows`] reads texts, by [`lines`], [`csv`] and [`parquet`], and [`meter`] bounds what a row
//! takes. [`encoder`] is the model, [`job`] embeds texts window by window, [`journal`] keeps what
//! is done so that a run that was killed goes on, and [`files`] and [`parquet`] write the results.

pub mod bundle;
mod csv;
pub mod encoder;
pub mod files;
pub mod golden;
pub mod job;
pub mod journal;
pub mod lengths;
mod lines;
mod meter;
pub mod packages;
pub mod parquet;
pub mod prompt;
pub mod rows;
