//! The passes, in the order that a round applies them.
//!
//! A pass is a file in `passes/`, its line in `passes/mod.rs`, its line here, and
//! `tests/passes/<name>.mil`.

use crate::pass::Pass;
use crate::passes;

/// Every pass. Values that only no-ops set apart become identical, and what that leaves unused goes
/// last.
pub static PASSES: &[Pass] = &[
    passes::eliminate_noops::PASS,
    passes::merge_slices::PASS,
    passes::merge_identical_ops::PASS,
    passes::eliminate_dead_code::PASS,
];

/// The pass of that name.
pub fn find(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|p| p.name == name)
}
