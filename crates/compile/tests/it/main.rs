//! Passes over small programs and over models, and the driver that applies them.
#![allow(clippy::unwrap_used)]

mod bisect;
mod cases;
mod compressed;
mod driver;
mod faults;
mod fixes;
mod grown;
mod interface;
mod machine;
mod measurements;
mod models;
mod place;
mod placement;
mod plan;
mod rough;
mod rules;
