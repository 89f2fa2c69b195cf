//! Whole models on the CPU backend, against what transformers computes (`tests/models/README.md`).
#![allow(clippy::unwrap_used)]

mod blocks;
mod gguf;
mod golden;
mod ops;
mod real;
mod tiny;
