//! Normalization, computed in f64.

use std::sync::Mutex;

use thane_kernels::wide::{dot_f64, sum_f64};

use super::reduce::{fold, target_strides};
use super::{Call, Eval, Fault, SHARED_LEN, f32_out, shared_rows, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("batch_norm", batch_norm),
    ("instance_norm", instance_norm),
    ("l2_norm", l2_norm),
    ("layer_norm", layer_norm),
    ("local_response_norm", local_response_norm),
];

/// The factor of channel `c`, or what stands for factors that are left out.
fn factor(call: &Call<'_>, name: &str, none: f64, c: usize) -> Result<f64, Fault> {
    if call.opt_tensor(name).is_none() {
        return Ok(none);
    }
    call.f32s(name)?
        .get(c)
        .map(|v| f64::from(*v))
        .ok_or_else(|| format!("`{name}` has none for channel {c}"))
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each channel of each item, whose mean
/// and variance `of_channel` gives from the channel and its elements.
fn by_channel(
    call: &Call<'_>,
    out: &mut [Buffer],
    of_channel: impl Fn(usize, &[f32]) -> Result<[f64; 2], Fault> + Sync,
) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let (n_channels, inner) = (shape[1], shape[2..].iter().product::<usize>().max(1));
    let epsilon = f64::from(call.f32_or("epsilon", 1e-5)?);
    let y = f32_out(&mut out[0], x.len())?;
    let one = |i: usize, x: &[f32], y: &mut [f32]| {
        let c = i % n_channels;
        let [mean, variance] = of_channel(c, x)?;
        let scale = factor(call, "gamma", 1.0, c)? / (variance + epsilon).sqrt();
        let beta = factor(call, "beta", 0.0, c)?;
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = ((f64::from(*x) - mean) * scale + beta) as f32);
        Ok(())
    };
    let n_in_task = SHARED_LEN.div_ceil(inner);
    let fault = Mutex::new(None);
    let pool = call.context.pool();
    pool.run_chunks(y, n_in_task * inner, |task_idx, y| {
        let first = task_idx * n_in_task;
        let x = x[first * inner..].chunks(inner);
        let done = x
            .zip(y.chunks_mut(inner))
            .zip(first..)
            .try_for_each(|((x, y), i)| one(i, x, y));
        if let (Err(found), Ok(mut fault)) = (done, fault.lock()) {
            fault.get_or_insert(found);
        }
    });
    fault.into_inner().ok().flatten().map_or(Ok(()), Err)
}

fn batch_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    by_channel(call, out, |c, _| {
        Ok([
            factor(call, "mean", 0.0, c)?,
            factor(call, "variance", 1.0, c)?,
        ])
    })
}

fn instance_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    by_channel(call, out, |_, x| {
        let n = x.len() as f64;
        let mean = sum_f64(call.context.isa(), x) / n;
        let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2));
        Ok([mean, squares.sum::<f64>() / n])
    })
}

fn l2_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let epsilon = f64::from(call.f32_or("epsilon", 1e-6)?);
    let n = shape[shape.len() - 3..].iter().product::<usize>().max(1);
    let (isa, pool) = (call.context.isa(), call.context.pool());
    pool.run_chunks(f32_out(&mut out[0], x.len())?, n, |i, y| {
        let x = &x[i * n..][..y.len()];
        let norm = (dot_f64(isa, x, x) + epsilon).sqrt();
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = (f64::from(*x) / norm) as f32);
    });
    Ok(())
}

/// The window of channel c is c - size / 2 to c + (size - 1) / 2 as far as there are channels:
/// where `size` is even, coremltools does not say which side has more; this is PyTorch's choice,
/// and that of Metal's shaders.
fn local_response_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let size = usize::try_from(call.int_or("size", 1)).unwrap_or(1).max(1);
    let [alpha, beta, k] = [
        call.f32_or("alpha", 1e-4)?,
        call.f32_or("beta", 0.75)?,
        call.f32_or("k", 1.0)?,
    ]
    .map(f64::from);
    let (n_channels, inner) = (shape[1], shape[2..].iter().product::<usize>());
    let n_item = n_channels * inner;
    // A channel of an item at a time.
    let pool = call.context.pool();
    let y = f32_out(&mut out[0], x.len())?;
    pool.run_chunks(y, inner.max(1), |plane, y| {
        let (c, item) = (plane % n_channels, plane / n_channels * n_item);
        let window =
            c.saturating_sub(size / 2)..n_channels.min(c.saturating_add((size - 1) / 2 + 1));
        let mut sums = vec![0f64; inner];
        for other in window {
            if call.context.is_over() {
                return;
            }
            let x = &x[item + other * inner..][..inner];
            sums.iter_mut()
                .zip(x)
                .for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
        }
        let x = &x[item + c * inner..][..inner];
        for ((y, x), sum) in y.iter_mut().zip(x).zip(sums) {
            *y = (f64::from(*x) / (k + alpha / size as f64 * sum).powf(beta)) as f32;
        }
    });
    Ok(())
}

fn layer_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let rank = shape.len() as i64;
    let axes = call.ints("axes").unwrap_or_else(|| (0..rank).collect());
    let axes: Vec<usize> = axes
        .into_iter()
        .map(|a| (if a < 0 { a + rank } else { a }) as usize)
        .collect();
    let others: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let n: usize = axes.iter().map(|a| shape[*a]).product();
    let n_groups: usize = others.iter().map(|a| shape[*a]).product();
    let factor = |name: &str| -> Result<Option<&[f32]>, Fault> {
        match call.opt_tensor(name) {
            Some(t) if t.len() == n => call.f32s(name).map(Some),
            Some(t) => Err(format!("`{name}` is {:?}, {n} elements are due", t.shape)),
            None => Ok(None),
        }
    };
    let (gamma, beta) = (factor("gamma")?, factor("beta")?);
    let epsilon = f64::from(call.f32_or("epsilon", 1e-5)?);
    let (mut means, mut variances) = (vec![0f64; n_groups], vec![0f64; n_groups]);
    fold(shape, &axes, |i, group| {
        means[group] += f64::from(x[i]) / n as f64
    });
    fold(shape, &axes, |i, group| {
        variances[group] += (f64::from(x[i]) - means[group]).powi(2) / n as f64
    });
    variances
        .iter_mut()
        .for_each(|v| *v = 1.0 / (*v + epsilon).sqrt());
    let factors = variances;
    // gamma and beta go by the place of an element along the axes.
    let own = strides(shape);
    let (groups, places) = (target_strides(shape, &axes), target_strides(shape, &others));
    let y = f32_out(&mut out[0], x.len())?;
    let moves = [&own[..], &groups, &places];
    shared_rows(
        call.context,
        shape,
        moves,
        y,
        |y, [i, group, place], [_, g, p]| {
            for (k, (y, x)) in y.iter_mut().zip(&x[i..]).enumerate() {
                let (group, place) = (group + k * g, place + k * p);
                let normed = (f64::from(*x) - means[group]) * factors[group];
                let [scale, shift] = [(gamma, 1.0), (beta, 0.0)]
                    .map(|(v, none)| v.map_or(none, |v| f64::from(v[place])));
                *y = (normed * scale + shift) as f32;
            }
        },
    );
    Ok(())
}
