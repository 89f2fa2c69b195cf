//! Products of matrices and attention, in the plainest way.

use std::borrow::Cow;

use thane_kernels::wide::dot_f64;
use thane_kernels::{Context, Isa};

use super::{Call, Eval, Fault, broadcast_strides, f32_out, rows, strides};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("linear", linear),
    ("matmul", matmul),
    ("einsum", einsum),
    ("scaled_dot_product_attention", attention),
];

/// Numbers of which [`dot_f64`] makes one sum, in their order, are fewer than this.
const SHORT: usize = 8;

/// What a product is made of: floats summed in f64, integers that wrap.
trait Number: Copy + Send + Sync {
    const ZERO: Self;
    /// Of two slices of one length.
    fn dot(isa: Isa, x: &[Self], y: &[Self]) -> Self;
    fn plus(self, other: Self) -> Self;
}

impl Number for f32 {
    const ZERO: f32 = 0.0;

    fn dot(isa: Isa, x: &[f32], y: &[f32]) -> f32 {
        if x.len() >= SHORT {
            return dot_f64(isa, x, y) as f32;
        }
        // The same sums: to choose instructions would take longer.
        let product = |(x, y): (&f32, &f32)| f64::from(*x) * f64::from(*y);
        x.iter().zip(y).map(product).fold(0.0, |sum, z| sum + z) as f32
    }

    fn plus(self, other: f32) -> f32 {
        self + other
    }
}

impl Number for f64 {
    const ZERO: f64 = 0.0;

    fn dot(_: Isa, x: &[f64], y: &[f64]) -> f64 {
        x.iter().zip(y).map(|(x, y)| x * y).sum()
    }

    fn plus(self, other: f64) -> f64 {
        self + other
    }
}

impl Number for i32 {
    const ZERO: i32 = 0;

    fn dot(_: Isa, x: &[i32], y: &[i32]) -> i32 {
        x.iter()
            .zip(y)
            .fold(0, |sum, (x, y)| sum.wrapping_add(x.wrapping_mul(*y)))
    }

    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }
}

/// Products of one task: below this, a call is not worth handing to other threads.
const TASK_PRODUCTS: usize = 1 << 16;

/// z[m, n] = x[m, k] y[n, k]^T, and the bias of its column where there is one; `sizes` are n and k.
fn multiply_rows<T: Number>(
    ctx: &Context,
    [x, y]: [&[T]; 2],
    bias: Option<&[T]>,
    sizes: [usize; 2],
    z: &mut [T],
) {
    let [n, k] = sizes;
    let task_len = TASK_PRODUCTS.div_ceil(k.max(1));
    ctx.pool().run_chunks(z, task_len, |task, z| {
        if ctx.is_over() {
            return;
        }
        let (mut row, mut col) = (task * task_len / n, task * task_len % n);
        for z in z {
            let dot = T::dot(ctx.isa(), &x[row * k..][..k], &y[col * k..][..k]);
            *z = bias.map_or(dot, |b| dot.plus(b[col]));
            col += 1;
            if col == n {
                (row, col) = (row + 1, 0);
            }
        }
    });
}

/// The elements of a matrix, row by row.
fn row_major<T: Copy>(
    v: &[T],
    [n_rows, n_cols]: [usize; 2],
    [row_stride, col_stride]: [usize; 2],
) -> Cow<'_, [T]> {
    if col_stride == 1 && (row_stride == n_cols || n_rows == 1) {
        return Cow::Borrowed(&v[..n_rows * n_cols]);
    }
    let row = |r: usize| (0..n_cols).map(move |c| v[r * row_stride + c * col_stride]);
    Cow::Owned((0..n_rows).flat_map(row).collect())
}

fn linear(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let [n_out, n_in] = call.tensor("weight")?.shape[..] else {
        return Err("`weight` is not [out, in]".to_owned());
    };
    let (x, w, bias) = (
        call.tensor("x")?,
        call.tensor("weight")?,
        call.opt_tensor("bias"),
    );
    match (&*x.data, &*w.data, bias.map(|b| &*b.data), &mut out[0]) {
        (Buffer::F32(x), Buffer::F32(w), None, Buffer::F32(y)) => {
            multiply(call, [x, w], None, [n_out, n_in], y)
        }
        (Buffer::F32(x), Buffer::F32(w), Some(Buffer::F32(b)), Buffer::F32(y)) => {
            multiply(call, [x, w], Some(b), [n_out, n_in], y);
        }
        (Buffer::I32(x), Buffer::I32(w), None, Buffer::I32(y)) => {
            multiply(call, [x, w], None, [n_out, n_in], y)
        }
        (Buffer::I32(x), Buffer::I32(w), Some(Buffer::I32(b)), Buffer::I32(y)) => {
            multiply(call, [x, w], Some(b), [n_out, n_in], y);
        }
        (.., y) => return multiply_mixed(call, [x, w], bias, [n_out, n_in], y),
    }
    Ok(())
}

/// Integers with floats; what comes out as integers is truncated towards zero.
fn multiply_mixed(
    call: &Call<'_>,
    [x, w]: [&Tensor; 2],
    bias: Option<&Tensor>,
    sizes: [usize; 2],
    y: &mut Buffer,
) -> Result<(), Fault> {
    let wide = |t: &Tensor| {
        let mut values = Vec::with_capacity(t.len());
        t.each(|_, v| values.push(v));
        values
    };
    let (x, w, bias) = (wide(x), wide(w), bias.map(wide));
    let mut sums = vec![0.0; call.shape(0).iter().product()];
    multiply(call, [&x, &w], bias.as_deref(), sizes, &mut sums);
    match y {
        Buffer::F32(y) => y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum as f32),
        Buffer::I32(y) => y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum as i32),
        _ => return Err(call.undefined(&[call.results[0].dtype])),
    }
    Ok(())
}

fn multiply<T: Number>(
    call: &Call<'_>,
    xw: [&[T]; 2],
    bias: Option<&[T]>,
    sizes: [usize; 2],
    y: &mut [T],
) {
    let n = call.shape(0).iter().product::<usize>().min(y.len());
    multiply_rows(call.context, xw, bias, sizes, &mut y[..n]);
}

fn matmul(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, y) = (call.tensor("x")?, call.tensor("y")?);
    match (&*x.data, &*y.data, &mut out[0]) {
        (Buffer::F32(x), Buffer::F32(y), Buffer::F32(z)) => multiply_batches(call, x, y, z),
        (Buffer::I32(x), Buffer::I32(y), Buffer::I32(z)) => multiply_batches(call, x, y, z),
        _ => Err(call.undefined(&[x.dtype, y.dtype])),
    }
}

fn multiply_batches<T: Number>(
    call: &Call<'_>,
    x: &[T],
    y: &[T],
    z: &mut [T],
) -> Result<(), Fault> {
    let mut shape = call.shape(0);
    if let &[n] = shape.as_slice() {
        shape = vec![1, n];
    }
    let (batch, [m, n]) = (
        &shape[..shape.len() - 2],
        [shape[shape.len() - 2], shape[shape.len() - 1]],
    );
    let a = Operand::new(call, "x", "transpose_x", batch.len())?;
    let b = Operand::new(call, "y", "transpose_y", batch.len())?;
    let k = a.cols;
    if m * n == 0 {
        return Ok(());
    }
    let mut products = z.chunks_exact_mut(m * n);
    rows(batch, [&a.batch, &b.batch], |_, [i, j], n_batch, [s, t]| {
        for (h, z) in products.by_ref().take(n_batch).enumerate() {
            let x = row_major(&x[i + h * s..], [m, k], [a.row_stride, a.col_stride]);
            let y = row_major(&y[j + h * t..], [n, k], [b.col_stride, b.row_stride]);
            multiply_rows(call.context, [&x, &y], None, [n, k], z);
        }
    });
    Ok(())
}

/// One side of a product.
pub struct Operand {
    /// Strides of its batch axes.
    pub batch: Vec<usize>,
    /// Rows once transposed.
    pub rows: usize,
    /// Columns once transposed.
    pub cols: usize,
    /// From a row to the next.
    pub row_stride: usize,
    /// From a column to the next.
    pub col_stride: usize,
}

impl Operand {
    /// The operand bound to `name` in a product of `n_batch` batch axes.
    pub fn new(
        call: &Call<'_>,
        name: &str,
        transposed: &str,
        n_batch: usize,
    ) -> Result<Self, Fault> {
        let shape = match call.tensor(name)?.shape.as_slice() {
            &[n] => vec![1, n],
            shape => shape.to_vec(),
        };
        let n = shape.len();
        let own = strides(&shape);
        let flip = call.bool_or(transposed, false);
        let (row, col) = if flip { (n - 1, n - 2) } else { (n - 2, n - 1) };
        // Broadcast the batch axes with the strides of the whole tensor.
        let size = shape[n - 2] * shape[n - 1];
        let batch = broadcast_strides(&shape[..n - 2], n_batch)
            .into_iter()
            .map(|s| s * size)
            .collect();
        Ok(Self {
            batch,
            rows: shape[row],
            cols: shape[col],
            row_stride: own[row],
            col_stride: own[col],
        })
    }
}

fn einsum(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let [x, y] = call.tensors("values")? else {
        return Err("`values` are not two".to_owned());
    };
    match (&*x.data, &*y.data, &mut out[0]) {
        (Buffer::F32(a), Buffer::F32(b), Buffer::F32(z)) => contract(call, (x, a), (y, b), z),
        (Buffer::I32(a), Buffer::I32(b), Buffer::I32(z)) => contract(call, (x, a), (y, b), z),
        _ => return Err(call.undefined(&[x.dtype, y.dtype])),
    }
    Ok(())
}

/// z[n, c, h, r] is the sum over w of x[n, c, h, w] y[n, w, h, r]; n may be missing, n and h
/// broadcast.
fn contract<T: Number>(
    call: &Call<'_>,
    (x, a): (&Tensor, &[T]),
    (y, b): (&Tensor, &[T]),
    z: &mut [T],
) {
    let four = |shape: &[usize]| [vec![1; 4 - shape.len()], shape.to_vec()].concat();
    let (x_shape, y_shape, shape) = (four(&x.shape), four(&y.shape), four(&call.shape(0)));
    let (s, t) = (
        broadcast_strides(&x_shape, 4),
        broadcast_strides(&y_shape, 4),
    );
    let [n_batch, nc, nh, nr] = shape[..] else {
        return;
    };
    let nw = x_shape[3];
    for n in 0..n_batch {
        for h in 0..nh {
            let x = row_major(
                a.get(n * s[0] + h * s[2]..).unwrap_or_default(),
                [nc, nw],
                [s[1], s[3]],
            );
            let y = row_major(
                b.get(n * t[0] + h * t[2]..).unwrap_or_default(),
                [nr, nw],
                [t[3], t[1]],
            );
            let mut product = vec![T::ZERO; nc * nr];
            multiply_rows(call.context, [&x, &y], None, [nr, nw], &mut product);
            for c in 0..nc {
                z[((n * nc + c) * nh + h) * nr..][..nr].copy_from_slice(&product[c * nr..][..nr]);
            }
        }
    }
}

fn attention(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (q, k, v) = (call.f32s("query")?, call.f32s("key")?, call.f32s("value")?);
    let (q_shape, v_shape) = (&call.tensor("query")?.shape, &call.tensor("value")?.shape);
    let n = q_shape.len();
    let (l, e, s, ev) = (
        q_shape[n - 2],
        q_shape[n - 1],
        v_shape[n - 2],
        v_shape[n - 1],
    );
    let mask = Mask::new(call, n)?;
    let scale = 1.0 / (e as f64).sqrt();
    let total = call.shape(0).iter().product();
    let z = f32_out(&mut out[0], total)?;
    let mut scores = vec![0f64; s];
    for r in 0..q_shape[..n - 1].iter().product::<usize>() {
        if call.context.is_over() {
            break;
        }
        let head = r / l;
        for (j, score) in scores.iter_mut().enumerate() {
            let dot: f64 = (0..e)
                .map(|i| f64::from(q[r * e + i]) * f64::from(k[(head * s + j) * e + i]))
                .sum();
            *score = dot * scale;
        }
        mask.add(r, &q_shape[..n - 1], &mut scores);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|x| *x = (*x - max).exp());
        let sum: f64 = scores.iter().sum();
        for i in 0..ev {
            let value: f64 = (0..s)
                .map(|j| scores[j] * f64::from(v[(head * s + j) * ev + i]))
                .sum();
            // No keys give no value.
            z[r * ev + i] = if s == 0 { 0.0 } else { (value / sum) as f32 };
        }
    }
    Ok(())
}

/// The mask of attention and how it is repeated over the scores.
pub struct Mask<'a> {
    data: Option<&'a Buffer>,
    /// Along the axes of the scores.
    strides: Vec<usize>,
}

impl<'a> Mask<'a> {
    /// The mask of a call whose scores have `rank` axes.
    pub fn new(call: &Call<'a>, rank: usize) -> Result<Self, Fault> {
        let Some(mask) = call.opt_tensor("attn_mask") else {
            return Ok(Self {
                data: None,
                strides: Vec::new(),
            });
        };
        match &*mask.data {
            data @ (Buffer::F32(_) | Buffer::Bool(_)) => Ok(Self {
                data: Some(data),
                strides: broadcast_strides(&mask.shape, rank),
            }),
            _ => Err(format!("`attn_mask` is {}", mask.dtype)),
        }
    }

    /// Add the mask to row `r` of the scores, whose other axes are `outer`.
    pub fn add(&self, r: usize, outer: &[usize], scores: &mut [f64]) {
        let Some((step, strides)) = self.strides.split_last() else {
            return;
        };
        let (mut rest, mut start) = (r, 0);
        for (n, stride) in outer.iter().zip(strides).rev() {
            start += rest % n * stride;
            rest /= n;
        }
        let scores = scores.iter_mut().enumerate();
        match self.data {
            Some(Buffer::F32(v)) => scores.for_each(|(j, x)| *x += f64::from(v[start + j * step])),
            Some(Buffer::Bool(v)) => {
                scores
                    .filter(|(j, _)| v[start + j * step] == 0)
                    .for_each(|(_, x)| *x = f64::NEG_INFINITY);
            }
            _ => {}
        }
    }
}
