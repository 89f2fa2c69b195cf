//! Whole models on the CPU backend, against what transformers computes (`tests/models/README.md`).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod ane;
mod blocks;
mod control;
mod gguf;
mod golden;
mod hostile;
mod instance;
mod ops;
mod real;
mod tiny;
