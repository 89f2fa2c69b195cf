//! Gathering.

use super::{Call, Eval, Fault, Runs, copy_runs, strides};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("gather", gather),
    ("gather_along_axis", along_axis),
    ("gather_nd", gather_nd),
];

fn gather(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, ids, place) = (call.tensor("x")?, indices(call)?, reader(call));
    let axis = call.axis("axis", 0, x.shape.len())?;
    let batch_dims = usize::try_from(call.int_or("batch_dims", 0)).unwrap_or(usize::MAX);
    let (n, inner) = (x.shape[axis], x.shape[axis + 1..].iter().product::<usize>());
    let batch: usize = x.shape[..batch_dims.min(axis)].iter().product();
    let outer: usize = x.shape[batch_dims.min(axis)..axis].iter().product();
    let per_batch = ids.len() / batch.max(1);
    let places: Vec<usize> = ids
        .into_iter()
        .map(|id| place(id, n))
        .collect::<Result<_, _>>()?;
    let runs = Runs::new(batch * outer * per_batch, inner);
    copy_runs(call.context, runs, x, &mut out[0], |run| {
        let (block, k) = (run / per_batch, run % per_batch);
        (block * n + places[block / outer * per_batch + k]) * inner
    })
}

fn along_axis(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, ids, place) = (call.tensor("x")?, indices(call)?, reader(call));
    let axis = call.axis("axis", 0, x.shape.len())?;
    let along = Along::new(&x.shape, &call.shape(0), axis);
    let places: Vec<usize> = ids
        .into_iter()
        .enumerate()
        .map(|(i, id)| Ok(along.place(i, place(id, along.n)?)))
        .collect::<Result<_, Fault>>()?;
    copy_runs(
        call.context,
        Runs::new(places.len(), 1),
        x,
        &mut out[0],
        |i| places[i],
    )
}

fn gather_nd(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, ids, place) = (call.tensor("x")?, indices(call)?, reader(call));
    let batch_dims = usize::try_from(call.int_or("batch_dims", 0))
        .unwrap_or(usize::MAX)
        .min(x.shape.len());
    let shape = &call.tensor("indices")?.shape;
    let depth = shape.last().copied().unwrap_or(0);
    let (batch, own) = (
        x.shape[..batch_dims].iter().product::<usize>(),
        &x.shape[batch_dims..],
    );
    let n_rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let per_batch = n_rows / batch.max(1);
    let inner = own[depth..].iter().product();
    let starts: Vec<usize> = (0..n_rows)
        .map(|row| {
            let start = (row / per_batch.max(1)) * own.iter().product::<usize>();
            Ok(start + offset(&ids[row * depth..(row + 1) * depth], own, place)?)
        })
        .collect::<Result<_, Fault>>()?;
    copy_runs(
        call.context,
        Runs::new(n_rows, inner),
        x,
        &mut out[0],
        |row| starts[row],
    )
}

/// Two shapes that differ in the size of one axis at most.
pub(super) struct Along {
    /// Size of the axis in the first shape.
    pub n: usize,
    other: usize,
    inner: usize,
}

impl Along {
    pub fn new(shape: &[usize], other: &[usize], axis: usize) -> Self {
        Self {
            n: shape[axis],
            other: other[axis],
            inner: shape[axis + 1..].iter().product(),
        }
    }

    /// Where element `i` of the second shape is in the first, at `index` along the axis.
    pub fn place(&self, i: usize, index: usize) -> usize {
        let outer = i / (self.inner * self.other).max(1);
        (outer * self.n + index) * self.inner + i % self.inner.max(1)
    }
}

/// The elements bound to `indices`.
pub(super) fn indices(call: &Call<'_>) -> Result<Vec<i64>, Fault> {
    call.ints("indices")
        .ok_or_else(|| "`indices` does not hold integers".to_owned())
}

/// Where the element at `place` along the first axes of `shape` begins.
pub(super) fn offset(place: &[i64], shape: &[usize], read: ReadIndex) -> Result<usize, Fault> {
    let strides = strides(shape);
    let mut at = 0;
    for ((index, n), stride) in place.iter().zip(shape).zip(strides) {
        at += read(*index, *n)? * stride;
    }
    Ok(at)
}

/// Makes an index along an axis of some size a place.
pub(super) type ReadIndex = fn(i64, usize) -> Result<usize, Fault>;

/// How the op reads its indices: an op that validates them takes no negative ones.
pub(super) fn reader(call: &Call<'_>) -> ReadIndex {
    if call.bool_or("validate_indices", false) {
        positive_row
    } else {
        row
    }
}

fn positive_row(index: i64, n: usize) -> Result<usize, Fault> {
    let at = usize::try_from(index).ok().filter(|r| *r < n);
    at.ok_or_else(|| format!("index {index} is outside of {n} rows, counted from 0"))
}

/// An index counted from the end when negative.
pub fn row(index: i64, n: usize) -> Result<usize, Fault> {
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at)
        .ok()
        .filter(|r| *r < n)
        .ok_or_else(|| format!("index {index} is outside of {n} rows"))
}
