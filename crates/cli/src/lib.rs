//! The verbs of the `thane` command and what they share: flags, terminal output, exit codes.
//!
//! `main.rs` has the command line.

#[macro_use]
pub mod exit;

pub mod app;
mod audit;
mod begun;
mod calibrate;
mod call;
mod chat;
pub mod cmd;
mod codes;
mod compress;
pub mod config;
mod decoder_inputs;
mod embed;
mod encodings;
mod foreign;
mod form;
pub mod grammars;
mod hub;
mod image;
pub mod interrupt;
mod memory;
mod model;
mod npy;
mod out;
pub mod output;
mod overflow;
mod planned;
mod profile;
mod push;
mod remote;
mod rewritten;
mod runtime;
mod sampling;
pub mod screen;
mod serve;
mod small;
mod source;
mod structure;
mod talk;
mod tensors;
pub mod variables;
