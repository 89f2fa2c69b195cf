//! Rules and predictions against what others measured and published.

pub mod csv;
pub mod measurements;
