//! Blocks of an image, moved between its height and width and its channels or batch.

use super::{Call, Eval, Fault, place, strides, uncopyable};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("depth_to_space", |c, o| to_space(c, o, "block_size", true)),
    ("pixel_shuffle", |c, o| {
        to_space(c, o, "upscale_factor", false)
    }),
    ("space_to_depth", |c, o| to_depth(c, o, "block_size", true)),
    ("pixel_unshuffle", |c, o| {
        to_depth(c, o, "downscale_factor", false)
    }),
    ("space_to_batch", space_to_batch),
    ("batch_to_space", batch_to_space),
];

fn factor(call: &Call<'_>, name: &str) -> Result<usize, Fault> {
    usize::try_from(call.int_or(name, 0))
        .ok()
        .filter(|f| *f > 0)
        .ok_or_else(|| format!("`{name}` is not above 0"))
}

/// Channels become blocks: those of one block are `block_first` a run of all others apart, else
/// neighbors.
fn to_space(
    call: &Call<'_>,
    out: &mut [Buffer],
    name: &str,
    block_first: bool,
) -> Result<(), Fault> {
    let (x, f, shape) = (call.tensor("x")?, factor(call, name)?, call.shape(0));
    let (&[n, _, h, w], [.., c, _, _]) = (x.shape.as_slice(), &shape[..]) else {
        return Err("x is no image".to_owned());
    };
    let own = strides(&x.shape);
    let (channel, inside) = if block_first {
        (own[1], c * own[1])
    } else {
        (f * f * own[1], own[1])
    };
    let moves = [own[0], channel, own[2], f * inside, own[3], inside];
    place(
        call.context,
        &[n, *c, h, f, w, f],
        &moves,
        0,
        x,
        &mut out[0],
    )
}

/// Blocks become channels, in the same two orders.
fn to_depth(
    call: &Call<'_>,
    out: &mut [Buffer],
    name: &str,
    block_first: bool,
) -> Result<(), Fault> {
    let (x, f) = (call.tensor("x")?, factor(call, name)?);
    let &[n, c, h, w] = x.shape.as_slice() else {
        return Err("x is no image".to_owned());
    };
    let own = strides(&x.shape);
    let (h, w, down, right) = (h / f, w / f, f * own[2], f * own[3]);
    if block_first {
        place(
            call.context,
            &[n, f, f, c, h, w],
            &[own[0], own[2], own[3], own[1], down, right],
            0,
            x,
            &mut out[0],
        )
    } else {
        place(
            call.context,
            &[n, c, f, f, h, w],
            &[own[0], own[1], own[2], own[3], down, right],
            0,
            x,
            &mut out[0],
        )
    }
}

/// The sizes of a block, and what is before the height and the width.
fn block(call: &Call<'_>, borders: &str) -> Result<([usize; 2], [usize; 2]), Fault> {
    let size = |name: &str, at: usize| {
        let value = call.ints(name).and_then(|v| v.get(at).copied());
        value
            .and_then(|v| usize::try_from(v).ok())
            .ok_or_else(|| format!("`{name}` is no list of sizes"))
    };
    Ok((
        [size("block_shape", 0)?, size("block_shape", 1)?],
        [size(borders, 0)?, size(borders, 2)?],
    ))
}

/// The indices of each element of a result of four axes, in order.
fn places(shape: &[usize]) -> impl Iterator<Item = [usize; 4]> {
    let sizes = [shape[0], shape[1], shape[2], shape[3]];
    let own = strides(shape);
    (0..sizes.iter().product()).map(move |i| [0, 1, 2, 3].map(|a| i / own[a] % sizes[a]))
}

fn space_to_batch(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.tensor("x")?, call.shape(0));
    let (block, before) = block(call, "paddings")?;
    let own = strides(&x.shape);
    let n_images = x.shape[0];
    // What is not copied is padding.
    out[0].bytes_mut().fill(0);
    let copied = places(&shape).enumerate().all(|(at, [b, c, h, w])| {
        let (i, j) = (b / n_images / block[1], b / n_images % block[1]);
        let row = (h * block[0] + i)
            .checked_sub(before[0])
            .filter(|row| *row < x.shape[2]);
        let col = (w * block[1] + j)
            .checked_sub(before[1])
            .filter(|col| *col < x.shape[3]);
        let (Some(row), Some(col)) = (row, col) else {
            return true;
        };
        let from = b % n_images * own[0] + c * own[1] + row * own[2] + col;
        out[0].copy_from(at, &x.data, from, 1)
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}

fn batch_to_space(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (x, shape) = (call.tensor("x")?, call.shape(0));
    let (block, before) = block(call, "crops")?;
    let own = strides(&x.shape);
    let copied = places(&shape).enumerate().all(|(at, [b, c, row, col])| {
        let (row, col) = (row + before[0], col + before[1]);
        let image = (row % block[0] * block[1] + col % block[1]) * shape[0] + b;
        let from = image * own[0] + c * own[1] + row / block[0] * own[2] + col / block[1];
        out[0].copy_from(at, &x.data, from, 1)
    });
    if copied { Ok(()) } else { Err(uncopyable(x)) }
}
