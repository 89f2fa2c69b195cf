//! Scattering: updates are applied in their order, so that the last of those to one element wins.

use super::gather::{Along, indices, offset, reader};
use super::{Call, Eval, Fault};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("scatter", scatter),
    ("scatter_along_axis", along_axis),
    ("scatter_nd", scatter_nd),
];

fn scatter(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, ids, place) = (call.tensor("data")?, indices(call)?, reader(call));
    let axis = call.axis("axis", 0, data.shape.len())?;
    let (n, inner) = (
        data.shape[axis],
        data.shape[axis + 1..].iter().product::<usize>(),
    );
    let outer: usize = data.shape[..axis].iter().product();
    let starts = (0..outer * ids.len())
        .map(|k| Ok((k / ids.len() * n + place(ids[k % ids.len()], n)?) * inner));
    apply(call, &mut out[0], inner, starts)
}

fn along_axis(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, updates, ids, place) = (
        call.tensor("data")?,
        call.tensor("updates")?,
        indices(call)?,
        reader(call),
    );
    let axis = call.axis("axis", 0, data.shape.len())?;
    let along = Along::new(&data.shape, &updates.shape, axis);
    let starts = ids
        .iter()
        .enumerate()
        .map(|(i, id)| Ok(along.place(i, place(*id, along.n)?)));
    apply(call, &mut out[0], 1, starts)
}

fn scatter_nd(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (data, ids, place) = (call.tensor("data")?, indices(call)?, reader(call));
    let shape = &call.tensor("indices")?.shape;
    let depth = shape.last().copied().unwrap_or(0);
    let n_rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
    let inner = data.shape[depth..].iter().product();
    let starts =
        (0..n_rows).map(|row| offset(&ids[row * depth..(row + 1) * depth], &data.shape, place));
    apply(call, &mut out[0], inner, starts)
}

/// The result is `data` with the runs of `n` elements at `starts` changed by the runs of `updates`,
/// in turn.
fn apply(
    call: &Call<'_>,
    out: &mut Buffer,
    n: usize,
    starts: impl Iterator<Item = Result<usize, Fault>>,
) -> Result<(), Fault> {
    let (data, updates) = (call.tensor("data")?, call.tensor("updates")?);
    let undefined = || call.undefined(&[data.dtype]);
    if !out.copy_from(0, &data.data, 0, data.len()) {
        return Err(undefined());
    }
    let mode = call.string("mode").unwrap_or("add");
    match (out, &*updates.data) {
        (Buffer::F32(o), Buffer::F32(u)) => merge(o, u, n, starts, float_mode(mode)?),
        (Buffer::I32(o), Buffer::I32(u)) => merge(o, u, n, starts, int_mode(mode)?),
        _ => Err(undefined()),
    }
}

fn merge<T: Copy>(
    out: &mut [T],
    updates: &[T],
    n: usize,
    starts: impl Iterator<Item = Result<usize, Fault>>,
    mode: fn(T, T) -> T,
) -> Result<(), Fault> {
    for (k, start) in starts.enumerate() {
        let start = start?;
        let (to, from) = (
            out.get_mut(start..start + n),
            updates.get(k * n..(k + 1) * n),
        );
        let (to, from) = to.zip(from).ok_or("an update is outside of its tensor")?;
        to.iter_mut().zip(from).for_each(|(o, u)| *o = mode(*o, *u));
    }
    Ok(())
}

fn unknown(mode: &str) -> Fault {
    format!("`mode` is `{mode}`, which is not known")
}

fn float_mode(mode: &str) -> Result<fn(f32, f32) -> f32, Fault> {
    Ok(match mode {
        "update" => |_, u| u,
        "add" => |o, u| o + u,
        "sub" => |o, u| o - u,
        "mul" => |o, u| o * u,
        "div" => |o, u| o / u,
        // Not a number on either side gives not a number, as in `maximum`.
        "max" => |o, u| if o > u || o.is_nan() { o } else { u },
        "min" => |o, u| if o < u || o.is_nan() { o } else { u },
        _ => return Err(unknown(mode)),
    })
}

fn int_mode(mode: &str) -> Result<fn(i32, i32) -> i32, Fault> {
    Ok(match mode {
        "update" => |_, u| u,
        "add" => i32::wrapping_add,
        "sub" => i32::wrapping_sub,
        "mul" => i32::wrapping_mul,
        // Truncated towards zero, and 0 by 0, as in `real_div`.
        "div" => |o, u| if u == 0 { 0 } else { o.wrapping_div(u) },
        "max" => i32::max,
        "min" => i32::min,
        _ => return Err(unknown(mode)),
    })
}
