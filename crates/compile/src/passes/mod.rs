//! One file a pass; its doc is a program before and after, which a test runs.

pub mod eliminate_dead_code;
pub mod eliminate_noops;
pub mod merge_identical_ops;
