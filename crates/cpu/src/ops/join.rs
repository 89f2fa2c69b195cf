//! Joining, cutting and lengthening.

use super::{Call, Eval, Fault, SHARED_LEN, f32_out, place, strides, uncopyable};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("concat", concat),
    ("stack", stack),
    ("split", split),
    ("tile", tile),
    ("pad", pad),
];

fn concat(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let values = call.tensors("values")?;
    let shape = &values[0].shape;
    let axis = call.axis("axis", 0, shape.len().max(1))?;
    let runs = if call.bool_or("interleave", false) {
        axis + 1
    } else {
        axis
    };
    join(values, shape.iter().take(runs).product(), &mut out[0])
}

fn stack(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let values = call.tensors("values")?;
    let axis = call.axis("axis", 0, values[0].shape.len() + 1)?;
    join(
        values,
        values[0].shape[..axis].iter().product(),
        &mut out[0],
    )
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
    let (outer, inner) = (
        x.shape[..axis].iter().product::<usize>(),
        x.shape[axis + 1..].iter().product::<usize>(),
    );
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
    place(call.context, &dims, &moves, 0, x, &mut out[0])
}

fn pad(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let x = call.tensor("x")?;
    let values = call.f32s("x")?;
    let (shape, own) = (call.shape(0), strides(&x.shape));
    let amounts = call.ints("pad").ok_or("`pad` is not known")?;
    let mode = call.string("mode").unwrap_or("constant");
    let edge = match mode {
        "constant" => |_, _| None,
        "reflect" => |k: i64, n: i64| Some(if k < 0 { -k } else { 2 * n - 2 - k }),
        "replicate" => |k: i64, n: i64| (n > 0).then(|| k.clamp(0, n - 1)),
        _ => return Err(format!("`mode` is `{mode}`, which is not known")),
    };
    let constant = call.f32_or("constant_val", 0.0)?;
    let first = shape.len() - amounts.len() / 2;
    let n = shape.iter().product();
    let y = f32_out(&mut out[0], n)?;
    if shape.is_empty() || n == 0 {
        y.copy_from_slice(&values[..n]);
        return Ok(());
    }
    // Where index `i` of the result along an axis is in x.
    let place = |axis: usize, i: usize| -> Option<usize> {
        let (before, n) = (
            axis.checked_sub(first).map_or(0, |a| amounts[2 * a]),
            x.shape[axis] as i64,
        );
        let k = i as i64 - before;
        let is_inside = |k: &i64| (0..n).contains(k);
        let k = Some(k).filter(is_inside).or_else(|| edge(k, n));
        Some(usize::try_from(k.filter(is_inside)?).ok()? * own[axis])
    };
    // The farthest from x are at the ends.
    let ends = |axis: usize| place(axis, 0).and(place(axis, shape[axis] - 1));
    let is_open = |axis: &usize| mode != "constant" && ends(*axis).is_none();
    if let Some(axis) = (0..shape.len()).find(is_open) {
        return Err(match x.shape[axis] {
            0 => "an axis without elements has no edge".to_owned(),
            n => format!("expected padding of less than the {n} elements of axis {axis}"),
        });
    }
    let (last, n_last) = (shape.len() - 1, shape[shape.len() - 1]);
    let pool = call.context.pool();
    pool.run_chunks(y, SHARED_LEN, |i, mut y| {
        let mut at = i * SHARED_LEN;
        while !y.is_empty() {
            let (mut row, from) = (at / n_last, at % n_last);
            let (part, rest) = y.split_at_mut(y.len().min(n_last - from));
            at += part.len();
            y = rest;
            let along = (0..last).rev().map(|axis| {
                let i = row % shape[axis];
                row /= shape[axis];
                place(axis, i)
            });
            let Some(start) = along.sum::<Option<usize>>() else {
                part.fill(constant);
                continue;
            };
            for (y, i) in part.iter_mut().zip(from..) {
                *y = place(last, i).map_or(constant, |at| values[start + at]);
            }
        }
    });
    Ok(())
}
