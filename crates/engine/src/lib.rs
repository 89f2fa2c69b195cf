//! Prompts to answers: tokenizers and chat templates ([`text`]), sampling ([`sample`]), and prefill and decode over any
//! backend ([`generate`]).
//!
//! This crate does not know which backend it drives, and reads no files: the caller hands over plain data.
#![deny(missing_docs)]

pub mod generate;
pub mod sample;
pub mod text;
