//! Pools, computed in f64.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use thane_mil::opset::window::{Window, Windows};

use super::{Call, Eval, Fault, SHARED_LEN, f32_out};
use crate::tensor::Buffer;

pub(super) static OPS: &[(&str, Eval)] = &[
    ("avg_pool", avg_pool),
    ("l2_pool", l2_pool),
    ("max_pool", max_pool),
];

/// A place of the window along one axis: the elements in it, and how many it has with those of the
/// padding.
struct Place {
    elements: Range<usize>,
    n_padded: usize,
}

impl Place {
    fn new(w: Window, at: usize, size: usize) -> Self {
        let start = at * w.stride;
        let end = start + w.kernel;
        let elements =
            start.saturating_sub(w.before).min(size)..end.saturating_sub(w.before).min(size);
        // What `ceil_mode` lets stand out beyond the padding does not count, as in PyTorch.
        Self {
            elements,
            n_padded: end.min(w.before + size + w.after).saturating_sub(start),
        }
    }
}

/// Compute each element of the result from the elements in the window, and how many it has with
/// those of the padding; `purpose` completes the error for a window without elements.
fn pool(
    call: &Call<'_>,
    out: &mut [Buffer],
    purpose: &str,
    each: impl Fn(&mut dyn Iterator<Item = f64>, f64) -> Option<f64> + Sync,
) -> Result<(), Fault> {
    let (x, shape) = (call.f32s("x")?, &call.tensor("x")?.shape);
    let to = call.shape(0);
    let pad_type = call
        .string("pad_type")
        .unwrap_or("valid")
        .to_ascii_lowercase();
    let kernel = call.ints("kernel_sizes").unwrap_or_default();
    let kernel: Option<Vec<usize>> = kernel
        .into_iter()
        .map(|n| usize::try_from(n).ok())
        .collect();
    let kernel = kernel.ok_or("`kernel_sizes` has a negative number")?;
    let windows = Windows::new(kernel, &pad_type, |name| Ok(call.ints(name))).map_err(|e| e.0)?;
    // Axes that x lacks are of one element and come first.
    let lacks = 5 - shape.len();
    let (mut input, mut output) = ([1; 3], [1; 3]);
    let mut moves = [Window::ONE; 3];
    input[lacks..].copy_from_slice(&shape[2..]);
    output[lacks..].copy_from_slice(&to[2..]);
    for axis in lacks..3 {
        moves[axis] = windows.along(axis - lacks, input[axis]).map_err(|e| e.0)?;
    }
    let place = |axis: usize, at: usize| Place::new(moves[axis], at, input[axis]);
    let (n_places, n_plane): (usize, usize) = (output.iter().product(), input.iter().product());
    let y = f32_out(&mut out[0], to.iter().product())?;
    let of_place = |i: usize| {
        let (plane, at) = (i / n_places * n_plane, i % n_places);
        let (a, b) = (
            place(0, at / output[2] / output[1]),
            place(1, at / output[2] % output[1]),
        );
        let c = place(2, at % output[2]);
        let rows = a.elements.clone().flat_map(|i| {
            b.elements
                .clone()
                .map(move |j| (i * input[1] + j) * input[2])
        });
        let mut elements = rows.flat_map(|row| {
            x[plane + row..][c.elements.clone()]
                .iter()
                .map(|v| f64::from(*v))
        });
        // Their product may be beyond usize: padding is not held.
        let n_padded = [a.n_padded, b.n_padded, c.n_padded]
            .map(|n| n as f64)
            .iter()
            .product();
        each(&mut elements, n_padded)
    };
    let is_whole = AtomicBool::new(true);
    let pool = call.context.pool();
    pool.run_chunks(y, SHARED_LEN, |task_idx, y| {
        for (y, i) in y.iter_mut().zip(task_idx * SHARED_LEN..) {
            if call.context.is_over() {
                return;
            }
            match of_place(i) {
                Some(value) => *y = value as f32,
                None => is_whole.store(false, Ordering::Relaxed),
            }
        }
    });
    if is_whole.into_inner() {
        Ok(())
    } else {
        Err(format!(
            "a place of the window has no elements to {purpose}"
        ))
    }
}

fn avg_pool(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let excludes = call.bool_or("exclude_padding_from_average", false);
    pool(call, out, "average", |elements, n_padded| {
        let (n, sum) = elements.fold((0.0, 0.0), |(n, sum), v| (n + 1.0, sum + v));
        match if excludes { n } else { n_padded } {
            0.0 => None,
            n => Some(sum / n),
        }
    })
}

fn l2_pool(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    pool(call, out, "add up", |elements, _| {
        Some(elements.map(|v| v * v).sum::<f64>().sqrt())
    })
}

fn max_pool(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    // What is not a number counts as the largest.
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    pool(call, out, "take the largest of", |elements, _| {
        elements.reduce(larger)
    })
}
