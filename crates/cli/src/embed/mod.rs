//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! [`rows`] reads texts, [`encoder`] is the model, [`job`] embeds them window by window, [`journal`] keeps what is done so
//! that a run that was killed goes on, and [`files`] and
//! [`parquet`] write the results.

pub mod bundle;
pub mod encoder;
pub mod files;
pub mod job;
pub mod journal;
pub mod lengths;
pub mod packages;
pub mod parquet;
pub mod prompt;
pub mod rows;
