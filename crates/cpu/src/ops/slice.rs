//! Slices: parts of a tensor, read and written.

use thane_kernels::Context;
use thane_mil::opset::slice::{SliceRange, size_range, slice_ranges};
use thane_mil::types::TensorType;

use super::shape::copy;
use super::{Call, Eval, Fault, place, strides, uncopyable};
use crate::tensor::{Buffer, Pool, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("slice_by_index", slice_by_index),
    ("slice_by_size", slice_by_size),
    ("slice_update", slice_update),
    ("sliding_windows", sliding_windows),
];

/// Strides of x, and the indices that the arguments take along each of its axes.
fn slice(call: &Call<'_>, x: &Tensor) -> Result<(Vec<usize>, Vec<SliceRange>), Fault> {
    let indices = slice_ranges(&x.shape, |name| call.ints(name)).map_err(|e| e.0)?;
    Ok((strides(&x.shape), indices))
}

/// Visit the position in x of each element of a slice, in order, a run of elements that lie
/// together at a time. `own` are the strides of x.
fn visit(own: &[usize], indices: &[SliceRange], mut run: impl FnMut(usize, usize) -> bool) -> bool {
    // Axes that are taken whole lie together with the one in front of them.
    let is_whole = |axis: usize| {
        let size = if axis == 0 {
            0
        } else {
            own[axis - 1] / own[axis].max(1)
        };
        indices[axis].is_whole(size)
    };
    let mut inner = indices.len();
    while inner > 1 && is_whole(inner - 1) {
        inner -= 1;
    }
    let run_len: usize = indices[inner..].iter().map(SliceRange::len).product();
    let Some((last, outer)) = indices[..inner].split_last() else {
        return run(0, 1);
    };
    let n_outer: usize = outer.iter().map(SliceRange::len).product();
    (0..n_outer).all(|mut r| {
        let mut base = 0;
        for (axis, choices) in outer.iter().enumerate().rev() {
            base += choices.get(r % choices.len()) * own[axis];
            r /= choices.len();
        }
        let step = own[inner - 1];
        match last.step {
            _ if last.is_empty() || run_len == 0 => true,
            1 => run(base + last.start * step, last.len() * run_len),
            _ => last.indices().all(|i| run(base + i * step, run_len)),
        }
    })
}

fn slice_by_index(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let (own, indices) = slice(call, x)?;
    take(call.context, x, (&own, &indices), &mut out[0])
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
    take(call.context, x, (&strides(&x.shape), &indices), &mut out[0])
}

fn take(
    context: &Context,
    x: &Tensor,
    (own, indices): (&[usize], &[SliceRange]),
    out: &mut Buffer,
) -> Result<(), Fault> {
    let steps = indices.iter().map(|range| usize::try_from(range.step));
    if let Ok(steps) = steps.collect::<Result<Vec<_>, _>>() {
        let dims: Vec<usize> = indices.iter().map(SliceRange::len).collect();
        // An axis of one element does not move, whatever its step.
        let moves = own.iter().zip(steps).zip(&dims);
        let moves = moves.map(|((own, step), n)| if *n > 1 { own * step } else { 0 });
        let start = own
            .iter()
            .zip(indices)
            .map(|(own, range)| own * range.start);
        let moves = moves.collect::<Vec<_>>();
        return place(context, &dims, &moves, start.sum(), x, out);
    }
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

/// Replaces a part of `x`, in its own buffer where nothing else holds that; `masks` are those of
/// `begin`, `end`, and of axes that are taken at one index and dropped.
pub fn update_in_place(
    pool: &mut Pool,
    x: &mut Tensor,
    update: &Tensor,
    [begin, end]: [Vec<i64>; 2],
    masks: [Option<Vec<i64>>; 3],
) -> Result<(), Fault> {
    let [begin_mask, end_mask, squeeze_mask] = masks;
    let indices = slice_ranges(&x.shape, |name| match name {
        "begin" => Some(begin.clone()),
        "end" => Some(end.clone()),
        "begin_mask" => begin_mask.clone(),
        "end_mask" => end_mask.clone(),
        "squeeze_mask" => squeeze_mask.clone(),
        _ => None,
    });
    let indices = indices.map_err(|e| e.0)?;
    let is_kept = |axis: usize| squeeze_mask.as_ref().is_none_or(|mask| mask[axis] == 0);
    let kept = indices.iter().enumerate();
    let kept = kept.filter(|(axis, _)| is_kept(*axis));
    let sizes: Vec<usize> = kept.map(|(_, range)| range.len()).collect();
    if sizes != update.shape {
        let found = TensorType::new(update.dtype, update.shape.iter().copied());
        return Err(format!(
            "`update`: expected the shape {sizes:?}, found {found}"
        ));
    }
    let own = strides(&x.shape);
    let to = pool.own(x)?;
    let mut at = 0;
    let copied = visit(&own, &indices, |start, n| {
        at += n;
        to.copy_from(start, &update.data, at - n, n)
    });
    if copied {
        Ok(())
    } else {
        Err(uncopyable(update))
    }
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
