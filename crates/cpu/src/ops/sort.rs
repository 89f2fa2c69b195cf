//! Along an axis: sorting, running sums; and what is found by looking at values.

use std::cmp::Ordering;

use thane_kernels::topk::top_k;

use super::{Call, Eval, Fault, Sizes, strides, uncopyable};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("argsort", argsort),
    ("cumsum", cumsum),
    ("non_zero", non_zero),
    ("topk", topk),
];
pub(super) static SIZES: &[(&str, Sizes)] = &[("non_zero", |call| {
    let x = call.tensor("x")?;
    let mut n = 0;
    x.each(|_, v| n += usize::from(v != 0.0));
    Ok(vec![vec![n, x.shape.len()]])
})];

/// The elements along one axis: where each line of them starts, its length, and how far its
/// elements are apart.
struct Lines {
    n: usize,
    step: usize,
    n_outer: usize,
}

impl Lines {
    fn new(shape: &[usize], axis: usize) -> Self {
        let step = shape[axis + 1..].iter().product();
        Self {
            n: shape[axis],
            step,
            n_outer: shape[..axis].iter().product(),
        }
    }

    fn starts(&self) -> impl Iterator<Item = usize> {
        let (n, step) = (self.n, self.step);
        (0..self.n_outer).flat_map(move |o| (0..step).map(move |j| o * n * step + j))
    }
}

/// The first `k` elements of a line of `n` in the order of `compare`; equal ones as they stand.
fn first(n: usize, k: usize, compare: impl Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let compare = |a: &usize, b: &usize| compare(*a, *b).then(a.cmp(b));
    let mut order: Vec<usize> = (0..n).collect();
    if (1..n).contains(&k) {
        order.select_nth_unstable_by(k - 1, compare);
    }
    order.truncate(k);
    order.sort_unstable_by(compare);
    order
}

/// Falling, and last what is not a number.
fn falling<T: PartialOrd>(a: T, b: T) -> Ordering {
    let is_nan = |v: &T| v.partial_cmp(v).is_none();
    let nan_last = is_nan(&a).cmp(&is_nan(&b));
    nan_last.then(b.partial_cmp(&a).unwrap_or(Ordering::Equal))
}

/// The indices of the `k` greatest elements of a row, in falling order, equal ones as they stand,
/// and last what is not a number.
pub fn greatest(row: &[f32], k: usize) -> Vec<usize> {
    /// Elements up to which they are kept in order while the row is read once. Most elements cost a
    /// comparison, but each that is kept moves those behind it.
    const MOST_KEPT: usize = 256;
    if k > MOST_KEPT {
        return first(row.len(), k, |a, b| falling(row[a], row[b]));
    }
    let (mut indices, mut values) = (vec![0; k], vec![0.0; k]);
    let n_found = top_k(row, &mut indices, &mut values);
    indices.truncate(n_found);
    let others = (0..row.len()).filter(|i| row[*i].is_nan());
    indices.extend(others.take(k - n_found));
    indices
}

/// The first `k` elements of the line that starts at `start`.
fn first_of_line(
    values: &[f64],
    start: usize,
    lines: &Lines,
    k: usize,
    ascending: bool,
) -> Vec<usize> {
    let at = |i: usize| values[start + i * lines.step];
    if ascending {
        // NaN stays last.
        first(lines.n, k, |a, b| falling(-at(a), -at(b)))
    } else {
        first(lines.n, k, |a, b| falling(at(a), at(b)))
    }
}

fn values(x: &Tensor) -> Vec<f64> {
    let mut values = Vec::with_capacity(x.len());
    x.each(|_, v| values.push(v));
    values
}

fn argsort(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let lines = Lines::new(&x.shape, call.axis("axis", -1, x.shape.len())?);
    let (values, ascending) = (values(x), call.bool_or("ascending", false));
    let Buffer::I32(o) = &mut out[0] else {
        return Err("the result does not hold int32".to_owned());
    };
    let order = |start| first_of_line(&values, start, &lines, lines.n, ascending);
    if lines.step == 1 && lines.n > 0 {
        let o = o.get_mut(..x.len()).ok_or("the result is too short")?;
        let pool = call.context.pool();
        pool.run_chunks(o, lines.n, |line, o| {
            let order = order(line * lines.n);
            o.iter_mut()
                .zip(order)
                .for_each(|(o, from)| *o = from as i32);
        });
        return Ok(());
    }
    for start in lines.starts() {
        let order = order(start).into_iter().enumerate();
        order.for_each(|(k, from)| o[start + k * lines.step] = from as i32);
    }
    Ok(())
}

/// `sort` asks for the order that is given in any case.
fn topk(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.shape.len())?;
    let (from, to) = (Lines::new(&x.shape, axis), Lines::new(&call.shape(0), axis));
    let ascending = call.bool_or("ascending", false);
    let rows = x.f32s().filter(|_| from.step == 1 && !ascending);
    let values = if rows.is_some() {
        Vec::new()
    } else {
        values(x)
    };
    let (best, places) = out.split_first_mut().ok_or("the op has no result")?;
    for (start, at) in from.starts().zip(to.starts()) {
        let line = match rows {
            Some(rows) => greatest(&rows[start..start + from.n], to.n),
            None => first_of_line(&values, start, &from, to.n, ascending),
        };
        for (k, i) in line.into_iter().enumerate() {
            if !best.copy_from(at + k * to.step, &x.data, start + i * from.step, 1) {
                return Err(uncopyable(x));
            }
            match places.first_mut() {
                Some(Buffer::I32(o)) => o[at + k * to.step] = i as i32,
                Some(Buffer::U16(o)) => {
                    o[at + k * to.step] = u16::try_from(i)
                        .map_err(|_| format!("index {i} is above what uint16 holds"))?;
                }
                Some(_) => return Err("indices are int32 or uint16".to_owned()),
                None => {}
            }
        }
    }
    Ok(())
}

fn cumsum(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    fn scan<T: Copy + Default>(
        lines: &Lines,
        x: &[T],
        out: &mut [T],
        flags: (bool, bool),
        add: fn(T, T) -> T,
    ) {
        let (exclusive, reverse) = flags;
        for start in lines.starts() {
            let mut sum = T::default();
            for k in 0..lines.n {
                let at = start + if reverse { lines.n - 1 - k } else { k } * lines.step;
                let next = add(sum, x[at]);
                out[at] = if exclusive { sum } else { next };
                sum = next;
            }
        }
    }
    let x = call.tensor("x")?;
    let lines = Lines::new(&x.shape, call.axis("axis", 0, x.shape.len())?);
    let flags = (
        call.bool_or("exclusive", false),
        call.bool_or("reverse", false),
    );
    match (&*x.data, &mut out[0]) {
        (Buffer::F32(v), Buffer::F32(o)) => scan(&lines, v, o, flags, |a, b| a + b),
        (Buffer::I32(v), Buffer::I32(o)) => scan(&lines, v, o, flags, i32::wrapping_add),
        _ => return Err(call.undefined(&[x.dtype])),
    }
    Ok(())
}

fn non_zero(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let own = strides(&x.shape);
    let Buffer::I32(o) = &mut out[0] else {
        return Err("the result does not hold int32".to_owned());
    };
    let mut rows = o.chunks_exact_mut(x.shape.len().max(1));
    x.each(|i, v| {
        if v != 0.0
            && let Some(row) = rows.next()
        {
            row.iter_mut()
                .zip(&own)
                .zip(&x.shape)
                .for_each(|((r, step), n)| *r = (i / step % n) as i32);
        }
    });
    Ok(())
}
