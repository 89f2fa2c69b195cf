//! Finds states that decay: those of linear attention and state-space layers, unlike caches of keys
//! and values.

use thane_mil::program::{Function, Op, ValueId};

use super::query::gives_state;
use crate::view::View;

/// Ops that move numbers and compute none.
const MOVES: [&str; 12] = [
    "reshape",
    "transpose",
    "squeeze",
    "expand_dims",
    "cast",
    "identity",
    "slice_by_index",
    "slice_by_size",
    "slice_update",
    "split",
    "concat",
    "stack",
];

/// The ops that compute what a value holds, seen through those that only move it; of the first 64.
fn computed_by<'a>(v: &View<'a>, value: ValueId) -> Vec<&'a Op> {
    let f: &'a Function = v.f;
    let mut values = vec![value];
    let mut found = Vec::new();
    for _ in 0..64 {
        let Some(op) = values.pop().and_then(|value| f.definer(value)) else {
            if values.is_empty() {
                break;
            }
            continue;
        };
        if MOVES.contains(&op.def.name) {
            values.extend(op.uses().filter(|u| !v.is_constant(*u)).take(64));
        } else {
            found.push(op);
        }
    }
    found
}

/// Whether a value is what a state held, times a decay, plus something.
pub fn is_recurrent(v: &View<'_>, value: ValueId) -> bool {
    let held = |u: ValueId| computed_by(v, u).iter().any(|d| gives_state(d.def.name));
    let is_decay = |u: ValueId| {
        let gates = ["exp", "exp2", "sigmoid"];
        v.is_fixed(u)
            || computed_by(v, u)
                .iter()
                .any(|d| gates.contains(&d.def.name))
    };
    let decays = |op: &&Op| {
        let (x, y) = (op.value_arg("x"), op.value_arg("y"));
        let by =
            |a: Option<ValueId>, b: Option<ValueId>| a.is_some_and(held) && b.is_none_or(is_decay);
        op.def.name == "mul" && (by(x, y) || by(y, x))
    };
    computed_by(v, value)
        .iter()
        .filter(|op| matches!(op.def.name, "add" | "sub"))
        .flat_map(|op| op.uses())
        .any(|u| computed_by(v, u).iter().any(decays))
}
