//! Recurrent layers with the activations that frameworks use: one product for all steps of the
//! input, and one for each step of the state.

use std::ops::Add;

use thane_kernels::Weight;
use thane_kernels::activation::{Unary, unary_in_place};
use thane_kernels::linear::{Epilogue, Product, Start};

use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "recurrent",
    pattern!([lstm, gru](x)),
    recurrent,
)];

/// A recurrent layer of x [steps, batch, elements].
#[derive(Debug)]
struct Recurrent {
    x: ValueId,
    /// The first hidden state, and that of the cell where there is one.
    states: Vec<Source>,
    kind: CellKind,
    /// One for each direction.
    cells: Vec<Cell>,
    /// Whether the results of steps stand where their inputs do, rather than in the order of the
    /// steps.
    is_in_place: bool,
    output_sequence: bool,
}

/// What a recurrent layer computes in a step.
#[derive(Debug, Clone, Copy)]
enum CellKind {
    /// Gates: input, forget, output, cell.
    Lstm,
    /// Gates: reset, output, update; whether the state is reset after its product.
    Gru { resets_after: bool },
}

/// The weights of one direction of a recurrent layer: products with the input and with the state.
#[derive(Debug)]
struct Cell {
    input: Matrix,
    state: Matrix,
    input_bias: Option<Tensor>,
    state_bias: Option<Tensor>,
    is_reverse: bool,
}

/// A value at run time, or part of the program.
#[derive(Debug)]
enum Source {
    Value(ValueId),
    Constant(Tensor),
}

/// Sizes of a layer: steps, sequences, and elements of a state.
#[derive(Clone, Copy)]
struct Sizes {
    n_steps: usize,
    batch: usize,
    hidden: usize,
}

fn recurrent(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let op = p.f.op(found.root);
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
    let x = found.value("x").filter(|x| is_float32(p, *x))?;
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
    one(found, layer)
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

impl Kernel for Recurrent {
    fn facts(&self) -> Facts<'_> {
        let states = self.states.iter().filter_map(|s| match s {
            Source::Value(v) => Some(*v),
            Source::Constant(_) => None,
        });
        Facts::new("recurrent layer", states.chain([self.x]))
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let x = frame.get(self.x)?.clone();
        let &[n_steps, batch, _] = x.shape.as_slice() else {
            return Err("`x` is not of rank 3".to_owned());
        };
        let hidden = self.cells[0].state.stored.n_cols;
        let sizes = Sizes {
            n_steps,
            batch,
            hidden,
        };
        let width = hidden * self.cells.len();
        let initial = self.states.iter().map(|s| source_of(frame, s));
        let mut states: Vec<Tensor> = initial.collect::<Result<_, _>>()?;
        if states.iter().any(|s| s.shape != [batch, width]) {
            return Err(format!("the states are not [{batch}, {width}]"));
        }
        let n_kept = if self.output_sequence { n_steps } else { 1 };
        let mut sequence = frame.pool.tensor(DType::Fp32, vec![n_kept, batch, width])?;
        for (idx, cell) in self.cells.iter().enumerate() {
            let own = states.iter().map(|s| part(s, idx * hidden, hidden));
            let mut own: Vec<Vec<f32>> = own.collect::<Result<_, _>>()?;
            let out = floats_mut(&mut sequence, frame.pool)?;
            let mut keep = |step: usize, place: usize, h: &[f32]| {
                let row = match (self.output_sequence, self.is_in_place) {
                    (false, _) => 0,
                    (true, true) => place,
                    (true, false) => step,
                };
                put(
                    h,
                    &mut out[row * batch * width..][..batch * width],
                    idx * hidden,
                    hidden,
                );
            };
            // Without steps the last state is the first.
            if !self.output_sequence {
                keep(0, 0, &own[0]);
            }
            run_cell(frame, self.kind, cell, &x, sizes, &mut own, keep)?;
            for (state, own) in states.iter_mut().zip(&own) {
                let to = floats_mut(state, frame.pool)?;
                put(own, to, idx * hidden, hidden);
            }
        }
        Ok([vec![sequence], states].concat())
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let rows: usize = frame.shape(self.x).iter().take(2).product();
        let weights = self
            .cells
            .iter()
            .flat_map(|cell| [&cell.input, &cell.state]);
        let works = weights.map(|w| frame.product_work((rows * w.stored.n_cols) as f64, w));
        works.fold(Work::default(), Add::add)
    }

    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        /// Sequences from which on a packed matrix is read faster, step by step.
        const PACKED_BATCH: usize = 3;
        let shape = suit.f.value(self.x).ty.tensor().map(|t| &t.shape);
        let batch = shape.and_then(|s| s.get(1)?.known()).unwrap_or(1);
        for cell in &mut self.cells {
            cell.input = suit.packed(&cell.input);
            if batch >= PACKED_BATCH {
                cell.state = suit.packed(&cell.state);
            }
        }
        Ok(())
    }
}

fn source_of(frame: &Frame<'_>, source: &Source) -> Result<Tensor, Fault> {
    match source {
        Source::Value(v) => frame.get(*v).cloned(),
        Source::Constant(tensor) => Ok(tensor.clone()),
    }
}

/// All steps of one direction; `keep` is told of the state after each, with its number and its
/// place in x.
fn run_cell(
    frame: &mut Frame<'_>,
    kind: CellKind,
    cell: &Cell,
    x: &Tensor,
    sizes: Sizes,
    states: &mut [Vec<f32>],
    mut keep: impl FnMut(usize, usize, &[f32]),
) -> Result<(), Fault> {
    let Sizes {
        n_steps,
        batch,
        hidden,
    } = sizes;
    let n_gates = cell.input.stored.n_rows;
    let n_rows = n_steps * batch;
    let expected = match kind {
        CellKind::Lstm => 4 * hidden,
        CellKind::Gru { .. } => 3 * hidden,
    };
    if n_gates != expected
        || cell.state.stored.n_rows != n_gates
        || x.shape.last() != Some(&cell.input.stored.n_cols)
    {
        return Err("the weights of a recurrent layer do not fit its input".to_owned());
    }
    let (mut gates, n) = frame.pool.take_checked(&[n_rows, n_gates])?;
    let start = Start {
        bias: cell.input_bias.as_ref().and_then(Tensor::f32s),
        accumulates: false,
    };
    let operand = cell.input.operand(frame.context, Demand::Stored);
    let mut products = [Product::new(operand, n_rows, start, &mut gates[..n])];
    frame.multiply(&mut products, (floats(x)?, n_rows), Epilogue::None)?;
    let mut work = frame.pool.take(2 * batch * n_gates)?;
    for step in 0..n_steps {
        let place = if cell.is_reverse {
            n_steps - 1 - step
        } else {
            step
        };
        let gates = &mut gates[place * batch * n_gates..][..batch * n_gates];
        match kind {
            CellKind::Lstm => lstm_step(frame, cell, gates, states, sizes)?,
            CellKind::Gru { resets_after } => {
                gru_step(frame, cell, (gates, &mut work), states, sizes, resets_after)?;
            }
        }
        keep(step, place, &states[0]);
    }
    frame.pool.give_f32(work);
    frame.pool.give_f32(gates);
    Ok(())
}

fn lstm_step(
    frame: &mut Frame<'_>,
    cell: &Cell,
    gates: &mut [f32],
    states: &mut [Vec<f32>],
    sizes: Sizes,
) -> Result<(), Fault> {
    let n = sizes.hidden;
    let [h, c] = states else {
        return Err("an LSTM has two states".to_owned());
    };
    let start = Start {
        bias: None,
        accumulates: true,
    };
    let operand = cell.state.operand(frame.context, Demand::Stored);
    let mut products = [Product::new(operand, sizes.batch, start, &mut *gates)];
    frame.multiply(&mut products, (h, sizes.batch), Epilogue::None)?;
    let rows = gates.chunks_exact_mut(4 * n);
    for ((gates, h), c) in rows.zip(h.chunks_exact_mut(n)).zip(c.chunks_exact_mut(n)) {
        // Input, forget and output gates, then what is put in.
        let (opening, put_in) = gates.split_at_mut(3 * n);
        unary_in_place(frame.context, Unary::Sigmoid, opening);
        unary_in_place(frame.context, Unary::Tanh, put_in);
        let (input, rest) = opening.split_at(n);
        let (forget, output) = rest.split_at(n);
        for i in 0..n {
            c[i] = forget[i] * c[i] + input[i] * put_in[i];
        }
        h.copy_from_slice(c);
        unary_in_place(frame.context, Unary::Tanh, h);
        h.iter_mut().zip(output).for_each(|(h, o)| *h *= o);
    }
    Ok(())
}

fn gru_step(
    frame: &mut Frame<'_>,
    cell: &Cell,
    (gates, work): (&mut [f32], &mut [f32]),
    states: &mut [Vec<f32>],
    sizes: Sizes,
    resets_after: bool,
) -> Result<(), Fault> {
    let Sizes { batch, hidden, .. } = sizes;
    let (h, n_gates) = (&mut states[0], 3 * hidden);
    let bias = cell.state_bias.as_ref().and_then(Tensor::f32s);
    let (of_state, reset) = work.split_at_mut(batch * n_gates);
    let operand = cell.state.operand(frame.context, Demand::Stored);
    let start = Start {
        bias,
        accumulates: false,
    };
    let mut products = [Product::new(operand, batch, start, &mut *of_state)];
    frame.multiply(&mut products, (h, batch), Epilogue::None)?;
    for (row, (gates, of_state)) in gates
        .chunks_exact_mut(n_gates)
        .zip(of_state.chunks_exact(n_gates))
        .enumerate()
    {
        // Reset and update gates; what is put in lies between.
        for at in [0, 2 * hidden] {
            let gates = &mut gates[at..at + hidden];
            let sums = gates.iter_mut().zip(&of_state[at..]);
            sums.for_each(|(gate, of_state)| *gate += of_state);
            unary_in_place(frame.context, Unary::Sigmoid, gates);
        }
        let h = &h[row * hidden..][..hidden];
        let to = &mut reset[row * hidden..][..hidden];
        let factors: &[f32] = if resets_after {
            &of_state[hidden..2 * hidden]
        } else {
            h
        };
        for i in 0..hidden {
            to[i] = gates[i] * factors[i];
        }
    }
    if !resets_after {
        // The state is reset before it is multiplied.
        let stored = cell.state.weight();
        let row_bytes = stored.bytes.len() / stored.n_rows.max(1);
        let middle = Weight {
            bytes: &stored.bytes[hidden * row_bytes..2 * hidden * row_bytes],
            n_rows: hidden,
            ..stored
        };
        let start = Start {
            bias: bias.map(|b| &b[hidden..2 * hidden]),
            accumulates: false,
        };
        let to = &mut of_state[..batch * hidden];
        let mut products = [Product::new(middle, batch, start, &mut *to)];
        frame.multiply(
            &mut products,
            (&reset[..batch * hidden], batch),
            Epilogue::None,
        )?;
        reset[..batch * hidden].copy_from_slice(to);
    }
    let rows = gates.chunks_exact_mut(n_gates);
    for (gates, (h, reset)) in rows.zip(h.chunks_exact_mut(hidden).zip(reset.chunks_exact(hidden)))
    {
        let (put_in, update) = gates[hidden..].split_at_mut(hidden);
        put_in.iter_mut().zip(reset).for_each(|(p, r)| *p += r);
        unary_in_place(frame.context, Unary::Tanh, put_in);
        for i in 0..hidden {
            h[i] = (1.0 - update[i]) * put_in[i] + update[i] * h[i];
        }
    }
    Ok(())
}

/// Elements of each row, `n` from `first` on.
fn part(rows: &Tensor, first: usize, n: usize) -> Result<Vec<f32>, Fault> {
    let width = rows.shape.last().copied().unwrap_or(1).max(1);
    let rows = floats(rows)?.chunks_exact(width);
    Ok(rows
        .flat_map(|row| &row[first..first + n])
        .copied()
        .collect())
}

/// The same, written.
fn put(values: &[f32], rows: &mut [f32], first: usize, n: usize) {
    let width = rows.len() / (values.len() / n.max(1)).max(1);
    let rows = rows.chunks_exact_mut(width.max(1));
    for (row, values) in rows.zip(values.chunks_exact(n.max(1))) {
        row[first..first + n].copy_from_slice(values);
    }
}
