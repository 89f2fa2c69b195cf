//! Prompts to answers and texts to vectors: tokenizers and chat templates ([`text`]), sampling
//! ([`sample`]), prefill and decode ([`generate`] of one sequence, [`sessions`] of many, [`fixed`])
//! and embeddings ([`embed`]) over any backend.
//!
//! This crate does not know which backend it drives, and reads no files: the caller hands over
//! plain data.
#![deny(missing_docs)]

pub mod embed;
mod error;
pub mod fixed;
pub mod generate;
pub mod sample;
mod sequence;
pub mod sessions;
pub mod text;
