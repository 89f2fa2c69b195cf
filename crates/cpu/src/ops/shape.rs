//! Shapes: reshaping, slicing.

use thane_mil::opset::shape::{SliceRange, slice_range};

use super::{Call, Eval, Fault, place, strides, uncopyable};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("expand_dims", copy),
    ("squeeze", copy),
    ("reshape", copy),
    ("flatten2d", copy),
    ("transpose", transpose),
    ("shape", shape),
    ("slice_by_index", slice_by_index),
    ("slice_update", slice_update),
];

fn copy(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    if out[0].copy_from(0, &x.data, 0, x.len()) { Ok(()) } else { Err(uncopyable(x)) }
}

fn transpose(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let rank = x.shape.len() as i64;
    let own = strides(&x.shape);
    let perm = call.ints("perm").ok_or("`perm` is not known")?;
    let moved: Vec<usize> = perm.into_iter().map(|p| own[(if p < 0 { p + rank } else { p }) as usize]).collect();
    place(&call.shape(0), &moved, 0, x, &mut out[0])
}

fn shape(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let Buffer::I32(o) = &mut out[0] else { return Err("the result does not hold int32".to_owned()) };
    o.iter_mut().zip(&call.tensor("x")?.shape).for_each(|(o, n)| *o = *n as i32);
    Ok(())
}

/// Strides of x, and the indices that the arguments take along each of its axes.
fn slice(call: &Call<'_>, x: &Tensor) -> Result<(Vec<usize>, Vec<SliceRange>), Fault> {
    let n = x.shape.len();
    let flags = |name| call.ints(name).unwrap_or_else(|| vec![0; n]);
    let (begin_mask, end_mask, squeeze) = (flags("begin_mask"), flags("end_mask"), flags("squeeze_mask"));
    let stride = call.ints("stride").unwrap_or_else(|| vec![1; n]);
    let (begin, end) =
        (call.ints("begin").ok_or("`begin` is not known")?, call.ints("end").ok_or("`end` is not known")?);
    let mut indices = Vec::with_capacity(n);
    for a in 0..n {
        let (b, e, step) = if squeeze[a] != 0 {
            let first = if begin_mask[a] != 0 { 0 } else { begin[a] };
            let row = super::gather::row(first, x.shape[a])? as i64;
            (Some(row), Some(row + 1), 1)
        } else {
            ((begin_mask[a] == 0).then(|| begin[a]), (end_mask[a] == 0).then(|| end[a]), stride[a])
        };
        indices.push(slice_range(x.shape[a], b, e, step).map_err(|e| e.0)?);
    }
    Ok((strides(&x.shape), indices))
}

/// Visit the position in x of each element of a slice, in order, a run of the last axis at a time where it is one.
fn visit(own: &[usize], indices: &[SliceRange], mut run: impl FnMut(usize, usize) -> bool) -> bool {
    let Some((last, outer)) = indices.split_last() else { return run(0, 1) };
    let n_outer: usize = outer.iter().map(SliceRange::len).product();
    (0..n_outer).all(|mut r| {
        let mut base = 0;
        for (axis, choices) in outer.iter().enumerate().rev() {
            base += choices.get(r % choices.len()) * own[axis];
            r /= choices.len();
        }
        match last.step {
            _ if last.is_empty() => true,
            1 => run(base + last.start, last.len()),
            _ => last.indices().all(|i| run(base + i, 1)),
        }
    })
}

fn slice_by_index(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let (own, indices) = slice(call, x)?;
    let mut at = 0;
    let copied = visit(&own, &indices, |from, n| {
        at += n;
        out[0].copy_from(at - n, &x.data, from, n)
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

fn slice_update(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, update) = (call.tensor("x")?, call.tensor("update")?);
    copy(call, out)?;
    let (own, indices) = slice(call, x)?;
    let mut at = 0;
    let copied = visit(&own, &indices, |to, n| {
        at += n;
        out[0].copy_from(to, &update.data, at - n, n)
    });
    if copied { Ok(()) } else { Err(uncopyable(update)) }
}
