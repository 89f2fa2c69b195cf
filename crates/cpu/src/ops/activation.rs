//! Activations and softmax.

use thane_kernels::activation::{Unary, unary};

use super::elementwise::map_f32;
use super::{Call, Eval, Fault, SHARED_LEN, f32_out};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    // As documented; coremltools' evaluation adds both branches, which is wrong for beta < 0.
    ("clamped_relu", |c, o| {
        map(c, o, |x, a, b| least(if x < 0.0 { a * x } else { x }, b))
    }),
    ("elu", |c, o| {
        map(c, o, |x, a, _| if x < 0.0 { a * x.exp_m1() } else { x })
    }),
    ("gelu", gelu),
    ("leaky_relu", |c, o| {
        map(c, o, |x, a, _| if x < 0.0 { a * x } else { x })
    }),
    ("linear_activation", |c, o| map(c, o, |x, a, b| a * x + b)),
    ("prelu", |c, o| {
        map_channels(c, o, |x, a, _| if x < 0.0 { a * x } else { x })
    }),
    ("relu", |c, o| apply(c, o, Unary::Relu)),
    ("relu6", |c, o| {
        map(c, o, |x, _, _| least(most(x, 0.0), 6.0))
    }),
    ("scaled_tanh", |c, o| {
        map(c, o, |x, a, b| a * (b * x).tanh())
    }),
    ("sigmoid", |c, o| apply(c, o, Unary::Sigmoid)),
    ("sigmoid_hard", |c, o| {
        map(c, o, |x, a, b| least(most(a * x + b, 0.0), 1.0))
    }),
    ("silu", |c, o| apply(c, o, Unary::Silu)),
    ("softmax", softmax),
    ("softplus", |c, o| map(c, o, |x, _, _| softplus(x))),
    ("softplus_parametric", |c, o| {
        map_channels(c, o, |x, a, b| a * softplus(b * x))
    }),
    ("softsign", |c, o| map(c, o, |x, _, _| x / (1.0 + x.abs()))),
    ("tanh", |c, o| apply(c, o, Unary::Tanh)),
    ("thresholded_relu", |c, o| {
        map(c, o, |x, a, _| if x < a { 0.0 } else { x })
    }),
];

/// The smaller; what is not a number stays.
fn least(x: f32, y: f32) -> f32 {
    if x > y { y } else { x }
}

/// The larger; what is not a number stays.
fn most(x: f32, y: f32) -> f32 {
    if x < y { y } else { x }
}

/// ln(1 + exp(x)), which overflows for no x.
fn softplus(x: f32) -> f32 {
    (-x.abs()).exp().ln_1p() + most(x, 0.0)
}

fn apply(call: &Call<'_>, out: &mut [Buffer], op: Unary) -> Result<(), Fault> {
    let x = call.f32s("x")?;
    unary(call.context, op, x, f32_out(&mut out[0], x.len())?);
    Ok(())
}

/// Each element with `alpha` and `beta`, where the op has them.
fn map(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32, f32, f32) -> f32 + Sync,
) -> Result<(), Fault> {
    let (alpha, beta) = (call.f32_or("alpha", 0.0)?, call.f32_or("beta", 0.0)?);
    map_f32(call, out, |x| f(x, alpha, beta))
}

/// Each element with the `alpha` and `beta` of its channel, which is axis 1.
fn map_channels(
    call: &Call<'_>,
    out: &mut [Buffer],
    f: impl Fn(f32, f32, f32) -> f32 + Sync,
) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let (n_channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
    let alpha = call.f32s("alpha")?;
    let beta = if call.opt_tensor("beta").is_some() {
        call.f32s("beta")?
    } else {
        alpha
    };
    let n = inner.max(1);
    let n_in_task = SHARED_LEN.div_ceil(n);
    let y = f32_out(&mut out[0], x.len())?;
    let pool = call.context.pool();
    pool.run_chunks(y, n_in_task * n, |task_idx, y| {
        let first = task_idx * n_in_task;
        let runs = y.chunks_mut(n).zip(x[first * n..].chunks(n));
        for ((y, x), i) in runs.zip(first..) {
            let (alpha, beta) = (alpha[i % n_channels], beta[i % n_channels]);
            y.iter_mut()
                .zip(x)
                .for_each(|(y, x)| *y = f(*x, alpha, beta));
        }
    });
    Ok(())
}

fn gelu(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    match call.string("mode").unwrap_or("EXACT") {
        "EXACT" => apply(call, out, Unary::GeluErf),
        "TANH_APPROXIMATION" => apply(call, out, Unary::GeluTanh),
        _ => map_f32(call, out, |x| x / (1.0 + (-1.702 * x).exp())),
    }
}

fn softmax(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let axis = call.axis("axis", -1, shape.len())?;
    let y = f32_out(&mut out[0], x.len())?;
    let inner: usize = shape[axis + 1..].iter().product();
    let n = shape[axis];
    let block_len = (n * inner).max(1);
    let pool = call.context.pool();
    pool.run_chunks(y, block_len, |i, y| {
        softmax_block(&x[i * block_len..][..y.len()], inner, y);
    });
    Ok(())
}

/// Softmax of a row, as [`softmax_block`] computes that of a column.
fn softmax_row(x: &[f32], y: &mut [f32]) {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (x, y) in x.iter().zip(&mut *y) {
        *y = (x - most).exp();
        sum += *y;
    }
    y.iter_mut().for_each(|y| *y /= sum);
}

/// Softmax of each column of x [n, inner], row by row of it.
fn softmax_block(x: &[f32], inner: usize, y: &mut [f32]) {
    if inner == 1 {
        return softmax_row(x, y);
    }
    let rows = || x.chunks_exact(inner.max(1));
    let mut most = vec![f32::NEG_INFINITY; inner];
    for row in rows() {
        most.iter_mut().zip(row).for_each(|(m, x)| *m = m.max(*x));
    }
    let mut sums = vec![0.0; inner];
    for (row, y) in rows().zip(y.chunks_exact_mut(inner.max(1))) {
        for (((x, y), most), sum) in row.iter().zip(y).zip(&most).zip(&mut sums) {
            *y = (x - most).exp();
            *sum += *y;
        }
    }
    for y in y.chunks_exact_mut(inner.max(1)) {
        y.iter_mut().zip(&sums).for_each(|(y, sum)| *y /= sum);
    }
}
