//! Along an axis: sorting, running sums; and what is found by looking at values.

use std::cmp::Ordering;

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

/// The order of the elements of a line, equal ones as they stand, and last what is not a number.
fn order(values: &[f64], start: usize, lines: &Lines, ascending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lines.n).collect();
    order.sort_by(|a, b| {
        let (a, b) = (
            values[start + a * lines.step],
            values[start + b * lines.step],
        );
        let (low, high) = if ascending { (a, b) } else { (b, a) };
        a.is_nan()
            .cmp(&b.is_nan())
            .then(low.partial_cmp(&high).unwrap_or(Ordering::Equal))
    });
    order
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
    for start in lines.starts() {
        let order = order(&values, start, &lines, ascending);
        order
            .into_iter()
            .enumerate()
            .for_each(|(k, from)| o[start + k * lines.step] = from as i32);
    }
    Ok(())
}

/// `sort` asks for the order that is given in any case.
fn topk(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.shape.len())?;
    let (from, to) = (Lines::new(&x.shape, axis), Lines::new(&call.shape(0), axis));
    let (values, ascending) = (values(x), call.bool_or("ascending", false));
    let (best, places) = out.split_first_mut().ok_or("the op has no result")?;
    for (start, at) in from.starts().zip(to.starts()) {
        for (k, i) in order(&values, start, &from, ascending)
            .into_iter()
            .take(to.n)
            .enumerate()
        {
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
        _ => return Err(format!("cumsum is not defined for {}", x.dtype)),
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
