//! `op(gate) * up`.

use thane_kernels::activation::{Unary, gated as multiply};

use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "gated",
    pattern!(mul(active @ (GATES)(gate), up)),
    |p, found| {
        let (gate, up, op) = gated(p, &found)?;
        one(found, Gated { gate, up, op })
    },
)];

/// What a gate is activated by.
pub(super) const GATES: &[&str] = &["gelu", "silu", "sigmoid", "tanh"];

#[derive(Debug)]
struct Gated {
    gate: ValueId,
    up: ValueId,
    op: Unary,
}

/// The gate, what it is multiplied with, and how it is activated.
pub(super) fn gated(p: &Planner<'_>, found: &Match<'_>) -> Option<(ValueId, ValueId, Unary)> {
    let [gate, up] = found.values(["gate", "up"])?;
    let (_, unary) = activation(p, found.maker("active")?)?;
    let fits = p.f.value(gate).ty == p.f.value(up).ty && is_float32(p, gate);
    fits.then_some((gate, up, unary))
}

impl Kernel for Gated {
    fn facts(&self) -> Facts<'_> {
        Facts::new("gated activation", [self.gate, self.up]).batched(
            vec![self.gate],
            Some(self.up),
            false,
        )
    }

    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        let up = frame.get(self.up)?.clone();
        let mut gate = frame.take(step, self.gate)?;
        if gate.shape != up.shape {
            return Err("gate and up differ in shape".to_owned());
        }
        let values = floats_mut(&mut gate, frame.pool)?;
        multiply(frame.context, self.op, values, floats(&up)?);
        Ok(vec![gate])
    }
}
