//! Shapes: the same elements in another shape.

use super::{Call, Eval, Fault, uncopyable};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("expand_dims", copy),
    ("squeeze", copy),
    ("reshape", copy),
    ("reshape_like", copy),
    ("flatten2d", copy),
    ("shape", shape),
];

/// The elements of x as they are.
pub(super) fn copy(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    if out[0].copy_from(0, &x.data, 0, x.len()) {
        Ok(())
    } else {
        Err(uncopyable(x))
    }
}

fn shape(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let Buffer::I32(o) = &mut out[0] else {
        return Err("the result does not hold int32".to_owned());
    };
    o.iter_mut()
        .zip(&call.tensor("x")?.shape)
        .for_each(|(o, n)| *o = *n as i32);
    Ok(())
}
