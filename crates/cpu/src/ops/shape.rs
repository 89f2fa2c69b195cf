//! Shapes: reshaping, slicing, joining, ranges.

use thane_mil::opset::shape::{SliceRange, slice_range};

use super::{Call, Eval, Fault, rows, strides};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("concat", concat),
    ("stack", stack),
    ("split", split),
    ("expand_dims", copy),
    ("squeeze", copy),
    ("reshape", copy),
    ("transpose", transpose),
    ("tile", tile),
    ("range_1d", range),
    ("shape", shape),
    ("slice_by_index", slice_by_index),
    ("slice_update", slice_update),
];

fn uncopyable(t: &Tensor) -> Fault {
    format!("{} cannot be copied here", t.dtype)
}

fn copy(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    if out[0].copy_from(0, &x.data, 0, x.len()) { Ok(()) } else { Err(uncopyable(x)) }
}

fn concat(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let values = call.tensors("values")?;
    let shape = &values[0].shape;
    let axis = call.axis("axis", 0, shape.len().max(1))?;
    let runs = if call.bool_or("interleave", false) { axis + 1 } else { axis };
    join(values, shape.iter().take(runs).product(), &mut out[0])
}

fn stack(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let values = call.tensors("values")?;
    let axis = call.axis("axis", 0, values[0].shape.len() + 1)?;
    join(values, values[0].shape[..axis].iter().product(), &mut out[0])
}

/// Runs of each value in turn, `outer` times.
fn join(values: &[Tensor], outer: usize, out: &mut Buffer) -> Result<(), Fault> {
    let mut at = 0;
    for o in 0..outer {
        for v in values {
            let run = v.len() / outer.max(1);
            if !out.copy_from(at, &v.data, o * run, run) {
                return Err(uncopyable(v));
            }
            at += run;
        }
    }
    Ok(())
}

fn split(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", 0, x.shape.len())?;
    let (outer, inner) = (x.shape[..axis].iter().product::<usize>(), x.shape[axis + 1..].iter().product::<usize>());
    let mut start = 0;
    for (i, part) in out.iter_mut().enumerate() {
        let run = call.shape(i)[axis] * inner;
        for o in 0..outer {
            if !part.copy_from(o * run, &x.data, o * x.shape[axis] * inner + start, run) {
                return Err(uncopyable(x));
            }
        }
        start += run;
    }
    Ok(())
}

fn transpose(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let rank = x.shape.len() as i64;
    let own = strides(&x.shape);
    let perm = call.ints("perm").ok_or("`perm` is not known")?;
    let moved: Vec<usize> = perm.into_iter().map(|p| own[(if p < 0 { p + rank } else { p }) as usize]).collect();
    place(&call.shape(0), &moved, 0, x, &mut out[0])
}

fn tile(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let own = strides(&x.shape);
    let shape = call.shape(0);
    // Each axis becomes two: the repetition, which does not move in x, and the axis itself.
    let mut dims = Vec::new();
    let mut moves = Vec::new();
    for (axis, n) in x.shape.iter().enumerate() {
        dims.extend([shape[axis] / (*n).max(1), *n]);
        moves.extend([0, own[axis]]);
    }
    place(&dims, &moves, 0, x, &mut out[0])
}

/// Fill the result with the elements of x at `start` and `moves` along the axes of `dims`.
fn place(dims: &[usize], moves: &[usize], start: usize, x: &Tensor, out: &mut Buffer) -> Result<(), Fault> {
    let mut copied = true;
    rows(dims, [moves], |at, [i], n, [step]| {
        copied &= match step {
            1 => out.copy_from(at, &x.data, start + i, n),
            _ => (0..n).all(|k| out.copy_from(at + k, &x.data, start + i + k * step, 1)),
        };
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

fn range(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let n = call.shape(0)[0];
    match &mut out[0] {
        Buffer::I32(o) => {
            let (start, step) = (call.int_or("start", 0), call.int_or("step", 1));
            o.iter_mut().take(n).zip(0..).for_each(|(o, k)| *o = (start + k * step) as i32);
        }
        Buffer::F32(o) => {
            let (start, step) = (call.f32_or("start", 0.0)?, call.f32_or("step", 1.0)?);
            o.iter_mut().take(n).enumerate().for_each(|(k, o)| *o = start + k as f32 * step);
        }
        _ => return Err("range_1d gives fp32 or int32".to_owned()),
    }
    Ok(())
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
