//! Integration tests of the crate, in one binary: each module is one subject.

#![allow(clippy::unwrap_used)] // helpers of tests, which clippy does not know as such

mod checkpoint;
mod families;
mod quant;
