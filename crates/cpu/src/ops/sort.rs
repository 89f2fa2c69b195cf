//! Order, and what is found by looking at values.

use super::{Call, Eval, Fault, Sizes, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[("non_zero", non_zero)];
pub(super) static SIZES: &[(&str, Sizes)] = &[("non_zero", |call| {
    let x = call.tensor("x")?;
    let mut n = 0;
    x.each(|_, v| n += usize::from(v != 0.0));
    Ok(vec![vec![n, x.shape.len()]])
})];

fn non_zero(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let own = strides(&x.shape);
    let Buffer::I32(o) = &mut out[0] else { return Err("the result does not hold int32".to_owned()) };
    let mut rows = o.chunks_exact_mut(x.shape.len().max(1));
    x.each(|i, v| {
        if v != 0.0
            && let Some(row) = rows.next()
        {
            row.iter_mut().enumerate().for_each(|(a, r)| *r = (i / own[a] % x.shape[a]) as i32);
        }
    });
    Ok(())
}
