//! What passes and fixes ask of a function beside its [`Graph`](thane_mil::graph::Graph): which
//! values stand for others.

use thane_mil::edit::{New, Patch};
use thane_mil::graph::count_uses;
use thane_mil::program::{Definition, Function, Op, OpId, ValueId};
use thane_mil::types::Type;

use crate::pass::Outcome;

/// An op and the first value that it makes, for messages.
pub fn label(f: &Function, op: OpId) -> String {
    let op = f.op(op);
    match op.results.first() {
        Some(r) => format!("{} `{}`", op.def.name, f.value(*r).name),
        None => op.def.name.to_owned(),
    }
}

/// Values that stand for others, as a pass finds them one after the other.
pub struct Aliases<'a> {
    f: &'a Function,
    n_uses: Vec<u32>,
    targets: Vec<Option<ValueId>>,
    is_output: Vec<bool>,
}

impl<'a> Aliases<'a> {
    /// No value of the function stands for another yet.
    pub fn new(f: &'a Function) -> Self {
        let mut is_output = vec![false; f.n_values()];
        f.body()
            .outputs
            .iter()
            .for_each(|v| is_output[v.index()] = true);
        Self {
            f,
            n_uses: count_uses(f),
            targets: vec![None; f.n_values()],
            is_output,
        }
    }

    /// What stands for `value`: itself, where nothing else does.
    pub fn resolve(&self, value: ValueId) -> ValueId {
        self.targets[value.index()].unwrap_or(value)
    }

    /// Whether a result of `op` is an output, and `value` has further uses than by `op`.
    pub fn is_shared_output(&self, op: &Op, value: ValueId) -> bool {
        let is_output = op.results.iter().any(|r| self.is_output[r.index()]);
        is_output && self.n_uses[self.resolve(value).index()] > 1
    }

    /// Let the values `to` stand for the results of `op`, in order, and remove it.
    pub fn replace(&mut self, id: OpId, op: &Op, to: &[ValueId]) -> Outcome {
        if op.results.iter().all(|r| self.n_uses[r.index()] == 0) {
            return Outcome::NoEffect;
        }
        let to: Vec<ValueId> = to.iter().map(|v| self.resolve(*v)).collect();
        let ty = |v: &ValueId| &self.f.value(*v).ty;
        if !op
            .results
            .iter()
            .zip(&to)
            .all(|(from, to)| are_interchangeable(ty(from), ty(to)))
        {
            return Outcome::Refused("the declared type of one says more than that of the other");
        }
        let outputs = || {
            op.results
                .iter()
                .zip(&to)
                .filter(|(from, _)| self.is_output[from.index()])
        };
        if outputs().any(|(_, to)| matches!(self.f.value(*to).definition, Definition::Input(_))) {
            return Outcome::Refused("it makes an output, which an input cannot be");
        }
        // Two results of one op that become one output are not two, so one look before any is moved
        // will not do.
        let mut taken: Vec<ValueId> = outputs().map(|(_, to)| *to).collect();
        let n_taken = taken.len();
        taken.sort_unstable();
        taken.dedup();
        if taken.len() < n_taken || taken.iter().any(|to| self.is_output[to.index()]) {
            return Outcome::Refused("it makes an output, and what it equals is another");
        }
        taken
            .iter()
            .for_each(|to| self.is_output[to.index()] = true);
        let mut patch = Patch::new();
        for (from, to) in op.results.iter().zip(to) {
            self.targets[from.index()] = Some(to);
            patch.replace(*from, New::Value(to));
        }
        patch.remove(id);
        Outcome::Applied(patch)
    }
}

/// Whether inference finds the same from one type as from the other: what is known is equal, and
/// known of both.
fn are_interchangeable(a: &Type, b: &Type) -> bool {
    match (a.tensor(), b.tensor()) {
        (Some(s), Some(t)) => {
            a.compatible(b)
                && s.shape
                    .iter()
                    .zip(&t.shape)
                    .all(|(x, y)| x.known() == y.known())
        }
        _ => a == b,
    }
}
