//! The meaning of each op: a plain function on tensors, in files named like the groups of the
//! opset. Resampling of images has a file of its own, and ops of control flow, lists, states and
//! classes have none, because a plan runs them.
//!
//! These functions are the definition; plans replace some of them by kernels that must agree. They
//! compute in f32: fp16 arguments are widened before the call and fp16 results are rounded after
//! it.

use std::sync::atomic::{AtomicBool, Ordering};

use thane_kernels::Context;
use thane_mil::opset::OpDef;
use thane_mil::types::{DType, TensorType};

use crate::tensor::{Buffer, Tensor, alike};

mod activation;
mod block;
mod boxes;
mod by_row;
mod constexpr;
mod conv;
mod elementwise;
mod fill;
pub mod gather;
mod image;
mod join;
mod linear;
mod normalization;
mod permute;
mod pool;
mod quantization;
pub mod random;
mod recurrent;
mod reduce;
mod resample;
mod scatter;
mod shape;
pub mod slice;
pub mod sort;

pub use by_row::{BY_ROW, follow_from_types, goes_by_row};
pub use linear::{Mask, Operand};

/// Why an op fails on these values.
pub type Fault = String;

/// One bound parameter.
pub type Value = thane_mil::evaluate::Value<Tensor>;

/// An op on its arguments.
pub struct Call<'a> {
    /// Threads and instructions.
    pub context: &'a Context,
    /// The op.
    pub def: &'static OpDef,
    /// One entry for each parameter.
    pub args: &'a [Option<Value>],
    /// Types of the results, every dimension known.
    pub results: &'a [TensorType],
}

/// Computes the results of an op.
pub type Eval = fn(&Call<'_>, &mut [Buffer]) -> Result<(), Fault>;

/// The shapes of the results of an op where they follow from the data of its arguments, found
/// before buffers are taken.
pub type Sizes = fn(&Call<'_>) -> Result<Vec<Vec<usize>>, Fault>;

/// Ops by name. Those of state and `const` are missing: a plan does them itself.
static GROUPS: &[&[(&str, Eval)]] = &[
    activation::OPS,
    block::OPS,
    boxes::OPS,
    constexpr::OPS,
    conv::OPS,
    elementwise::OPS,
    fill::OPS,
    gather::OPS,
    image::OPS,
    join::OPS,
    linear::OPS,
    normalization::OPS,
    permute::OPS,
    pool::OPS,
    quantization::OPS,
    random::OPS,
    recurrent::OPS,
    reduce::OPS,
    resample::OPS,
    scatter::OPS,
    shape::OPS,
    slice::OPS,
    sort::OPS,
];

/// The meaning of the op of that name.
pub fn find(name: &str) -> Option<Eval> {
    GROUPS
        .iter()
        .flat_map(|g| g.iter())
        .find(|(n, _)| *n == name)
        .map(|(_, eval)| *eval)
}

/// Ops that compute on copies of what they are given, of 8 bytes an element at most.
static COPYING: &[&[(&str, Eval)]] = &[
    constexpr::OPS,
    conv::OPS,
    gather::OPS,
    linear::OPS,
    reduce::OPS,
    resample::OPS,
    scatter::OPS,
    sort::OPS,
];

/// Bytes that an op needs beside its arguments and results, where they are worth counting.
pub fn working_bytes(name: &str, args: &[Option<Value>], results: &[TensorType]) -> usize {
    /// Elements whose copies are not counted.
    const FEW: usize = 1 << 14;
    let given = args.iter().flatten().map(|arg| match arg {
        Value::Tensor(t) => t.len(),
        Value::Tensors(ts) => ts.iter().map(Tensor::len).sum(),
        Value::Literal(_) => 0,
    });
    let n = given.sum::<usize>()
        + results
            .iter()
            .filter_map(TensorType::n_elements)
            .sum::<usize>();
    let is_copying = || {
        COPYING
            .iter()
            .flat_map(|group| group.iter())
            .any(|(other, _)| *other == name)
    };
    if n > FEW && is_copying() {
        n.saturating_mul(8)
    } else {
        0
    }
}

/// The ops whose result sizes depend on data.
static SIZES: &[&[(&str, Sizes)]] = &[sort::SIZES];

/// The sizes of the op of that name, where they follow from its data.
pub fn find_sizes(name: &str) -> Option<Sizes> {
    SIZES
        .iter()
        .flat_map(|g| g.iter())
        .find(|(n, _)| *n == name)
        .map(|(_, sizes)| *sizes)
}

impl<'a> Call<'a> {
    fn arg(&self, name: &str) -> Option<&'a Value> {
        self.args.get(self.def.param_index(name)?)?.as_ref()
    }

    /// The tensor bound to `name`.
    pub fn tensor(&self, name: &str) -> Result<&'a Tensor, Fault> {
        match self.arg(name) {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(format!("`{name}` is not bound to a tensor")),
        }
    }

    /// The tensor bound to `name`, if one is.
    pub fn opt_tensor(&self, name: &str) -> Option<&'a Tensor> {
        self.tensor(name).ok()
    }

    /// The tensors bound to `name`.
    pub fn tensors(&self, name: &str) -> Result<&'a [Tensor], Fault> {
        match self.arg(name) {
            Some(Value::Tensors(ts)) if !ts.is_empty() => Ok(ts),
            _ => Err(format!("`{name}` is not bound to tensors")),
        }
    }

    /// The fp32 elements bound to `name`.
    pub fn f32s(&self, name: &str) -> Result<&'a [f32], Fault> {
        self.tensor(name)?
            .f32s()
            .ok_or_else(|| format!("`{name}` does not hold fp32"))
    }

    /// One number, or `default` when `name` is not bound.
    pub fn f32_or(&self, name: &str, default: f32) -> Result<f32, Fault> {
        match self.opt_tensor(name) {
            None => Ok(default),
            Some(t) => t
                .f32s()
                .and_then(|v| v.first().copied())
                .ok_or_else(|| format!("`{name}` is no number")),
        }
    }

    /// The error of an op that has no meaning for elements of these types.
    pub fn undefined(&self, dtypes: &[DType]) -> Fault {
        let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        let (op, names) = (self.def.name, names.join(" and "));
        format!("{op} is not defined for {names}")
    }

    /// The integers bound to `name`, if any are.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.opt_tensor(name)?.to_ints()
    }

    /// One integer, or `default` when `name` is not bound.
    pub fn int_or(&self, name: &str, default: i64) -> i64 {
        self.ints(name)
            .and_then(|v| v.first().copied())
            .unwrap_or(default)
    }

    /// One truth value, or `default` when `name` is not bound.
    pub fn bool_or(&self, name: &str, default: bool) -> bool {
        self.int_or(name, i64::from(default)) != 0
    }

    /// The string bound to `name`.
    pub fn string(&self, name: &str) -> Option<&'a str> {
        match self.arg(name)? {
            Value::Literal(l) => l.as_str(),
            _ => None,
        }
    }

    /// The known shape of result `i`.
    pub fn shape(&self, i: usize) -> Vec<usize> {
        self.results[i].known_shape().unwrap_or_default()
    }

    /// An axis counted from the end when negative.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, Fault> {
        let axis = self.int_or(name, default);
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(at)
            .ok()
            .filter(|a| *a < rank)
            .ok_or_else(|| format!("axis {axis} is outside of rank {rank}"))
    }
}

/// The fp32 elements of a result of `n`.
pub fn f32_out(out: &mut Buffer, n: usize) -> Result<&mut [f32], Fault> {
    match out {
        Buffer::F32(v) if v.len() >= n => Ok(&mut v[..n]),
        _ => Err("the result does not hold fp32".to_owned()),
    }
}

/// Elements from one index to the next along each axis of a row-major tensor.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}

/// Walk a row-major `shape` in rows: the start of each row in the result, its starts in the
/// operands, and how far an operand moves from an element of the row to the next. Operands have
/// these strides along the axes of `shape`.
pub fn rows<const N: usize>(
    shape: &[usize],
    operands: [&[usize]; N],
    mut row: impl FnMut(usize, [usize; N], usize, [usize; N]),
) {
    if shape.contains(&0) {
        return;
    }
    let (dims, strides) = merge_axes(shape, operands);
    let Some((&n, outer)) = dims.split_last() else {
        row(0, [0; N], 1, [0; N]);
        return;
    };
    let steps: [usize; N] = std::array::from_fn(|k| strides[k][outer.len()]);
    let n_rows: usize = outer.iter().product();
    let mut index = vec![0; outer.len()];
    let mut starts = [0; N];
    for r in 0..n_rows {
        row(r * n, starts, n, steps);
        for axis in (0..outer.len()).rev() {
            index[axis] += 1;
            (0..N).for_each(|k| starts[k] += strides[k][axis]);
            if index[axis] < outer[axis] {
                break;
            }
            (0..N).for_each(|k| starts[k] -= strides[k][axis] * outer[axis]);
            index[axis] = 0;
        }
    }
}

/// [`rows`] of a result, shared by the threads: each row of the result, and where it begins in the
/// operands.
fn shared_rows<T: Send, const N: usize>(
    context: &Context,
    shape: &[usize],
    operands: [&[usize]; N],
    out: &mut [T],
    row: impl Fn(&mut [T], [usize; N], [usize; N]) + Sync,
) {
    let (dims, strides) = merge_axes(shape, operands);
    let all = |dims: &[usize], strides: [&[usize]; N], first: [usize; N], out: &mut [T]| {
        rows(dims, strides, |at, starts, n, steps| {
            let starts = std::array::from_fn(|k| first[k] + starts[k]);
            row(&mut out[at..at + n], starts, steps);
        });
    };
    let own: [&[usize]; N] = std::array::from_fn(|k| strides[k].as_slice());
    let Some((&first, inner)) = dims.split_first().filter(|_| out.len() > SHARED_LEN) else {
        return all(&dims, own, [0; N], out);
    };
    // Parts of the first axis, which may be the only one.
    let inner_len = inner.iter().product::<usize>().max(1);
    let n_in_task = SHARED_LEN.div_ceil(inner_len).min(first);
    let pool = context.pool();
    pool.run_chunks(out, n_in_task * inner_len, |i, out| {
        let mut dims = dims.clone();
        dims[0] = out.len() / inner_len;
        let first = std::array::from_fn(|k| i * n_in_task * strides[k][0]);
        all(&dims, own, first, out);
    });
}

/// Join axes that every operand walks as one.
fn merge_axes<const N: usize>(
    shape: &[usize],
    operands: [&[usize]; N],
) -> (Vec<usize>, [Vec<usize>; N]) {
    let mut dims: Vec<usize> = Vec::new();
    let mut strides: [Vec<usize>; N] = std::array::from_fn(|_| Vec::new());
    for (axis, &n) in shape.iter().enumerate() {
        if n == 1 {
            continue;
        }
        let joins =
            !dims.is_empty() && (0..N).all(|k| strides[k][dims.len() - 1] == operands[k][axis] * n);
        if joins {
            let last = dims.len() - 1;
            dims[last] *= n;
            (0..N).for_each(|k| strides[k][last] = operands[k][axis]);
        } else {
            dims.push(n);
            (0..N).for_each(|k| strides[k].push(operands[k][axis]));
        }
    }
    (dims, strides)
}

/// The strides of an operand of `shape` along the axes of a result of `rank` axes; 0 where it is
/// repeated.
pub fn broadcast_strides(shape: &[usize], rank: usize) -> Vec<usize> {
    let own = strides(shape);
    let pad = rank - shape.len();
    (0..rank)
        .map(|i| {
            if i < pad || shape[i - pad] == 1 {
                0
            } else {
                own[i - pad]
            }
        })
        .collect()
}

/// Fill the result with the elements of x at `start` and `moves` along the axes of `dims`.
fn place(
    context: &Context,
    dims: &[usize],
    moves: &[usize],
    start: usize,
    x: &Tensor,
    out: &mut Buffer,
) -> Result<(), Fault> {
    let by = (context, dims, moves, start);
    let copied = alike!(out, &*x.data, |out, from| place_elements(by, from, out));
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

/// Runs of elements that lie together.
#[derive(Clone, Copy)]
struct Runs {
    n_runs: usize,
    len: usize,
    /// Whether each is copied from its last element to its first.
    is_turned: bool,
}

impl Runs {
    fn new(n_runs: usize, len: usize) -> Self {
        Self {
            n_runs,
            len,
            is_turned: false,
        }
    }
}

/// Fill the result with runs of elements of x, of which run i begins at `start(i)`.
fn copy_runs(
    context: &Context,
    runs: Runs,
    x: &Tensor,
    out: &mut Buffer,
    start: impl Fn(usize) -> usize + Sync,
) -> Result<(), Fault> {
    fn copy<T: Copy>(to: &mut [T], from: &[T], start: usize, is_turned: bool) -> Option<()> {
        let from = from.get(start..)?.get(..to.len())?;
        if is_turned {
            let from = from.iter().rev();
            to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        } else {
            to.copy_from_slice(from);
        }
        Some(())
    }
    let (n_runs, n) = (runs.n_runs, runs.len);
    if n == 0 {
        return Ok(());
    }
    let copied = alike!(out, &*x.data, |out, x| {
        let copied = AtomicBool::new(n_runs * n <= out.len());
        let n_in_task = SHARED_LEN.div_ceil(n);
        let out = out.get_mut(..n_runs * n).unwrap_or_default();
        let pool = context.pool();
        pool.run_chunks(out, n_in_task * n, |task_idx, out| {
            for (run, i) in out.chunks_exact_mut(n).zip(task_idx * n_in_task..) {
                if copy(run, x, start(i), runs.is_turned).is_none() {
                    copied.store(false, Ordering::Relaxed);
                }
            }
        });
        copied.into_inner()
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

/// As [`place`], of elements of one type; false where one is not there.
fn place_elements<T: Copy + Send + Sync>(
    (context, dims, moves, start): (&Context, &[usize], &[usize], usize),
    from: &[T],
    out: &mut [T],
) -> bool {
    let Some(out) = out.get_mut(..dims.iter().product()) else {
        return false;
    };
    if out.is_empty() {
        return true;
    }
    let (mut dims, [mut moves]) = merge_axes(dims, [moves]);
    if dims.is_empty() {
        (dims, moves) = (vec![1], vec![1]);
    }
    if out.len() > SHARED_LEN {
        return place_shared(context, &dims, &moves, (start, from), out);
    }
    copy_part(out, (start, from), &dims, &moves).is_some()
}

/// Elements that take as long to copy as to hand to another thread.
const SHARED_LEN: usize = 1 << 14;

/// As [`place_elements`], shared by the threads.
fn place_shared<T: Copy + Send + Sync>(
    context: &Context,
    dims: &[usize],
    moves: &[usize],
    (start, from): (usize, &[T]),
    out: &mut [T],
) -> bool {
    let ([first, inner @ ..], [first_move, inner_moves @ ..]) = (dims, moves) else {
        return false;
    };
    let inner_len = out.len() / first;
    let n_in_task = (SHARED_LEN / inner_len).max(1);
    let copied = AtomicBool::new(true);
    context
        .pool()
        .run_chunks(out, n_in_task * inner_len, |task_idx, out| {
            let start = start + task_idx * n_in_task * first_move;
            let dims = [&[out.len() / inner_len], inner].concat();
            let moves = [&[*first_move], inner_moves].concat();
            if copy_part(out, (start, from), &dims, &moves).is_none() {
                copied.store(false, Ordering::Relaxed);
            }
        });
    copied.into_inner()
}

/// Fill `out` with the elements of `from` at `start` and `moves` along the axes of `dims`; None
/// where one is not there.
fn copy_part<T: Copy>(
    out: &mut [T],
    (start, from): (usize, &[T]),
    dims: &[usize],
    moves: &[usize],
) -> Option<()> {
    let (last, outer) = (*moves.last()?, &moves[..moves.len() - 1]);
    // What lies together in `from` along another axis than the last is read together.
    if let Some(near) = outer.iter().position(|m| *m == 1).filter(|_| last != 1) {
        return copy_turned(out, (start, from), dims, moves, near);
    }
    let mut copied = Some(());
    rows(dims, [moves], |at, [i], n, [step]| {
        if copied.is_some() {
            copied = copy(&mut out[at..at + n], from, start + i, step);
        }
    });
    copied
}

/// As [`copy_part`], by tiles of the last axis and of axis `near`, along which the elements of
/// `from` lie together: else each element would be read from a cache line of its own.
fn copy_turned<T: Copy>(
    out: &mut [T],
    (start, from): (usize, &[T]),
    dims: &[usize],
    moves: &[usize],
    near: usize,
) -> Option<()> {
    const TILE: usize = 16;
    let last = dims.len() - 1;
    let own = strides(dims);
    let mut others = dims.to_vec();
    (others[near], others[last]) = (1, 1);
    let end = start
        + dims
            .iter()
            .zip(moves)
            .map(|(n, m)| (n - 1) * m)
            .sum::<usize>();
    from.get(end)?;
    let (n_rows, n_cols, row_len, step) = (dims[near], dims[last], own[near], moves[last]);
    rows(
        &others,
        [&own, moves],
        |_, [to, at], n, [to_step, at_step]| {
            for k in 0..n {
                let (to, at) = (to + k * to_step, start + at + k * at_step);
                for row in (0..n_rows).step_by(TILE) {
                    for col in (0..n_cols).step_by(TILE) {
                        for r in row..(row + TILE).min(n_rows) {
                            let n = TILE.min(n_cols - col);
                            let out = &mut out[to + r * row_len + col..][..n];
                            for (c, out) in out.iter_mut().enumerate() {
                                *out = from[at + r + (col + c) * step];
                            }
                        }
                    }
                }
            }
        },
    );
    Some(())
}

/// The elements of `from` that are `step` apart, from `start` on; None where one is not there.
fn copy<T: Copy>(to: &mut [T], from: &[T], start: usize, step: usize) -> Option<()> {
    if step == 1 {
        to.copy_from_slice(from.get(start..)?.get(..to.len())?);
        return Some(());
    }
    for (k, to) in to.iter_mut().enumerate() {
        *to = *from.get(start + k * step)?;
    }
    Some(())
}

fn uncopyable(t: &Tensor) -> Fault {
    format!("{} cannot be copied here", t.dtype)
}
