//! What steps read.

use thane_mil::program::ValueId;

use super::{Branch, Kind, Step};
use crate::plain::values;

/// The run-time values that a step reads.
pub fn operands(kind: &Kind) -> Vec<ValueId> {
    match kind {
        Kind::Plain(plain) | Kind::View(plain) | Kind::Add(plain, ..) => values(&plain.args),
        Kind::List(list) => values(&list.args),
        Kind::Read(_) => Vec::new(),
        Kind::Write(_, value) | Kind::Classify(value, _) => vec![*value],
        Kind::Fused(fused) => fused.operands(),
        Kind::Cond(pred, branches) => branches.iter().flat_map(captured).chain([*pred]).collect(),
        Kind::Loop(vars, branches) => branches
            .iter()
            .flat_map(captured)
            .chain(vars.iter().copied())
            .collect(),
    }
}

/// The run-time values that a branch reads, its own included.
fn captured(branch: &Branch) -> Vec<ValueId> {
    branch
        .steps
        .iter()
        .flat_map(|s| operands(&s.kind))
        .chain(branch.outputs.iter().copied())
        .collect()
}

/// The values that steps take from their slots whether they are constant or not.
pub(super) fn in_slots(steps: &[Step], out: &mut Vec<ValueId>) {
    for step in steps {
        let branches = match &step.kind {
            Kind::Write(_, value) | Kind::Classify(value, _) => {
                out.push(*value);
                continue;
            }
            Kind::Cond(pred, branches) => {
                out.push(*pred);
                branches
            }
            Kind::Loop(vars, branches) => {
                out.extend(vars);
                branches
            }
            _ => continue,
        };
        for branch in branches {
            out.extend(&branch.outputs);
            in_slots(&branch.steps, out);
        }
    }
}
