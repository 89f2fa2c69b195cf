//! Gathering.

use super::{Call, Eval, Fault};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[("gather", gather)];

fn gather(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, indices) = (call.tensor("x")?, call.tensor("indices")?);
    let axis = call.axis("axis", 0, x.shape.len())?;
    let batch_dims = usize::try_from(call.int_or("batch_dims", 0)).unwrap_or(usize::MAX);
    let (n, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    let batch: usize = x.shape[..batch_dims.min(axis)].iter().product();
    let outer: usize = x.shape[batch_dims.min(axis)..axis].iter().product();
    let ids = indices.to_ints().ok_or("`indices` does not hold integers")?;
    let per_batch = ids.len() / batch.max(1);
    let mut at = 0;
    for b in 0..batch {
        for o in 0..outer {
            for id in &ids[b * per_batch..(b + 1) * per_batch] {
                let row = row(*id, n)?;
                let from = ((b * outer + o) * n + row) * inner;
                if !out[0].copy_from(at, &x.data, from, inner) {
                    return Err(format!("{} cannot be gathered", x.dtype));
                }
                at += inner;
            }
        }
    }
    Ok(())
}

/// An index counted from the end when negative.
pub fn row(index: i64, n: usize) -> Result<usize, Fault> {
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at).ok().filter(|r| *r < n).ok_or_else(|| format!("index {index} is outside of {n} rows"))
}
