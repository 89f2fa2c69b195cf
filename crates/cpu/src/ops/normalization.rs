//! Normalization, computed in f64.

use super::reduce::fold;
use super::{Call, Eval, Fault, f32_out};
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

/// Elements of x by channel: the channel, and the x and y of one item of it.
fn by_channel(
    call: &Call<'_>,
    out: &mut [Buffer],
    mut each: impl FnMut(usize, &[f32], &mut [f32]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let (n_channels, inner) = (shape[1], shape[2..].iter().product::<usize>().max(1));
    let y = f32_out(&mut out[0], x.len())?;
    x.chunks(inner)
        .zip(y.chunks_mut(inner))
        .enumerate()
        .try_for_each(|(i, (x, y))| each(i % n_channels, x, y))
}

fn batch_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let epsilon = f64::from(call.f32_or("epsilon", 1e-5)?);
    by_channel(call, out, |c, x, y| {
        let (mean, variance) = (
            factor(call, "mean", 0.0, c)?,
            factor(call, "variance", 1.0, c)?,
        );
        let (gamma, beta) = (
            factor(call, "gamma", 1.0, c)?,
            factor(call, "beta", 0.0, c)?,
        );
        let scale = gamma / (variance + epsilon).sqrt();
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = ((f64::from(*x) - mean) * scale + beta) as f32);
        Ok(())
    })
}

fn instance_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let epsilon = f64::from(call.f32_or("epsilon", 1e-5)?);
    by_channel(call, out, |c, x, y| {
        let n = x.len() as f64;
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let variance = x
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum::<f64>()
            / n;
        let (gamma, beta) = (
            factor(call, "gamma", 1.0, c)?,
            factor(call, "beta", 0.0, c)?,
        );
        let scale = gamma / (variance + epsilon).sqrt();
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = ((f64::from(*x) - mean) * scale + beta) as f32);
        Ok(())
    })
}

fn l2_norm(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let epsilon = f64::from(call.f32_or("epsilon", 1e-6)?);
    let n = shape[shape.len() - 3..].iter().product::<usize>().max(1);
    for (x, y) in x
        .chunks(n)
        .zip(f32_out(&mut out[0], x.len())?.chunks_mut(n))
    {
        let norm = (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() + epsilon).sqrt();
        y.iter_mut()
            .zip(x)
            .for_each(|(y, x)| *y = (f64::from(*x) / norm) as f32);
    }
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
    for (i, y) in f32_out(&mut out[0], x.len())?.iter_mut().enumerate() {
        let (c, place) = (i % n_item / inner, i / n_item * n_item + i % inner);
        let window =
            c.saturating_sub(size / 2)..n_channels.min(c.saturating_add((size - 1) / 2 + 1));
        let sum = window
            .map(|c| f64::from(x[place + c * inner]).powi(2))
            .sum::<f64>();
        *y = (f64::from(x[i]) / (k + alpha / size as f64 * sum).powf(beta)) as f32;
    }
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
    // The place of each element along the axes, which gamma and beta go by.
    let mut places = vec![0; x.len()];
    fold(shape, &others, |i, place| places[i] = place);
    let y = f32_out(&mut out[0], x.len())?;
    fold(shape, &axes, |i, group| {
        let normed = (f64::from(x[i]) - means[group]) / (variances[group] + epsilon).sqrt();
        let [scale, shift] = [(gamma, 1.0), (beta, 0.0)]
            .map(|(v, none)| v.map_or(none, |v| f64::from(v[places[i]])));
        y[i] = (normed * scale + shift) as f32;
    });
    Ok(())
}
