//! Whole models on the CPU backend, against what transformers computes (`tests/models/README.md`).
#![allow(clippy::unwrap_used)]

mod golden;
mod tiny;
