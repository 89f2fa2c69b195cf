//! Slices: parts of a tensor, read and written.

use thane_mil::opset::slice::{SliceRange, size_range, slice_range};

use super::shape::copy;
use super::{Call, Eval, Fault, place, strides, uncopyable};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("slice_by_index", slice_by_index),
    ("slice_by_size", slice_by_size),
    ("slice_update", slice_update),
    ("sliding_windows", sliding_windows),
];

/// Strides of x, and the indices that the arguments take along each of its axes.
fn slice(call: &Call<'_>, x: &Tensor) -> Result<(Vec<usize>, Vec<SliceRange>), Fault> {
    let n = x.shape.len();
    let flags = |name| call.ints(name).unwrap_or_else(|| vec![0; n]);
    let (begin_mask, end_mask, squeeze) = (
        flags("begin_mask"),
        flags("end_mask"),
        flags("squeeze_mask"),
    );
    let stride = call.ints("stride").unwrap_or_else(|| vec![1; n]);
    let (begin, end) = (
        call.ints("begin").ok_or("`begin` is not known")?,
        call.ints("end").ok_or("`end` is not known")?,
    );
    let mut indices = Vec::with_capacity(n);
    for a in 0..n {
        let (b, e, step) = if squeeze[a] != 0 {
            let first = if begin_mask[a] != 0 { 0 } else { begin[a] };
            let row = super::gather::row(first, x.shape[a])? as i64;
            (Some(row), Some(row + 1), 1)
        } else {
            (
                (begin_mask[a] == 0).then(|| begin[a]),
                (end_mask[a] == 0).then(|| end[a]),
                stride[a],
            )
        };
        indices.push(slice_range(x.shape[a], b, e, step).map_err(|e| e.0)?);
    }
    Ok((strides(&x.shape), indices))
}

/// Visit the position in x of each element of a slice, in order, a run of the last axis at a time
/// where it is one.
fn visit(own: &[usize], indices: &[SliceRange], mut run: impl FnMut(usize, usize) -> bool) -> bool {
    let Some((last, outer)) = indices.split_last() else {
        return run(0, 1);
    };
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
    take(x, &own, &indices, &mut out[0])
}

fn slice_by_size(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let (begin, size) = (
        call.ints("begin").ok_or("`begin` is not known")?,
        call.ints("size").ok_or("`size` is not known")?,
    );
    let ranges = x
        .shape
        .iter()
        .zip(begin.iter().zip(&size))
        .map(|(n, (begin, size))| size_range(*n, *begin, *size));
    let indices = ranges.collect::<Result<Vec<_>, _>>().map_err(|e| e.0)?;
    take(x, &strides(&x.shape), &indices, &mut out[0])
}

fn take(x: &Tensor, own: &[usize], indices: &[SliceRange], out: &mut Buffer) -> Result<(), Fault> {
    let mut at = 0;
    let copied = visit(own, indices, |from, n| {
        at += n;
        out.copy_from(at - n, &x.data, from, n)
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

fn sliding_windows(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", 0, x.shape.len())?;
    let stride = usize::try_from(call.int_or("stride", 1)).map_err(|_| "`stride` is negative")?;
    let mut moves = strides(&x.shape);
    let step = moves[axis];
    moves[axis] = step * stride;
    moves.insert(axis + 1, step);
    place(call.context, &call.shape(0), &moves, 0, x, &mut out[0])
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
    if copied {
        Ok(())
    } else {
        Err(uncopyable(update))
    }
}
