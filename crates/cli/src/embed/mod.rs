//! Texts from files to vectors in files: what `thane embed` is made of.
//!
//! `thane_texts` reads texts. [`job`] embeds them batch by batch, with a model on this machine
//! ([`local`]) or by asking a server ([`remote`]). [`journal`] keeps what is done, so that a run
//! that was stopped goes on with what [`reader`] finds left. [`files`] and [`parquet`] write the
//! results, and [`scores`] writes those of `thane rerank`.

pub mod bundle;
pub mod files;
pub mod job;
pub mod journal;
pub mod lengths;
pub mod local;
pub mod parquet;
pub mod reader;
pub mod records;
pub mod remote;
pub mod scores;
pub mod table;
