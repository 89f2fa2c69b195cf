//! MIL text, in the form that Apple's compiler prints.
//!
//! The text form is that of `model.mil` in a compiled model folder: [`print()`] writes it,
//! [`parse()`] reads it. Constants that a package would keep in its weight file are printed as
//! `BLOBFILE(..)`; [`Blobs`] maps each offset to its constant.
//!
//! Apple's text spells every symbolic dimension `?`. Each `?` in the type of an input becomes a
//! symbol of its own; type inference determines the symbols of all other values.

mod error;
mod lex;
mod lines;
mod literals;
mod memory;
mod number;
mod parse;
mod parser;
mod print;

pub use error::ParseError;
pub use lines::{Lines, lines};
pub(crate) use memory::parsed_bytes;
pub use number::float;
pub use parse::parse;
pub(crate) use parse::parse_watched;
pub use print::{Blobs, Notes, WEIGHT_PATH, print, print_with};
