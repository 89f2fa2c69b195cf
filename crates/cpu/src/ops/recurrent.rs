//! Recurrent layers, step by step. States are f64 between steps, and rounded where they are
//! results.

use super::{Call, Eval, Fault, f32_out};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[("gru", gru), ("lstm", lstm), ("rnn", rnn)];

type Activation = fn(f64) -> f64;

/// The function of that name, as the opset has it.
fn activation(call: &Call<'_>, param: &str, default: &str) -> Result<Activation, Fault> {
    Ok(match call.string(param).unwrap_or(default) {
        "tanh" | "scaled_tanh" => f64::tanh,
        "sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
        "hard_sigmoid" | "sigmoid_hard" => |x| (0.2 * x + 0.5).clamp(0.0, 1.0),
        "relu" => |x| if x < 0.0 { 0.0 } else { x },
        "linear" => |x| x,
        other => return Err(format!("`{param}` is `{other}`, which is no activation")),
    })
}

/// The weights of one direction; rows are gates of `n_hidden` each.
struct Weights<'a> {
    weight_ih: &'a [f32],
    weight_hh: &'a [f32],
    bias: Option<&'a [f32]>,
    n_in: usize,
    n_hidden: usize,
}

impl<'a> Weights<'a> {
    /// The weights whose parameters end in `suffix`.
    fn new(call: &Call<'a>, suffix: &str) -> Result<Self, Fault> {
        let name = |base: &str| format!("{base}{suffix}");
        let [_, n_in] = call.tensor(&name("weight_ih"))?.shape[..] else {
            return Err("`weight_ih` is no matrix".to_owned());
        };
        let [_, n_hidden] = call.tensor(&name("weight_hh"))?.shape[..] else {
            return Err("`weight_hh` is no matrix".to_owned());
        };
        let (weight_ih, weight_hh) = (
            call.f32s(&name("weight_ih"))?,
            call.f32s(&name("weight_hh"))?,
        );
        Ok(Self {
            weight_ih,
            weight_hh,
            bias: vector(call, &name("bias"))?,
            n_in,
            n_hidden,
        })
    }

    fn input(&self, row: usize, x: &[f32]) -> f64 {
        let weights = &self.weight_ih[row * self.n_in..][..self.n_in];
        weights
            .iter()
            .zip(x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum()
    }

    fn hidden(&self, row: usize, h: impl Iterator<Item = f64>) -> f64 {
        let weights = &self.weight_hh[row * self.n_hidden..][..self.n_hidden];
        weights.iter().zip(h).map(|(w, h)| f64::from(*w) * h).sum()
    }

    /// W_ih x + W_hh h + bias.
    fn gate(&self, row: usize, x: &[f32], h: &[f64]) -> f64 {
        self.input(row, x) + self.hidden(row, h.iter().copied()) + at(self.bias, row)
    }
}

/// The elements of a vector that may be left out.
fn vector<'a>(call: &Call<'a>, name: &str) -> Result<Option<&'a [f32]>, Fault> {
    if call.opt_tensor(name).is_some() {
        call.f32s(name).map(Some)
    } else {
        Ok(None)
    }
}

/// An element of a vector; what is left out is all zeros.
fn at(vector: Option<&[f32]>, i: usize) -> f64 {
    vector.map_or(0.0, |v| f64::from(v[i]))
}

/// How one direction of a layer goes over the sequence.
struct Direction {
    is_reverse: bool,
    /// Whether the results of steps stand where their inputs do, rather than in the order of the
    /// steps.
    is_in_place: bool,
    /// Where its states begin in those of both directions.
    offset: usize,
    n_hidden: usize,
}

impl Direction {
    /// The only direction of a layer.
    fn only(call: &Call<'_>, n_hidden: usize) -> Self {
        let is_reverse = call.string("direction") == Some("reverse");
        Self {
            is_reverse,
            is_in_place: false,
            offset: 0,
            n_hidden,
        }
    }

    /// Take all steps for each element of the batch. `step` changes the states: `initial_h`, and
    /// those after it.
    fn run(
        &self,
        call: &Call<'_>,
        initial: &[&str],
        out: &mut [Buffer],
        mut step: impl FnMut(&[f32], &mut [Vec<f64>]),
    ) -> Result<(), Fault> {
        let [seq, batch, n_in] = call.tensor("x")?.shape[..] else {
            return Err("`x` is not of rank 3".to_owned());
        };
        let x = call.f32s("x")?;
        let width = call.shape(1).last().copied().unwrap_or_default();
        let keeps = call.bool_or("output_sequence", false);
        let (sequence, finals) = out.split_first_mut().ok_or("there is no result")?;
        let sequence = f32_out(sequence, call.shape(0).iter().product())?;
        for b in 0..batch {
            let own = b * width + self.offset..b * width + self.offset + self.n_hidden;
            let first = |name: &&str| {
                Ok(call.f32s(name)?[own.clone()]
                    .iter()
                    .map(|v| f64::from(*v))
                    .collect())
            };
            let mut states = initial
                .iter()
                .map(first)
                .collect::<Result<Vec<Vec<f64>>, Fault>>()?;
            for t in 0..seq {
                if call.context.is_over() {
                    break;
                }
                let place = if self.is_reverse { seq - 1 - t } else { t };
                step(&x[(place * batch + b) * n_in..][..n_in], &mut states);
                if keeps {
                    let row = if self.is_in_place { place } else { t };
                    write(
                        &states[0],
                        &mut sequence[row * batch * width..][own.clone()],
                    );
                }
            }
            if !keeps {
                write(&states[0], &mut sequence[own.clone()]);
            }
            for (state, out) in states.iter().zip(finals.iter_mut()) {
                write(state, &mut f32_out(out, batch * width)?[own.clone()]);
            }
        }
        Ok(())
    }
}

fn write(state: &[f64], out: &mut [f32]) {
    out.iter_mut().zip(state).for_each(|(o, v)| *o = *v as f32);
}

fn rnn(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let weights = Weights::new(call, "")?;
    let act = activation(call, "activation", "tanh")?;
    Direction::only(call, weights.n_hidden).run(call, &["initial_h"], out, |x, states| {
        states[0] = (0..weights.n_hidden)
            .map(|j| act(weights.gate(j, x, &states[0])))
            .collect();
    })
}

fn gru(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let weights = Weights::new(call, "")?;
    let n = weights.n_hidden;
    let input_bias = vector(call, "input_bias")?;
    let resets_after = call.bool_or("reset_after", false);
    let recurrent = activation(call, "recurrent_activation", "sigmoid")?;
    let act = activation(call, "activation", "tanh")?;
    Direction::only(call, n).run(call, &["initial_h"], out, |x, states| {
        let h = &states[0];
        let gate = |row: usize| recurrent(weights.gate(row, x, h) + at(input_bias, row));
        let reset: Vec<f64> = (0..n).map(gate).collect();
        let next = (0..n).map(|j| {
            let (row, z) = (n + j, gate(2 * n + j));
            let bias = at(weights.bias, row);
            let hidden = if resets_after {
                reset[j] * (weights.hidden(row, h.iter().copied()) + bias)
            } else {
                weights.hidden(row, reset.iter().zip(h).map(|(r, h)| r * h)) + bias
            };
            (1.0 - z) * act(weights.input(row, x) + at(input_bias, row) + hidden) + z * h[j]
        });
        states[0] = next.collect();
    })
}

fn lstm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    if call.string("direction") != Some("bidirectional") {
        let n_hidden = Weights::new(call, "")?.n_hidden;
        return lstm_direction(call, "", &Direction::only(call, n_hidden), out);
    }
    for (suffix, is_reverse) in [("", false), ("_back", true)] {
        let n_hidden = Weights::new(call, suffix)?.n_hidden;
        let offset = if is_reverse { n_hidden } else { 0 };
        lstm_direction(
            call,
            suffix,
            &Direction {
                is_reverse,
                is_in_place: true,
                offset,
                n_hidden,
            },
            out,
        )?;
    }
    Ok(())
}

fn lstm_direction(
    call: &Call<'_>,
    suffix: &str,
    direction: &Direction,
    out: &mut [Buffer],
) -> Result<(), Fault> {
    let weights = Weights::new(call, suffix)?;
    let n = weights.n_hidden;
    let peephole = vector(call, &format!("peephole{suffix}"))?;
    let recurrent = activation(call, "recurrent_activation", "sigmoid")?;
    let cell = activation(call, "cell_activation", "tanh")?;
    let act = activation(call, "activation", "tanh")?;
    let clip = f64::from(call.f32_or("clip", f32::INFINITY)?);
    direction.run(call, &["initial_h", "initial_c"], out, |x, states| {
        let (h, c) = (&states[0], &states[1]);
        // Row `gate * n + j` of weights, with the peephole of that gate on a cell.
        let gate = |gate: usize, j: usize, cell: f64| {
            recurrent(weights.gate(gate * n + j, x, h) + at(peephole, gate * n + j) * cell)
        };
        let update = |j: usize| {
            let z = cell(weights.gate(3 * n + j, x, h));
            let next = gate(1, j, c[j]) * c[j] + gate(0, j, c[j]) * z;
            if next > clip {
                clip
            } else if next < -clip {
                -clip
            } else {
                next
            }
        };
        let next_c: Vec<f64> = (0..n).map(update).collect();
        let next_h = (0..n)
            .map(|j| gate(2, j, next_c[j]) * act(next_c[j]))
            .collect();
        states[0] = next_h;
        states[1] = next_c;
    })
}
