//! Reductions along axes.

use super::{Call, Eval, Fault, f32_out, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("reduce_max", |c, o| reduce(c, o, f64::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b }, |v, _| v)),
    ("reduce_min", |c, o| reduce(c, o, f64::INFINITY, |a, b| if a < b || a.is_nan() { a } else { b }, |v, _| v)),
    ("reduce_sum", |c, o| reduce(c, o, 0.0, |a, b| a + b, |v, _| v)),
    ("reduce_mean", |c, o| reduce(c, o, 0.0, |a, b| a + b, |v, n| v / n)),
    ("reduce_argmax", argmax),
];

/// For each element of x, in order: its value and the element of the result that it belongs to.
pub(super) fn fold(shape: &[usize], axes: &[usize], mut visit: impl FnMut(usize, usize)) {
    let kept: Vec<usize> = shape.iter().enumerate().map(|(i, n)| if axes.contains(&i) { 1 } else { *n }).collect();
    let own = strides(shape);
    let target: Vec<usize> =
        strides(&kept).into_iter().enumerate().map(|(i, s)| if axes.contains(&i) { 0 } else { s }).collect();
    for i in 0..shape.iter().product() {
        let to = (0..shape.len()).map(|a| i / own[a] % shape[a] * target[a]).sum();
        visit(i, to);
    }
}

fn reduce(
    call: &Call<'_>,
    out: &mut [Buffer],
    start: f64,
    join: impl Fn(f64, f64) -> f64,
    end: impl Fn(f64, f64) -> f64,
) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let rank = x.shape.len() as i64;
    let axes = call.ints("axes").unwrap_or_else(|| (0..rank).collect());
    let axes: Vec<usize> = axes.into_iter().map(|a| (if a < 0 { a + rank } else { a }) as usize).collect();
    let count: usize = axes.iter().map(|a| x.shape[*a]).product();
    let mut sums = vec![start; call.shape(0).iter().product()];
    let n = sums.len();
    match (&*x.data, &mut out[0]) {
        (Buffer::F32(v), o) => {
            fold(&x.shape, &axes, |i, to| sums[to] = join(sums[to], f64::from(v[i])));
            f32_out(o, n)?.iter_mut().zip(&sums).for_each(|(o, s)| *o = end(*s, count as f64) as f32);
        }
        (Buffer::I32(v), Buffer::I32(o)) => {
            fold(&x.shape, &axes, |i, to| sums[to] = join(sums[to], f64::from(v[i])));
            o.iter_mut().zip(&sums).for_each(|(o, s)| *o = end(*s, count as f64) as i64 as i32);
        }
        _ => return Err(format!("{} is not defined for {}", call.def.name, x.dtype)),
    }
    Ok(())
}

fn argmax(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.shape.len())?;
    let mut values = Vec::with_capacity(x.len());
    x.each(|_, v| values.push(v));
    let Buffer::I32(o) = &mut out[0] else { return Err("the result does not hold int32".to_owned()) };
    let step: usize = x.shape[axis + 1..].iter().product();
    let mut best = vec![f64::NEG_INFINITY; o.len()];
    fold(&x.shape, &[axis], |i, to| {
        // The first that is not a number counts as the largest.
        if values[i] > best[to] || (values[i].is_nan() && !best[to].is_nan()) {
            best[to] = values[i];
            o[to] = (i / step % x.shape[axis]) as i32;
        }
    });
    Ok(())
}
