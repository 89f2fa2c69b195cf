//! Passes over small programs and over models, and the driver that applies them.
#![allow(clippy::unwrap_used)]

mod activations;
mod cases;
mod compress;
#[path = "../../../../tests/support/decompress.rs"]
mod decompress;
mod driver;
mod machine;
mod models;
#[path = "../../../../tests/support/processor_time.rs"]
mod processor_time;
mod rough;
