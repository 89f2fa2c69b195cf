//! Scores rules and predictions on measurements that others published.
//!
//! [`placement`] builds a program for each published single-op probe and compares the rules'
//! answer with the label; [`plans`] compares where each op of a whole model runs; [`measurements`]
//! does the same for latencies; [`parameters`] lists the numbers of the model with what they were
//! chosen with; [`score`] makes the tables that users see. The data is in the folder `data` of this
//! crate.

mod argument;
mod call;
mod counts;
pub mod csv;
mod defaults;
pub mod measurements;
mod notation;
pub mod parameters;
pub mod placement;
pub mod plans;
mod power;
pub mod score;
mod shares;
mod sizes;
pub mod zoo;

pub use call::CallError;
