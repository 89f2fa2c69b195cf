//! Tokenizers, templates and sampling compared with goldens that `tests/make_goldens.py` makes with
//! other libraries.

// Clippy allows unwrap in tests but not in the helpers of tests.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod chat;
mod classes;
mod data;
mod embed;
mod files;
mod gguf_text;
mod hostile;
mod keys;
mod pages;
#[path = "../../../../tests/support/processor_time.rs"]
mod processor_time;
mod quality;
mod regexes;
mod sample;
mod schedule;
mod sessions;
mod small;
mod top;
mod whole;
