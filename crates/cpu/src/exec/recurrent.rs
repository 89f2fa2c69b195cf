//! Running recurrent layers: the products of all inputs at once, those of the state step by step.

use thane_kernels::Weight;
use thane_kernels::activation::{Unary, unary_in_place};
use thane_kernels::linear::{Epilogue, Product, Start};
use thane_mil::types::DType;

use super::Frame;
use crate::ops::Fault;
use crate::step::{Cell, CellKind, Recurrent, Source};
use crate::tensor::{Tensor, floats, floats_mut};
use crate::weight::Demand;

/// Sizes of a layer: steps, sequences, and elements of a state.
#[derive(Clone, Copy)]
struct Sizes {
    n_steps: usize,
    batch: usize,
    hidden: usize,
}

impl Frame<'_> {
    pub fn recurrent(&mut self, layer: &Recurrent) -> Result<Vec<Tensor>, Fault> {
        let x = self.get(layer.x)?.clone();
        let &[n_steps, batch, _] = x.shape.as_slice() else {
            return Err("`x` is not of rank 3".to_owned());
        };
        let hidden = layer.cells[0].state.stored.n_cols;
        let sizes = Sizes {
            n_steps,
            batch,
            hidden,
        };
        let width = hidden * layer.cells.len();
        let initial = layer.states.iter().map(|s| self.source(s));
        let mut states: Vec<Tensor> = initial.collect::<Result<_, _>>()?;
        if states.iter().any(|s| s.shape != [batch, width]) {
            return Err(format!("the states are not [{batch}, {width}]"));
        }
        let n_kept = if layer.output_sequence { n_steps } else { 1 };
        let mut sequence = self.pool.tensor(DType::Fp32, vec![n_kept, batch, width])?;
        for (idx, cell) in layer.cells.iter().enumerate() {
            let own = states.iter().map(|s| part(s, idx * hidden, hidden));
            let mut own: Vec<Vec<f32>> = own.collect::<Result<_, _>>()?;
            let out = floats_mut(&mut sequence, self.pool)?;
            let mut keep = |step: usize, place: usize, h: &[f32]| {
                let row = match (layer.output_sequence, layer.is_in_place) {
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
            if !layer.output_sequence {
                keep(0, 0, &own[0]);
            }
            self.run_cell(layer.kind, cell, &x, sizes, &mut own, keep)?;
            for (state, own) in states.iter_mut().zip(&own) {
                let to = floats_mut(state, self.pool)?;
                put(own, to, idx * hidden, hidden);
            }
        }
        Ok([vec![sequence], states].concat())
    }

    fn source(&self, source: &Source) -> Result<Tensor, Fault> {
        match source {
            Source::Value(v) => self.get(*v).cloned(),
            Source::Constant(tensor) => Ok(tensor.clone()),
        }
    }

    /// All steps of one direction; `keep` is told of the state after each, with its number and its
    /// place in x.
    fn run_cell(
        &mut self,
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
        let (mut gates, n) = self.pool.take_checked(&[n_rows, n_gates])?;
        let start = Start {
            bias: cell.input_bias.as_ref().and_then(Tensor::f32s),
            accumulates: false,
        };
        let operand = cell.input.operand(self.context, Demand::Stored);
        let mut products = [Product::new(operand, n_rows, start, &mut gates[..n])];
        self.multiply(&mut products, (floats(x)?, n_rows), Epilogue::None)?;
        let mut work = self.pool.take(2 * batch * n_gates)?;
        for step in 0..n_steps {
            let place = if cell.is_reverse {
                n_steps - 1 - step
            } else {
                step
            };
            let gates = &mut gates[place * batch * n_gates..][..batch * n_gates];
            match kind {
                CellKind::Lstm => self.lstm_step(cell, gates, states, sizes)?,
                CellKind::Gru { resets_after } => {
                    self.gru_step(cell, (gates, &mut work), states, sizes, resets_after)?;
                }
            }
            keep(step, place, &states[0]);
        }
        self.pool.give_f32(work);
        self.pool.give_f32(gates);
        Ok(())
    }

    fn lstm_step(
        &mut self,
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
        let operand = cell.state.operand(self.context, Demand::Stored);
        let mut products = [Product::new(operand, sizes.batch, start, &mut *gates)];
        self.multiply(&mut products, (h, sizes.batch), Epilogue::None)?;
        let rows = gates.chunks_exact_mut(4 * n);
        for ((gates, h), c) in rows.zip(h.chunks_exact_mut(n)).zip(c.chunks_exact_mut(n)) {
            // Input, forget and output gates, then what is put in.
            let (opening, put_in) = gates.split_at_mut(3 * n);
            unary_in_place(self.context, Unary::Sigmoid, opening);
            unary_in_place(self.context, Unary::Tanh, put_in);
            let (input, rest) = opening.split_at(n);
            let (forget, output) = rest.split_at(n);
            for i in 0..n {
                c[i] = forget[i] * c[i] + input[i] * put_in[i];
            }
            h.copy_from_slice(c);
            unary_in_place(self.context, Unary::Tanh, h);
            h.iter_mut().zip(output).for_each(|(h, o)| *h *= o);
        }
        Ok(())
    }

    fn gru_step(
        &mut self,
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
        let operand = cell.state.operand(self.context, Demand::Stored);
        let start = Start {
            bias,
            accumulates: false,
        };
        let mut products = [Product::new(operand, batch, start, &mut *of_state)];
        self.multiply(&mut products, (h, batch), Epilogue::None)?;
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
                unary_in_place(self.context, Unary::Sigmoid, gates);
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
            self.multiply(
                &mut products,
                (&reset[..batch * hidden], batch),
                Epilogue::None,
            )?;
            reset[..batch * hidden].copy_from_slice(to);
        }
        let rows = gates.chunks_exact_mut(n_gates);
        for (gates, (h, reset)) in
            rows.zip(h.chunks_exact_mut(hidden).zip(reset.chunks_exact(hidden)))
        {
            let (put_in, update) = gates[hidden..].split_at_mut(hidden);
            put_in.iter_mut().zip(reset).for_each(|(p, r)| *p += r);
            unary_in_place(self.context, Unary::Tanh, put_in);
            for i in 0..hidden {
                h[i] = (1.0 - update[i]) * put_in[i] + update[i] * h[i];
            }
        }
        Ok(())
    }
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
