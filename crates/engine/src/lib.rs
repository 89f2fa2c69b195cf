//! Turns prompts into answers and texts into vectors, on any backend: tokenizers and chat templates
//! ([`text`]), sampling ([`sample`]), prefill and decode of one sequence ([`generate`]) or of many
//! ([`sessions`]), prompts that are kept beside their sequences ([`pages`]), requests that share
//! sequences ([`schedule`]), functions of fixed length and chains of packages ([`chain`]),
//! embeddings ([`embed`]), and how far a model is from a reference ([`quality`]).
//!
//! This crate does not know which backend runs a program, and it reads no files: the caller passes
//! plain data.
#![deny(missing_docs)]

pub mod chain;
pub mod choose;
pub mod embed;
mod error;
pub mod generate;
pub mod pages;
pub mod quality;
pub mod sample;
pub mod schedule;
mod sequence;
pub mod sessions;
pub mod text;
mod top;
mod whole;
