//! Products of matrices and attention by the engine's accumulator, in the plainest way.

use std::sync::{Mutex, PoisonError};

use thane_kernels::f16::f16_to_f32_slice;
use thane_kernels::{Context, Isa, Weight};

use super::accumulator::{Sum, dots};
use super::effects::Effects;
use super::half::{Tally, operand, result, round_constants};
use crate::ops::{Call, Fault, Mask, Operand, f32_out, rows};
use crate::tensor::{Buffer, Tensor};

/// Rows of a weight that one task takes, of one token more: what a task begins with takes as long.
const ROWS: usize = 16;
const ROWS_OF_ONE: usize = 64;

/// Scores of attention that are held at once, 4 MiB.
const SCORES: usize = 1 << 20;

/// The elements of a tensor of floats, as an op computes with them.
pub struct Values<'a> {
    data: &'a Buffer,
    effects: Effects,
    isa: Isa,
}

impl<'a> Values<'a> {
    /// Refuses what are no floats.
    pub fn new(isa: Isa, tensor: &'a Tensor, effects: Effects) -> Result<Self, Fault> {
        match &*tensor.data {
            data @ (Buffer::F32(_) | Buffer::F16(_)) => Ok(Self { data, effects, isa }),
            _ => Err(format!("{} stands where floats are due", tensor.dtype)),
        }
    }

    /// Copy the elements from `start` on, `step` apart.
    pub fn copy(&self, start: usize, step: usize, out: &mut [f32]) {
        if let (Buffer::F16(v), 1) = (self.data, step) {
            /// Its bits are all ones in infinities and what is not a number.
            const EXPONENT: u16 = 0x7c00;
            let v = &v[start..][..out.len()];
            f16_to_f32_slice(self.isa, v, out);
            let special = |v: &u16| v & EXPONENT == EXPONENT;
            if v.iter().fold(false, |any, v| any | special(v)) {
                out.iter_mut().for_each(|v| *v = operand(*v, self.effects));
            }
            return;
        }
        let out = out.iter_mut().enumerate();
        match self.data {
            Buffer::F32(v) => {
                out.for_each(|(i, out)| *out = operand(v[start + i * step], self.effects))
            }
            Buffer::F16(v) => {
                let value = |at: usize| thane_kernels::f16::f16_to_f32(v[at]);
                out.for_each(|(i, out)| *out = operand(value(start + i * step), self.effects));
            }
            _ => {}
        }
    }
}

/// All elements of a tensor of floats, as an op computes with them.
pub fn read(isa: Isa, tensor: &Tensor, effects: Effects) -> Result<Vec<f32>, Fault> {
    let mut out = vec![0.0; tensor.len()];
    Values::new(isa, tensor, effects)?.copy(0, 1, &mut out);
    Ok(out)
}

/// What [`by_rows`] multiplies.
pub struct Product<'a> {
    /// Rows of the weight, and elements of each.
    pub size: [usize; 2],
    /// Writes a row of the weight.
    pub row: &'a (dyn Fn(usize, &mut [f32]) + Sync),
    /// [n_tokens, columns]
    pub x: &'a [f32],
    /// One number a row.
    pub bias: Option<&'a [f32]>,
}

/// `y` [n_tokens, rows] of each token and each row of a weight; rows are made when they are needed,
/// once each.
pub fn by_rows(context: &Context, product: &Product<'_>, effects: Effects, y: &mut [f32]) -> Tally {
    let [n_rows, n_cols] = product.size;
    let n_tokens = y.len().checked_div(n_rows).unwrap_or(0);
    let rows_of_task = if n_tokens == 1 { ROWS_OF_ONE } else { ROWS };
    let mut by_row = vec![0f32; y.len()]; // [rows, n_tokens]
    let total = Mutex::new(Tally::default());
    context
        .pool()
        .run_chunks(&mut by_row, rows_of_task * n_tokens, |chunk_idx, chunk| {
            let (mut row, mut tally) = (vec![0f32; n_cols], Tally::default());
            let mut sums = vec![Sum::default(); n_tokens];
            for (i, out) in chunk.chunks_mut(n_tokens).enumerate() {
                let row_idx = chunk_idx * rows_of_task + i;
                (product.row)(row_idx, &mut row);
                let bias = product
                    .bias
                    .and_then(|b| b.get(row_idx))
                    .map_or(0.0, |b| operand(*b, effects));
                let x = &product.x[..n_tokens * n_cols];
                dots(context.isa(), x, &row, bias, effects, &mut sums);
                for (out, sum) in out.iter_mut().zip(&sums) {
                    tally.accumulator_overflows += usize::from(sum.overflowed);
                    *out = result(sum.value, effects, &mut tally);
                }
            }
            *total.lock().unwrap_or_else(PoisonError::into_inner) += tally;
        });
    for (t, y) in y.chunks_mut(n_rows.max(1)).enumerate() {
        y.iter_mut()
            .enumerate()
            .for_each(|(r, y)| *y = by_row[r * n_tokens + t]);
    }
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// `x @ weight^T + bias` with a weight as it is stored.
pub fn stored_linear(
    context: &Context,
    weight: &Weight<'_>,
    x: &[f32],
    bias: Option<&[f32]>,
    effects: Effects,
    y: &mut [f32],
) -> Tally {
    let row_bytes = weight.bytes.len().checked_div(weight.n_rows).unwrap_or(0);
    let row = |i: usize, out: &mut [f32]| {
        weight
            .ty
            .decode(&weight.bytes[i * row_bytes..][..row_bytes], out);
        round_constants(context, out, effects);
        out.iter_mut().for_each(|v| *v = operand(*v, effects));
    };
    let x: Vec<f32> = x.iter().map(|v| operand(*v, effects)).collect();
    let bias = bias.map(|b| {
        let mut b = b.to_vec();
        round_constants(context, &mut b, effects);
        b
    });
    let product = Product {
        size: [weight.n_rows, weight.n_cols],
        row: &row,
        x: &x,
        bias: bias.as_deref(),
    };
    by_rows(context, &product, effects, y)
}

pub fn linear(
    call: &Call<'_>,
    out: &mut [Buffer],
    effects: Effects,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let isa = call.context.isa();
    let weight = call.tensor("weight")?;
    let [n_rows, n_cols] = weight.shape[..] else {
        return Err("`weight` is not [out, in]".to_owned());
    };
    let x = read(isa, call.tensor("x")?, effects)?;
    let bias = call
        .opt_tensor("bias")
        .map(|b| read(isa, b, effects))
        .transpose()?;
    let weight = Values::new(isa, weight, effects)?;
    let row = |i: usize, out: &mut [f32]| weight.copy(i * n_cols, 1, out);
    let y = f32_out(&mut out[0], call.shape(0).iter().product())?;
    let product = Product {
        size: [n_rows, n_cols],
        row: &row,
        x: &x,
        bias: bias.as_deref(),
    };
    *tally += by_rows(call.context, &product, effects, y);
    Ok(())
}

pub fn matmul(
    call: &Call<'_>,
    out: &mut [Buffer],
    effects: Effects,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let isa = call.context.isa();
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    let rank = |t: &Tensor| t.shape.len().max(2) - 2;
    let shape = call.shape(0);
    let n_batch_axes = rank(x).max(rank(y));
    let batch = shape[..n_batch_axes.min(shape.len())].to_vec();
    let a = Operand::new(call, "x", "transpose_x", batch.len())?;
    let b = Operand::new(call, "y", "transpose_y", batch.len())?;
    let (left, right) = (Values::new(isa, x, effects)?, Values::new(isa, y, effects)?);
    let z = f32_out(&mut out[0], shape.iter().product())?;
    let [m, n, k] = [a.rows, b.cols, a.cols];
    let mut x = vec![0f32; m * k];
    let mut parts = z.chunks_mut((m * n).max(1));
    rows(
        &batch,
        [&a.batch, &b.batch],
        |_, [i, j], n_batch, [s, t]| {
            for h in 0..n_batch {
                let (i, j) = (i + h * s, j + h * t);
                for (r, x) in x.chunks_mut(k.max(1)).enumerate() {
                    left.copy(i + r * a.row_stride, a.col_stride, x);
                }
                let column =
                    |c: usize, out: &mut [f32]| right.copy(j + c * b.col_stride, b.row_stride, out);
                let product = Product {
                    size: [n, k],
                    row: &column,
                    x: &x,
                    bias: None,
                };
                if let Some(z) = parts.next() {
                    *tally += by_rows(call.context, &product, effects, z);
                }
            }
        },
    );
    Ok(())
}

/// As Core ML takes it apart: the query is scaled, then products, mask, softmax, and products
/// again, each rounded.
pub fn attention(
    call: &Call<'_>,
    out: &mut [Buffer],
    effects: Effects,
    tally: &mut Tally,
) -> Result<(), Fault> {
    let isa = call.context.isa();
    let (q_shape, v_shape) = (&call.tensor("query")?.shape, &call.tensor("value")?.shape);
    let rank = q_shape.len();
    let (l, e, s, ev) = (
        q_shape[rank - 2],
        q_shape[rank - 1],
        v_shape[rank - 2],
        v_shape[rank - 1],
    );
    let mut scale = [1.0 / (e as f32).sqrt()];
    round_constants(call.context, &mut scale, effects);
    let mut q = read(isa, call.tensor("query")?, effects)?;
    q.iter_mut()
        .for_each(|v| *v = operand(result(f64::from(*v * scale[0]), effects, tally), effects));
    let (k, v) = (
        Values::new(isa, call.tensor("key")?, effects)?,
        Values::new(isa, call.tensor("value")?, effects)?,
    );
    let mask = Mask::new(call, rank)?;
    let z = f32_out(&mut out[0], call.shape(0).iter().product())?;
    let most = (SCORES / s.max(1)).clamp(1, l.max(1));
    let (mut scores, mut row) = (vec![0f32; most * s], vec![0f64; s]);
    let tasks = q_shape[..rank - 2].iter().product::<usize>() * l;
    let mut first = 0;
    while first < tasks {
        // As many queries of one head as there is room for.
        let (head, n) = (first / l, most.min(l - first % l));
        let key = |j: usize, out: &mut [f32]| k.copy((head * s + j) * e, 1, out);
        let product = Product {
            size: [s, e],
            row: &key,
            x: &q[first * e..][..n * e],
            bias: None,
        };
        let scores = &mut scores[..n * s];
        *tally += by_rows(call.context, &product, effects, scores);
        for (r, scores) in scores.chunks_mut(s.max(1)).enumerate() {
            row.iter_mut()
                .zip(&*scores)
                .for_each(|(to, from)| *to = f64::from(*from));
            mask.add(first + r, &q_shape[..rank - 1], &mut row);
            softmax(&mut row, effects, tally);
            scores
                .iter_mut()
                .zip(&row)
                .for_each(|(to, from)| *to = *from as f32);
        }
        let column = |i: usize, out: &mut [f32]| v.copy(head * s * ev + i, ev, out);
        let product = Product {
            size: [ev, s],
            row: &column,
            x: scores,
            bias: None,
        };
        *tally += by_rows(
            call.context,
            &product,
            effects,
            &mut z[first * ev..][..n * ev],
        );
        first += n;
    }
    Ok(())
}

fn softmax(row: &mut [f64], effects: Effects, tally: &mut Tally) {
    let mut round = |v: f64| f64::from(result(v, effects, tally));
    row.iter_mut()
        .for_each(|v| *v = f64::from(operand(round(*v) as f32, effects)));
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v = round(*v / sum));
}
