//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! `thane_texts` reads texts. [`job`] embeds them window by window, [`journal`] keeps what is done
//! so that a run that was killed goes on, and [`files`] and [`parquet`] write the results.
//! [`scores`] writes those of `thane rerank`.

pub mod bundle;
pub mod files;
pub mod job;
pub mod journal;
pub mod lengths;
mod parquet;
pub mod scores;
pub mod table;
