//! What a program is.
//!
//! A [`Program`](program::Program) is a set of functions over shared constants, in the terms of
//! Apple's MIL: ops of a versioned [`opset`], tensors of [`types`], constants whose bytes are
//! [`data`] mapped from a checkpoint. Start reading at [`program`]; then [`build`] makes one,
//! [`valid`] judges it, [`edit`] changes it, [`lower`] takes it to older systems, [`text`] prints
//! and parses it, [`package`] keeps it on disk, and [`backend`] says what it means to run one.
//!
//! This crate knows nothing of checkpoints, model families, devices or tokens, and does I/O in
//! [`package`] only.
#![deny(missing_docs)]

pub mod backend;
pub mod budget;
pub mod build;
pub mod data;
pub mod edit;
pub mod literal;
pub mod lower;
pub mod opset;
pub mod package;
pub mod program;
pub mod proof;
pub mod text;
pub mod types;
pub mod valid;
