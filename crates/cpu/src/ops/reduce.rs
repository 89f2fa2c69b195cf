//! Reductions along axes.

use thane_kernels::wide::{dot_f64, sum_f64};
use thane_kernels::{Context, Isa};
use thane_mil::types::DType;

use super::{Call, Eval, Fault, SHARED_LEN, merge_axes, rows, strides};
use crate::tensor::{Buffer, Tensor};

/// How integers are joined: from which one on, and what becomes of it and the next element. They
/// wrap.
type Integers = (i32, fn(i32, i32) -> i32);

pub(super) static OPS: &[(&str, Eval)] = &[
    ("reduce_argmax", |c, o| position(c, o, |a, b| a > b)),
    ("reduce_argmin", |c, o| position(c, o, |a, b| a < b)),
    ("reduce_l1_norm", |c, o| {
        let integers: Integers = (0, |a, b| a.wrapping_add(b.wrapping_abs()));
        reduce(c, o, (0.0, f64::abs, sum), |v, _| v, Some(integers))
    }),
    ("reduce_l2_norm", |c, o| {
        reduce(c, o, (0.0, |v| v * v, sum), |v, _| v.sqrt(), None)
    }),
    ("reduce_log_sum", |c, o| {
        reduce(c, o, (0.0, |v| v, sum), |v, _| v.ln(), None)
    }),
    ("reduce_log_sum_exp", log_sum_exp),
    ("reduce_max", |c, o| {
        reduce(c, o, (f64::NEG_INFINITY, |v| v, larger), |v, _| v, None)
    }),
    ("reduce_mean", |c, o| {
        reduce(c, o, (0.0, |v| v, sum), |v, n| v / n, None)
    }),
    ("reduce_min", |c, o| {
        reduce(c, o, (f64::INFINITY, |v| v, smaller), |v, _| v, None)
    }),
    ("reduce_prod", |c, o| {
        let integers: Integers = (1, i32::wrapping_mul);
        reduce(c, o, (1.0, |v| v, |a, b| a * b), |v, _| v, Some(integers))
    }),
    ("reduce_sum", |c, o| {
        let integers: Integers = (0, i32::wrapping_add);
        reduce(c, o, (0.0, |v| v, sum), |v, _| v, Some(integers))
    }),
    ("reduce_sum_square", |c, o| {
        let integers: Integers = (0, |a, b| a.wrapping_add(b.wrapping_mul(b)));
        reduce(c, o, (0.0, |v| v * v, sum), |v, _| v, Some(integers))
    }),
];

fn sum(a: f64, b: f64) -> f64 {
    a + b
}

/// The smaller; what is not a number stays.
fn smaller(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// The larger; what is not a number stays.
fn larger(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// For each element of x, in order: its value and the element of the result that it belongs to.
pub(super) fn fold(shape: &[usize], axes: &[usize], mut visit: impl FnMut(usize, usize)) {
    let target = target_strides(shape, axes);
    rows(shape, [&target], |i, [to], n, [step]| {
        (0..n).for_each(|k| visit(i + k, to + k * step));
    });
}

/// How far an element of the result is from the next along each axis of x: 0 where that is reduced.
pub(super) fn target_strides(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    let is_reduced = |axis: usize| axes.contains(&axis);
    let kept = shape.iter().enumerate();
    let kept: Vec<usize> = kept
        .map(|(i, n)| if is_reduced(i) { 1 } else { *n })
        .collect();
    let strides = strides(&kept).into_iter().enumerate();
    strides
        .map(|(i, s)| if is_reduced(i) { 0 } else { s })
        .collect()
}

/// The axes that are reduced.
fn axes(call: &Call<'_>, rank: usize) -> Vec<usize> {
    let rank = rank as i64;
    let axes = call.ints("axes").unwrap_or_else(|| (0..rank).collect());
    axes.into_iter()
        .map(|a| (if a < 0 { a + rank } else { a }) as usize)
        .collect()
}

/// `join`, from `start` on, of what `map` makes of each element; `end` takes what was joined and
/// the number of elements.
fn reduce(
    call: &Call<'_>,
    out: &mut [Buffer],
    (start, map, join): (
        f64,
        impl Fn(f64) -> f64 + Sync,
        impl Fn(f64, f64) -> f64 + Sync,
    ),
    end: impl Fn(f64, f64) -> f64,
    integers: Option<Integers>,
) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axes = axes(call, x.shape.len());
    if let (Some((start, join)), Buffer::I32(v), Buffer::I32(o)) = (integers, &*x.data, &mut out[0])
    {
        o.fill(start);
        fold(&x.shape, &axes, |i, to| o[to] = join(o[to], v[i]));
        return Ok(());
    }
    let count: usize = axes.iter().map(|a| x.shape[*a]).product();
    let mut joined = vec![start; call.shape(0).iter().product()];
    if let Some(values) = x.f32s() {
        let map = |v: &f32| map(f64::from(*v));
        let along = (&x.shape[..], &axes[..]);
        let isa = call.context.isa();
        let kernel = kernel_of_rows(call.def.name);
        let by_row = |row: &[f32], to: usize, step, joined: &mut [f64]| match kernel {
            Some(sum) if step == 0 => joined[to] += sum(isa, row),
            _ => join_row(row, (to, step), (start, map, &join), joined),
        };
        join_rows(call.context, along, values, by_row, &mut joined);
    } else {
        let values = values(x);
        fold(&x.shape, &axes, |i, to| {
            joined[to] = join(joined[to], map(values[i]));
        });
    }
    joined.iter_mut().for_each(|s| *s = end(*s, count as f64));
    finish(call, out, &joined)
}

/// Joins the elements row by row: a row is joined to one result, or each element to its own.
/// Threads share the results where the first axis is kept.
fn join_rows(
    context: &Context,
    (shape, axes): (&[usize], &[usize]),
    values: &[f32],
    join: impl Fn(&[f32], usize, usize, &mut [f64]) + Sync,
    joined: &mut [f64],
) {
    let (own, target) = (strides(shape), target_strides(shape, axes));
    let (dims, [from, to]) = merge_axes(shape, [&own, &target]);
    let all = |dims: &[usize], first: usize, joined: &mut [f64]| {
        rows(dims, [&from, &to], |_, [start, to], n, [_, step]| {
            join(&values[first + start..][..n], to, step, joined);
        });
    };
    let (Some(&n_first), Some(&kept)) = (dims.first(), to.first()) else {
        return all(&dims, 0, joined);
    };
    if kept == 0 || values.len() <= SHARED_LEN {
        return all(&dims, 0, joined);
    }
    let n_in_task = SHARED_LEN.div_ceil(values.len() / n_first).min(n_first);
    let pool = context.pool();
    pool.run_chunks(joined, n_in_task * kept, |task_idx, joined| {
        let mut dims = dims.clone();
        dims[0] = joined.len() / kept;
        all(&dims, task_idx * n_in_task * from[0], joined);
    });
}

/// The kernel that adds up a whole row for the op of that name.
fn kernel_of_rows(name: &str) -> Option<fn(Isa, &[f32]) -> f64> {
    match name {
        "reduce_mean" | "reduce_sum" => Some(sum_f64),
        "reduce_sum_square" => Some(|isa, row| dot_f64(isa, row, row)),
        _ => None,
    }
}

/// Joins a row to the result at `to`, or each element to its own, `step` apart.
fn join_row(
    row: &[f32],
    (to, step): (usize, usize),
    (start, map, join): (f64, impl Fn(&f32) -> f64, impl Fn(f64, f64) -> f64),
    joined: &mut [f64],
) {
    /// Elements that are joined beside each other, as none of them waits for another.
    const LANES: usize = 8;
    if step != 0 {
        let to = joined[to..].iter_mut().step_by(step);
        to.zip(row).for_each(|(to, v)| *to = join(*to, map(v)));
        return;
    }
    let mut lanes = [start; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for (lane, v) in lanes.iter_mut().zip(values) {
            *lane = join(*lane, map(v));
        }
    }
    let rest = rest.iter().map(&map);
    let all = lanes.into_iter().chain(rest);
    joined[to] = all.fold(joined[to], &join);
}

/// Of sums of large numbers too: exp(x - max) does not overflow.
fn log_sum_exp(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axes = axes(call, x.shape.len());
    let values = values(x);
    let mut most = vec![f64::NEG_INFINITY; call.shape(0).iter().product()];
    fold(&x.shape, &axes, |i, to| {
        most[to] = larger(most[to], values[i])
    });
    // inf - inf is not a number, ln(exp(inf)) is inf.
    most.iter_mut()
        .filter(|m| m.is_infinite())
        .for_each(|m| *m = 0.0);
    let mut sums = vec![0.0; most.len()];
    fold(&x.shape, &axes, |i, to| {
        sums[to] += (values[i] - most[to]).exp()
    });
    sums.iter_mut()
        .zip(&most)
        .for_each(|(s, m)| *s = s.ln() + m);
    finish(call, out, &sums)
}

fn values(x: &Tensor) -> Vec<f64> {
    let mut values = Vec::with_capacity(x.len());
    x.each(|_, v| values.push(v));
    values
}

/// Round to the element type of the result; integers are truncated towards zero.
fn finish(call: &Call<'_>, out: &mut [Buffer], values: &[f64]) -> Result<(), Fault> {
    match &mut out[0] {
        Buffer::F32(o) => o.iter_mut().zip(values).for_each(|(o, v)| *o = *v as f32),
        Buffer::I32(o) => o.iter_mut().zip(values).for_each(|(o, v)| *o = *v as i32),
        _ => return Err(call.undefined(&[call.results[0].dtype])),
    }
    Ok(())
}

/// For each of the columns of matrices [n, inner] of x, the row of the element that is better than
/// all above it; of what is not a number the first is the best.
fn find_places<T: Copy + PartialOrd + Sync>(
    context: &Context,
    x: &[T],
    [n, inner]: [usize; 2],
    is_better: impl Fn(T, T) -> bool + Sync,
    places: &mut [usize],
) {
    /// Columns that are looked at together.
    const MOST: usize = 256;
    let is_number = |v: T| v.partial_cmp(&v).is_some();
    let is_better = |v: T, best: T| is_number(best) && (is_better(v, best) || !is_number(v));
    if n == 0 {
        return;
    }
    // The rows of the best of some columns, of which the first element is at `start`.
    let search = |start: usize, places: &mut [usize]| {
        let mut best = [x[start]; MOST];
        best[..places.len()].copy_from_slice(&x[start..][..places.len()]);
        for k in 1..n {
            let row = &x[start + k * inner..][..places.len()];
            for ((v, best), place) in row.iter().zip(&mut best).zip(&mut *places) {
                if is_better(*v, *best) {
                    (*best, *place) = (*v, k);
                }
            }
        }
    };
    let line = |line: &[T]| {
        let better = |best: usize, k: usize| {
            if is_better(line[k], line[best]) {
                k
            } else {
                best
            }
        };
        (1..n).fold(0, better)
    };
    let n_in_task = SHARED_LEN.div_ceil(n);
    let pool = context.pool();
    pool.run_chunks(places, n_in_task, |task_idx, mut places| {
        let mut column = task_idx * n_in_task;
        if inner == 1 {
            let lines = x[column * n..].chunks_exact(n);
            let places = places.iter_mut().zip(lines);
            return places.for_each(|(place, values)| *place = line(values));
        }
        while !places.is_empty() {
            let (block, first) = (column / inner * n * inner, column % inner);
            let n_columns = places.len().min(inner - first).min(MOST);
            let (some, rest) = places.split_at_mut(n_columns);
            search(block + first, some);
            column += n_columns;
            places = rest;
        }
    });
}

/// The position of the first element that is better than all before it.
fn position(
    call: &Call<'_>,
    out: &mut [Buffer],
    is_better: impl Fn(f64, f64) -> bool + Sync,
) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let axis = call.axis("axis", -1, x.shape.len())?;
    let sizes = [x.shape[axis], x.shape[axis + 1..].iter().product()];
    let mut places = vec![0; call.shape(0).iter().product()];
    let context = call.context;
    if let Some(values) = x.f32s() {
        let is_better = |a: f32, b: f32| is_better(f64::from(a), f64::from(b));
        find_places(context, values, sizes, is_better, &mut places);
    } else {
        find_places(context, &values(x), sizes, is_better, &mut places);
    }
    let places = places.into_iter();
    match (&mut out[0], call.results[0].dtype) {
        (Buffer::I32(o), _) => o.iter_mut().zip(places).for_each(|(o, at)| *o = at as i32),
        (o, DType::Uint16) => {
            for (o, at) in o.bytes_mut().as_chunks_mut().0.iter_mut().zip(places) {
                let at = u16::try_from(at)
                    .map_err(|_| format!("position {at} is too large for uint16"))?;
                *o = at.to_ne_bytes();
            }
        }
        (_, dtype) => return Err(format!("a position cannot be {dtype} here")),
    }
    Ok(())
}
