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
use thane_mil::program::{Function, OpId};

use crate::graph::{count_uses, touches_state};
use crate::pass::{Outcome, Pass, Site};

/// The pass.
pub const PASS: Pass = Pass {
    name: "eliminate_dead_code",
    run,
};

fn run(f: &Function) -> Vec<Site> {
    let mut n_uses = count_uses(f);
    let mut sites = Vec::new();
    // From the end, so that what only dead ops use is dead when it is reached.
    for &id in f.body().ops.iter().rev() {
        let op = f.op(id);
        if has_effect(f, id) || op.results.iter().any(|r| n_uses[r.index()] > 0) {
            continue;
        }
        f.uses(id).into_iter().for_each(|v| n_uses[v.index()] -= 1);
        let mut patch = Patch::new();
        patch.remove(id);
        sites.push(Site {
            op: id,
            outcome: Outcome::Applied(patch),
        });
    }
    sites
}

fn has_effect(f: &Function, op: OpId) -> bool {
    touches_state(f, op) && f.op(op).def.name != "read_state"
}
