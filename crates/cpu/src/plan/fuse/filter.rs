//! A convolution of one channel along one axis, with many taps, and what is activated right behind.
//!
//! A product of each window with the only row of taps would use one lane of a vector. Neighbors
//! share most of their windows, so that several elements are computed of one span of x, by a matrix
//! whose rows are the taps behind ever more zeros:
//!
//! ```text
//! y[i..i + 3] = [a b c d . .; . a b c d .; . . a b c d] x[i..i + 6]
//! ```

use thane_kernels::activation::{Unary, unary_in_place};
use thane_kernels::linear::{Epilogue, Product, Start};
use thane_mil::opset::window::Windows;

use super::windows::{result_shape, turned, window, windows};
use super::*;

pub(super) const FUSIONS: &[Fusion] = &[Fusion::new(
    "filter",
    OneOf(&[TURNED, pattern!((ACTIVATIONS)((TURNED)))]),
    filter,
)];

const TURNED: Pattern = pattern!(rows @ transpose(made @ conv(turned @ transpose(x))));

/// Elements of one span, at most.
const SHIFTS: usize = 32;
/// Taps, at most: the matrix takes up to so many times their memory.
const MOST_TAPS: usize = 1 << 12;
/// Elements of spans that are made before they are multiplied: they should stay in the second cache
/// until then.
const SPANS_LEN: usize = 1 << 17;

/// A convolution of x [batch, places, 1].
#[derive(Debug)]
struct Filter {
    x: ValueId,
    weight: ValueId,
    n_taps: usize,
    stride: usize,
    windows: Windows,
    bias: Option<f32>,
    /// What becomes of each element.
    then: Option<Unary>,
    shifted: Option<Shifted>,
}

/// Weights, packed.
#[derive(Debug)]
struct Shifted {
    taps: Vec<f32>,
    /// [elements, span].
    matrix: Matrix,
    /// One for each element.
    bias: Option<Vec<f32>>,
}

fn filter(p: &mut Planner<'_>, found: Match<'_>) -> Option<Vec<Found>> {
    let (op, x) = turned(p, &found)?;
    let then = activated(p, found.root)?;
    let weight = op.value_arg("weight").filter(|w| is_float32(p, *w))?;
    let &[1, 1, n_taps] = p.known_shape(weight)?.as_slice() else {
        return None;
    };
    let stride = match op.arg("strides") {
        None => 1,
        Some(_) => usize::try_from(*ints(p, op, "strides")?.first()?).ok()?,
    };
    let bias = match constant_arg(p, op, "bias")? {
        None => None,
        Some(bias) => Some(*bias.f32s()?.first()?),
    };
    // With fewer taps, or further apart, most of the matrix would be zeros.
    let shares = stride > 0 && n_taps >= SHIFTS / 2 && n_taps / stride >= SHIFTS / 4;
    if !shares || n_taps > MOST_TAPS || !is_all(p, op, "dilations", 1) || !p.is_constant(weight) {
        return None;
    }
    let filter = Filter {
        x,
        weight,
        n_taps,
        stride,
        windows: windows(p, op, vec![n_taps])?,
        bias,
        then,
        shifted: None,
    };
    one(found, filter)
}

impl Kernel for Filter {
    fn facts(&self) -> Facts<'_> {
        Facts::new("filter", [self.x])
    }

    fn suit(&mut self, suit: &mut Suit<'_>) -> Result<(), Fault> {
        let taps = suit
            .dense(self.weight)
            .ok_or("its weight cannot be computed")?;
        let n_shifts = SHIFTS.min(self.n_taps / self.stride);
        let span = self.n_taps + (n_shifts - 1) * self.stride;
        let mut shifted = vec![0.0; n_shifts * span];
        for (i, row) in shifted.chunks_exact_mut(span).enumerate() {
            row[i * self.stride..][..self.n_taps].copy_from_slice(&taps);
        }
        let matrix = suit.folds.packed(suit.context, shifted, [n_shifts, span]);
        self.shifted = matrix.map(|matrix| Shifted {
            taps,
            matrix,
            bias: self.bias.map(|bias| vec![bias; n_shifts]),
        });
        Ok(())
    }

    fn run(&self, frame: &mut Frame<'_>, _: &Step) -> Result<Vec<Tensor>, Fault> {
        let shifted = self.shifted.as_ref().ok_or("its weight is not packed")?;
        let matrix = &shifted.matrix;
        let start = Start::from(shifted.bias.as_deref());
        let epilogue = self.then.map_or(Epilogue::None, Epilogue::Activated);
        let (n_shifts, span) = (matrix.stored.n_rows, matrix.stored.n_cols);
        let x = frame.get(self.x)?.clone();
        let window = window(&x.shape, &self.windows)?;
        let [.., axis] = window.axes;
        let shape = result_shape(&x.shape, &window, 1);
        let (mut out, n) = frame.pool.take_checked(&shape)?;
        let most = (SPANS_LEN / span).max(1);
        let (mut spans, mut made) = (
            frame.pool.take_checked(&[most, span])?.0,
            frame.pool.take_checked(&[most, n_shifts])?.0,
        );
        let images = floats(&x)?.chunks_exact(axis.size.max(1));
        for (image, out) in images.zip(out[..n].chunks_exact_mut(axis.n_places.max(1))) {
            for (part, out) in out.chunks_mut(most * n_shifts).enumerate() {
                let n_spans = out.len().div_ceil(n_shifts);
                for (i, row) in spans.chunks_exact_mut(span).take(n_spans).enumerate() {
                    let first = (part * most + i) * n_shifts * self.stride;
                    copy_padded(image, first, axis.before, row);
                }
                let y = &mut made[..n_spans * n_shifts];
                let operand = matrix.operand(frame.context, Demand::Stored);
                let mut products = [Product::new(operand, n_spans, start, y)];
                let rows = (&spans[..n_spans * span], n_spans);
                frame.multiply(&mut products, rows, epilogue)?;
                let all = spans
                    .chunks_exact(span)
                    .zip(made.chunks_exact_mut(n_shifts));
                for (row, y) in all.take(n_spans) {
                    // Zeros of the matrix times infinity would reach other windows.
                    if row.iter().any(|x| !x.is_finite()) {
                        self.one_by_one(frame, row, &shifted.taps, y);
                    }
                }
                out.copy_from_slice(&made[..out.len()]);
            }
        }
        [spans, made]
            .into_iter()
            .for_each(|room| frame.pool.give_f32(room));
        Ok(vec![Tensor::fp32(shape, out)])
    }

    fn work(&self, frame: &Frame<'_>) -> Work {
        let n_places = frame.n_elements(self.x) / self.stride as f64;
        Work::flops(2.0 * n_places * self.n_taps as f64)
    }
}

impl Filter {
    /// The elements of a span, each of its own window.
    fn one_by_one(&self, frame: &Frame<'_>, span: &[f32], taps: &[f32], y: &mut [f32]) {
        let windows = span.windows(taps.len()).step_by(self.stride);
        for (y, window) in y.iter_mut().zip(windows) {
            let sum: f32 = window.iter().zip(taps).map(|(x, tap)| x * tap).sum();
            *y = sum + self.bias.unwrap_or(0.0);
        }
        if let Some(op) = self.then {
            unary_in_place(frame.context, op, y);
        }
    }
}

/// The elements from `first` on of x with so many zeros before it, and zeros behind.
fn copy_padded(x: &[f32], first: usize, before: usize, to: &mut [f32]) {
    let (zeros, rest) = to.split_at_mut(before.saturating_sub(first).min(to.len()));
    let given = x.get(first.saturating_sub(before)..).unwrap_or_default();
    let (copied, behind) = rest.split_at_mut(given.len().min(rest.len()));
    zeros.fill(0.0);
    copied.copy_from_slice(&given[..copied.len()]);
    behind.fill(0.0);
}
