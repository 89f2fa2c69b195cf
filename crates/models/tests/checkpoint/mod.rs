//! Readers of checkpoints, on good files, bad files, and files that the formats' own packages
//! wrote.

mod bad_gguf;
pub mod builder;
mod config;
mod fixtures;
mod folder;
mod gguf;
mod real;
mod rope;
mod safetensors;
