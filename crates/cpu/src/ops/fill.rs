//! Tensors of stated content: fills, ranges, one-hot rows, bands.

use thane_mil::types::DType;

use super::{Call, Eval, Fault, uncopyable};
use crate::tensor::{Buffer, Tensor, alike};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("band_part", band_part),
    ("fill", fill),
    ("fill_like", fill),
    ("one_hot", one_hot),
    ("range_1d", range),
];

fn band_part(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let [outer @ .., n_rows, n_cols] = &x.shape[..] else {
        return Err("`x` has less than two axes".to_owned());
    };
    let (lower, upper) = (call.int_or("lower", -1), call.int_or("upper", -1));
    let n = outer.iter().product::<usize>() * n_rows;
    let (n_rows, n_cols) = (*n_rows, *n_cols);
    let copied = alike!(&mut out[0], &*x.data, |y, x| {
        let rows = y
            .chunks_exact_mut(n_cols.max(1))
            .zip(x.chunks_exact(n_cols.max(1)));
        for (i, (y, x)) in rows.take(n).enumerate() {
            let row = i % n_rows;
            let first = if lower < 0 {
                0
            } else {
                row.saturating_sub(lower as usize).min(n_cols)
            };
            let end = if upper < 0 {
                n_cols
            } else {
                row.saturating_add(upper as usize + 1).min(n_cols)
            };
            y.fill(Default::default());
            if first < end {
                y[first..end].copy_from_slice(&x[first..end]);
            }
        }
        true
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

/// The scalar bound to `name`, or another.
fn scalar_or(call: &Call<'_>, name: &str, default: Tensor) -> Tensor {
    call.opt_tensor(name).cloned().unwrap_or(default)
}

fn set_all(out: &mut Buffer, value: &Tensor, n: usize) -> Result<(), Fault> {
    let filled = alike!(out, &*value.data, |out, value| {
        match (out.get_mut(..n), value.first()) {
            (Some(out), Some(value)) => {
                out.fill(*value);
                true
            }
            _ => false,
        }
    });
    if filled {
        Ok(())
    } else {
        Err(uncopyable(value))
    }
}

fn fill(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let value = scalar_or(
        call,
        "value",
        Tensor::new(DType::Fp32, Vec::new(), Buffer::F32(vec![0.0].into())),
    );
    set_all(&mut out[0], &value, call.shape(0).iter().product())
}

/// An index that is no place of the row leaves all of it off.
fn one_hot(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let number = |v| Tensor::new(DType::Int32, Vec::new(), Buffer::I32(vec![v].into()));
    let (on, off) = (
        scalar_or(call, "on_value", number(1)),
        scalar_or(call, "off_value", number(0)),
    );
    let (indices, shape) = (call.tensor("indices")?, call.shape(0));
    let axis = call.axis("axis", -1, shape.len())?;
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    set_all(&mut out[0], &off, shape.iter().product())?;
    let ids = indices
        .to_ints()
        .ok_or("`indices` does not hold integers")?;
    for (i, id) in ids.into_iter().enumerate() {
        if let Some(k) = usize::try_from(id).ok().filter(|k| *k < n)
            && !out[0].copy_from((i / inner * n + k) * inner + i % inner, &on.data, 0, 1)
        {
            return Err(uncopyable(&on));
        }
    }
    Ok(())
}

fn range(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let n = call.shape(0)[0];
    match &mut out[0] {
        Buffer::I32(o) => {
            let (start, step) = (call.int_or("start", 0), call.int_or("step", 1));
            o.iter_mut()
                .take(n)
                .zip(0..)
                .for_each(|(o, k)| *o = (start + k * step) as i32);
        }
        Buffer::F32(o) => {
            let (start, step) = (call.f32_or("start", 0.0)?, call.f32_or("step", 1.0)?);
            o.iter_mut()
                .take(n)
                .enumerate()
                .for_each(|(k, o)| *o = start + k as f32 * step);
        }
        _ => return Err("range_1d gives fp32 or int32".to_owned()),
    }
    Ok(())
}
