//! Finds the places where a function can be cut.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use thane_mil::program::{Definition, Function, OpId, ValueId};

use super::Layer;
use crate::weight::Stored;

/// The layers of a function: runs of ops between places where at most `n_tensors` values go from
/// what is before to what is after, and no state is used on both sides. With each, its ops. Inputs
/// of the function are given to every program that uses them, and a constant counts in each layer
/// that uses it.
pub fn layers(f: &Function, n_tensors: usize) -> Vec<(Layer, Range<usize>)> {
    let ops = computing(f);
    let uses = Uses::of(f, &ops);
    let mut layers = Vec::new();
    let mut start = 0;
    let mut alive = Alive::default();
    for at in 0..ops.len() {
        alive.step(f, &uses, at);
        let is_last = at + 1 == ops.len();
        if is_last || alive.n_states == 0 && alive.n_tensors <= n_tensors {
            let (n_out, out_bytes) = if is_last {
                (0, 0.0)
            } else {
                (alive.n_tensors, alive.bytes)
            };
            let run = start..at + 1;
            let layer = Layer {
                n_ops: run.len(),
                n_out,
                out_bytes,
                ..own(f, &uses, &ops[run.clone()])
            };
            layers.push((layer, run));
            start = at + 1;
        }
    }
    layers
}

/// The ops of a function, constants left out.
pub fn computing(f: &Function) -> Vec<OpId> {
    let ops = f.body().ops.iter().copied();
    ops.filter(|op| !f.op(*op).def.is_constexpr()).collect()
}

/// Where values are needed.
struct Uses {
    /// For each op, the values that are used or made there first.
    first: Vec<Vec<ValueId>>,
    /// For each op, the values that are not used after it.
    last: Vec<Vec<ValueId>>,
    outputs: HashSet<ValueId>,
}

impl Uses {
    fn of(f: &Function, ops: &[OpId]) -> Self {
        let mut span: BTreeMap<ValueId, (usize, usize)> = BTreeMap::new();
        for (at, op) in ops.iter().enumerate() {
            for value in f.uses(*op).iter().chain(&f.op(*op).results) {
                span.entry(*value)
                    .and_modify(|s| s.1 = at)
                    .or_insert((at, at));
            }
        }
        let (mut first, mut last) = (vec![Vec::new(); ops.len()], vec![Vec::new(); ops.len()]);
        for (value, (from, to)) in span {
            first[from].push(value);
            last[to].push(value);
        }
        Self {
            first,
            last,
            outputs: f.body().outputs.iter().copied().collect(),
        }
    }
}

/// What is needed on both sides of a place.
#[derive(Default)]
struct Alive {
    n_tensors: usize,
    n_states: usize,
    bytes: f64,
}

impl Alive {
    /// Go past the op at a position.
    fn step(&mut self, f: &Function, uses: &Uses, at: usize) {
        for value in &uses.first[at] {
            self.count(f, *value, 1, 1.0);
        }
        for value in &uses.last[at] {
            self.count(f, *value, -1, -1.0);
        }
    }

    fn count(&mut self, f: &Function, value: ValueId, n: isize, sign: f64) {
        if f.value(value).ty.tensor().is_none() {
            self.n_states = self.n_states.saturating_add_signed(n);
        } else if is_made(f, value) {
            self.n_tensors = self.n_tensors.saturating_add_signed(n);
            self.bytes += sign * bytes(f, value);
        }
    }
}

/// Whether an op computes a value: neither an input nor a constant.
fn is_made(f: &Function, value: ValueId) -> bool {
    matches!(f.value(value).definition, Definition::Result(op, _) if !f.op(op).def.is_constexpr())
}

fn bytes(f: &Function, value: ValueId) -> f64 {
    let Some(t) = f.value(value).ty.tensor() else {
        return 0.0;
    };
    t.shape
        .iter()
        .map(|d| d.known().unwrap_or(1) as f64)
        .product::<f64>()
        * t.dtype.bits() as f64
        / 8.0
}

/// Weights of some ops, and inputs and outputs of the function that they have to do with.
fn own(f: &Function, uses: &Uses, ops: &[OpId]) -> Layer {
    let mut layer = Layer::default();
    let mut seen = HashSet::new();
    for op in ops {
        for value in f.uses(*op) {
            if !seen.insert(value) {
                continue;
            }
            match f.value(value).definition {
                Definition::Input(block) => layer.n_io += usize::from(block == Function::BODY),
                Definition::Result(by, _) if f.op(by).def.is_constexpr() => {
                    let bits = f
                        .value(value)
                        .ty
                        .tensor()
                        .map_or(16, |t| t.dtype.bits())
                        .max(1) as f64;
                    layer.weight_bytes += bytes(f, value) / bits * Stored::of(f, value).bits;
                }
                Definition::Result(..) => {}
            }
        }
        layer.n_io += f
            .op(*op)
            .results
            .iter()
            .filter(|r| uses.outputs.contains(r))
            .count();
    }
    layer
}
