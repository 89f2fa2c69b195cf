//! Chooses forms of a program by predicted time, before the program is written.
//!
//! [`bucket`] chooses the lengths that get a function of their own, [`chunk`] chooses where a
//! model is cut into programs, [`mod@form`] chooses the form of a decoder, and [`stream`] predicts
//! the time of one product with weights. Nothing here runs a program. Start reading at
//! [`bucket::plan`].

pub mod bucket;
pub mod chunk;
pub mod form;
pub mod stream;
pub mod times;
