//! Tests of programs in memory, as text and as packages.
#![allow(clippy::unwrap_used)]

mod hostile;
mod package;
mod program;
