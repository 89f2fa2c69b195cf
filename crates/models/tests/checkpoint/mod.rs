//! Readers of checkpoints on valid files, invalid files, and files written by the Python packages
//! of the formats.

mod bad_gguf;
pub mod builder;
mod config;
mod fixtures;
mod folder;
mod gguf;
pub mod keys;
mod llama2c;
mod numbers;
mod range;
mod real;
mod rope;
mod safetensors;
