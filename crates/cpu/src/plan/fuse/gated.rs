//! `op(gate) * up`.

use thane_kernels::activation::{Unary, gated as multiply};

use super::{
    Facts, Fault, Frame, Kernel, OpId, Pattern, Planner, Step, Tensor, ValueId, activation, floats,
    floats_mut, is_float32, one,
};

pub(super) const PATTERNS: &[Pattern] = &[Pattern::new("gated", &["mul"], |p, root| {
    let (id, gate, up, op) = gated(p, root)?;
    one(root, vec![id], Gated { gate, up, op })
})];

#[derive(Debug)]
struct Gated {
    gate: ValueId,
    up: ValueId,
    op: Unary,
}

/// The activation, its gate, `up` and how of `mul(silu(gate), up)` or `mul(gelu(gate), up)`.
pub(super) fn gated(p: &Planner<'_>, root: OpId) -> Option<(OpId, ValueId, ValueId, Unary)> {
    let op = p.f.op(root);
    let (active, up) = (op.value_arg("x")?, op.value_arg("y")?);
    let id = p.definer(active)?;
    let (gate, unary) =
        activation(p, id).filter(|(_, unary)| !matches!(unary, Unary::Relu | Unary::Relu6))?;
    let fits = p.f.value(gate).ty == p.f.value(up).ty && is_float32(p, gate);
    fits.then_some((id, gate, up, unary))
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
