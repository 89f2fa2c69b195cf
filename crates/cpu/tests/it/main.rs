//! Whole models on the CPU backend, against what transformers computes (`tests/models/README.md`).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod ane;
mod batch;
mod blocks;
mod classify;
mod control;
mod embed;
mod gguf;
mod golden;
mod hostile;
mod instance;
mod lists;
mod memory;
mod ops;
mod profile;
mod random;
mod real;
mod rerank;
mod spatial;
mod threads;
mod tiny;
mod topk;
mod torch;
