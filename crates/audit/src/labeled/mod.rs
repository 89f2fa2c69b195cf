//! Rules and predictions against what others measured and published.
//!
//! [`placement`] makes a program of each published single-op probe and compares what the rules say
//! of it. The data lies in `data`; this crate reads no files, so whoever asks hands the text
//! over.

mod argument;
mod call;
pub mod csv;
mod defaults;
pub mod measurements;
mod notation;
pub mod placement;
pub mod score;
mod sizes;

pub use call::CallError;
