//! Tensors of stated content: fills, ranges, one-hot rows, bands.

use thane_mil::types::DType;

use super::{Call, Eval, Fault, uncopyable};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("band_part", band_part),
    ("fill", fill),
    ("fill_like", fill),
    ("one_hot", one_hot),
    ("range_1d", range),
];

fn band_part(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let [.., n_rows, n_cols] = x.shape[..] else {
        return Err("`x` has less than two axes".to_owned());
    };
    let (lower, upper) = (call.int_or("lower", -1), call.int_or("upper", -1));
    let zero = Buffer::zeros(x.dtype, 1, None).ok_or_else(|| uncopyable(x))?;
    let copied = (0..x.len()).all(|i| {
        let below = (i / n_cols % n_rows) as i64 - (i % n_cols) as i64;
        let is_inside = (lower < 0 || below <= lower) && (upper < 0 || -below <= upper);
        let (from, at) = if is_inside { (&*x.data, i) } else { (&zero, 0) };
        out[0].copy_from(i, from, at, 1)
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

/// The scalar bound to `name`, or another.
fn scalar_or(call: &Call<'_>, name: &str, default: Tensor) -> Tensor {
    call.opt_tensor(name).cloned().unwrap_or(default)
}

fn set_all(out: &mut Buffer, value: &Tensor, n: usize) -> Result<(), Fault> {
    if (0..n).all(|i| out.copy_from(i, &value.data, 0, 1)) {
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
