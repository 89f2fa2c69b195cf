//! Removes ops whose results nothing uses.
//!
//! ```text
//! func f<ios18>(tensor<fp32, [4]> x, state<tensor<fp32, [4]>> s) {
//!     tensor<fp32, [4]> used = exp(x = x);
//!     tensor<fp32, [4]> unused = sin(x = used);
//!     tensor<fp32, [4]> unused_too = cos(x = unused);
//!     tensor<fp32, [4]> read = read_state(input = s);
//!     tensor<fp32, [4]> written = coreml_update_state(state = s, value = used);
//! } -> (used);
//! ```
//!
//! becomes
//!
//! ```text
//! func f<ios18>(tensor<fp32, [4]> x, state<tensor<fp32, [4]>> s) {
//!     tensor<fp32, [4]> used = exp(x = x);
//!     tensor<fp32, [4]> written = coreml_update_state(state = s, value = used);
//! } -> (used);
//! ```
//!
//! An op that writes a state is used by the next call. Inputs and states stay: they are what the
//! caller was promised.

use thane_mil::edit::Patch;
use thane_mil::graph::unused;
use thane_mil::program::Function;

use crate::pass::{Outcome, Pass, Site};

/// The pass.
pub const PASS: Pass = Pass {
    name: "eliminate_dead_code",
    run,
};

fn run(f: &Function) -> Vec<Site> {
    let site = |op| {
        let mut patch = Patch::new();
        patch.remove(op);
        let outcome = Outcome::Applied(patch);
        Site { op, outcome }
    };
    unused(f).into_iter().map(site).collect()
}
