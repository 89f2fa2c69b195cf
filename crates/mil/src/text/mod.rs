//! MIL text, as Apple's compiler prints it.
//!
//! The printed form is that of `model.mil` in a compiled model folder: [`print()`] writes it,
//! [`parse()`] reads it. Constants that a package would keep in its weight file are printed as
//! `BLOBFILE(..)`; [`Blobs`] says which constant each offset stands for. Apple's text has one
//! spelling, `?`, for every symbolic dimension; each `?` of an input reads as a symbol of its own,
//! and those of other values follow by type inference.

mod error;
mod lex;
mod lines;
mod literals;
mod number;
mod parse;
mod parser;
mod print;

pub use error::ParseError;
pub use lines::{Lines, lines};
pub use number::float;
pub use parse::parse;
pub use print::{Blobs, Notes, WEIGHT_PATH, print, print_with};
