//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! `thane_texts` reads texts. [`job`] embeds them window by window, with a model on this machine
//! ([`local`]) or by asking a server ([`remote`]), [`journal`] keeps what is done so that a run
//! that was killed goes on, and [`files`] and [`parquet`] write the results. [`scores`] writes
//! those of `thane rerank`.

pub mod bundle;
pub mod files;
pub mod job;
pub mod journal;
pub mod lengths;
pub mod local;
mod parquet;
pub mod remote;
pub mod scores;
pub mod table;
