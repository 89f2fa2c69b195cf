//! The engine's text and sampling against goldens that `tests/make_goldens.py` made with other
//! people's libraries.

// Clippy's leave for tests ends at the helpers that tests call.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod chat;
mod data;
mod embed;
mod files;
mod hostile;
mod sample;
mod sessions;
mod small;
