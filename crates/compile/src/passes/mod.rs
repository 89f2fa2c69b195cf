//! One file for each pass. Its doc has a program before and after, which a test runs.

pub mod eliminate_dead_code;
pub mod eliminate_noops;
pub mod merge_identical_ops;
pub mod merge_slices;
