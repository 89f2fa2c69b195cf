//! A part of a state written in place: `coreml_update_state(s, slice_update(old, update))`, where
//! `old` is what the state holds and nothing needs it any more.

use std::sync::Arc;

use thane_kernels::f16::f32_to_f16_slice;

use super::*;
use crate::ops::slice::update_in_place;
use crate::tensor::Buffer;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "state_update",
    pattern!(coreml_update_state(state, write @ slice_update(old, update, begin, end))),
    state_update,
)];

/// `slice_update` of what a state holds.
#[derive(Debug)]
struct StateUpdate {
    state: usize,
    /// What the state held, as it was read.
    old: ValueId,
    update: ValueId,
    /// Whether `update` is fp32 and the state fp16.
    narrows: bool,
    begin: ValueId,
    end: ValueId,
    /// `begin_mask`, `end_mask` and `squeeze_mask`.
    masks: [Option<Tensor>; 3],
    /// Whether what is stored is a value that something reads.
    is_used: bool,
}

fn state_update(p: &mut Planner<'_>, mut found: Match<'_>) -> Option<Vec<Found>> {
    let [input, old, mut values] = found.values(["state", "old", "update"])?;
    let (root, write_id, write) = (found.root, found.maker("write")?, found.op("write")?);
    let old_id = p.maker(old)?;
    let made = p.f.op(old_id);
    let is_read = made.def.name == "read_state" && made.value_arg("input") == Some(input);
    let is_stored =
        made.def.name == "coreml_update_state" && made.value_arg("state") == Some(input);
    let place = |id: OpId| p.f.body().ops.iter().position(|op| *op == id);
    let between = place(old_id)?..place(root)?;
    let is_kept = p.users(input).iter().all(|user| {
        *user == old_id
            || p.f.op(*user).def.name == "read_state"
            || !place(*user).is_some_and(|at| between.contains(&at))
    });
    if !(is_read || is_stored) || !is_kept || !p.is_closed(root, &[write_id]) {
        return None;
    }
    let mask = |p: &mut Planner<'_>, name: &str| constant_arg(p, write, name);
    let stored = p.f.op(root).results[0];
    let narrowed = narrowed(p, values).filter(|(id, _)| p.is_closed(root, &[write_id, *id]));
    if let Some((id, wide)) = narrowed {
        found.ops.push(id);
        values = wide;
    }
    let update = StateUpdate {
        state: p.state(input)?,
        old,
        update: values,
        narrows: narrowed.is_some(),
        begin: found.value("begin")?,
        end: found.value("end")?,
        masks: [
            mask(p, "begin_mask")?,
            mask(p, "end_mask")?,
            mask(p, "squeeze_mask")?,
        ],
        is_used: p.is_output(stored) || !p.users(stored).is_empty(),
    };
    is_all(p, write, "stride", 1).then(|| one(found, update))?
}

impl Kernel for StateUpdate {
    fn facts(&self) -> Facts<'_> {
        Facts {
            writes_states: true,
            gives: self.is_used,
            in_place: Some(self.update),
            ..Facts::new(
                "update of state",
                [self.old, self.update, self.begin, self.end],
            )
        }
    }

    /// What it gives is the state, where something reads that.
    fn run(&self, frame: &mut Frame<'_>, step: &Step) -> Result<Vec<Tensor>, Fault> {
        // What was read is the state itself: it is written in place where nothing else holds it.
        if step.last_uses.contains(&self.old) {
            frame.slots[self.old.index()] = None;
        }
        let values = [self.update, self.begin, self.end].map(|v: ValueId| frame.get(v));
        let [values, begin, end] = values;
        let (mut values, begin, end) = (values?.clone(), values_of(begin?)?, values_of(end?)?);
        let masks = self.masks.each_ref();
        let masks = masks.map(|m| m.as_ref().and_then(Tensor::to_ints));
        if self.narrows {
            values = rounded_to_half(frame, &values)?;
        }
        let state = &mut *frame.states[self.state];
        update_in_place(frame.pool, state, &values, [begin, end], masks)?;
        if self.narrows {
            frame.pool.give(values);
        }
        let stored = self.is_used.then(|| frame.states[self.state].clone());
        Ok(stored.into_iter().collect())
    }
}

/// fp32 values in fp16.
fn rounded_to_half(frame: &mut Frame<'_>, values: &Tensor) -> Result<Tensor, Fault> {
    let mut halves = frame.pool.tensor(DType::Fp16, values.shape.clone())?;
    let (from, n) = (floats(values)?, values.len());
    match Arc::get_mut(&mut halves.data) {
        Some(Buffer::F16(to)) => f32_to_f16_slice(frame.context.isa(), from, &mut to[..n]),
        _ => return Err("a fresh buffer is shared".to_owned()),
    }
    Ok(halves)
}

fn values_of(bounds: &Tensor) -> Result<Vec<i64>, Fault> {
    bounds
        .to_ints()
        .ok_or_else(|| "the bounds of a slice are not integers".to_owned())
}
