//! Products of matrices, attention and normalisation, in the plainest way.

use super::{Call, Eval, Fault, broadcast_strides, f32_out, rows, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] =
    &[("linear", linear), ("matmul", matmul), ("scaled_dot_product_attention", attention), ("layer_norm", layer_norm)];

fn linear(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, w) = (call.f32s("x")?, call.f32s("weight")?);
    let [n_out, n_in] = call.tensor("weight")?.shape[..] else { return Err("`weight` is not [out, in]".to_owned()) };
    let bias = call.opt_tensor("bias").and_then(|t| t.f32s());
    let n = call.shape(0).iter().product();
    for (i, y) in f32_out(&mut out[0], n)?.iter_mut().enumerate() {
        let (t, o) = (i / n_out, i % n_out);
        let dot: f64 = (0..n_in).map(|k| f64::from(x[t * n_in + k]) * f64::from(w[o * n_in + k])).sum();
        *y = dot as f32 + bias.map_or(0.0, |b| b[o]);
    }
    Ok(())
}

fn matmul(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, y) = (call.f32s("x")?, call.f32s("y")?);
    let shape = call.shape(0);
    let (batch, [m, n]) = (&shape[..shape.len() - 2], [shape[shape.len() - 2], shape[shape.len() - 1]]);
    let a = Operand::new(call, "x", "transpose_x", batch.len())?;
    let b = Operand::new(call, "y", "transpose_y", batch.len())?;
    let k = a.cols;
    let total = shape.iter().product();
    let z = f32_out(&mut out[0], total)?;
    let mut at = 0;
    rows(batch, [&a.batch, &b.batch], |_, [i, j], n_batch, [s, t]| {
        for h in 0..n_batch {
            let (i, j) = (i + h * s, j + h * t);
            for r in 0..m {
                for c in 0..n {
                    let term = |q: usize| {
                        let p = f64::from(x[i + r * a.row_stride + q * a.col_stride]);
                        p * f64::from(y[j + q * b.row_stride + c * b.col_stride])
                    };
                    z[at] = (0..k).map(term).sum::<f64>() as f32;
                    at += 1;
                }
            }
        }
    });
    Ok(())
}

/// One side of a product: strides of its batch axes, of its rows and columns once transposed.
struct Operand {
    batch: Vec<usize>,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl Operand {
    fn new(call: &Call<'_>, name: &str, transposed: &str, n_batch: usize) -> Result<Self, Fault> {
        let shape = &call.tensor(name)?.shape;
        let n = shape.len();
        let own = strides(shape);
        let flip = call.bool_or(transposed, false);
        let (row, col) = if flip { (n - 1, n - 2) } else { (n - 2, n - 1) };
        // Broadcast the batch axes with the strides of the whole tensor.
        let size = shape[n - 2] * shape[n - 1];
        let batch = broadcast_strides(&shape[..n - 2], n_batch).into_iter().map(|s| s * size).collect();
        Ok(Self { batch, cols: shape[col], row_stride: own[row], col_stride: own[col] })
    }
}

fn attention(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (q, k, v) = (call.f32s("query")?, call.f32s("key")?, call.f32s("value")?);
    let (q_shape, v_shape) = (&call.tensor("query")?.shape, &call.tensor("value")?.shape);
    let n = q_shape.len();
    let (l, e, s, ev) = (q_shape[n - 2], q_shape[n - 1], v_shape[n - 2], v_shape[n - 1]);
    let scores_shape = [&q_shape[..n - 1], &[s]].concat();
    let mask = mask_values(call, &scores_shape)?;
    let scale = 1.0 / (e as f64).sqrt();
    let total = call.shape(0).iter().product();
    let z = f32_out(&mut out[0], total)?;
    let mut scores = vec![0f64; s];
    for r in 0..q_shape[..n - 1].iter().product::<usize>() {
        let head = r / l;
        for (j, score) in scores.iter_mut().enumerate() {
            let dot: f64 = (0..e).map(|i| f64::from(q[r * e + i]) * f64::from(k[(head * s + j) * e + i])).sum();
            *score = dot * scale + mask.as_ref().map_or(0.0, |m| f64::from(m[r * s + j]));
        }
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = scores.iter().sum();
        for i in 0..ev {
            let value: f64 = (0..s).map(|j| scores[j] * f64::from(v[(head * s + j) * ev + i])).sum();
            z[r * ev + i] = (value / sum) as f32;
        }
    }
    Ok(())
}

/// The mask as numbers to add, repeated to the shape of the scores.
fn mask_values(call: &Call<'_>, scores: &[usize]) -> Result<Option<Vec<f32>>, Fault> {
    let Some(mask) = call.opt_tensor("attn_mask") else { return Ok(None) };
    let own = broadcast_strides(&mask.shape, scores.len());
    let mut out = vec![0.0; scores.iter().product()];
    let value: Box<dyn Fn(usize) -> f32> = match &*mask.data {
        Buffer::F32(v) => Box::new(|i| v[i]),
        Buffer::Bool(v) => Box::new(|i| if v[i] != 0 { 0.0 } else { f32::NEG_INFINITY }),
        _ => return Err(format!("`attn_mask` is {}", mask.dtype)),
    };
    rows(scores, [&own], |at, [i], n, [s]| (0..n).for_each(|k| out[at + k] = value(i + k * s)));
    Ok(Some(out))
}

fn layer_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let rank = shape.len() as i64;
    let axes = call.ints("axes").unwrap_or_else(|| (0..rank).collect());
    let mut axes: Vec<usize> = axes.into_iter().map(|a| (if a < 0 { a + rank } else { a }) as usize).collect();
    axes.sort_unstable();
    if !axes.iter().copied().eq(shape.len() - axes.len()..shape.len()) {
        return Err("`axes` must be the last ones".to_owned());
    }
    let n: usize = axes.iter().map(|a| shape[*a]).product();
    let epsilon = f64::from(call.f32_or("epsilon", 1e-5)?);
    let [gamma, beta] = ["gamma", "beta"].map(|name| call.opt_tensor(name).and_then(|t| t.f32s()));
    let y = f32_out(&mut out[0], x.len())?;
    for (x, y) in x.chunks(n.max(1)).zip(y.chunks_mut(n.max(1))) {
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / n as f64;
        let variance = x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n as f64;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (i, (x, y)) in x.iter().zip(y).enumerate() {
            let normed = (f64::from(*x) - mean) * inverse;
            *y = (normed * gamma.map_or(1.0, |g| f64::from(g[i])) + beta.map_or(0.0, |b| f64::from(b[i]))) as f32;
        }
    }
    Ok(())
}
