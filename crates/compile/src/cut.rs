//! Takes some ops out of a program as a program of their own: what they need becomes inputs, what
//! nobody of them uses outputs.
//!
//! Constants come along with the ops that use them. Inputs are named after the values that they
//! stand for.

use std::collections::HashSet;

use thane_mil::build::BuildError;
use thane_mil::copy::Copier;
use thane_mil::program::{BlockId, Function, Op, OpId, ValueId};

/// A function of some ops of the body of another, in their order; constants need not be named.
/// Nothing where no op is left or none of them makes a value.
pub fn cut(f: &Function, ops: &HashSet<OpId>) -> Option<Result<Function, BuildError>> {
    let kept: Vec<OpId> = f
        .body()
        .ops
        .iter()
        .copied()
        .filter(|id| ops.contains(id) && !is_constant(f.op(*id)))
        .collect();
    let used: HashSet<ValueId> = kept.iter().flat_map(|id| f.uses(*id)).collect();
    let of_original: HashSet<ValueId> = f.body().outputs.iter().copied().collect();
    let made: Vec<ValueId> = kept
        .iter()
        .flat_map(|id| f.op(*id).results.iter().copied())
        .collect();
    let is_tensor = |v: &ValueId| f.value(*v).ty.tensor().is_some();
    let mut outputs: Vec<ValueId> = made
        .iter()
        .copied()
        .filter(|v| is_tensor(v) && (!used.contains(v) || of_original.contains(v)))
        .collect();
    if outputs.is_empty() {
        outputs = made.iter().copied().rfind(is_tensor).into_iter().collect();
    }
    if outputs.is_empty() {
        return None;
    }
    Some(copied(f, &kept).map(|copier| {
        let outputs = outputs.iter().map(|v| {
            let new = copier.get(*v).expect("every output is copied");
            (f.value(*v).name.as_str(), new)
        });
        let outputs: Vec<(&str, ValueId)> = outputs.collect();
        let mut cut = copier.to.finish_under(&outputs);
        // They are about the inputs of the whole function.
        cut.attributes.clear();
        cut
    }))
}

/// Whether an op is a constant, compressed ones included.
pub fn is_constant(op: &Op) -> bool {
    op.def.is_constexpr()
}

fn copied<'a>(f: &'a Function, kept: &[OpId]) -> Result<Copier<'a>, BuildError> {
    let mut copier = Copier::new(f);
    let made: HashSet<ValueId> = kept
        .iter()
        .flat_map(|id| f.op(*id).results.iter().copied())
        .collect();
    // Inputs first: a function has them before its ops.
    let inner: HashSet<ValueId> = kept.iter().flat_map(|id| inner_values(f, *id)).collect();
    for value in kept.iter().flat_map(|id| f.uses(*id)) {
        let from_outside =
            !made.contains(&value) && !inner.contains(&value) && copier.get(value).is_none();
        if from_outside && !f.definer(value).is_some_and(is_constant) {
            copier.input(value, f.value(value).ty.clone());
        }
    }
    kept.iter().try_for_each(|id| copier.copy(*id))?;
    Ok(copier)
}

/// The values that the blocks of an op define.
fn inner_values(f: &Function, id: OpId) -> Vec<ValueId> {
    let mut values = Vec::new();
    let mut open: Vec<BlockId> = f.op(id).blocks.clone();
    while let Some(block) = open.pop() {
        values.extend(&f.block(block).inputs);
        for op in &f.block(block).ops {
            values.extend(&f.op(*op).results);
            open.extend(&f.op(*op).blocks);
        }
    }
    values
}
