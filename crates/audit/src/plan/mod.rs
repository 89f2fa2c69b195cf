//! Choices that are made before a program is written, by what they would cost.
//!
//! [`bucket`] chooses the lengths that get a function of their own, [`chunk`] where a model is cut
//! into programs, [`cost`] says what a call of some length costs on a chip, and [`stream`] what one
//! product with weights takes. None runs anything. Start reading at [`bucket::plan`].

pub mod bucket;
pub mod chunk;
pub mod cost;
pub mod stream;
