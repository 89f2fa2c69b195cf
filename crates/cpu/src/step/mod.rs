//! What a plan is made of. Planning makes it and running reads it; neither is known here.

mod fused;

pub use fused::{
    Cached, Cell, CellKind, Conv, DeltaRule, Experts, Fused, Heads, Kept, Kernels, Part, Past,
    PastAttention, Product, Recurrent, RowsAttention, Source, StateUpdate, Then,
};
use thane_mil::program::{Function, OpId, ValueId};
use thane_mil::types::TensorType;

use crate::declared::Defined;
use crate::list;
use crate::ops::random::is_random;
use crate::plain::{Plain, values};
use crate::tensor::Tensor;

/// What one step computes. Operands are values of the function.
#[derive(Debug)]
pub enum Kind {
    /// A plain op function.
    Plain(Plain),
    /// The elements as they are, in another shape.
    View(Plain),
    /// `x + y`, in place of x where nothing else needs it.
    Add(Plain, ValueId, ValueId),
    /// What a state holds.
    Read(usize),
    /// Set a state; the result is what was written.
    Write(usize, ValueId),
    /// A kernel in place of several ops.
    Fused(Fused),
    /// One branch or the other.
    Cond(ValueId, [Branch; 2]),
    /// While the first branch gives true of the variables, what the second makes of them.
    Loop(Vec<ValueId>, [Branch; 2]),
    /// The greatest of that many probabilities, and the probabilities.
    Classify(ValueId, usize),
    /// An op on a list.
    List(list::Step),
}

/// A nested block.
#[derive(Debug)]
pub struct Branch {
    /// What it is given.
    pub inputs: Vec<ValueId>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// What it gives.
    pub outputs: Vec<ValueId>,
}

/// One step.
#[derive(Debug)]
pub struct Step {
    /// What it computes.
    pub kind: Kind,
    /// The op that it stands for, to name in errors.
    pub op: OpId,
    /// The values that it defines.
    pub results: Vec<Defined>,
    /// Values that no later step uses.
    pub last_uses: Vec<ValueId>,
}

/// A function ready to run.
#[derive(Debug)]
pub struct Plan {
    /// The function, for names and types.
    pub function: Function,
    /// Tensor inputs.
    pub inputs: Vec<(String, ValueId, TensorType)>,
    /// States by the index that steps name them with.
    pub states: Vec<(String, TensorType)>,
    /// Where they are among those of all plans.
    pub state_idx: Vec<usize>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Constants that are outputs, or written to a state.
    pub constants: Vec<(ValueId, Tensor)>,
}

impl Plan {
    /// The steps up to the last that may write a state, or draws a random number, of which those
    /// of later calls depend.
    pub fn steps_for_states(&self) -> &[Step] {
        let matters = |step: &Step| match &step.kind {
            Kind::Write(..) | Kind::Cond(..) | Kind::Loop(..) => true,
            Kind::Fused(fused) => fused.writes_states(),
            Kind::Plain(_)
            | Kind::View(_)
            | Kind::Add(..)
            | Kind::Read(_)
            | Kind::Classify(..)
            | Kind::List(_) => is_random(self.function.op(step.op).def),
        };
        let n = self.steps.iter().rposition(matters).map_or(0, |at| at + 1);
        &self.steps[..n]
    }
}

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
pub fn in_slots(steps: &[Step], out: &mut Vec<ValueId>) {
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
