//! Constants that are computed from smaller ones.

use super::{Call, Eval, Fault, f32_out, strides};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] =
    &[("constexpr_blockwise_shift_scale", blockwise_shift_scale), ("constexpr_lut_to_dense", lut_to_dense)];

/// Numbers of any type as fp32, which holds all codes exactly.
fn numbers(t: &Tensor) -> Vec<f32> {
    let mut out = Vec::with_capacity(t.len());
    t.each(|_, v| out.push(v as f32));
    out
}

/// The group of element `i` of a tensor of `shape`, when each axis is cut into `groups` equal parts.
fn group(i: usize, shape: &[usize], own: &[usize], groups: &[usize]) -> usize {
    (0..shape.len()).fold(0, |at, a| at * groups[a] + i / own[a] % shape[a] / (shape[a] / groups[a]))
}

fn blockwise_shift_scale(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, scale) = (call.tensor("data")?, call.tensor("scale")?);
    let (codes, scales) = (numbers(data), numbers(scale));
    let offsets = call.opt_tensor("offset").map(numbers);
    let own = strides(&data.shape);
    for (i, y) in f32_out(&mut out[0], codes.len())?.iter_mut().enumerate() {
        let g = group(i, &data.shape, &own, &scale.shape);
        *y = scales[g] * (codes[i] - offsets.as_ref().map_or(0.0, |o| o[g]));
    }
    Ok(())
}

fn lut_to_dense(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (indices, lut) = (call.tensor("indices")?, call.tensor("lut")?);
    let rank = indices.shape.len();
    let (groups, [entries, vector]) = (&lut.shape[..rank], [lut.shape[rank], lut.shape[rank + 1]]);
    let Buffer::U8(ids) = &*indices.data else { return Err("`indices` does not hold unsigned integers".to_owned()) };
    let shape = call.shape(0);
    let axis = if vector > 1 { call.axis("vector_axis", 0, rank)? } else { 0 };
    let (own, from) = (strides(&shape), strides(&indices.shape));
    for i in 0..shape.iter().product() {
        let coordinate = |a: usize| i / own[a] % shape[a];
        let part = if vector > 1 { coordinate(axis) % vector } else { 0 };
        let divisor = |a: usize| if a == axis { vector } else { 1 };
        let id = ids[(0..rank).map(|a| coordinate(a) / divisor(a) * from[a]).sum::<usize>()];
        let g = group(i, &shape, &own, groups);
        if !out[0].copy_from(i, &lut.data, (g * entries + usize::from(id)) * vector + part, 1) {
            return Err(format!("index {id} is outside of {entries} entries of {}", lut.dtype));
        }
    }
    Ok(())
}
