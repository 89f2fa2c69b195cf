//! Recurrent layers with the activations that frameworks use: one product for all steps of the
//! input, and one for each step of the state.

use thane_mil::program::{Arg, Op, OpId, ValueId};

use super::{Found, constant_arg, is_float32, matrix, one};
use crate::plan::Planner;
use crate::step::{Cell, CellKind, Fused, Recurrent, Source};
use crate::tensor::Tensor;

pub(super) fn recurrent(p: &mut Planner<'_>, root: OpId) -> Option<Vec<Found>> {
    let op = p.f.op(root);
    let is_lstm = op.def.name == "lstm";
    let text = |name: &str| p.f.literal_arg(op, name).and_then(|l| l.as_str());
    let has = |name: &str, all: &[&str]| {
        op.arg(name).is_none() || text(name).is_some_and(|t| all.contains(&t))
    };
    let flag = |name: &str| {
        p.f.literal_arg(op, name)
            .is_some_and(|l| l.to_ints() == Some(vec![1]))
    };
    let is_usual = has("recurrent_activation", &["sigmoid"])
        && has("activation", &["tanh"])
        && has("cell_activation", &["tanh"])
        && has("direction", &["forward", "reverse", "bidirectional"])
        && ["peephole", "peephole_back", "clip"]
            .iter()
            .all(|name| op.arg(name).is_none());
    let x = op.value_arg("x").filter(|x| is_float32(p, *x))?;
    if !is_usual {
        return None;
    }
    let direction = text("direction").unwrap_or("forward");
    let kind = match (is_lstm, flag("reset_after")) {
        (true, _) => CellKind::Lstm,
        (false, resets_after) => CellKind::Gru { resets_after },
    };
    let is_in_place = direction == "bidirectional";
    let output_sequence = flag("output_sequence");
    let mut cells = vec![cell(p, op, "", direction == "reverse")?];
    if is_in_place {
        cells.push(cell(p, op, "_back", true)?);
    }
    let mut states = vec![source(p, op, "initial_h")?];
    if is_lstm {
        states.push(source(p, op, "initial_c")?);
    }
    let layer = Recurrent {
        x,
        states,
        kind,
        cells,
        is_in_place,
        output_sequence,
    };
    one(root, Vec::new(), Fused::Recurrent(Box::new(layer)))
}

/// A value, or a constant.
fn source(p: &mut Planner<'_>, op: &Op, name: &str) -> Option<Source> {
    match op.arg(name)? {
        Arg::Value(v) => Some(match p.constant(*v) {
            Some(tensor) => Source::Constant(tensor),
            None => Source::Value(*v),
        }),
        _ => constant_arg(p, op, name)?.map(Source::Constant),
    }
}

/// The weights of one direction, whose names end in `suffix`.
fn cell(p: &mut Planner<'_>, op: &Op, suffix: &str, is_reverse: bool) -> Option<Cell> {
    let name = |base: &str| format!("{base}{suffix}");
    let weight = |p: &mut Planner<'_>, base: &str| {
        let value: ValueId = op.value_arg(&name(base))?;
        matrix(p, value).filter(|m| !m.stored.has_codes() && m.stored.n_cols > 0)
    };
    let (input, state) = (weight(p, "weight_ih")?, weight(p, "weight_hh")?);
    let bias = |p: &mut Planner<'_>, name: &str| match op.def.param_index(name) {
        None => Some(None),
        Some(_) => constant_arg(p, op, name),
    };
    let (own, of_input) = (bias(p, &name("bias"))?, bias(p, "input_bias")?);
    // The bias of an LSTM is that of the sum; a GRU has one for each product.
    let (input_bias, state_bias) = match op.def.name {
        "lstm" => (own, None),
        _ => (of_input, own),
    };
    let fits = |bias: &Option<Tensor>| bias.as_ref().is_none_or(|b| b.f32s().is_some());
    (fits(&input_bias) && fits(&state_bias)).then_some(Cell {
        input,
        state,
        input_bias,
        state_bias,
        is_reverse,
    })
}
