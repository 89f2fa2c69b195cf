//! What the command `thane` is made of. `main.rs` has the command line; this is a library so that
//! the fuzz targets reach the readers of what comes from outside: [`rows`] (texts to embed) and
//! [`hub`] (what a server answers).

pub mod app;
mod audit;
mod chat;
pub mod cmd;
mod contract;
mod embed;
pub mod exit;
mod form;
pub mod hub;
pub mod interrupt;
mod language;
mod model;
mod npy;
mod out;
pub mod output;
mod overflow;
mod packaging;
mod profile;
mod sampling;
pub mod screen;
mod source;
mod talk;
mod tensors;
pub mod twins;

pub use embed::rows;
